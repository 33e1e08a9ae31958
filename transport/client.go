package transport

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/replica"
	"holdfast/transport/socketio"
)

// client is the Socket.IO side of one session: it holds the client to the protocol and passes
// what it sends to its Sockets. Its fields belong to the reading goroutine.
type client struct {
	c         *conn
	sock      *Socket                    // of the default namespace; nil when that is not joined
	others    map[string]*Socket         // of other namespaces; nil as long as there is none
	connectBy atomic.Pointer[time.Timer] // nil once a namespace has been joined
	due       *assembly                  // the packet whose attachments are coming; nil mostly
}

// assembly is a packet with the attachments that have come so far. They may be MaxAttachments, and together with the
// packet have OutboxBytes: more could not be handed to anybody. What is more is read to its end, at most MaxAnnounced
// frames, without being kept, and refused.
type assembly struct {
	packet  socketio.Packet
	sock    *Socket
	parts   [][]byte
	came    int
	size    int
	refusal refusal
}

// refusal says why a packet is not passed on.
type refusal uint8

const (
	refusedNot refusal = iota
	refusedLarge
	refusedAttachments
	refusals
)

// refusalNames are the metric's, refusalTexts what the client is told.
var (
	refusalNames = [refusals]string{refusedLarge: "too-large", refusedAttachments: "too-many-attachments"}
	refusalTexts = [refusals]string{
		refusedLarge: `{"ok":false,"error":"The message is too large","code":"TOO_LARGE"}`,
		refusedAttachments: `{"ok":false,"error":"A message may have ` + strconv.Itoa(socketio.MaxAttachments) +
			` attachments at most","code":"TOO_LARGE"}`,
	}
)

// Replicas exchange no more attachments than clients do.
var _ [socketio.MaxAttachments]struct{} = [replica.MaxAttachments]struct{}{}

// Violations of the protocol that need more than one packet to see.
var (
	errNotJoined    = errors.New("socket.io: packet for a namespace that is not joined")
	errJoined       = errors.New("socket.io: namespace joined twice")
	errAttachment   = errors.New("socket.io: binary frame that no packet announced")
	errNoAttachment = errors.New("socket.io: text while attachments are due")
	errPending      = errors.New("too much sent before admission")
)

func newClient(c *conn) *client {
	cl := &client{c: c}
	cl.connectBy.Store(time.AfterFunc(c.srv.opt.ConnectTimeout, func() {
		c.deaf.Store(true)
		c.finish(ReasonConnectTimeout)
	}))
	return cl
}

// joined stops the connect timeout. It may be called from any goroutine.
func (cl *client) joined() {
	if t := cl.connectBy.Swap(nil); t != nil {
		t.Stop()
	}
}

func (cl *client) text(data []byte) {
	if cl.due != nil {
		cl.c.violated(errNoAttachment)
		return
	}
	p, err := socketio.DecodeFromClient(data)
	if err != nil {
		cl.c.violated(err)
		return
	}
	if p.Type == socketio.Connect {
		cl.connect(p)
		return
	}
	sock := cl.joinedSocket(p.Namespace)
	if sock == nil || sock.refused() {
		cl.c.violated(errNotJoined)
		return
	}
	switch p.Type {
	case socketio.Disconnect:
		sock.end(ReasonClient)
		cl.leave(p.Namespace)
	case socketio.BinaryEvent, socketio.BinaryAck:
		if p.Attachments > 0 {
			cl.due = &assembly{packet: p, sock: sock, size: len(p.Data)}
			if p.Attachments > socketio.MaxAttachments {
				cl.due.refuse(refusedAttachments)
			}
			return
		}
		fallthrough
	default:
		cl.deliver(sock, p, nil, len(data))
	}
}

func (cl *client) joinedSocket(namespace string) *Socket {
	if namespace == "/" {
		return cl.sock
	}
	return cl.others[namespace]
}

func (cl *client) leave(namespace string) {
	if namespace == "/" {
		cl.sock = nil
		return
	}
	delete(cl.others, namespace)
}

func (cl *client) connect(p socketio.Packet) {
	if cl.c.excess {
		cl.c.send(tooMany(p.Namespace), nil, nil)
		cl.c.deaf.Store(true)
		cl.c.finish(ReasonTooMany)
		return
	}
	if !slices.Contains(cl.c.srv.opt.Namespaces, p.Namespace) {
		cl.c.send(socketio.Packet{
			Type:      socketio.ConnectError,
			Namespace: p.Namespace,
			Data:      json.RawMessage(`{"message":"Invalid namespace"}`),
		}.Append([]byte{'4'}), nil, nil)
		return
	}
	if sock := cl.joinedSocket(p.Namespace); sock != nil && !sock.refused() {
		cl.c.violated(errJoined)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	sock := &Socket{c: cl.c, cancel: cancel}
	if p.Namespace == "/" {
		cl.sock = sock
	} else {
		sock.nsp = p.Namespace
		if cl.others == nil {
			cl.others = map[string]*Socket{} // bounded by Options.Namespaces
		}
		cl.others[sock.nsp] = sock
	}
	cl.c.srv.wg.Add(1)
	go sock.admit(ctx, p.Data, cl.joined)
}

// deliver passes a complete packet on.
func (cl *client) deliver(sock *Socket, p socketio.Packet, attachments [][]byte, size int) {
	if p.Type == socketio.Ack || p.Type == socketio.BinaryAck {
		args, err := socketio.SplitArgs(p.Data)
		if err != nil {
			cl.c.violated(err)
			return
		}
		sock.deliver(call{kind: callAck, id: p.ID, args: args, att: attachments, size: size})
		return
	}
	name, args, err := socketio.SplitEvent(p.Data)
	if err != nil {
		cl.c.violated(err)
		return
	}
	var ack Ack
	if p.HasID {
		ack.p = &pendingAck{s: sock, id: p.ID}
	}
	sock.deliver(call{kind: callEvent, name: name, args: args, att: attachments, ack: ack, size: size})
}

func (cl *client) binary(data []byte) {
	a := cl.due
	if a == nil {
		cl.c.violated(errAttachment)
		return
	}
	a.came++
	if a.refusal == refusedNot {
		if a.size += len(data); a.size > cl.c.srv.opt.OutboxBytes {
			a.refuse(refusedLarge)
		} else {
			a.parts = append(a.parts, data)
		}
	}
	if a.came < a.packet.Attachments {
		return
	}
	cl.due = nil
	if a.refusal != refusedNot {
		cl.refused(a)
		return
	}
	if err := socketio.CheckPlaceholders(a.packet.Data, a.packet.Attachments); err != nil {
		cl.c.violated(err)
		return
	}
	cl.deliver(a.sock, a.packet, a.parts, a.size)
}

// refuse keeps nothing of the packet but what its answer needs.
func (a *assembly) refuse(why refusal) {
	a.refusal, a.parts, a.packet.Data = why, nil, nil
}

// refused answers a packet that was not kept. An answer to a request of ours becomes a failure, because one
// that never comes would hold up whoever waits for it.
func (cl *client) refused(a *assembly) {
	cl.c.srv.refused[a.refusal].Add(1)
	text := []byte(refusalTexts[a.refusal])
	switch {
	case a.packet.Type == socketio.BinaryAck:
		a.sock.deliver(call{kind: callAck, id: a.packet.ID, args: []json.RawMessage{text}})
	case a.packet.HasID:
		Ack{&pendingAck{s: a.sock, id: a.packet.ID}}.Reply(text)
	default:
		cl.c.srv.log.Debug().Str("conn", cl.c.id).Str("why", refusalNames[a.refusal]).Msg("an event is dropped")
	}
}

func (cl *client) end(reason Reason) {
	cl.joined()
	if cl.sock != nil {
		cl.sock.end(reason)
	}
	for _, sock := range cl.others {
		sock.end(reason)
	}
}
