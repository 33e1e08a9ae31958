package transport

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"holdfast/transport/socketio"
)

// client is the Socket.IO side of one session: it holds the client to the protocol and passes
// what it sends to its Socket. Its fields belong to the reading goroutine.
type client struct {
	c         *conn
	sock      *Socket                            // nil when the namespace is not joined
	connectBy atomic.Pointer[time.Timer]         // nil once the namespace has been joined
	admitting atomic.Pointer[context.CancelFunc] // ends the admission under way; nil when none is

	// Binary packets are read and answered, but not served.
	due     int // attachments that must come before the next packet
	dueType socketio.Type
	dueID   uint64
	dueAck  bool
}

// Violations of the protocol that need more than one packet to see.
var (
	errNotJoined    = errors.New("socket.io: packet for a namespace that is not joined")
	errJoined       = errors.New("socket.io: namespace joined twice")
	errAttachment   = errors.New("socket.io: binary frame that no packet announced")
	errNoAttachment = errors.New("socket.io: text while attachments are due")
	errPending      = errors.New("too much sent before admission")
)

var binaryRefused = []byte(`{"ok":false,"error":"Binary is not supported","code":"BAD_REQUEST"}`)

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
	if cl.due > 0 {
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
	if p.Namespace != "/" || cl.sock == nil || cl.sock.refused() {
		cl.c.violated(errNotJoined)
		return
	}
	switch p.Type {
	case socketio.Disconnect:
		cl.sock.end(ReasonClient)
		cl.sock = nil
	case socketio.Event:
		cl.event(p)
	case socketio.Ack:
		args, err := socketio.SplitArgs(p.Data)
		if err != nil {
			cl.c.violated(err)
			return
		}
		cl.sock.deliver(call{kind: callAck, id: p.ID, args: args, size: len(data)})
	case socketio.BinaryEvent, socketio.BinaryAck:
		cl.due, cl.dueType, cl.dueID, cl.dueAck = p.Attachments, p.Type, p.ID, p.HasID
		if cl.due == 0 {
			cl.refuseBinary()
		}
	}
}

func (cl *client) connect(p socketio.Packet) {
	if p.Namespace != "/" {
		cl.c.send(socketio.Packet{
			Type:      socketio.ConnectError,
			Namespace: p.Namespace,
			Data:      json.RawMessage(`{"message":"Invalid namespace"}`),
		}.Append([]byte{'4'}), nil)
		return
	}
	if cl.sock != nil && !cl.sock.refused() {
		cl.c.violated(errJoined)
		return
	}
	cl.sock = &Socket{c: cl.c}
	cl.c.srv.wg.Add(1)
	ctx, cancel := context.WithCancel(context.Background())
	cl.admitting.Store(&cancel)
	go func(s *Socket) {
		s.admit(ctx, p.Data, cl.joined)
		cl.admitting.CompareAndSwap(&cancel, nil) // an idle connection keeps nothing of it
		cancel()
	}(cl.sock)
}

func (cl *client) event(p socketio.Packet) {
	name, args, err := socketio.SplitEvent(p.Data)
	if err != nil {
		cl.c.violated(err)
		return
	}
	var ack Ack
	if p.HasID {
		ack.p = &pendingAck{s: cl.sock, id: p.ID}
	}
	cl.sock.deliver(call{kind: callEvent, name: name, args: args, ack: ack, size: len(p.Data)})
}

func (cl *client) binary(data []byte) {
	if cl.due == 0 {
		cl.c.violated(errAttachment)
		return
	}
	cl.due--
	if cl.due == 0 {
		cl.refuseBinary()
	}
}

// refuseBinary answers the binary packet that has just been read whole. An answer to a request
// of ours becomes a failure, because one that never comes would hold up whoever waits for it.
func (cl *client) refuseBinary() {
	switch {
	case cl.dueType == socketio.BinaryAck:
		cl.sock.deliver(call{kind: callAck, id: cl.dueID, args: []json.RawMessage{binaryRefused}})
	case cl.dueAck:
		Ack{&pendingAck{s: cl.sock, id: cl.dueID}}.Reply(binaryRefused)
	default:
		cl.c.srv.log.Debug().Str("conn", cl.c.id).Msg("binary event dropped")
	}
}

func (cl *client) end(reason Reason) {
	cl.joined()
	if cancel := cl.admitting.Load(); cancel != nil {
		(*cancel)()
	}
	if cl.sock != nil {
		cl.sock.end(reason)
	}
}
