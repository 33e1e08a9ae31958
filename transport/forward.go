package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"syscall"
	"time"

	"holdfast/transport/engineio"
)

const (
	// dialTimeout bounds reaching another replica: one that does not answer is as good as gone.
	dialTimeout = 2 * time.Second
	// maxForwards bounds the requests and WebSockets that a replica hands on at a time. More are refused with 503.
	maxForwards = 20_000
	// warnEvery is how often a failure that stays is logged.
	warnEvery = 5 * time.Second
	// forwardChunk is how much of a WebSocket's bytes is handed on at a time.
	forwardChunk = 8 << 10
)

// Cluster tells a Server where the sessions are that it does not have.
type Cluster interface {
	// Tag is what the sids of this replica begin with, of two bytes; false: it has none yet.
	Tag() (string, bool)
	// Locate is the URL of the other replica that has the session, or empty.
	Locate(sid string) string
	// Sign marks a request that is handed on.
	Sign(r *http.Request)
	// Signed reports whether the mark is another replica's.
	Signed(r *http.Request) bool
	// Refused says that another replica has not taken the mark of this one.
	Refused()
}

// forwarder hands requests for a session to the replica that has it, once: what has been handed on is not handed
// on again.
type forwarder struct {
	srv   *Server
	slots chan struct{}
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	open   map[net.Conn]struct{} // the clients' connections of WebSockets that are handed on
	warned time.Time
}

type forwardTo struct{}

func newForwarder(s *Server) *forwarder {
	f := &forwarder{srv: s, slots: make(chan struct{}, maxForwards), open: map[net.Conn]struct{}{}}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			to := p.In.Context().Value(forwardTo{}).(*url.URL)
			p.Out.URL.Scheme, p.Out.URL.Host = to.Scheme, to.Host
			p.Out.Host = p.In.Host
			p.Out.Header.Set(forwardHeader, p.In.Header.Get(forwardHeader))
		},
		ModifyResponse: func(res *http.Response) error {
			f.noteRefusal(res)
			return nil
		},
		FlushInterval: -1,
		BufferPool:    forwardBuffers{},
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			DialTLSContext:      f.dialTLS,
			MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
			// A GET is answered by a ping at the latest.
			ResponseHeaderTimeout: s.opt.PingInterval + s.opt.PingTimeout + bodyTimeout,
			DisableCompression:    true,
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f.failed(err)
			if r.Context().Err() == nil {
				refuse(w, engineio.SessionUnknown)
			}
		},
	}
	return f
}

// failed logs why a request could not be handed on. A replica that is gone is nothing special; a certificate that is not
// trusted stays so until somebody sees to it.
func (f *forwarder) failed(err error) {
	event := f.srv.log.Debug()
	if distrusted := new(tls.CertificateVerificationError); errors.As(err, &distrusted) {
		f.mu.Lock()
		if time.Since(f.warned) >= warnEvery {
			f.warned, event = time.Now(), f.srv.log.Warn()
		}
		f.mu.Unlock()
	}
	event.Err(err).Msg("a request could not be handed to the replica of its session")
}

// noteRefusal: an origin may be refused with the same status, which does no harm.
func (f *forwarder) noteRefusal(res *http.Response) {
	if res.StatusCode == http.StatusForbidden {
		f.srv.opt.Cluster.Refused()
	}
}

type forwardBuffers struct{}

var forwardPool = sync.Pool{New: func() any { return new([forwardChunk]byte) }}

func (forwardBuffers) Get() []byte  { return forwardPool.Get().(*[forwardChunk]byte)[:] }
func (forwardBuffers) Put(b []byte) { forwardPool.Put((*[forwardChunk]byte)(b)) }

// forward hands a request on; false: its session is nowhere.
func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, sid string, upgrade bool) bool {
	if r.Header.Get(forwardHeader) != "" {
		return false
	}
	to, err := url.Parse(f.srv.opt.Cluster.Locate(sid))
	if err != nil || to.Host == "" {
		return false
	}
	f.srv.opt.Cluster.Sign(r)
	select {
	case f.slots <- struct{}{}:
	default:
		unavailable(w)
		return true
	}
	f.srv.forwarded.Add(1)
	clear(w.Header()) // the other replica says what browsers want to know
	if upgrade {
		f.webSocket(w, r, to)
		return true
	}
	defer func() { <-f.slots }()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // of the body; not every server can
	f.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), forwardTo{}, to)))
	_ = control.SetReadDeadline(time.Time{})
	return true
}

// webSocket hands an upgrade on. Once both sides have agreed, it returns, and the two connections are all that is
// kept.
func (f *forwarder) webSocket(w http.ResponseWriter, r *http.Request, to *url.URL) {
	kept := false
	defer func() {
		if !kept {
			<-f.slots
		}
	}()
	there, res, err := f.ask(r, to)
	if err != nil {
		f.failed(err)
		refuse(w, engineio.SessionUnknown)
		return
	}
	defer func() {
		if !kept {
			there.Close()
		}
	}()
	if res.StatusCode != http.StatusSwitchingProtocols {
		f.noteRefusal(res)
		defer res.Body.Close()
		for k, v := range res.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(res.StatusCode)
		_, _ = io.CopyN(w, res.Body, forwardChunk)
		return
	}
	here, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, engineio.BadRequest)
		return
	}
	_ = here.SetDeadline(time.Now().Add(dialTimeout))
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = res.Header.Write(rw)
	_, _ = rw.WriteString("\r\n")
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // what the client has sent already
	if rw.Flush() != nil || !writeAll(there, early) || !f.keep(here) {
		here.Close()
		return
	}
	_ = here.SetDeadline(time.Time{})
	_ = there.SetDeadline(time.Time{})
	kept = true
	go f.join(here, there)
}

func writeAll(c net.Conn, b []byte) bool {
	if len(b) == 0 {
		return true
	}
	_, err := c.Write(b)
	return err == nil
}

// dialTLS bounds dialing and the handshake together.
func (f *forwarder) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &tls.Dialer{}
	if f.srv.opt.ClusterTLS != nil {
		dialer.Config = f.srv.opt.ClusterTLS()
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return dialer.DialContext(ctx, network, address)
}

// ask sends the request on and reads the answer to it.
func (f *forwarder) ask(r *http.Request, to *url.URL) (net.Conn, *http.Response, error) {
	address := to.Host
	if to.Port() == "" {
		address = net.JoinHostPort(to.Hostname(), map[string]string{"http": "80", "https": "443"}[to.Scheme])
	}
	var there net.Conn
	var err error
	if to.Scheme == "https" {
		there, err = f.dialTLS(r.Context(), "tcp", address)
	} else {
		there, err = (&net.Dialer{Timeout: dialTimeout}).DialContext(r.Context(), "tcp", address)
	}
	if err != nil {
		return nil, nil, err
	}
	_ = there.SetDeadline(time.Now().Add(2 * dialTimeout))
	out := r.Clone(r.Context())
	out.Body, out.ContentLength = nil, 0
	var res *http.Response
	in := bufio.NewReaderSize(there, 4<<10)
	if err = out.Write(there); err == nil {
		res, err = http.ReadResponse(in, r)
	}
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols && in.Buffered() > 0 {
		early, _ := in.Peek(in.Buffered()) // a WebSocket that is turned away
		there = &preceded{Conn: there, early: append([]byte(nil), early...)}
	}
	if err != nil {
		there.Close()
		return nil, nil, err
	}
	return there, res, nil
}

// preceded is a connection of which some bytes have been read already.
type preceded struct {
	net.Conn
	early []byte
}

func (p *preceded) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		p.early = p.early[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

func (f *forwarder) keep(c net.Conn) bool {
	if !f.srv.enter() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[c] = struct{}{}
	return true
}

// join carries bytes both ways until either side ends.
func (f *forwarder) join(here, there net.Conn) {
	defer f.srv.wg.Done()
	defer func() { <-f.slots }()
	ended := make(chan struct{})
	go func() {
		carryBytes(here, there, bodyTimeout)
		here.Close()
		there.Close()
		close(ended)
	}()
	carryBytes(there, here, bodyTimeout)
	here.Close()
	there.Close()
	<-ended
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, here)
}

// close ends what is handed on: the clients come back to another replica.
func (f *forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		c.Close()
	}
	f.proxy.Transport.(*http.Transport).CloseIdleConnections()
}

// carryBytes copies until an end, or until dst has taken nothing for so long: whoever is behind it may be gone without a
// word. A buffer is held only while something is in it, as far as the system tells when there is something: most of
// these connections are idle most of the time.
func carryBytes(dst, src net.Conn, patience time.Duration) {
	write := func(b []byte) error {
		_ = dst.SetWriteDeadline(time.Now().Add(patience))
		_, err := dst.Write(b)
		return err
	}
	var raw syscall.RawConn
	if tcp, ok := src.(syscall.Conn); ok {
		raw, _ = tcp.SyscallConn()
	}
	if raw == nil {
		buffer := make([]byte, forwardChunk/4)
		for {
			n, err := src.Read(buffer)
			if n > 0 && write(buffer[:n]) != nil || err != nil {
				return
			}
		}
	}
	in := carried{raw: raw}
	for raw.Read(in.receive) == nil && in.err == nil {
		err := write(in.left)
		readBuffers.Put(in.buffer)
		in.buffer, in.left = nil, nil
		if err != nil {
			return
		}
	}
}
