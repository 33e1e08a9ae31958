package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
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

	"holdfast/sockets"
	"holdfast/transport/engineio"
)

// Options configure a Server. A zero field means its default.
type Options struct {
	// Paths are where the server answers, with and without the slash at the end.
	// Default "/socket.io/".
	Paths []string

	// Cluster tells where the sessions of other replicas are. Nil: there is no other replica.
	Cluster Cluster

	// ClusterTLS is asked for each connection to another replica by https, and not changed. Nil: the system's roots
	// are trusted.
	ClusterTLS func() *tls.Config

	// Namespaces that clients may join; others are refused. Default "/".
	Namespaces []string

	// PingInterval, PingTimeout and ConnectTimeout are the protocols' own. Defaults 25, 20, 45 s.
	PingInterval, PingTimeout, ConnectTimeout time.Duration

	// MaxPayload bounds one message of a client, in bytes. Default 1,000,000.
	MaxPayload int

	// Deflate compresses the messages of WebSockets whose clients can, and lets them: permessage-deflate, without
	// context from one message to the next. Off by default.
	Deflate bool

	// Origins that browsers may connect from, as "https://host:port"; "*" is any. None means the
	// server's own host only. A request without Origin is always allowed.
	Origins []string

	// MaxConnections and MaxPerAddress bound the sessions in total and of one network address. More are refused
	// when they join a namespace, with CONNECT_ERROR code TOO_MANY_CONNECTIONS; when maxExcess wait for that, by
	// HTTP status 503. Default: no bound.
	MaxConnections, MaxPerAddress int

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
	if len(o.Namespaces) == 0 {
		o.Namespaces = []string{"/"}
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
	opt            Options
	app            App
	log            zerolog.Logger
	paths          []string // without the slash at the end
	melody         *melody.Melody
	newHandler     func(*conn) handler
	finishTimeout  time.Duration
	upgradeTimeout time.Duration
	write          func(fd int, b []byte) (int, error) // of carried.now; changed by tests

	opening chan struct{} // has a place for each session that is being opened
	forward *forwarder    // nil without a Cluster
	wg      sync.WaitGroup

	mu       sync.Mutex
	ending   bool // nothing is added to wg from outside a session after this
	conns    map[string]*conn
	excess   int                 // of conns
	of       map[string]int      // sessions of an address, without excess ones; only with MaxPerAddress
	partings map[string]struct{} // bounded by maxParted
	closed   map[Reason]uint64

	opened, overflows       atomic.Uint64
	upgraded, forwarded     atomic.Uint64
	messagesIn, messagesOut atomic.Uint64
	bytesIn, bytesOut       atomic.Uint64
	refused                 [refusals]atomic.Uint64
}

// NewServer makes a server that reports to app.
func NewServer(o Options, app App) *Server {
	s := &Server{
		opt:            o.withDefaults(),
		app:            app,
		log:            o.Log,
		finishTimeout:  finishTimeout,
		upgradeTimeout: upgradeTimeout,
		conns:          map[string]*conn{},
		of:             map[string]int{},
		partings:       map[string]struct{}{},
		closed:         map[Reason]uint64{},
		opening:        make(chan struct{}, maxOpening),
		write:          sockets.Write,
	}
	for _, p := range s.opt.Paths {
		s.paths = append(s.paths, strings.TrimSuffix(p, "/"))
	}
	s.newHandler = func(c *conn) handler { return newClient(c) }
	s.melody = s.newMelody()
	if s.opt.Cluster != nil {
		s.forward = newForwarder(s)
	}
	return s
}

// ServeHTTP serves what clients ask for: a session, its packets over HTTP, or its move to a WebSocket.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(s.paths, strings.TrimSuffix(r.URL.Path, "/")) {
		http.NotFound(w, r)
		return
	}
	allowed := s.crossOrigin(w, r)
	if r.Method == http.MethodOptions {
		if !allowed {
			refuse(w, engineio.Forbidden)
			return
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	q := r.URL.Query()
	sid, upgrade := q.Get("sid"), websocket.IsWebSocketUpgrade(r)
	c := s.session(sid)
	code, ok := s.check(r, q, c, upgrade)
	switch {
	case s.forward != nil && r.Header.Get(forwardHeader) != "" && !s.opt.Cluster.Signed(r):
		refuse(w, engineio.Forbidden)
	case !ok && code == engineio.SessionUnknown && s.forward != nil && s.forward.forward(w, r, sid, upgrade):
	case ok && !allowed:
		refuse(w, engineio.Forbidden)
	case !ok && code == engineio.SessionUnknown && r.Method == http.MethodGet && !upgrade:
		s.tooLate(w, sid)
	case !ok:
		refuse(w, code)
	case c == nil:
		s.open(w, r, q)
	case q.Get("transport") == websocketTransport:
		s.move(w, r, c)
	default:
		s.exchange(w, r, c)
	}
}

// open starts a session.
func (s *Server) open(w http.ResponseWriter, r *http.Request, q url.Values) {
	if s.full() {
		unavailable(w)
		return
	}
	c := &conn{
		srv:      s,
		id:       newSID(),
		remote:   strings.Clone(r.RemoteAddr),
		agent:    short(r.UserAgent(), 256),
		instance: short(q.Get("instance"), 256),
	}
	if s.opt.Cluster != nil {
		tag, ok := s.opt.Cluster.Tag()
		if !ok && q.Get("transport") == pollingTransport {
			unavailable(w) // its next request would find nobody
			return
		}
		c.id = tag + c.id
	}
	if !s.waitToOpen(r.Context()) {
		unavailable(w)
		return
	}
	defer s.doneOpening()
	if q.Get("transport") == websocketTransport {
		s.openWebSocket(w, r, c, nil)
	} else {
		s.openPolling(w, r, c)
	}
}

// exchange serves a request of a session that polls.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request, c *conn) {
	p := c.polls()
	switch {
	case p == nil:
		refuse(w, engineio.BadRequest)
	case r.Method == http.MethodGet:
		p.poll(w, r)
	case r.Method == http.MethodPost:
		p.post(w, r)
	default:
		refuse(w, engineio.BadRequest)
	}
}

// enter keeps Close waiting for what the caller begins; false: the server is closing.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.wg.Add(1)
	return true
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "starting, stopping or full", http.StatusServiceUnavailable)
}

const (
	websocketTransport = "websocket"
	pollingTransport   = "polling"
)

// check is in the order of the reference server, which clients are tested against. c is the session that the
// request names, if there is one.
func (s *Server) check(r *http.Request, q url.Values, c *conn, upgrade bool) (engineio.Code, bool) {
	transport := q.Get("transport")
	switch {
	case transport != websocketTransport && transport != pollingTransport:
		return engineio.TransportUnknown, false
	case q.Get("sid") != "" && c == nil:
		return engineio.SessionUnknown, false
	case c != nil && transport == websocketTransport && !upgrade:
		return engineio.BadRequest, false
	case c != nil:
		return 0, true
	case r.Method != http.MethodGet:
		return engineio.BadHandshakeMethod, false
	case q.Get("EIO") != engineio.Version:
		return engineio.UnsupportedVersion, false
	case transport == websocketTransport && !upgrade:
		return engineio.BadRequest, false
	}
	return 0, true
}

// crossOrigin says what the client's browser wants to know, and whether it may come from where it does. Credentials,
// such as a balancer's cookies, go with origins that are listed by name only.
func (s *Server) crossOrigin(w http.ResponseWriter, r *http.Request) bool {
	if !s.originAllowed(r) {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	h := w.Header()
	if s.originListed(origin) {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Add("Vary", "Origin")
	} else if slices.Contains(s.opt.Origins, "*") {
		h.Set("Access-Control-Allow-Origin", "*")
	}
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", "GET, POST")
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
			h.Add("Vary", "Access-Control-Request-Headers")
		}
		h.Set("Access-Control-Max-Age", "600")
	}
	return true
}

func (s *Server) originListed(origin string) bool {
	return slices.ContainsFunc(s.opt.Origins, func(listed string) bool {
		return strings.EqualFold(strings.TrimSuffix(listed, "/"), origin)
	})
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
	return slices.Contains(s.opt.Origins, "*") || s.originListed(origin)
}

func refuse(w http.ResponseWriter, code engineio.Code) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code.Status())
	w.Write(code.Body()) //nolint:errcheck // the client is gone
}

// session is the one with that sid, or nil.
func (s *Server) session(sid string) *conn {
	if sid == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[sid]
}

func (s *Server) register(c *conn) {
	s.opened.Add(1)
	s.mu.Lock()
	s.limit(c)
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
	s.unlimit(c)
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
	if s.forward != nil {
		s.forward.close()
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
	Upgraded                uint64 // from polling to a WebSocket
	Forwarded               uint64 // requests handed to other replicas
	Closed                  map[Reason]uint64
	OutboxOverflows         uint64
	Refused                 map[string]uint64 // messages of clients that were too large, by why
	MessagesIn, MessagesOut uint64
	BytesIn, BytesOut       uint64
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	st := Stats{
		Opened:          s.opened.Load(),
		Upgraded:        s.upgraded.Load(),
		Forwarded:       s.forwarded.Load(),
		OutboxOverflows: s.overflows.Load(),
		MessagesIn:      s.messagesIn.Load(),
		MessagesOut:     s.messagesOut.Load(),
		BytesIn:         s.bytesIn.Load(),
		BytesOut:        s.bytesOut.Load(),
	}
	st.Refused = make(map[string]uint64, len(s.refused))
	for why := range s.refused[1:] {
		st.Refused[refusalNames[why+1]] = s.refused[why+1].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Connections = len(s.conns)
	st.Closed = maps.Clone(s.closed)
	return st
}
