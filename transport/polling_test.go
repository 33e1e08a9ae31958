package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// poller is a client of HTTP requests.
type poller struct {
	t    *testing.T
	base string // with the query, without sid
	sid  string
	http *http.Client
}

type reply struct {
	status int
	body   string
	header http.Header
	err    error
}

func newPoller(t *testing.T, url string) *poller {
	t.Helper()
	base := strings.Replace(strings.Replace(url, "ws", "http", 1), "transport=websocket", "transport=polling", 1)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &poller{t: t, base: base, http: &http.Client{Transport: transport, Timeout: patience}}
}

// poll opens a session over HTTP.
func poll(t *testing.T, url string) *poller {
	t.Helper()
	p := newPoller(t, url)
	open := p.get()
	var h struct {
		SID      string   `json:"sid"`
		Upgrades []string `json:"upgrades"`
	}
	if open.status != 200 || open.body[0] != '0' || json.Unmarshal([]byte(open.body[1:]), &h) != nil || fmt.Sprint(h.Upgrades) != "[websocket]" {
		t.Fatalf("%+v", open)
	}
	p.sid = h.SID
	t.Cleanup(func() { p.do(context.Background(), "POST", "1") }) // or the server waits for another GET as it ends
	return p
}

// pollJoined opens a session over HTTP and joins the namespace.
func pollJoined(t *testing.T, url string) *poller {
	t.Helper()
	p := poll(t, url)
	p.post("40")
	p.want(`40{"sid":"sid","pid":"pid"}`)
	return p
}

func (p *poller) url() string {
	if p.sid == "" {
		return p.base
	}
	return p.base + "&sid=" + p.sid
}

func (p *poller) do(ctx context.Context, method, body string, header ...string) reply {
	req, err := http.NewRequestWithContext(ctx, method, p.url(), strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := p.http.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, string(b), res.Header, err}
}

func (p *poller) get() reply { return p.do(context.Background(), "GET", "") }

// waiting begins a GET and returns once the server has it.
func (p *poller) waiting(srv *Server) <-chan reply {
	p.t.Helper()
	got := make(chan reply, 1)
	go func() { got <- p.get() }()
	until(p.t, "the GET has come", func() bool {
		pl := srv.session(p.sid).polls()
		pl.mu.Lock()
		defer pl.mu.Unlock()
		return pl.waits
	})
	return got
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not so: " + what)
		}
	}
}

func (p *poller) post(packets ...string) {
	p.t.Helper()
	p.wants(p.do(context.Background(), "POST", strings.Join(packets, "\x1e"), "Content-Type", "text/plain;charset=UTF-8"), 200, "ok")
}

func (p *poller) wants(r reply, status int, body string) {
	p.t.Helper()
	if r.err != nil || r.status != status || r.body != body {
		p.t.Fatalf("got %d %q, %v; want %d %q", r.status, r.body, r.err, status, body)
	}
}

// want reads packets, in as many GETs as it takes.
func (p *poller) want(packets ...string) {
	p.t.Helper()
	for len(packets) > 0 {
		r := p.get()
		if r.err != nil || r.status != 200 {
			p.t.Fatalf("%+v, want %q", r, packets)
		}
		for _, got := range strings.Split(r.body, "\x1e") {
			if len(packets) == 0 || got != packets[0] {
				p.t.Fatalf("got %q, want %q", got, packets)
			}
			packets = packets[1:]
		}
	}
}

// wantUnknown polls for a session that must not be there.
func (p *poller) wantUnknown() {
	p.t.Helper()
	p.wants(p.get(), 400, `{"code":1,"message":"Session ID unknown"}`)
}

const badRequest = `{"code":3,"message":"Bad request"}`

func TestPolling(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	p.post(`421["a",1]`, `42["b"]`, `452-["c",{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]`, "bAQIDBA==", "b")
	p.want(`431[1]`, `42["b"]`, `452-["c",{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]`, "bAQIDBA==", "b")
	got := p.waiting(srv)
	s.Emit("later")
	p.wants(<-got, 200, `42["later"]`)
	r := p.do(context.Background(), "POST", `422["d"]`)
	if r.header.Get("Content-Type") != "text/html" || r.header.Get("Cache-Control") != "no-store" {
		t.Error(r.header)
	}
	if r = p.get(); r.header.Get("Content-Type") != "text/plain; charset=UTF-8" || r.header.Get("Cache-Control") != "no-store" {
		t.Error(r.header)
	}
	p.wants(p.do(context.Background(), "PUT", "4"), 400, badRequest)
	p.wants(p.do(context.Background(), "POST", "1"), 200, "ok")
	wantReason(t, app, ReasonTransportClose)
	p.wants(p.get(), 200, "6") // one that was on its way
	p.wantUnknown()
}

func TestPollingPingPong(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{PingInterval: 50 * time.Millisecond, PingTimeout: patience}, app)
	p := poll(t, url)
	for range 3 {
		p.want("2")
		p.post("3")
	}
	// Long enough for the client to be there with its next GET.
	_, url = start(t, Options{PingInterval: 20 * time.Millisecond, PingTimeout: time.Second}, app)
	p = poll(t, url)
	p.want("2", "1") // the one that waits as the time is up is told the end
	p.wantUnknown()
}

func TestPollingViolations(t *testing.T) {
	for _, tc := range []struct {
		name, body, kind string
		status           int
		answer           string
	}{
		{"not a packet", "abc", "text/plain", 400, badRequest},
		{"an empty packet", "4[]\x1e", "text/plain", 400, badRequest},
		{"a ping", "2", "text/plain", 400, badRequest},
		{"broken base64", "bA", "text/plain", 400, badRequest},
		{"a stray attachment", "bAQIDBA==", "text/plain", 400, badRequest},
		{"not a Socket.IO packet", "4abc", "text/plain", 400, badRequest},
		{"a binary body", "4", "application/octet-stream", 400, badRequest},
		{"too large", strings.Repeat("x", 1001), "text/plain", 413, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			app := newTestApp()
			srv, url := start(t, Options{MaxPayload: 1000}, app)
			p, other := pollJoined(t, url), pollJoined(t, url)
			waiting := p.waiting(srv)
			p.wants(p.do(context.Background(), "POST", tc.body, "Content-Type", tc.kind), tc.status, tc.answer)
			p.wants(<-waiting, 200, "1")
			wantReason(t, app, ReasonProtocolError)
			p.wantUnknown()
			other.post(`421["fine"]`)
			other.want(`431[]`)
		})
	}
}

// A body that is longer than it says, of unknown length.
func TestPollingUnboundedBody(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{MaxPayload: 1000}, app)
	p := pollJoined(t, url)
	req, _ := http.NewRequest("POST", p.url(), io.MultiReader(strings.NewReader(strings.Repeat("4", 100_000))))
	res, err := p.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 413 {
		t.Fatal(res.Status)
	}
	wantReason(t, app, ReasonProtocolError)
	p.wantUnknown()
}

func TestPollingOverlaps(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	first := p.waiting(srv)
	p.wants(p.get(), 400, badRequest)
	p.wants(<-first, 200, "1")
	p.wantUnknown()
	wantReason(t, app, ReasonProtocolError)

	p = pollJoined(t, url)
	body, more := io.Pipe()
	done := make(chan error, 1)
	go func() {
		req, _ := http.NewRequest("POST", p.url(), body)
		res, err := p.http.Do(req)
		if err == nil {
			res.Body.Close()
		}
		done <- err
	}()
	more.Write([]byte("4"))
	until(t, "the POST has come", func() bool {
		pl := srv.session(p.sid).polls()
		pl.mu.Lock()
		defer pl.mu.Unlock()
		return pl.posts
	})
	p.wants(p.do(context.Background(), "POST", "3"), 400, badRequest)
	wantReason(t, app, ReasonProtocolError)
	p.wantUnknown()
	more.Close()
	recv(t, done)
}

func TestPollAborted(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	ctx, abort := context.WithCancel(context.Background())
	done := make(chan reply, 1)
	go func() { done <- p.do(ctx, "GET", "") }()
	until(t, "the GET has come", func() bool {
		pl := srv.session(p.sid).polls()
		pl.mu.Lock()
		defer pl.mu.Unlock()
		return pl.waits
	})
	abort()
	recv(t, done)
	if r := p.get(); r.status != 400 {
		t.Fatalf("%+v", r)
	}
	if r := recv(t, app.ended); r != ReasonTransportClose && r != ReasonProtocolError { // as it was noticed
		t.Fatal(r)
	}
	if s.Emit("e") {
		t.Fatal("sent to a session that is over")
	}
}

// Requests that no GET has taken are certain not to have left.
func TestPollingDropsWhatWasNotTaken(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	dropped := make(chan int, 10)
	s.Request("r", 1, func() { dropped <- 1 }, []byte("1"), nil)
	p.want(`421["r",1]`)
	s.Request("r", 2, func() { dropped <- 2 }, []byte("2"), nil)
	p.post("1")
	wantReason(t, app, ReasonTransportClose)
	if recv(t, dropped) != 2 || len(dropped) > 0 {
		t.Fatal("another one was dropped")
	}
}

func TestPollingOutboxIsBounded(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{OutboxMessages: 100}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	n := 0
	for s.Emit("e") {
		n++
	}
	if n != 100 {
		t.Fatal(n)
	}
	wantReason(t, app, ReasonOutboxFull)
	p.wantUnknown()
	if st := srv.Stats(); st.OutboxOverflows != 1 {
		t.Fatalf("%+v", st)
	}
}

// What waits is read before the end: first the packets, then the close.
func TestPollingFinish(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	s.Emit("a")
	s.Disconnect(ReasonServer)
	p.want(`42["a"]`, "41", "1")
	wantReason(t, app, ReasonServer)
	p.wantUnknown()
}

// A large backlog comes in pieces that are not larger than they need be.
func TestPollingBacklog(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	big := `"` + strings.Repeat("x", 700_000) + `"`
	for i := range 5 {
		s.EmitBinary("e", [][]byte{[]byte(strings.Repeat("y", i))}, []byte(`{"_placeholder":true,"num":0}`), []byte(big))
	}
	packets := 0
	for packets < 10 {
		r := p.get()
		if len(r.body) > 1<<20 {
			t.Fatal(len(r.body))
		}
		packets += len(strings.Split(r.body, "\x1e"))
	}
}

func TestPollingSessionsAtClose(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	srv.finishTimeout = 100 * time.Millisecond
	waits, away := pollJoined(t, url), pollJoined(t, url)
	got := waits.waiting(srv)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := srv.Close(ctx); err != nil {
		t.Fatal(err)
	}
	waits.wants(<-got, 200, "1")
	for range 2 {
		wantReason(t, app, ReasonShutdown)
	}
	away.wantUnknown()
	away.sid = ""
	if r := away.get(); r.status != http.StatusServiceUnavailable {
		t.Fatalf("%+v", r)
	}
}

func TestCrossOrigin(t *testing.T) {
	for _, tc := range []struct {
		name              string
		origins           []string
		origin            string
		status            int
		allow, credential string
	}{
		{"none sent", []string{"https://a.example"}, "", 200, "", ""},
		{"listed", []string{"https://a.example"}, "https://a.example", 200, "https://a.example", "true"},
		{"any", []string{"*"}, "https://b.example", 200, "*", ""},
		{"listed beside any", []string{"*", "https://a.example"}, "https://a.example", 200, "https://a.example", "true"},
		{"other", []string{"https://a.example"}, "https://b.example", 403, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv, url := start(t, Options{Origins: tc.origins}, newTestApp())
			srv.finishTimeout = time.Millisecond // nobody polls
			p := newPoller(t, url)
			for _, method := range []string{"OPTIONS", "GET"} {
				r := p.do(context.Background(), method, "", "Origin", tc.origin, "Access-Control-Request-Headers", "x-a")
				want := tc.status
				if method == "OPTIONS" && want == 200 {
					want = 204
				}
				if r.status != want || r.header.Get("Access-Control-Allow-Origin") != tc.allow || r.header.Get("Access-Control-Allow-Credentials") != tc.credential {
					t.Errorf("%s: %+v", method, r)
				}
				if asked := r.header.Get("Access-Control-Allow-Headers"); method == "OPTIONS" && (asked == "x-a") != (tc.allow != "") {
					t.Errorf("headers %q", asked)
				}
			}
		})
	}
}
