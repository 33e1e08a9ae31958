package transport

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"holdfast/transport/engineio"
)

const (
	// bodyTimeout is how long the body of a POST may take to come.
	bodyTimeout = 30 * time.Second
	// pollBytes is about how much one GET is answered with; a packet that is larger goes alone.
	pollBytes = 1 << 20
	// partedFor is how long a session that its client has closed is remembered, for the GET that was on its way.
	// At most maxParted are; beyond that such a GET is told that there is no session, which ends it as well.
	partedFor = 5 * time.Second
	maxParted = 10_000
)

var (
	packetClose = []byte("1")
	packetNoop  = []byte("6")
)

// polling is a session's wire before it is a WebSocket: one GET at a time waits for packets, one POST at a time
// brings some. It is dropped with the upgrade.
//
// Packets stay in the outbox until a GET takes them along, and are sent once they are written to it. So the
// outbox's bounds hold, and those that no GET has taken are certain not to have left.
type polling struct {
	c    *conn
	wake chan struct{} // of capacity 1: look again

	writing sync.Mutex // held from taking packets until they are written; taken before conn.mu and mu

	mu     sync.Mutex
	state  pollState
	waits  bool // a GET does
	gets   uint64
	posts  bool // a POST is being read or handled
	left   bool // no packet comes any more
	probe  *probe
	asked  bool // the probe was: a GET is not to be kept waiting
	parted bool // its client has closed the session
	noop   bool // send the GET back
	writer *http.ResponseController
}

type pollState uint8

const (
	pollOpen  pollState = iota
	pollMoved           // to a WebSocket
	pollOver
)

// openPolling starts a session and answers its first GET.
func (s *Server) openPolling(w http.ResponseWriter, r *http.Request, c *conn) {
	if !s.enter() {
		unavailable(w)
		return
	}
	p := &polling{c: c, wake: make(chan struct{}, 1)}
	c.begin(p)
	packet := c.handshake("websocket")
	s.register(c)
	s.messagesOut.Add(1)
	s.bytesOut.Add(uint64(len(packet)))
	_ = writePayload(w, packet) // a client that does not get it does not come back, and misses its ping
}

// polls is the session's polling, or nil when it is a WebSocket.
func (c *conn) polls() *polling {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, _ := c.wire.(*polling)
	return p
}

func (p *polling) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// carry leaves the packet where it is, for a GET.
func (p *polling) carry([]byte, bool) error {
	p.nudge()
	return nil
}

func (p *polling) bye(reason Reason) error {
	p.mu.Lock()
	p.left = true
	moved := p.state == pollMoved
	p.mu.Unlock()
	if moved {
		w, reason := p.c.ending()
		return w.bye(reason)
	}
	p.nudge()
	return nil
}

func (p *polling) shut() {
	p.mu.Lock()
	if p.state != pollOpen {
		p.mu.Unlock()
		return
	}
	p.state = pollOver
	if p.writer != nil {
		_ = p.writer.SetWriteDeadline(time.Now()) // nobody waits for a client that does not read
	}
	if p.probe != nil && p.probe.ws != nil {
		p.probe.ws.WebsocketConnection().Close()
	}
	p.mu.Unlock()
	p.nudge()
	p.c.closed()
	p.c.srv.wg.Done()
}

// claim makes pr the session's only probe.
func (p *polling) claim(pr *probe) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != pollOpen || p.probe != nil {
		return false
	}
	p.probe = pr
	return true
}

func (p *polling) unclaim(pr *probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.probe == pr {
		p.probe, p.asked = nil, false
	}
}

// probing comes before the probe is answered, and tells which GET waits: those that come later may have overtaken
// the end of the upgrade.
func (p *polling) probing() (get uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	return p.gets
}

// probed sends that GET back, if it waits still: the client ends its polling before it moves.
func (p *polling) probed(get uint64) {
	p.mu.Lock()
	p.noop = p.waits && p.gets == get
	p.mu.Unlock()
	p.nudge()
}

// poll answers a GET, when there is something to answer.
func (p *polling) poll(w http.ResponseWriter, r *http.Request) {
	over := p.c.hasEnded()
	p.mu.Lock()
	switch {
	case p.state == pollMoved:
		p.mu.Unlock()
		refuse(w, engineio.BadRequest)
		return
	case over, p.state == pollOver, p.parted:
		p.mu.Unlock()
		p.c.srv.tooLate(w, p.c.id)
		return
	case p.waits: // two at a time could not be kept in order
		p.mu.Unlock()
		p.c.cut(ReasonProtocolError)
		refuse(w, engineio.BadRequest)
		return
	}
	p.waits = true
	p.gets++
	var slack <-chan time.Time
	if p.asked {
		timer := time.NewTimer(probeSlack)
		defer timer.Stop()
		slack = timer.C
	}
	p.mu.Unlock()
	for {
		if done, last := p.answer(w); last {
			p.shut()
			return
		} else if done {
			return
		}
		select {
		case <-p.wake:
		case <-slack:
			p.mu.Lock()
			p.noop = p.asked
			p.mu.Unlock()
		case <-r.Context().Done(): // the client cannot be told apart from one that is gone
			p.mu.Lock()
			p.waits = false
			p.mu.Unlock()
			p.c.cut(ReasonTransportClose)
			return
		}
	}
}

// answer answers the waiting GET if it can. last: the session ends with that.
func (p *polling) answer(w http.ResponseWriter) (done, last bool) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	var packet []byte
	switch {
	case p.state == pollMoved:
		p.waits = false
		p.mu.Unlock()
		refuse(w, engineio.BadRequest)
		return true, false
	case p.parted:
		packet = packetNoop
	case p.state == pollOver, p.left:
		packet, last = packetClose, true
	case p.noop:
		packet, p.noop = packetNoop, false
	}
	if packet == nil {
		packet = p.c.out.payload(pollBytes)
		if packet == nil {
			p.mu.Unlock()
			return false, false
		}
		defer p.written()
		p.writer = http.NewResponseController(w)
		_ = p.writer.SetWriteDeadline(time.Now().Add(p.c.srv.writeWait()))
	}
	p.waits = false // the next GET may come before we know that this one is answered
	p.mu.Unlock()
	if writePayload(w, packet) != nil {
		p.c.cut(ReasonTransportError)
	}
	return true, last
}

// written takes note that the packets of a payload have left, or have not because the session was cut meanwhile.
func (p *polling) written() {
	p.mu.Lock()
	_ = p.writer.SetWriteDeadline(time.Time{})
	p.writer = nil
	p.mu.Unlock()
	p.c.sent()
}

func writePayload(w http.ResponseWriter, payload []byte) error {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(payload)))
	_, err := w.Write(payload)
	return err
}

// post takes what a POST brings. Whatever is wrong with it ends the session.
func (p *polling) post(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	switch {
	case p.state == pollMoved:
		p.mu.Unlock()
		refuse(w, engineio.BadRequest)
		return
	case p.state == pollOver, p.parted:
		p.mu.Unlock()
		refuse(w, engineio.SessionUnknown)
		return
	case p.posts:
		p.mu.Unlock()
		p.c.cut(ReasonProtocolError)
		refuse(w, engineio.BadRequest)
		return
	}
	p.posts = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.posts = false
	}()
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/octet-stream" {
		p.c.cut(ReasonProtocolError)
		refuse(w, engineio.BadRequest)
		return
	}
	body, err := readBody(w, r, p.c.srv.opt.MaxPayload)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		p.c.cut(ReasonProtocolError)
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		p.c.cut(ReasonTransportError)
		refuse(w, engineio.BadRequest)
		return
	}
	if !p.c.handle(body) {
		refuse(w, engineio.BadRequest)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html")
	h.Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, "ok")
}

// readBody reads at most limit bytes, in bodyTimeout at most.
func readBody(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, &http.MaxBytesError{Limit: int64(limit)}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not every server can; then nothing is lost but time
	defer control.SetReadDeadline(time.Time{})               //nolint:errcheck // as above
	in := http.MaxBytesReader(w, r.Body, int64(limit))
	if r.ContentLength <= 0 {
		return io.ReadAll(in)
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(in, body)
	return body, err
}

// handle passes the packets of a POST on; false: one of them broke the protocol.
func (c *conn) handle(body []byte) bool {
	c.reading.Lock()
	defer c.reading.Unlock()
	err := engineio.EachPacket(body, func(p engineio.Packet) bool {
		if c.deaf.Load() {
			return false
		}
		c.srv.count(p.Data)
		switch {
		case p.Binary:
			c.receivedBinary(p.Data)
		case p.Type == engineio.Close:
			c.parted()
		default:
			c.packet(p)
		}
		return true
	})
	if err != nil && !c.deaf.Load() {
		c.violated(err)
	}
	_, reason := c.ending()
	return reason != ReasonProtocolError
}

// parted ends the session by the client's wish. A GET of it that waits, or comes too late, is sent back with a noop.
func (c *conn) parted() {
	c.deaf.Store(true)
	p := c.polls()
	if p == nil {
		return
	}
	p.mu.Lock()
	p.parted = true
	if !p.waits {
		c.srv.part(c.id)
	}
	p.mu.Unlock()
	c.cut(ReasonTransportClose)
}

// hasEnded tells that nothing is sent any more but a farewell to who waits for it. Who comes when the pong is overdue
// ends the session, even if its timer has not come to it yet.
func (c *conn) hasEnded() bool {
	c.mu.Lock()
	overdue := c.state == connOpen && c.awaiting && !time.Now().Before(c.due)
	ended := c.state >= connCut
	c.mu.Unlock()
	if overdue {
		c.cut(ReasonPingTimeout)
	}
	return ended || overdue
}

// part remembers a session that its client has closed.
func (s *Server) part(sid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.partings) >= maxParted {
		return
	}
	s.partings[sid] = struct{}{}
	time.AfterFunc(partedFor, func() { s.takeParted(sid) })
}

// tooLate answers a GET whose session is not there any more.
func (s *Server) tooLate(w http.ResponseWriter, sid string) {
	if s.takeParted(sid) {
		_ = writePayload(w, packetNoop) // then it needs none
		return
	}
	refuse(w, engineio.SessionUnknown)
}

// takeParted reports whether the session was closed by its client with no GET waiting, once.
func (s *Server) takeParted(sid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.partings[sid]
	delete(s.partings, sid)
	return ok
}
