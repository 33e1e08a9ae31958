package transport

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"holdfast/transport/socketio"
)

// Socket is one client's connection to the namespace. Its methods may be called from any
// goroutine, and none of them waits for the network.
type Socket struct {
	c    *conn
	nsp  string // empty for the default namespace
	data atomic.Pointer[any]
	mute atomic.Bool // the App has ended it, or failed: nothing more is delivered
	over atomic.Bool // it has ended: nothing more is sent

	mu      sync.Mutex
	phase   phase
	cancel  context.CancelFunc // of the admission under way; nil when none is
	pending []call             // bounded by Options.MaxPending and OutboxBytes; more ends the connection
	size    int                // of pending, in bytes
	ended   Reason             // empty while the client is there
}

type phase uint8

const (
	phaseAdmitting phase = iota // calls are kept
	phaseOpen                   // calls are made by the reading goroutine
	phaseRefused
)

// call is one call of the App.
type call struct {
	kind callKind
	name string
	id   uint64
	args []json.RawMessage
	att  [][]byte
	ack  Ack
	size int
}

type callKind uint8

const (
	callEvent callKind = iota
	callAck
)

var errPanicked = errors.New("panic")

// ID identifies the connection in logs. It is not the sid that clients are told.
func (s *Socket) ID() string { return s.c.id }

// RemoteAddr is the network address of the client, or of the proxy before it.
func (s *Socket) RemoteAddr() string { return s.c.remote }

// UserAgent is at most 256 bytes of that header.
func (s *Socket) UserAgent() string { return s.c.agent }

// Instance is the instance that the client asked for in the URL's query, if any.
func (s *Socket) Instance() string { return s.c.instance }

// Data is what SetData set, or nil. It is for the App.
func (s *Socket) Data() any {
	if d := s.data.Load(); d != nil {
		return *d
	}
	return nil
}

// SetData keeps the App's state of the connection.
func (s *Socket) SetData(data any) { s.data.Store(&data) }

// Namespace is the one that the client has joined.
func (s *Socket) Namespace() string {
	if s.nsp == "" {
		return "/"
	}
	return s.nsp
}

// Emit sends an event. The arguments are raw JSON. False: the connection is over.
func (s *Socket) Emit(name string, rawArgs ...[]byte) bool {
	return s.send(EncodeEvent(name, rawArgs...), nil, nil)
}

// EmitBinary is Emit with attachments, at most socketio.MaxAttachments, for which placeholders in the arguments stand.
func (s *Socket) EmitBinary(name string, attachments [][]byte, rawArgs ...[]byte) bool {
	return s.send(EncodeBinaryEvent(len(attachments), name, rawArgs...), attachments, nil)
}

// Request sends an event that asks for the ack id; the answer comes to App.Ack. When the
// connection ends before a byte of it has been written, and only then, dropped is called, once,
// from any goroutine and before App.Disconnected. False: it was not queued, and dropped is not
// called.
func (s *Socket) Request(name string, id uint32, dropped func(), rawArg []byte, attachments [][]byte) bool {
	dst := append(make([]byte, 0, len(name)+len(rawArg)+24), '4')
	if len(attachments) > 0 {
		dst = socketio.AppendBinaryRequest(dst, len(attachments), uint64(id), name, rawArg)
	} else {
		dst = socketio.AppendRequest(dst, uint64(id), name, rawArg)
	}
	return s.send(dst, attachments, dropped)
}

// SendRaw sends a packet made by EncodeEvent, which many Sockets may share, or one made by EncodeBinaryEvent and the
// attachments that belong to it.
func (s *Socket) SendRaw(packet []byte, attachments ...[]byte) bool {
	if len(packet) < 2 || packet[0] != '4' {
		panic("transport: SendRaw wants a packet made by EncodeEvent")
	}
	return s.send(packet, attachments, nil)
}

// EncodeEvent makes a packet for SendRaw: an event, within an Engine.IO message.
func EncodeEvent(name string, rawArgs ...[]byte) []byte {
	return socketio.AppendEvent(message(len(name), rawArgs), name, rawArgs...)
}

// EncodeBinaryEvent is EncodeEvent for an event with so many attachments, for which placeholders in the arguments
// stand; with none it is the same.
func EncodeBinaryEvent(attachments int, name string, rawArgs ...[]byte) []byte {
	if attachments == 0 {
		return EncodeEvent(name, rawArgs...)
	}
	return socketio.AppendBinaryEvent(message(len(name), rawArgs), attachments, name, rawArgs...)
}

// message is the beginning of an Engine.IO message, with room for raw values and some bytes more.
func message(more int, raw [][]byte) []byte {
	n := more + 24
	for _, r := range raw {
		n += len(r) + 1
	}
	return append(make([]byte, 0, n), '4')
}

func (s *Socket) send(packet []byte, attachments [][]byte, dropped func()) bool {
	return !s.over.Load() && s.c.send(s.addressed(packet), attachments, dropped)
}

// addressed is the packet of the default namespace for this one.
func (s *Socket) addressed(packet []byte) []byte {
	if s.nsp == "" {
		return packet
	}
	return socketio.InNamespace(slices.Clone(packet), 1, s.nsp)
}

// Disconnect ends the connection after sending what waits, and tells the client, which then does
// not come back by itself. Nothing that it still sends is delivered.
func (s *Socket) Disconnect(reason Reason) {
	s.mute.Store(true)
	s.send([]byte("41"), nil, nil)
	s.over.Store(true)
	s.c.finish(reason)
}

// CloseTransport ends the connection after sending what waits. A stock client connects anew.
// What it sends until it learns of the end is still delivered.
func (s *Socket) CloseTransport(reason Reason) { s.c.finish(reason) }

// Ack answers one event. The zero Ack is that of an event without one.
type Ack struct{ p *pendingAck }

type pendingAck struct {
	s    *Socket
	id   uint64
	used atomic.Bool
}

// Wanted tells whether the client waits for an answer.
func (a Ack) Wanted() bool { return a.p != nil }

// Reply answers with raw JSON values. Only the first reply is sent, and none after the end. It may
// be called from any goroutine.
func (a Ack) Reply(rawJSON ...[]byte) { a.ReplyBinary(nil, rawJSON...) }

// ReplyBinary is Reply with attachments, at most socketio.MaxAttachments, for which placeholders in the values stand.
func (a Ack) ReplyBinary(attachments [][]byte, rawJSON ...[]byte) {
	if a.p == nil || a.p.used.Swap(true) {
		return
	}
	dst := message(0, rawJSON)
	if len(attachments) > 0 {
		dst = socketio.AppendBinaryAck(dst, len(attachments), a.p.id, rawJSON...)
	} else {
		dst = socketio.AppendAck(dst, a.p.id, rawJSON...)
	}
	a.p.s.send(dst, attachments, nil)
}

// replyNow is Reply for what nothing is likely to follow at once that could be sent along with it.
func (a Ack) replyNow(rawJSON ...[]byte) {
	if a.p == nil || a.p.used.Swap(true) {
		return
	}
	s := a.p.s
	if packet := socketio.AppendAck(message(0, rawJSON), a.p.id, rawJSON...); !s.over.Load() {
		s.c.sendNow(s.addressed(packet))
	}
}

// admit runs App.Connect, answers the client, and makes the calls that were kept meanwhile.
// It owns the Socket's calls until it sets phaseOpen.
func (s *Socket) admit(ctx context.Context, auth json.RawMessage, joined func()) {
	defer s.c.srv.wg.Done()
	defer func() { // an idle connection keeps nothing of it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cancel()
		s.cancel = nil
	}()
	var adm Admission
	err := errPanicked
	if !s.c.srv.guard("connect", func() { adm, err = s.c.srv.app.Connect(ctx, s, auth) }) {
		s.c.finish(ReasonServer)
	}
	if err != nil {
		s.refuse(err)
		return
	}
	joined()
	s.c.send(s.addressed(admitted(adm)), nil, nil)
	if greeter, ok := s.c.srv.app.(Greeter); ok {
		s.greet(greeter)
	}
	for {
		s.mu.Lock()
		calls := s.pending
		s.pending, s.size = nil, 0
		if len(calls) == 0 {
			s.phase = phaseOpen
			ended := s.ended
			s.mu.Unlock()
			if ended != "" {
				s.disconnected(ended)
			}
			return
		}
		s.mu.Unlock()
		for _, call := range calls {
			s.call(call)
		}
	}
}

func admitted(adm Admission) []byte {
	data, err := json.Marshal(struct {
		SID string `json:"sid"`
		PID string `json:"pid,omitempty"`
	}{adm.SID, adm.PID})
	if err != nil {
		panic(err) // strings always marshal
	}
	return socketio.Packet{Type: socketio.Connect, Data: data}.Append([]byte{'4'})
}

// refuse answers CONNECT_ERROR. The client may try again on the same connection until the
// connect timeout.
func (s *Socket) refuse(err error) {
	if errors.Is(err, ErrComeBack) {
		s.over.Store(true)
		s.mu.Lock()
		s.phase = phaseRefused
		s.pending, s.size = nil, 0
		s.mu.Unlock()
		s.c.finish(ReasonServer)
		return
	}
	var refusal *ConnectError
	if !errors.As(err, &refusal) {
		refusal = &ConnectError{Message: "Internal error", Code: "INTERNAL"}
		if !errors.Is(err, errPanicked) && !errors.Is(err, context.Canceled) {
			s.c.srv.log.Error().Err(err).Str("conn", s.c.id).Msg("admission failed")
		}
	}
	var d struct {
		Message string `json:"message"`
		Data    struct {
			Code string `json:"code"`
		} `json:"data"`
	}
	d.Message, d.Data.Code = refusal.Message, refusal.Code
	data, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings always marshal
	}
	s.over.Store(true)
	s.mu.Lock()
	s.phase = phaseRefused
	s.pending, s.size = nil, 0
	s.mu.Unlock()
	// After the phase, or a client that tries again at once would seem to join twice.
	s.c.send(s.addressed(socketio.Packet{Type: socketio.ConnectError, Data: data}.Append([]byte{'4'})), nil, nil)
}

func (s *Socket) refused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == phaseRefused
}

// deliver makes a call, or keeps it until the client is admitted. Reading goroutine only.
func (s *Socket) deliver(c call) {
	s.mu.Lock()
	if s.phase == phaseOpen {
		s.mu.Unlock()
		s.call(c)
		return
	}
	defer s.mu.Unlock()
	if s.phase == phaseRefused {
		return
	}
	opt := &s.c.srv.opt
	if len(s.pending) >= opt.MaxPending || s.size+c.size > opt.OutboxBytes {
		s.c.violated(errPending)
		return
	}
	s.pending = append(s.pending, c)
	s.size += c.size
}

// call makes one call of the App.
func (s *Socket) call(c call) {
	if s.mute.Load() {
		return
	}
	defer s.recovered(c.name)
	switch c.kind {
	case callEvent:
		s.c.srv.app.Event(s, c.name, c.args, c.att, c.ack)
	case callAck:
		s.c.srv.app.Ack(s, c.id, c.args, c.att)
	}
}

func (s *Socket) greet(greeter Greeter) {
	defer s.recovered("connected")
	greeter.Connected(s)
}

// recovered is deferred around a call: a panic ends this connection only.
func (s *Socket) recovered(what string) {
	if v := recover(); v != nil {
		s.c.srv.logPanic(v, what)
		s.mute.Store(true)
		s.c.deaf.Store(true)
		s.c.finish(ReasonServer)
	}
}

// end ends the Socket, once. Reading goroutine only.
func (s *Socket) end(reason Reason) {
	s.over.Store(true)
	s.mu.Lock()
	s.ended = reason
	phase, cancel := s.phase, s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if phase == phaseOpen { // while admitting, admit sees it
		s.disconnected(reason)
	}
}

func (s *Socket) disconnected(reason Reason) {
	s.c.srv.guard("disconnected", func() { s.c.srv.app.Disconnected(s, reason) })
}
