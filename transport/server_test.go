package transport

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestRefusedRequests(t *testing.T) {
	srv, url := start(t, Options{}, newTestApp())
	c := dial(t, url)
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	srv.mu.Lock()
	var sid string
	for sid = range srv.conns {
	}
	srv.mu.Unlock()

	base := strings.Replace(url[:strings.Index(url, "/socket.io/")], "ws", "http", 1)
	for _, tc := range []struct {
		name, method, query string
		plain               bool
		origin              string
		status              int
		body                string
	}{
		{name: "no transport", query: "EIO=4", status: 400, body: `{"code":0,"message":"Transport unknown"}`},
		{name: "unknown transport", query: "EIO=4&transport=abc", status: 400, body: `{"code":0,"message":"Transport unknown"}`},
		{name: "polling, method", method: "POST", query: "EIO=4&transport=polling", plain: true, status: 400, body: `{"code":2,"message":"Bad handshake method"}`},
		{name: "polling, version", query: "EIO=3&transport=polling", plain: true, status: 400, body: `{"code":5,"message":"Unsupported protocol version"}`},
		{name: "polling, unknown sid", query: "transport=polling&sid=x", plain: true, status: 400, body: `{"code":1,"message":"Session ID unknown"}`},
		{name: "polling, POST to an unknown sid", method: "POST", query: "transport=polling&sid=x", plain: true, status: 400, body: `{"code":1,"message":"Session ID unknown"}`},
		{name: "polling for a WebSocket's sid", query: "EIO=4&transport=polling&sid=" + sid, plain: true, status: 400, body: `{"code":3,"message":"Bad request"}`},
		{name: "polling, origin", query: "EIO=4&transport=polling", plain: true, origin: "https://evil.example", status: 403, body: `{"code":4,"message":"Forbidden"}`},
		{name: "unknown sid", query: "EIO=4&transport=websocket&sid=x", status: 400, body: `{"code":1,"message":"Session ID unknown"}`},
		{name: "sid is looked at before EIO", query: "EIO=3&transport=websocket&sid=x", status: 400, body: `{"code":1,"message":"Session ID unknown"}`},
		{name: "no upgrade, with a sid", query: "EIO=4&transport=websocket&sid=" + sid, plain: true, status: 400, body: `{"code":3,"message":"Bad request"}`},
		{name: "method", method: "POST", query: "EIO=3&transport=websocket", status: 400, body: `{"code":2,"message":"Bad handshake method"}`},
		{name: "old version", query: "EIO=3&transport=websocket", status: 400, body: `{"code":5,"message":"Unsupported protocol version"}`},
		{name: "no version", query: "transport=websocket", status: 400, body: `{"code":5,"message":"Unsupported protocol version"}`},
		{name: "no upgrade", query: "EIO=4&transport=websocket", plain: true, status: 400, body: `{"code":3,"message":"Bad request"}`},
		{name: "origin", query: "EIO=4&transport=websocket", origin: "https://evil.example", status: 403, body: `{"code":4,"message":"Forbidden"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, base+"/socket.io/?"+tc.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !tc.plain {
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "websocket")
				req.Header.Set("Sec-WebSocket-Version", "13")
				req.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
			}
			if tc.origin != "" {
				req.Header.Set("Origin", tc.origin)
			}
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != tc.status || string(body) != tc.body {
				t.Fatalf("got %d %s, want %d %s", res.StatusCode, body, tc.status, tc.body)
			}
		})
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	c.send(`421["echo",1]`)
	c.want(`431[1]`)
}

func TestUpgradeWithoutKey(t *testing.T) {
	srv := NewServer(Options{}, newTestApp())
	r := httptest.NewRequest("GET", "/socket.io/?EIO=4&transport=websocket", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, r)
	if w.Code != 400 || w.Body.String() != `{"code":3,"message":"Bad request"}` {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if err := srv.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestOrigins(t *testing.T) {
	for _, tc := range []struct {
		name    string
		origins []string
		origin  string
		want    bool
	}{
		{"none sent", []string{"https://a.example"}, "", true},
		{"same", nil, "http://Host.example:80", true},
		{"other", nil, "http://other.example", false},
		{"opaque", nil, "null", false},
		{"listed", []string{"https://a.example/", "https://b.example"}, "https://A.example", true},
		{"other scheme", []string{"https://a.example"}, "http://a.example", false},
		{"other port", []string{"https://a.example"}, "https://a.example:8443", false},
		{"suffix", []string{"https://a.example"}, "https://a.example.evil.example", false},
		{"any", []string{"*"}, "https://x.example", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := NewServer(Options{Origins: tc.origins}, newTestApp())
			r := httptest.NewRequest("GET", "http://host.example:80/socket.io/", nil)
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			if got := srv.originAllowed(r); got != tc.want {
				t.Fatalf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	_, url := start(t, Options{Paths: []string{"/socket.io/", "/v1/updates"}}, newTestApp())
	for path, want := range map[string]int{
		"/socket.io/": 101, "/socket.io": 101, "/v1/updates": 101, "/v1/updates/": 101,
		"/": 404, "/socket.io/x": 404, "/v1": 404,
	} {
		ws, res, err := websocket.DefaultDialer.Dial(strings.Replace(url, "/socket.io/", path, 1), nil)
		if err == nil {
			ws.Close()
		}
		if res == nil || res.StatusCode != want {
			t.Errorf("%s: got %v, want %d", path, res, want)
		}
	}
}

func TestRequestDetails(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	ws, _, err := websocket.DefaultDialer.Dial(url+"&instance=i1", http.Header{"User-Agent": {"ua/1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	c := &raw{t, ws}
	c.send("40")
	s := recv(t, app.joined)
	if s.Instance() != "i1" || s.UserAgent() != "ua/1" || s.RemoteAddr() != ws.LocalAddr().String() {
		t.Fatal(s.Instance(), s.UserAgent(), s.RemoteAddr())
	}
}

func TestCloseEndsEveryConnection(t *testing.T) {
	app := newTestApp()
	srv := NewServer(Options{}, app)
	web := httptest.NewServer(srv)
	defer web.Close()
	const n = 20
	clients := make([]*raw, n)
	for i := range clients {
		clients[i] = join(t, wsURL(web.URL))
	}
	if got := srv.Connections(); got != n {
		t.Fatalf("%d connections, want %d", got, n)
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() { c.wantClose(websocket.CloseGoingAway) })
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := srv.Close(ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if len(app.ended) != n {
		t.Fatalf("%d disconnected when Close returned, want %d", len(app.ended), n)
	}
	for range n {
		wantReason(t, app, ReasonShutdown)
	}
	st := srv.Stats()
	if st.Connections != 0 || st.Opened != n || st.Closed[ReasonShutdown] != n {
		t.Fatalf("%+v", st)
	}
	_, res, err := websocket.DefaultDialer.Dial(wsURL(web.URL), nil)
	if err == nil || res == nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("dial after close: %v %v", res, err)
	}
}

func TestCloseDoesNotWaitForeverForAStuckAdmission(t *testing.T) {
	app := newTestApp()
	release := make(chan struct{})
	entered := make(chan struct{})
	app.connect = func(context.Context, *Socket, json.RawMessage) (Admission, error) {
		close(entered)
		<-release
		return Admission{SID: "sid"}, nil
	}
	srv := NewServer(Options{}, app)
	web := httptest.NewServer(srv)
	defer web.Close()
	dial(t, wsURL(web.URL)).send("40")
	recv(t, entered)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := srv.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(release)
	wantReason(t, app, ReasonShutdown)
}

// Connections open, talk and end in every way while the server closes. What counts is that Close
// returns, and that each admitted Socket was told its end once, and last.
func TestCloseRaces(t *testing.T) {
	app := &countingApp{}
	srv := NewServer(Options{}, app)
	web := httptest.NewServer(srv)
	defer web.Close()
	var wg sync.WaitGroup
	talked := make(chan struct{}, 100_000)
	for i := range 16 {
		wg.Go(func() {
			for j := i; ; j++ {
				ws, _, err := websocket.DefaultDialer.Dial(wsURL(web.URL), nil)
				if err != nil {
					return
				}
				ws.SetReadDeadline(time.Now().Add(patience))
				for _, m := range []string{"40", `42["a"]`, []string{`42["disconnect-me"]`, `42["close-me"]`, `42["b"]`, "41", "1"}[j%5]} {
					ws.WriteMessage(websocket.TextMessage, []byte(m))
				}
				for range j % 4 {
					ws.ReadMessage()
				}
				ws.Close()
				talked <- struct{}{}
			}
		})
	}
	for range 100 {
		recv(t, talked)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := srv.Close(ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if a, d := app.admitted.Load(), app.disconnected.Load(); a != d || a == 0 {
		t.Fatalf("%d admitted, %d disconnected", a, d)
	}
	if n := app.afterEnd.Load(); n != 0 {
		t.Fatalf("%d calls after the end", n)
	}
}

type countingApp struct{ admitted, disconnected, afterEnd atomic.Int64 }

type ending struct {
	mu    sync.Mutex // held during a call, so that two at a time are seen
	ended bool
}

func (a *countingApp) Connect(_ context.Context, s *Socket, _ json.RawMessage) (Admission, error) {
	s.SetData(&ending{})
	a.admitted.Add(1)
	return Admission{SID: "sid"}, nil
}

func (a *countingApp) enter(s *Socket) *ending {
	e := s.Data().(*ending)
	if !e.mu.TryLock() {
		a.afterEnd.Add(1)
		e.mu.Lock()
	}
	if e.ended {
		a.afterEnd.Add(1)
	}
	return e
}

func (a *countingApp) Event(s *Socket, name string, _ []json.RawMessage, _ [][]byte, ack Ack) {
	defer a.enter(s).mu.Unlock()
	switch name {
	case "disconnect-me":
		s.Disconnect(ReasonServer)
	case "close-me":
		s.CloseTransport(ReasonServer)
	default:
		s.Emit(name)
		ack.Reply()
	}
}

func (a *countingApp) Ack(*Socket, uint64, []json.RawMessage, [][]byte) {}

func (a *countingApp) Disconnected(s *Socket, _ Reason) {
	e := a.enter(s)
	e.ended = true
	e.mu.Unlock()
	a.disconnected.Add(1)
}
