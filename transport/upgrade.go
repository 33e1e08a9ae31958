package transport

import (
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"
)

const (
	// upgradeTimeout is how long a WebSocket that was opened for a polling session may take to carry it.
	upgradeTimeout = 10 * time.Second
	// probeSlack is how long a GET that comes during an upgrade waits before it is sent back: the upgrade may
	// have been completed by a frame that this request has overtaken, and then it is out of place.
	probeSlack = 100 * time.Millisecond
)

// probe is a WebSocket that a polling session may move to. The client asks over it whether it works, is answered,
// ends its polling and says so; until then the session goes on as it was, and a probe that fails harms nothing.
type probe struct {
	c     *conn
	p     *polling
	timer *time.Timer
	ws    *melody.Session // guarded by p.mu
	asked bool            // of the reading goroutine
}

// move opens a WebSocket for a session that polls. Anything else gets its WebSocket closed.
func (s *Server) move(w http.ResponseWriter, r *http.Request, c *conn) {
	p := c.polls()
	pr := &probe{c: c, p: p}
	if p == nil || !p.claim(pr) {
		s.turnAway(w, r)
		return
	}
	if !s.waitToOpen(r.Context()) {
		pr.closed()
		unavailable(w)
		return
	}
	defer s.doneOpening()
	s.openWebSocket(w, r, c, pr)
}

// turnAway upgrades a request only to close the WebSocket. Clients take a refused upgrade for a broken
// connection, and this one has nothing wrong but that its session has another.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request) {
	ws, err := s.melody.Upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	_ = ws.WriteControl(websocket.CloseMessage,
		websocket.FormatCloseMessage(websocket.ClosePolicyViolation, "the session has a WebSocket"), time.Now().Add(cutTimeout))
}

// opened comes before anything is read.
func (pr *probe) opened(ws *melody.Session) {
	h := pr.c.upgrade
	pr.c.upgrade = nil
	defer h.release()
	ws.WebsocketConnection().EnableWriteCompression(false) // what it is answered is short
	pr.timer = time.AfterFunc(pr.c.srv.upgradeTimeout, func() { ws.WebsocketConnection().Close() })
	pr.p.mu.Lock()
	defer pr.p.mu.Unlock()
	pr.ws = ws
	if pr.p.state != pollOpen {
		ws.WebsocketConnection().Close()
	}
}

// received handles a text frame.
func (pr *probe) received(ws *melody.Session, frame []byte) {
	switch {
	case string(frame) == "2probe" && !pr.asked:
		pr.asked = true
		get := pr.p.probing()
		raw := ws.WebsocketConnection()
		_ = raw.SetWriteDeadline(time.Now().Add(cutTimeout)) // then the write fails too
		if raw.WriteMessage(websocket.TextMessage, []byte("3probe")) != nil {
			raw.Close()
			return
		}
		pr.p.probed(get)
	case string(frame) == "5" && pr.asked:
		if !pr.complete(ws) {
			ws.WebsocketConnection().Close()
		}
	default:
		pr.violated(ws)
	}
}

// violated ends the WebSocket, not the session: what it did not understand was not said by it.
func (pr *probe) violated(ws *melody.Session) {
	_ = (*webSocket)(ws).bye(ReasonProtocolError)
	ws.WebsocketConnection().Close()
}

// closed comes when the WebSocket ends without having taken the session over, or was not opened at all.
func (pr *probe) closed() {
	if pr.timer != nil {
		pr.timer.Stop()
	}
	pr.p.unclaim(pr)
}

// complete moves the session to the WebSocket; false: the session is over.
func (pr *probe) complete(ws *melody.Session) bool {
	if !pr.timer.Stop() {
		return false
	}
	c, p := pr.c, pr.p
	c.reading.Lock() // a POST that is being handled comes first,
	defer c.reading.Unlock()
	p.writing.Lock() // and a GET that is being answered: the client may have its answer before we know
	defer p.writing.Unlock()
	t := carriedOf(ws)
	c.mu.Lock()
	p.mu.Lock()
	if p.state != pollOpen || c.state >= connCut {
		p.mu.Unlock()
		c.mu.Unlock()
		return false
	}
	p.state, p.probe = pollMoved, nil
	left := p.left
	p.mu.Unlock()
	c.wire = (*webSocket)(ws)
	t.framed, t.probe = true, nil
	c.mu.Unlock()
	p.nudge()
	c.out.changeTo((*webSocket)(ws))
	c.srv.upgraded.Add(1)
	c.srv.wg.Done() // the polling session's; the WebSocket has its own
	if left {
		c.farewell()
	}
	*pr = probe{} // what is left of it is held by the connection's goroutine
	return true
}
