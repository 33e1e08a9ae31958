package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestConnect(t *testing.T) {
	app := newTestApp()
	auths := make(chan string, 1)
	app.connect = func(_ context.Context, _ *Socket, auth json.RawMessage) (Admission, error) {
		auths <- string(auth)
		return Admission{SID: "s1"}, nil
	}
	_, url := start(t, Options{}, app)
	for send, auth := range map[string]string{
		"40":                   "",
		"40/,":                 "",
		`40{"token":"\u0000"}`: `{"token":"\u0000"}`,
	} {
		c := dial(t, url)
		c.send(send)
		c.want(`40{"sid":"s1"}`)
		if got := recv(t, auths); got != auth {
			t.Errorf("%s: auth %q, want %q", send, got, auth)
		}
	}
}

func TestConnectRefused(t *testing.T) {
	app := newTestApp()
	refusal := error(&ConnectError{Message: "No \"token\"", Code: "UNAUTHENTICATED"})
	app.connect = func(context.Context, *Socket, json.RawMessage) (Admission, error) {
		return Admission{SID: "sid", PID: "pid"}, refusal
	}
	_, url := start(t, Options{}, app)
	c := dial(t, url)
	c.send("40")
	c.want(`44{"message":"No \"token\"","data":{"code":"UNAUTHENTICATED"}}`)
	refusal = errors.New("secret")
	c.send("40")
	c.want(`44{"message":"Internal error","data":{"code":"INTERNAL"}}`)
	refusal = fmt.Errorf("wrapped: %w", &ConnectError{Message: "m", Code: "C"})
	c.send("40")
	c.want(`44{"message":"m","data":{"code":"C"}}`)
	refusal = nil
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	c.ws.Close()
	wantReason(t, app, ReasonTransportClose)
	select {
	case r := <-app.ended:
		t.Fatal("a refused Socket was told its end:", r)
	default:
	}
}

func TestInvalidNamespace(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	c := dial(t, url)
	c.send("40/random")
	c.want(`44/random,{"message":"Invalid namespace"}`)
	c.send(`40/random,{"a":1}`)
	c.want(`44/random,{"message":"Invalid namespace"}`)
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	c.send(`421["echo",1]`)
	c.want(`431[1]`)
}

func TestConnectTimeout(t *testing.T) {
	app := newTestApp()
	app.connect = func(_ context.Context, _ *Socket, auth json.RawMessage) (Admission, error) {
		if auth != nil {
			return Admission{}, &ConnectError{Message: "m", Code: "C"}
		}
		return Admission{SID: "sid"}, nil
	}
	srv, url := start(t, Options{ConnectTimeout: time.Second}, app) // long enough for those that do send something
	stays := dial(t, url)
	stays.send("40")
	stays.want(`40{"sid":"sid"}`)
	dial(t, url).wantClose(1000)
	refused := dial(t, url)
	refused.send("40{}")
	refused.want(`44{"message":"m","data":{"code":"C"}}`)
	refused.wantClose(1000)
	stays.send(`421["echo",1]`)
	stays.want(`431[1]`)
	if n := srv.Stats().Closed[ReasonConnectTimeout]; n == 0 {
		t.Fatal("not counted")
	}
}

// What a client sends before it is admitted is kept, in order; what the App emits while it admits
// comes before the answer.
func TestPendingAdmission(t *testing.T) {
	app := newTestApp()
	entered, release := make(chan struct{}), make(chan struct{})
	app.connect = func(_ context.Context, s *Socket, _ json.RawMessage) (Admission, error) {
		s.Emit("missed", []byte(`1`))
		close(entered)
		<-release
		return Admission{SID: "sid"}, nil
	}
	acks := make(chan uint64, 1)
	app.ack = func(_ *Socket, id uint64, _ []json.RawMessage, _ [][]byte) { acks <- id }
	_, url := start(t, Options{}, app)
	c := dial(t, url)
	c.send("40")
	recv(t, entered)
	c.want(`42["missed",1]`)
	for i := range 100 {
		c.send(fmt.Sprintf(`42["e",%d]`, i))
	}
	c.send(`437[1]`, `42["last"]`)
	close(release)
	c.want(`40{"sid":"sid"}`)
	c.send(`42["later"]`)
	for i := range 100 {
		c.want(fmt.Sprintf(`42["e",%d]`, i))
	}
	c.want(`42["last"]`, `42["later"]`)
	if id := recv(t, acks); id != 7 {
		t.Fatal(id)
	}
}

func TestPendingIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		opt  Options
		send int
	}{
		"messages": {Options{MaxPending: 3}, 4},
		"bytes":    {Options{OutboxBytes: 1000}, 1000/len(`["e"]`) + 1},
	} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			app.connect = func(ctx context.Context, _ *Socket, _ json.RawMessage) (Admission, error) {
				<-ctx.Done()
				return Admission{}, ctx.Err()
			}
			_, url := start(t, tc.opt, app)
			c := dial(t, url)
			c.send("40")
			for range tc.send {
				c.send(`42["e"]`)
			}
			c.wantClose(websocket.CloseProtocolError)
		})
	}
}

// The client leaves while it is being admitted: what it sent is delivered, then its end.
func TestEndWhileAdmitting(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(*raw)
		want Reason
	}{
		"leaves":     {func(c *raw) { c.send("41", "3") }, ReasonClient},
		"goes":       {func(c *raw) { c.ws.Close() }, ReasonTransportClose},
		"misbehaves": {func(c *raw) { c.send("40"); c.wantClose(1002) }, ReasonProtocolError},
	} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			release := make(chan struct{})
			app.connect = func(ctx context.Context, _ *Socket, _ json.RawMessage) (Admission, error) {
				<-release
				if tc.want != ReasonClient {
					<-ctx.Done()
				}
				return Admission{SID: "sid"}, nil
			}
			calls := make(chan string, 10)
			app.event = func(_ *Socket, name string, _ []json.RawMessage, _ [][]byte, _ Ack) { calls <- name }
			_, url := start(t, Options{}, app)
			c := dial(t, url)
			c.send("40", `42["a"]`, `42["b"]`)
			tc.end(c)
			close(release)
			wantReason(t, app, tc.want)
			if len(calls) != 2 || <-calls != "a" || <-calls != "b" {
				t.Fatal("events were lost or came after the end")
			}
		})
	}
}

func TestSocketViolations(t *testing.T) {
	for _, tc := range []struct {
		name   string
		joined bool
		frames []string
	}{
		{"event before CONNECT", false, []string{`42["e"]`}},
		{"event to another namespace", true, []string{`42/other,["e"]`}},
		{"second CONNECT", true, []string{"40"}},
		{"CONNECT with an array", false, []string{"40[]"}},
		{"CONNECT with a string", false, []string{`40"x"`}},
		{"event without name", true, []string{"42[]"}},
		{"event with an object", true, []string{"42{}"}},
		{"event with a bad id", true, []string{`42abc["e"]`}},
		{"CONNECT_ERROR", true, []string{`44{"message":"m"}`}},
		{"reserved name", true, []string{`42["disconnect"]`}},
		{"reserved name, escaped", true, []string{`42["conn\u0065ct"]`}},
		{"text while attachments are due", true, []string{`451-["e",{"_placeholder":true,"num":0}]`, `42["e"]`}},
		{"placeholder out of range", true, []string{`451-["e",{"_placeholder":true,"num":1}]`, "\x00x"}},
		{"more attachments than may be announced", true, []string{`4510001-["e"]`}},
		{"text while refused attachments are due", true, []string{`4511-["e"]`, `42["e"]`}},
		{"after leaving", true, []string{"41", `42["e"]`}},
		{"invalid UTF-8", true, []string{"42[\"e\",\"\xff\"]"}},
		{"unknown type", true, []string{"47"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			app := newTestApp()
			_, url := start(t, Options{}, app)
			c := dial(t, url)
			if tc.joined {
				c = join(t, url)
			}
			for _, f := range tc.frames {
				if data, binary := strings.CutPrefix(f, "\x00"); binary {
					c.sendBinary(data)
				} else {
					c.send(f)
				}
			}
			if before := c.wantClose(websocket.CloseProtocolError); len(before) > 0 {
				t.Fatalf("answered %q", before)
			}
			if tc.joined {
				if r := recv(t, app.ended); r != ReasonProtocolError && r != ReasonClient {
					t.Fatal(r)
				}
			}
		})
	}
}

func TestStrayBinaryFrame(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	c := join(t, url)
	c.sendBinary("x")
	c.wantClose(websocket.CloseProtocolError)
}

func TestClientLeavesAndComesBack(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	c := join(t, url)
	first := recv(t, app.joined)
	c.send("41")
	wantReason(t, app, ReasonClient)
	if first.Emit("e") {
		t.Fatal("emitted to a client that has left")
	}
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	c.send(`421["echo",1]`)
	c.want(`431[1]`)
	c.ws.Close()
	wantReason(t, app, ReasonTransportClose)
}

func TestRequestAndAcks(t *testing.T) {
	app := newTestApp()
	type answer struct {
		id   uint64
		args string
	}
	answers := make(chan answer, 1)
	app.ack = func(_ *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
		answers <- answer{id, fmt.Sprintf("%s", args)}
	}
	held := make(chan Ack, 1)
	app.event = func(_ *Socket, name string, _ []json.RawMessage, _ [][]byte, ack Ack) {
		ack.Reply([]byte(`{"ok":true}`), []byte(`2`))
		ack.Reply([]byte(`"again"`))
		held <- ack
	}
	_, url := start(t, Options{}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	if !s.Request("rpc-request", 2147483647, func() { t.Error("dropped") }, []byte(`{"a":"é\u0000"}`), nil) {
		t.Fatal("not queued")
	}
	c.want(`422147483647["rpc-request",{"a":"é\u0000"}]`)
	c.send(`432147483647[{"r":1}, "x" ]`)
	if got := recv(t, answers); got != (answer{2147483647, `[{"r":1} "x"]`}) {
		t.Fatal(got)
	}
	c.send(`439007199254740992[]`)
	if got := recv(t, answers); got != (answer{9007199254740992, `[]`}) {
		t.Fatal(got)
	}
	c.send(`4212["e"]`)
	c.want(`4312[{"ok":true},2]`)
	ack := recv(t, held)
	c.send(`42["e"]`)
	if recv(t, held).Wanted() {
		t.Fatal("no ack was asked for")
	}
	c.ws.Close()
	wantReason(t, app, ReasonTransportClose)
	ack.Reply()
	if s.Request("r", 1, func() { t.Error("dropped") }, []byte("1"), nil) {
		t.Fatal("queued after the end")
	}
}

// Disconnect sends what waits, tells the client, and delivers nothing more.
func TestDisconnectFlushes(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	want := make([]string, 0, 1001)
	for i := range 1000 {
		packet := EncodeEvent("e", fmt.Appendf(nil, "%d", i))
		want = append(want, string(packet))
		s.SendRaw(packet)
	}
	s.Disconnect(ReasonReplaced)
	if s.Emit("late") {
		t.Fatal("emitted after Disconnect")
	}
	// Unread input must not turn the close into a reset that loses what was flushed.
	for range 100 {
		if c.ws.WriteMessage(websocket.TextMessage, []byte(`42["late"]`)) != nil {
			break
		}
	}
	got := c.wantClose(1000)
	if want = append(want, "41"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %d packets, the last ones %q", len(got), got[max(0, len(got)-3):])
	}
	wantReason(t, app, ReasonReplaced)
}

func TestCloseTransportFlushesAndStillDelivers(t *testing.T) {
	app := newTestApp()
	events := make(chan string, 10)
	app.event = func(s *Socket, name string, _ []json.RawMessage, _ [][]byte, _ Ack) {
		if name == "first" {
			s.Emit("notice")
			s.CloseTransport(ReasonShutdown)
		}
		events <- name
	}
	_, url := start(t, Options{}, app)
	c := join(t, url)
	c.send(`42["first"]`, `42["second"]`)
	if before := c.wantClose(websocket.CloseGoingAway); fmt.Sprint(before) != `[42["notice"]]` {
		t.Fatalf("got %q", before)
	}
	wantReason(t, app, ReasonShutdown)
	if recv(t, events) != "first" || recv(t, events) != "second" {
		t.Fatal("order")
	}
}

// A client that does not answer the close frame is not waited for.
func TestFinishIsBounded(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	srv.finishTimeout = 50 * time.Millisecond
	c := join(t, url)
	recv(t, app.joined).CloseTransport(ReasonServer)
	wantReason(t, app, ReasonServer)
	_ = c
}

func TestPanicEndsOneConnection(t *testing.T) {
	app := newTestApp()
	app.event = func(_ *Socket, name string, _ []json.RawMessage, _ [][]byte, ack Ack) {
		if name == "bad" {
			panic("boom")
		}
		ack.Reply()
	}
	_, url := start(t, Options{}, app)
	c, other := join(t, url), join(t, url)
	c.send(`42["bad"]`, `421["after"]`)
	if before := c.wantClose(1000); len(before) != 0 {
		t.Fatalf("got %q", before)
	}
	wantReason(t, app, ReasonServer)
	other.send(`421["fine"]`)
	other.want(`431[]`)
}

func TestPanicInConnect(t *testing.T) {
	app := newTestApp()
	app.connect = func(context.Context, *Socket, json.RawMessage) (Admission, error) { panic("boom") }
	srv, url := start(t, Options{}, app)
	c := dial(t, url)
	c.send("40")
	c.wantClose(1000)
	if err := srv.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(app.ended) != 0 {
		t.Fatal("a Socket that was not admitted was told its end")
	}
}

func TestSendRawWantsAnEncodedPacket(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("a packet without its Engine.IO type was taken")
		}
	}()
	new(Socket).SendRaw([]byte(`2["e"]`))
}
