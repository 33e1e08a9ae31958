package transport

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"

	"holdfast/transport/engineio"
)

// never is longer than any connection lives. Only Engine.IO's own pings end idle connections.
const never = 100 * 365 * 24 * time.Hour

// drainTimeout and drainBytes bound reading away the rest of an oversized message.
const (
	drainTimeout = time.Second
	drainBytes   = 64 << 20
)

// newMelody sets melody up as a mere carrier: our outbox bounds, our pings, our close frames.
func (s *Server) newMelody() *melody.Melody {
	m := melody.New()
	m.Upgrader = &websocket.Upgrader{
		ReadBufferSize:  128,     // held by every idle connection; the smallest that there is
		WriteBufferSize: 4 << 10, // shared; a larger message is two writes
		WriteBufferPool: &sync.Pool{},
		// Of the answer, which a client that has just come has room for.
		HandshakeTimeout: cutTimeout,
		CheckOrigin:      func(*http.Request) bool { return true }, // checked before
		Error: func(w http.ResponseWriter, _ *http.Request, _ int, _ error) {
			refuse(w, engineio.BadRequest)
		},
	}
	m.Config.MessageBufferSize = window
	m.Config.MaxMessageSize = int64(s.opt.MaxPayload)
	m.Config.PingPeriod = never
	m.Config.PongWait = never
	// A client that takes nothing misses its ping first.
	m.Config.WriteWait = s.writeWait()
	m.HandleConnect(func(ws *melody.Session) {
		ws.Request = nil // it would live, with its buffers, as long as the connection
		if t := carriedOf(ws); t.probe != nil {
			t.probe.opened(ws)
		} else {
			t.c.opened(ws)
		}
	})
	m.HandleDisconnect(func(ws *melody.Session) {
		if t := carriedOf(ws); t.probe != nil {
			t.probe.closed()
		} else {
			t.c.closed()
		}
	})
	m.HandleMessage(func(ws *melody.Session, b []byte) { s.message(ws, websocket.TextMessage, b) })
	m.HandleMessageBinary(func(ws *melody.Session, b []byte) { s.message(ws, websocket.BinaryMessage, b) })
	if s.opt.Deflate {
		m.Upgrader.EnableCompression = true
		m.Config.MaxMessageSize += int64(deflateSlack(s.opt.MaxPayload))
		m.HandleMessage(func(ws *melody.Session, _ []byte) { s.readInflated(ws) })
	}
	sent := func(ws *melody.Session, _ []byte) { carriedOf(ws).c.sent() }
	m.HandleSentMessage(sent)
	m.HandleSentMessageBinary(sent)
	m.HandleError(func(ws *melody.Session, err error) {
		if t := carriedOf(ws); t.probe == nil {
			t.c.failed(ws, err)
		}
	})
	return m
}

// message handles a frame of a WebSocket, or all those of a message in parts.
func (s *Server) message(ws *melody.Session, kind int, b []byte) {
	t := carriedOf(ws)
	switch binary := kind == websocket.BinaryMessage; {
	case t.probe != nil && binary:
		t.probe.violated(ws)
	case t.probe != nil:
		t.probe.received(ws, b)
	case binary:
		s.count(b)
		t.c.receivedBinary(b)
	default:
		s.count(b)
		t.c.received(b)
	}
}

// writeWait is how long a write may take: a client that takes nothing has missed its ping by then.
func (s *Server) writeWait() time.Duration { return s.opt.PingInterval + 2*s.opt.PingTimeout }

// openWebSocket upgrades the request. It returns as soon as the WebSocket is open, so that the HTTP server's buffers and
// goroutine are not held for its life. The probe is nil but for the upgrade of a session.
func (s *Server) openWebSocket(w http.ResponseWriter, r *http.Request, c *conn, pr *probe) {
	if !s.enter() {
		if pr != nil {
			pr.closed()
		}
		unavailable(w)
		return
	}
	h := &hijacker{ResponseWriter: w, c: c, probe: pr, deflate: s.agree(r), done: make(chan struct{})}
	c.upgrade = h
	// What runs the connection keeps nothing of the request beyond the hijack, since the HTTP server's buffers are larger
	// than all else that an idle connection holds, and little on the stack: the runtime halves one of 8 KiB only while
	// less than a quarter of it is in use, 800 bytes of its own included.
	go func() {
		if err := s.melody.HandleRequest(h, r); err != nil {
			c.upgrade.failed(err) // h is not to be kept
		}
		s.wg.Done()
	}()
	<-h.done
}

// hijacker takes the connection from the HTTP server, and tells when the WebSocket is open.
type hijacker struct {
	http.ResponseWriter
	c       *conn
	probe   *probe
	deflate bool
	once    sync.Once
	done    chan struct{}
}

// Hijack is called by the upgrader, which does not use the ResponseWriter afterwards.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	tcp, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	t := carry(tcp, h.c)
	t.probe = h.probe
	t.deflate = h.deflate
	if h.c.srv.opt.Deflate {
		t.left = pretext
	}
	return t, rw, nil
}

// failed comes instead of opened.
//
//go:noinline
func (h *hijacker) failed(err error) {
	s := h.c.srv
	s.log.Debug().Err(err).Str("remote", h.c.remote).Msg("upgrade failed")
	h.c.upgrade = nil
	if h.probe != nil {
		h.probe.closed()
	}
	h.release()
}

func (h *hijacker) release() { h.once.Do(func() { close(h.done) }) }

// opened starts a session on an upgraded WebSocket, before anything is read from it.
func (c *conn) opened(ws *melody.Session) {
	h := c.upgrade
	c.upgrade = nil
	carriedOf(ws).framed = true
	c.begin((*webSocket)(ws))
	c.send(c.handshake(), nil, nil)
	c.srv.register(c)
	h.release()
}

// webSocket is a session's wire when it is one.
type webSocket melody.Session

func (w *webSocket) raw() *websocket.Conn { return (*melody.Session)(w).WebsocketConnection() }

func (w *webSocket) carry(packet []byte, binary bool) error {
	w.deflating(packet)
	if binary {
		return (*melody.Session)(w).WriteBinary(packet)
	}
	return (*melody.Session)(w).Write(packet)
}

func (w *webSocket) now(packet []byte) bool { return carriedOf((*melody.Session)(w)).now(packet) }

func (w *webSocket) bye(reason Reason) error {
	return w.raw().WriteControl(websocket.CloseMessage,
		websocket.FormatCloseMessage(reason.closeCode(), string(reason)), time.Now().Add(cutTimeout))
}

// shut makes melody's read pump return, which reports the end.
func (w *webSocket) shut() { w.raw().Close() }

// failed takes note of an error of the WebSocket; the read pump ends by itself.
func (c *conn) failed(ws *melody.Session, err error) {
	var closeErr *websocket.CloseError
	switch {
	case errors.Is(err, melody.ErrWriteClosed), errors.Is(err, websocket.ErrCloseSent):
		return // the end is under way, and its reason known
	case errors.Is(err, melody.ErrMessageBufferFull):
		c.srv.log.Error().Str("conn", c.id).Msg("carrier overflowed")
		go c.cut(ReasonTransportError) // not here: the outbox is locked
		return
	case errors.Is(err, websocket.ErrReadLimit):
		c.noteNow(ReasonProtocolError)
		drain(ws)
	case errors.As(err, &closeErr):
		c.noteNow(ReasonTransportClose)
	default:
		c.noteNow(ReasonTransportError)
	}
}

// drain reads away what is left of an oversized message, so that the close frame (1009) that the
// client was sent is not lost in a reset.
func drain(ws *melody.Session) {
	raw := ws.WebsocketConnection().NetConn()
	raw.SetReadDeadline(time.Now().Add(drainTimeout)) //nolint:errcheck // then the copy fails too
	io.CopyN(io.Discard, raw, drainBytes)             //nolint:errcheck // best effort
}
