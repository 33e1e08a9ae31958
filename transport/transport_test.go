package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"
)

// patience bounds a wait for something that must come.
const patience = 10 * time.Second

func runTests(m *testing.M) int {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// testApp admits everyone and echoes: an event with an ack is answered with its arguments, one
// without comes back under its name.
type testApp struct {
	connect func(ctx context.Context, s *Socket, auth json.RawMessage) (Admission, error)
	event   func(s *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack)
	ack     func(s *Socket, id uint64, args []json.RawMessage, attachments [][]byte)

	joined chan *Socket
	ended  chan Reason
}

func newTestApp() *testApp {
	return &testApp{joined: make(chan *Socket, 100), ended: make(chan Reason, 100)}
}

func (a *testApp) Connect(ctx context.Context, s *Socket, auth json.RawMessage) (Admission, error) {
	adm, err := Admission{SID: "sid", PID: "pid"}, error(nil)
	if a.connect != nil {
		adm, err = a.connect(ctx, s, auth)
	}
	if err == nil {
		a.joined <- s
	}
	return adm, err
}

func (a *testApp) Event(s *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack) {
	if a.event != nil {
		a.event(s, name, args, attachments, ack)
		return
	}
	raw := make([][]byte, len(args))
	for i, arg := range args {
		raw[i] = arg
	}
	if ack.Wanted() {
		ack.ReplyBinary(attachments, raw...)
		return
	}
	s.EmitBinary(name, attachments, raw...)
}

func (a *testApp) Ack(s *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
	if a.ack != nil {
		a.ack(s, id, args, attachments)
	}
}

func (a *testApp) Disconnected(_ *Socket, reason Reason) { a.ended <- reason }

// start serves app until the test ends, which it does only after every connection has.
func start(t *testing.T, o Options, app App) (*Server, string) {
	t.Helper()
	srv := NewServer(o, app)
	web := httptest.NewServer(srv)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := srv.Close(ctx); err != nil {
			t.Error("close:", err)
		}
		web.Close()
	})
	return srv, wsURL(web.URL)
}

func wsURL(base string) string {
	return strings.Replace(base, "http", "ws", 1) + "/socket.io/?EIO=4&transport=websocket"
}

// raw is a client of single frames.
type raw struct {
	t  *testing.T
	ws *websocket.Conn
}

// dial opens a session and reads its handshake.
func dial(t *testing.T, url string) *raw {
	t.Helper()
	ws, _, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		t.Fatal("dial:", err)
	}
	t.Cleanup(func() { ws.Close() })
	c := &raw{t, ws}
	if open := c.read(); open[0] != '0' {
		t.Fatalf("got %q, want the open packet", open)
	}
	return c
}

// join opens a session and joins the namespace. A ping may come first, and is answered.
func join(t *testing.T, url string) *raw {
	t.Helper()
	c := dial(t, url)
	c.send("40")
	c.wantUnpinged(`40{"sid":"sid","pid":"pid"}`)
	return c
}

func (c *raw) send(frames ...string) {
	c.t.Helper()
	for _, f := range frames {
		if err := c.ws.WriteMessage(websocket.TextMessage, []byte(f)); err != nil {
			c.t.Fatalf("send %q: %v", f, err)
		}
	}
}

func (c *raw) sendBinary(data string) {
	c.t.Helper()
	if err := c.ws.WriteMessage(websocket.BinaryMessage, []byte(data)); err != nil {
		c.t.Fatal("send binary:", err)
	}
}

func (c *raw) read() string {
	c.t.Helper()
	c.ws.SetReadDeadline(time.Now().Add(patience))
	_, b, err := c.ws.ReadMessage()
	if err != nil {
		c.t.Fatal("read:", err)
	}
	return string(b)
}

func (c *raw) want(frames ...string) {
	c.t.Helper()
	for _, f := range frames {
		if got := c.read(); got != f {
			c.t.Fatalf("got %q, want %q", got, f)
		}
	}
}

// wantClose reads until the close frame and returns what came before it.
func (c *raw) wantClose(code int) (before []string) {
	c.t.Helper()
	c.ws.SetReadDeadline(time.Now().Add(patience))
	for {
		_, b, err := c.ws.ReadMessage()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			if closed.Code != code {
				c.t.Fatalf("closed with %v, want code %d", closed, code)
			}
			return before
		}
		if err != nil {
			c.t.Fatal("want a close frame, got", err)
		}
		before = append(before, string(b))
	}
}

// recv waits for a value that must come.
func recv[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func wantReason(t *testing.T, app *testApp, want Reason) {
	t.Helper()
	if got := recv(t, app.ended); got != want {
		t.Fatalf("disconnected with %q, want %q", got, want)
	}
}
