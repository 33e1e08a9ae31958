package transport

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"
	"github.com/rs/zerolog"

	"holdfast/transport/engineio"
)

// never is longer than any connection lives. Only Engine.IO's own pings end idle connections.
const never = 100 * 365 * 24 * time.Hour

// Options configure a Server. A zero field means its default.
type Options struct {
	// Paths are where the server answers, with and without the slash at the end.
	// Default "/socket.io/".
	Paths []string

	// PingInterval, PingTimeout and ConnectTimeout are the protocols' own. Defaults 25, 20, 45 s.
	PingInterval, PingTimeout, ConnectTimeout time.Duration

	// MaxPayload bounds one message of a client, in bytes. Default 1,000,000.
	MaxPayload int

	// Origins that browsers may connect from, as "https://host:port"; "*" is any. None means the
	// server's own host only. A request without Origin is always allowed.
	Origins []string

	// OutboxBytes and OutboxMessages bound what waits for one client; one that needs more is cut
	// off. Defaults 4 MiB and 10,000.
	OutboxBytes, OutboxMessages int

	// MaxPending bounds the packets that a client may send while it is being admitted; together
	// they may have OutboxBytes. One that sends more is cut off. Default 256.
	MaxPending int

	Log zerolog.Logger
}

func (o Options) withDefaults() Options {
	if len(o.Paths) == 0 {
		o.Paths = []string{"/socket.io/"}
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defInt := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&o.PingInterval, 25*time.Second)
	def(&o.PingTimeout, 20*time.Second)
	def(&o.ConnectTimeout, 45*time.Second)
	defInt(&o.MaxPayload, 1_000_000)
	defInt(&o.OutboxBytes, 4<<20)
	defInt(&o.OutboxMessages, 10_000)
	defInt(&o.MaxPending, 256)
	return o
}

// Server accepts connections. It is an http.Handler.
type Server struct {
	opt           Options
	app           App
	log           zerolog.Logger
	paths         []string // without the slash at the end
	melody        *melody.Melody
	newHandler    func(*conn) handler
	finishTimeout time.Duration

	noPolling sync.Once // says so in the log
	wg        sync.WaitGroup

	mu     sync.Mutex
	ending bool // no session is registered, and nothing added to wg from outside one, after this
	conns  map[string]*conn
	closed map[Reason]uint64

	opened, overflows       atomic.Uint64
	messagesIn, messagesOut atomic.Uint64
	bytesIn, bytesOut       atomic.Uint64
}

// NewServer makes a server that reports to app.
func NewServer(o Options, app App) *Server {
	s := &Server{
		opt:           o.withDefaults(),
		app:           app,
		log:           o.Log,
		finishTimeout: finishTimeout,
		conns:         map[string]*conn{},
		closed:        map[Reason]uint64{},
	}
	for _, p := range s.opt.Paths {
		s.paths = append(s.paths, strings.TrimSuffix(p, "/"))
	}
	s.newHandler = func(c *conn) handler { return newClient(c) }
	s.melody = s.newMelody()
	return s
}

// newMelody sets melody up as a mere carrier: our outbox bounds, our pings, our close frames.
func (s *Server) newMelody() *melody.Melody {
	m := melody.New()
	m.Upgrader = &websocket.Upgrader{
		ReadBufferSize:  128,     // held by every idle connection; the smallest that there is
		WriteBufferSize: 4 << 10, // shared; a larger message is two writes
		WriteBufferPool: &sync.Pool{},
		CheckOrigin:     func(*http.Request) bool { return true }, // checked before
		Error: func(w http.ResponseWriter, _ *http.Request, _ int, _ error) {
			refuse(w, engineio.BadRequest)
		},
	}
	m.Config.MessageBufferSize = window
	m.Config.MaxMessageSize = int64(s.opt.MaxPayload)
	m.Config.PingPeriod = never
	m.Config.PongWait = never
	// A client that takes nothing misses its ping first.
	m.Config.WriteWait = s.opt.PingInterval + 2*s.opt.PingTimeout
	m.HandleConnect(func(ws *melody.Session) {
		c := connOf(ws)
		c.opened(ws)
		s.register(c)
	})
	m.HandleDisconnect(func(ws *melody.Session) { connOf(ws).closed() })
	m.HandleMessage(func(ws *melody.Session, b []byte) {
		s.count(b)
		connOf(ws).received(b)
	})
	m.HandleMessageBinary(func(ws *melody.Session, b []byte) {
		s.count(b)
		connOf(ws).receivedBinary(b)
	})
	m.HandleSentMessage(func(ws *melody.Session, _ []byte) { connOf(ws).sent() })
	m.HandleError(func(ws *melody.Session, err error) { connOf(ws).failed(err) })
	return m
}

func connOf(ws *melody.Session) *conn { return carriedOf(ws).c }

// ServeHTTP checks the request and upgrades it. It returns as soon as the connection is the
// WebSocket's, so that the HTTP server's buffers and goroutine are not held for its life.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(s.paths, strings.TrimSuffix(r.URL.Path, "/")) {
		http.NotFound(w, r)
		return
	}
	q := r.URL.Query()
	if code, ok := s.check(r, q); !ok {
		refuse(w, code)
		return
	}
	c := &conn{
		srv:      s,
		id:       newSID(),
		remote:   strings.Clone(r.RemoteAddr),
		agent:    short(r.UserAgent(), 256),
		instance: short(q.Get("instance"), 256),
	}
	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	s.wg.Add(1)
	s.mu.Unlock()
	h := &hijacker{ResponseWriter: w, c: c, done: make(chan struct{})}
	c.upgrade = h
	go s.carry(h, r, c)
	<-h.done
}

// carry runs the connection. It keeps nothing of the request beyond the hijack: the HTTP server's
// buffers are larger than all else that an idle connection holds.
func (s *Server) carry(w http.ResponseWriter, r *http.Request, c *conn) {
	defer s.wg.Done()
	if err := s.melody.HandleRequest(w, r); err != nil {
		s.log.Debug().Err(err).Str("remote", c.remote).Msg("upgrade failed")
		c.upgrade.release()
	}
}

// hijacker tells when the connection has been taken from the HTTP server.
type hijacker struct {
	http.ResponseWriter
	c    *conn
	once sync.Once
	done chan struct{}
}

// Hijack is called by the upgrader, which does not use the ResponseWriter afterwards.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	tcp, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.release()
	return carry(tcp, h.c), rw, nil
}

func (h *hijacker) release() { h.once.Do(func() { close(h.done) }) }

// check is in the order of the reference server, which clients are tested against.
func (s *Server) check(r *http.Request, q url.Values) (engineio.Code, bool) {
	if t := q.Get("transport"); t != "websocket" {
		if t == "polling" {
			s.noPolling.Do(func() {
				s.log.Info().Msg("a client asked for HTTP long-polling, which is not served yet; it must use the websocket transport")
			})
		}
		return engineio.TransportUnknown, false
	}
	if sid := q.Get("sid"); sid != "" {
		if s.known(sid) {
			return engineio.BadRequest, false // a second WebSocket; the session goes on
		}
		return engineio.SessionUnknown, false
	}
	if r.Method != http.MethodGet {
		return engineio.BadHandshakeMethod, false
	}
	if q.Get("EIO") != engineio.Version {
		return engineio.UnsupportedVersion, false
	}
	if !websocket.IsWebSocketUpgrade(r) {
		return engineio.BadRequest, false
	}
	if !s.originAllowed(r) {
		return engineio.Forbidden, false
	}
	return 0, true
}

func (s *Server) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if len(s.opt.Origins) == 0 {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	}
	for _, allowed := range s.opt.Origins {
		if allowed == "*" || strings.EqualFold(strings.TrimSuffix(allowed, "/"), origin) {
			return true
		}
	}
	return false
}

func refuse(w http.ResponseWriter, code engineio.Code) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code.Status())
	w.Write(code.Body()) //nolint:errcheck // the client is gone
}

func (s *Server) known(sid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[sid] != nil
}

func (s *Server) register(c *conn) {
	s.opened.Add(1)
	s.mu.Lock()
	s.conns[c.id] = c
	ending := s.ending
	s.mu.Unlock()
	if ending {
		c.finish(ReasonShutdown)
	}
}

func (s *Server) forget(c *conn, reason Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.id)
	s.closed[reason]++
}

func (s *Server) count(frame []byte) {
	s.messagesIn.Add(1)
	s.bytesIn.Add(uint64(len(frame)))
}

// guard runs a function of the App and reports whether it returned rather than panicked.
func (s *Server) guard(what string, f func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			s.logPanic(v, what)
		}
	}()
	f()
	return true
}

func (s *Server) logPanic(v any, in string) {
	s.log.Error().Interface("panic", v).Str("in", in).Bytes("stack", debug.Stack()).Msg("panic recovered")
}

// Close ends every connection with ReasonShutdown, after sending what waits, and returns when
// the App has been told of all. When ctx ends before, it cuts those that are left and returns
// the context's error.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	conns := make([]*conn, 0, len(s.conns))
	for _, c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.finish(ReasonShutdown)
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		if err := s.melody.Close(); err != nil && !errors.Is(err, melody.ErrClosed) {
			return err
		}
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for _, c := range s.conns {
		go c.cut(ReasonShutdown)
	}
	s.mu.Unlock()
	return ctx.Err()
}

// Connections is how many sessions are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Stats are counters since the start, except Connections. Bytes are those of messages, without
// the WebSocket's framing.
type Stats struct {
	Connections             int
	Opened                  uint64
	Closed                  map[Reason]uint64
	OutboxOverflows         uint64
	MessagesIn, MessagesOut uint64
	BytesIn, BytesOut       uint64
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	st := Stats{
		Opened:          s.opened.Load(),
		OutboxOverflows: s.overflows.Load(),
		MessagesIn:      s.messagesIn.Load(),
		MessagesOut:     s.messagesOut.Load(),
		BytesIn:         s.bytesIn.Load(),
		BytesOut:        s.bytesOut.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Connections = len(s.conns)
	st.Closed = maps.Clone(s.closed)
	return st
}
