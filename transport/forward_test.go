package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"
)

// pair is two servers that know each other; requests may go to either.
type pair struct {
	app     *testApp
	servers [2]*Server
	urls    [2]string
	webs    [2]*httptest.Server
	inner   [2]*httptest.Server // where the other server reaches it
}

// twin is the Cluster of server i.
type twin struct {
	p    *pair
	i    int
	gone atomic.Bool // the other one is not known to live

	sign    atomic.Pointer[string] // instead of what the other one takes
	refused atomic.Int64
}

func (c *twin) Tag() (string, bool) { return "t" + string(rune('0'+c.i)), true }

func (c *twin) Locate(sid string) string {
	if other := "t" + string(rune('1'-c.i)); c.gone.Load() || !strings.HasPrefix(sid, other) {
		return ""
	}
	return c.p.inner[1-c.i].URL
}

func (c *twin) Sign(r *http.Request) {
	mark := "signed"
	if other := c.sign.Load(); other != nil {
		mark = *other
	}
	r.Header.Set(forwardHeader, mark)
}

func (c *twin) Signed(r *http.Request) bool { return r.Header.Get(forwardHeader) == "signed" }

func (c *twin) Refused() { c.refused.Add(1) }

func startPair(t *testing.T, o Options) *pair {
	t.Helper()
	p := &pair{app: newTestApp()}
	for i := range p.servers {
		o.Cluster = &twin{p: p, i: i}
		p.servers[i] = NewServer(o, p.app)
		p.webs[i] = httptest.NewServer(p.servers[i])
		if p.inner[i] = p.webs[i]; o.ClusterTLS != nil {
			p.inner[i] = httptest.NewTLSServer(p.servers[i])
			p.inner[i].Config.ErrorLog = log.New(io.Discard, "", 0) // who does not trust it says so
		}
		p.urls[i] = wsURL(p.webs[i].URL)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, s := range p.servers {
			if err := s.Close(ctx); err != nil {
				t.Error("close:", err)
			}
		}
		for i := range p.webs {
			p.webs[i].Close()
			p.inner[i].Close()
		}
	})
	return p
}

// at is the same session, seen through the other server.
func (p *poller) at(url string) *poller {
	q := newPoller(p.t, url)
	q.sid = p.sid
	return q
}

func TestForward(t *testing.T) { testForward(t, Options{}) }

func TestForwardOverTLS(t *testing.T) {
	roots := x509.NewCertPool()
	web := httptest.NewTLSServer(nil)
	roots.AddCert(web.Certificate()) // all such servers have the same
	web.Close()
	testForward(t, Options{ClusterTLS: func() *tls.Config { return &tls.Config{RootCAs: roots} }})
}

// A replica whose certificate is not trusted is as good as gone, and the log says so.
func TestForwardDistrusts(t *testing.T) {
	var logged bytes.Buffer
	pair := startPair(t, Options{ClusterTLS: func() *tls.Config { return nil }, Log: zerolog.New(&logged).Level(zerolog.WarnLevel)})
	p := pollJoined(t, pair.urls[0])
	q := p.at(pair.urls[1])
	for range 3 {
		q.wantUnknown()
		if _, res, err := websocket.DefaultDialer.Dial(pair.urls[1]+"&sid="+p.sid, nil); err == nil || res == nil || res.StatusCode != 400 {
			t.Error(res, err)
		}
	}
	if n := strings.Count(logged.String(), "certificate"); n == 0 || strings.Count(logged.String(), "\n") != 1 {
		t.Error(logged.String())
	}
	p.post(`421["a"]`)
	p.want(`431[]`)
}

// Who takes nothing any more is given up, whatever the connections are made of.
func TestCarriedBytesAreNotWaitedForLong(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	system, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	piped, from := net.Pipe()
	go from.Write([]byte("x")) //nolint:errcheck // it is closed
	defer from.Close()
	for _, src := range []net.Conn{system, piped} {
		dst, nobody := net.Pipe()
		done := make(chan struct{})
		go func() { carryBytes(dst, src, 10*time.Millisecond); close(done) }()
		recv(t, done)
		dst.Close()
		nobody.Close()
	}
}

func testForward(t *testing.T, o Options) {
	o.Origins = []string{"https://a.example"}
	pair := startPair(t, o)
	p := pollJoined(t, pair.urls[0])
	s := recv(t, pair.app.joined)
	q := p.at(pair.urls[1])
	q.post(`421["a",1]`, `452-2["b",`+placeholders+`]`, "bAQID", "b")
	q.want(`431[1]`, `462-2[`+placeholders+`]`, "bAQID", "b")
	got := q.waiting(pair.servers[0])
	s.Emit("later")
	q.wants(<-got, 200, `42["later"]`)
	if r := q.do(context.Background(), "POST", "3", "Origin", "https://a.example"); len(r.header.Values("Access-Control-Allow-Origin")) != 1 {
		t.Errorf("%+v", r)
	}

	c := q.move(pair.urls[1])
	c.send("2probe")
	c.want("3probe")
	c.send("5", `422["c"]`)
	c.want(`432[]`)
	big := strings.Repeat("x", 300_000)
	c.send(`42["d","` + big + `"]`)
	c.want(`42["d","` + big + `"]`)
	q.wants(q.get(), 400, badRequest)
	q.move(pair.urls[1]).wantClose(1008)
	c.send(`423["e"]`)
	c.want(`433[]`)
	if a, b := pair.servers[0].Stats(), pair.servers[1].Stats(); a.Forwarded != 0 || b.Forwarded < 5 || b.Connections != 0 {
		t.Errorf("%+v %+v", a, b)
	}
	c.ws.Close()
	wantReason(t, pair.app, ReasonTransportClose)
	q.wantUnknown()
	until(t, "nothing is handed on any more", func() bool { return len(pair.servers[1].forward.slots) == 0 })
}

// The end of the replica in between ends the WebSocket, so that the client comes back.
func TestForwarderEnds(t *testing.T) {
	pair := startPair(t, Options{})
	p := pollJoined(t, pair.urls[0])
	c := p.at(pair.urls[1]).move(pair.urls[1])
	c.send("2probe")
	c.want("3probe")
	c.send("5", `422["c"]`)
	c.want(`432[]`)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := pair.servers[1].Close(ctx); err != nil {
		t.Fatal(err)
	}
	c.ws.SetReadDeadline(time.Now().Add(patience))
	if _, _, err := c.ws.ReadMessage(); err == nil {
		t.Fatal("open")
	}
	if r := recv(t, pair.app.ended); r != ReasonTransportError && r != ReasonTransportClose {
		t.Fatal(r)
	}
}

func TestForwardRefusals(t *testing.T) {
	pair := startPair(t, Options{})
	p := pollJoined(t, pair.urls[0])
	q := p.at(pair.urls[1])
	// Only a replica may say that it hands a request on, and then it goes no further.
	q.wants(q.do(context.Background(), "GET", "", forwardHeader, "forged"), 403, `{"code":4,"message":"Forbidden"}`)
	q.wants(q.do(context.Background(), "GET", "", forwardHeader, "signed"), 400, `{"code":1,"message":"Session ID unknown"}`)
	q.sid = "t0" + newSID()
	q.wantUnknown()
	q.sid = "t9" + newSID()
	q.wantUnknown()
	q.sid = p.sid
	pair.servers[1].opt.Cluster.(*twin).gone.Store(true)
	q.wantUnknown()
	pair.servers[1].opt.Cluster.(*twin).gone.Store(false)
	p.post("1")
	pair.webs[0].Close() // dead, and not yet known to be
	q.wantUnknown()
	if _, res, err := websocket.DefaultDialer.Dial(pair.urls[1]+"&sid="+p.sid, nil); err == nil || res == nil || res.StatusCode != 400 {
		t.Error(res, err)
	}
}

// What is too much to be handed on at a time is turned away, and goes when there is room again.
func TestForwardBound(t *testing.T) {
	pair := startPair(t, Options{})
	p := pollJoined(t, pair.urls[0])
	q := p.at(pair.urls[1])
	slots := pair.servers[1].forward.slots
	for range cap(slots) {
		slots <- struct{}{}
	}
	if r := q.do(context.Background(), "POST", `421["a"]`); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("%+v", r)
	}
	if _, res, err := websocket.DefaultDialer.Dial(pair.urls[1]+"&sid="+p.sid, nil); err == nil || res == nil || res.StatusCode != 503 {
		t.Error(res, err)
	}
	for range cap(slots) {
		<-slots
	}
	q.post(`422["a"]`)
	q.want(`432[]`)
}

// What another replica does not take makes this one look for the secret that they share.
func TestForwardRefusedByTheOther(t *testing.T) {
	pair := startPair(t, Options{})
	p := pollJoined(t, pair.urls[0])
	q := p.at(pair.urls[1])
	between := pair.servers[1].opt.Cluster.(*twin)
	former := "of a former secret"
	between.sign.Store(&former)
	q.wants(q.do(context.Background(), "POST", `42["x"]`), 403, `{"code":4,"message":"Forbidden"}`)
	if n := between.refused.Load(); n != 1 {
		t.Fatalf("told of %d refusals, want 1", n)
	}
	if _, res, err := websocket.DefaultDialer.Dial(pair.urls[1]+"&sid="+p.sid, nil); err == nil || res == nil || res.StatusCode != 403 {
		t.Error(res, err)
	}
	if n := between.refused.Load(); n != 2 {
		t.Fatalf("told of %d refusals, want 2", n)
	}
	between.sign.Store(nil)
	q.post(`421["a",1]`) // the session is unharmed
	q.want(`431[1]`)
	if n := between.refused.Load(); n != 2 {
		t.Fatalf("told of %d refusals, want 2", n)
	}
}

// A client that leaves while its GET waits elsewhere ends its session there.
func TestForwardedPollAborted(t *testing.T) {
	pair := startPair(t, Options{})
	p := pollJoined(t, pair.urls[0])
	q := p.at(pair.urls[1])
	ctx, abort := context.WithCancel(context.Background())
	done := make(chan reply, 1)
	go func() { done <- q.do(ctx, "GET", "") }()
	until(t, "the GET has come", func() bool {
		pl := pair.servers[0].session(p.sid).polls()
		pl.mu.Lock()
		defer pl.mu.Unlock()
		return pl.waits
	})
	abort()
	recv(t, done)
	wantReason(t, pair.app, ReasonTransportClose)
}
