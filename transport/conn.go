package transport

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/transport/engineio"
)

const (
	// finishTimeout bounds flushing the outbox and waiting for the client's close frame.
	finishTimeout = 5 * time.Second
	// cutTimeout bounds the attempt to tell a client why it is cut off.
	cutTimeout = time.Second
)

// handler is what an Engine.IO session carries. All calls come from the session's reading
// goroutine; end comes last and once.
type handler interface {
	text(data []byte) // owns data
	binary(data []byte)
	end(reason Reason)
}

// wire is how the packets of a session reach its client: a WebSocket, or HTTP requests. Its owner calls
// conn.closed at its end, once.
type wire interface {
	carrier
	// bye tells the client that the session has ended. It comes after the last packet, or instead of those
	// that wait.
	bye(reason Reason) error
	// shut ends the wire: nothing more goes out. It may be called again, and need not have ended when it returns.
	shut()
}

// conn is one Engine.IO session.
//
// It ends in one of two ways. finish takes no more packets, sends the waiting ones, then a farewell, and lets the
// client answer it: closing the TCP connection of a WebSocket at once, with unread input, would reset it and might
// lose what was just flushed. cut tries to send a farewell and shuts the wire. Either ends the wire, and
// only then, in closed, the session is taken down: the wire first, so that what the outbox still holds is
// certain not to go out, then the outbox, then the handler, whose last call is end.
type conn struct {
	srv      *Server
	id       string
	remote   string
	agent    string
	instance string
	upgrade  *hijacker // of the WebSocket that is being opened
	handler  handler
	out      outbox
	deaf     atomic.Bool // what the client still sends is ignored
	reading  sync.Mutex  // held while HTTP requests call the handler; a WebSocket has one reader anyway

	mu       sync.Mutex
	wire     wire // changes once, by an upgrade
	state    connState
	excess   bool   // beyond the limits of connections: it is told so when it joins. Set by Server.register
	reason   Reason // the first one counts
	awaiting bool   // a pong
	due      time.Time
	timer    *time.Timer // of the next ping, the pong, or the end of finishing
}

type connState uint8

const (
	connOpen connState = iota
	connFinishing
	connCut
	connClosed
)

var packetPing = []byte("2")

func newSID() string {
	var b [15]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// begin starts the session on its first wire, before anything is read from that.
func (c *conn) begin(w wire) {
	c.wire = w
	c.out.to = w
	_, c.out.pulled = w.(*polling)
	c.out.maxBytes, c.out.maxMessages = c.srv.opt.OutboxBytes, c.srv.opt.OutboxMessages
	c.mu.Lock()
	c.due = time.Now().Add(c.srv.opt.PingInterval)
	c.timer = time.AfterFunc(c.srv.opt.PingInterval, c.tick)
	c.mu.Unlock()
	c.handler = c.srv.newHandler(c)
}

// handshake is the open packet.
func (c *conn) handshake(upgrades ...string) []byte {
	return engineio.Handshake{
		SID:          c.id,
		Upgrades:     upgrades,
		PingInterval: c.srv.opt.PingInterval.Milliseconds(),
		PingTimeout:  c.srv.opt.PingTimeout.Milliseconds(),
		MaxPayload:   c.srv.opt.MaxPayload,
	}.Append(nil)
}

// closed takes the session down.
func (c *conn) closed() {
	c.mu.Lock()
	c.state = connClosed
	c.note(ReasonTransportClose)
	reason, w := c.reason, c.wire
	c.timer.Stop()
	c.mu.Unlock()
	c.deaf.Store(true)
	w.shut()
	for _, dropped := range c.out.drop() {
		c.srv.guard("dropped", dropped)
	}
	c.srv.forget(c, reason) // before end, so that who is told the end finds it counted
	c.reading.Lock()        // a POST that is being handled comes first
	defer c.reading.Unlock()
	c.handler.end(reason)
}

// received handles a text frame.
func (c *conn) received(frame []byte) {
	if c.deaf.Load() {
		return
	}
	p, err := engineio.Decode(frame)
	if err != nil {
		c.violated(err)
		return
	}
	c.packet(p)
}

func (c *conn) packet(p engineio.Packet) {
	switch p.Type {
	case engineio.Message:
		c.handler.text(p.Data)
	case engineio.Pong:
		c.ponged()
	case engineio.Close:
		c.deaf.Store(true)
		c.finish(ReasonTransportClose)
	case engineio.Ping, engineio.Open:
		c.violated(errDirection)
	}
}

func (c *conn) receivedBinary(frame []byte) {
	if !c.deaf.Load() {
		c.handler.binary(frame)
	}
}

var errDirection = errors.New("engine.io: packet type is not for clients to send")

// violated ends the session of a client that broke the protocol.
func (c *conn) violated(err error) {
	c.srv.log.Debug().Err(err).Str("conn", c.id).Msg("protocol error")
	c.deaf.Store(true)
	if c.polls() != nil {
		c.cut(ReasonProtocolError) // what waits would need another GET, and that is refused
		return
	}
	c.finish(ReasonProtocolError)
}

// send queues a packet and its attachments, as outbox.put does; false: the connection is over, and dropped is not called.
func (c *conn) send(packet []byte, attachments [][]byte, dropped func()) bool {
	return c.accepted(c.out.put(packet, attachments, dropped))
}

// sendNow is send as outbox.putNow does.
func (c *conn) sendNow(packet []byte) {
	written, result := c.out.putNow(packet)
	if written {
		c.srv.messagesOut.Add(1)
		c.srv.bytesOut.Add(uint64(len(packet)))
	}
	c.accepted(result)
}

// accepted cuts the connection whose outbox is full.
func (c *conn) accepted(result putResult) bool {
	if result == putFull && c.cut(ReasonOutboxFull) {
		c.srv.overflows.Add(1)
		c.srv.log.Info().Str("conn", c.id).Str("remote", c.remote).Msg("outbox full, client cut off")
	}
	return result == putQueued
}

// sent comes from the wire after each packet that it was handed.
func (c *conn) sent() {
	packets, bytes, last := c.out.sent()
	c.srv.messagesOut.Add(uint64(packets))
	c.srv.bytesOut.Add(uint64(bytes))
	if last {
		c.farewell()
	}
}

// finish ends the session after what waits has been sent.
func (c *conn) finish(reason Reason) {
	c.mu.Lock()
	if c.state != connOpen {
		c.mu.Unlock()
		return
	}
	c.state = connFinishing
	c.note(reason)
	c.arm(c.srv.finishTimeout)
	c.srv.wg.Add(1)
	c.mu.Unlock()
	if !c.out.finish() {
		c.srv.wg.Done()
		return
	}
	go func() { // the caller must not wait for the network
		defer c.srv.wg.Done()
		c.farewell()
	}()
}

// farewell comes after the last packet. The client's answer, or the timer, ends the session.
func (c *conn) farewell() {
	w, reason := c.ending()
	if w.bye(reason) != nil {
		w.shut()
	}
}

func (c *conn) ending() (wire, Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wire, c.reason
}

// cut ends the session at once, whatever waits. It does not block, and is false if the session
// was already cut or closed.
func (c *conn) cut(reason Reason) bool {
	c.mu.Lock()
	if c.state >= connCut {
		c.mu.Unlock()
		return false
	}
	c.state = connCut
	c.note(reason)
	c.timer.Stop()
	c.srv.wg.Add(1)
	w, reason := c.wire, c.reason
	c.mu.Unlock()
	c.deaf.Store(true)
	c.out.stop()
	go func() { // the connection may be stuck in a write
		defer c.srv.wg.Done()
		_ = w.bye(reason) // best effort
		w.shut()
	}()
	return true
}

// tick is the timer's function.
func (c *conn) tick() {
	c.mu.Lock()
	left := time.Until(c.due)
	if left > 0 && c.state < connCut {
		c.timer.Reset(left) // a pong, or the end, came as the timer fired
		c.mu.Unlock()
		return
	}
	switch {
	case c.state == connFinishing:
		c.mu.Unlock()
		c.cut(ReasonTransportClose) // the reason is noted already
	case c.state != connOpen:
		c.mu.Unlock()
	case c.awaiting:
		c.mu.Unlock()
		c.cut(ReasonPingTimeout)
	default:
		// The client counts from the handshake as we do: what the ping is late by is not added to the end, unless it
		// is much, as after the process stood still.
		c.awaiting = true
		c.arm(c.srv.opt.PingTimeout - min(-left, c.srv.opt.PingTimeout/10))
		c.mu.Unlock()
		c.out.putFirst(packetPing)
	}
}

func (c *conn) ponged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaiting && c.state == connOpen {
		c.awaiting = false
		c.arm(c.srv.opt.PingInterval)
	}
}

// arm and note want c.mu.
func (c *conn) arm(d time.Duration) {
	c.due = time.Now().Add(d)
	c.timer.Reset(d)
}

func (c *conn) note(reason Reason) {
	if c.reason == "" {
		c.reason = reason
	}
}

func (c *conn) noteNow(reason Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(reason)
}

// short copies at most n bytes of s, so that it keeps nothing of its request alive.
func short(s string, n int) string { return strings.Clone(s[:min(len(s), n)]) }
