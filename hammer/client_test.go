package hammer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"holdfast/transport/socketio"
)

func dial(t *testing.T, url string, o Options) *Client {
	t.Helper()
	c, err := Dial(t.Context(), url, map[string]string{"user": "ada"}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// within fails the test if nothing comes in time.
func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("timed out: %s", what)
		panic("unreachable")
	}
}

func TestDialSaysWhoItIs(t *testing.T) {
	seen := make(chan string, 1)
	url := serve(t, func(p *peer) {
		p.open()
		seen <- p.request.URL.String() + " " + string(p.auth)
		p.idle()
	})
	c := dial(t, url, Options{Path: "/v1/updates"})
	if got, want := within(t, "connect", seen), `/v1/updates?EIO=4&transport=websocket {"user":"ada"}`; got != want {
		t.Errorf("server saw %s, want %s", got, want)
	}
	if got, want := c.Session(), (Session{SID: "s1", PID: "p1"}); got != want {
		t.Errorf("session %+v, want %+v", got, want)
	}
}

func TestDialRefused(t *testing.T) {
	url := serve(t, func(p *peer) {
		p.greet("25000", "20000")
		p.send(`44{"message":"no","data":{"code":"FORBIDDEN"}}`)
		p.idle()
	})
	_, err := Dial(t.Context(), url, nil, Options{Reconnect: true})
	var refused *ConnectError
	if !errors.As(err, &refused) || refused.Message != "no" || refused.Code() != "FORBIDDEN" {
		t.Errorf("got %v, want a refusal with FORBIDDEN", err)
	}
	if dialCode(err) != "FORBIDDEN" {
		t.Errorf("counted as %s", dialCode(err))
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(p *peer) {
		p.greet("25000", "20000")
		cancel() // the server never admits
		p.idle()
	})
	if _, err := Dial(ctx, url, nil, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestCallsFromManyGoroutinesGetTheirOwnAnswers(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.open().echo() }), Options{})
	var callers sync.WaitGroup
	for w := range 16 {
		callers.Go(func() {
			for n := range 200 {
				want := fmt.Sprintf(`"%d-%d"`, w, n)
				got, err := c.EmitWithAck(t.Context(), "echo", json.RawMessage(want))
				if err != nil || string(got) != want {
					t.Errorf("got %s, %v, want %s", got, err, want)
					return
				}
			}
		})
	}
	callers.Wait()
}

func TestLargeMessages(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.open().echo() }), Options{})
	want := `"` + strings.Repeat("x", 300_000) + `"`
	for range 3 {
		got, err := c.EmitWithAck(t.Context(), "echo", json.RawMessage(want))
		if err != nil || string(got) != want {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
}

func TestAckWithoutValues(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.open().echo() }), Options{})
	if got, err := c.EmitWithAck(t.Context(), "echo"); err != nil || string(got) != "null" {
		t.Errorf("got %s, %v, want null", got, err)
	}
}

func TestEventsReachTheirHandlerInOrder(t *testing.T) {
	start := make(chan struct{})
	acks := make(chan string, 100)
	url := serve(t, func(p *peer) {
		p.open()
		<-start
		p.send(`42["unknown",1]`)
		for i := range 100 {
			p.send(fmt.Sprintf(`42%d["ask",%d,{"deep":[1,"\u00e9"]}]`, i, i))
		}
		p.each(func(packet socketio.Packet) { acks <- string(packet.Append(nil)) })
	})
	c := dial(t, url, Options{ReadBuffer: 4096})
	c.On("ask", func(args []json.RawMessage, ack Ack) {
		if string(args[1]) != `{"deep":[1,"\u00e9"]}` || !ack.Wanted() {
			t.Errorf("got %s", args)
		}
		if err := ack.Reply(args[0]); err != nil {
			t.Error(err)
		}
	})
	close(start)
	for i := range 100 {
		if got, want := within(t, "ack", acks), fmt.Sprintf("3%d[%d]", i, i); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
}

func TestBinaryAttachmentsAreLeftOut(t *testing.T) {
	got := make(chan string, 2)
	url := serve(t, func(p *peer) {
		p.open()
		p.send(`451-["e",{"_placeholder":true,"num":0}]`)
		p.mu.Lock()
		_ = p.ws.WriteMessage(websocket.BinaryMessage, []byte{1, 2, 3})
		p.mu.Unlock()
		p.send(`42["e",2]`)
		p.idle()
	})
	dial(t, url, Options{Handlers: map[string]Handler{"e": func(args []json.RawMessage, _ Ack) { got <- string(args[0]) }}})
	within(t, "binary event", got)
	if next := within(t, "event", got); next != "2" {
		t.Errorf("got %s after the binary event, want 2", next)
	}
}

func TestPingIsAnswered(t *testing.T) {
	pong := make(chan string, 1)
	url := serve(t, func(p *peer) {
		p.open()
		p.send("2")
		text, _ := p.receive()
		pong <- text
		p.idle()
	})
	dial(t, url, Options{})
	if got := within(t, "pong", pong); got != "3" {
		t.Errorf("got %q, want a pong", got)
	}
}

func TestSilentServerIsLeft(t *testing.T) {
	url := serve(t, func(p *peer) {
		p.greet("20", "20")
		p.send(`40{"sid":"s"}`)
		p.idle()
	})
	c := dial(t, url, Options{})
	within(t, "end of the client", c.Done())
	if c.Err() == nil {
		t.Error("no reason given")
	}
	if err := c.Emit("late"); err == nil {
		t.Error("emitting on an ended client is no error")
	}
}

func TestGivingUpOnAnAnswer(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	url := serve(t, func(p *peer) {
		p.open()
		_, _ = p.receive()
		close(asked)
		<-answer
		p.send(`430["too late"]`)
		p.echo()
	})
	c := dial(t, url, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if got, err := c.EmitWithAck(ctx, "ask"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %s, %v", got, err)
	}
	close(answer)
	if got, err := c.EmitWithAck(t.Context(), "ask", json.RawMessage("7")); err != nil || string(got) != "7" {
		t.Errorf("the next call got %s, %v: the late answer was taken for it", got, err)
	}
}

func TestReconnectBringsPidAndOffset(t *testing.T) {
	auths := make(chan string, 3)
	late := make(chan string, 1)
	connection := 0
	url := serve(t, func(p *peer) {
		connection++ // the connections follow one another
		switch connection {
		case 1:
			p.open()
			auths <- string(p.auth)
			p.send(`42["news",1,"offset-1"]`)
			p.send(`427["ask","no offset"]`)
			_, _ = p.receive() // a call that gets no answer
		default:
			p.greet("25000", "20000")
			auths <- string(p.auth)
			p.send(`42["news",2,"offset-2"]`)
			p.send(`40{"sid":"s1","pid":"p1"}`)
			p.each(func(packet socketio.Packet) { late <- string(packet.Append(nil)) })
		}
	})
	news := make(chan string, 2)
	asked := make(chan Ack, 1)
	down, up := make(chan error, 1), make(chan Session, 2)
	c := dial(t, url, Options{
		Reconnect:      true,
		ReconnectDelay: time.Millisecond,
		Handlers: map[string]Handler{
			"news": func(args []json.RawMessage, _ Ack) { news <- string(args[0]) },
			"ask":  func(_ []json.RawMessage, ack Ack) { asked <- ack },
		},
		OnConnect:    func(_ *Client, s Session) { up <- s },
		OnDisconnect: func(c *Client, reason error) { down <- c.Emit("while away") },
	})
	if within(t, "first connect", up).Recovered {
		t.Error("the first connection is called recovered")
	}
	within(t, "news", news)
	ack := within(t, "ask", asked)
	if _, err := c.EmitWithAck(t.Context(), "unanswered"); !errors.Is(err, ErrDisconnected) {
		t.Errorf("the unanswered call got %v", err)
	}
	if err := within(t, "disconnect", down); !errors.Is(err, ErrNotConnected) {
		t.Errorf("emitting while away got %v", err)
	}
	if err := c.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := within(t, "missed news", news); got != "2" {
		t.Errorf("missed news %s", got)
	}
	if !within(t, "second connect", up).Recovered || !c.Session().Recovered {
		t.Error("the same pid is not called recovered")
	}
	if got, want := within(t, "auth", auths), `{"user":"ada"}`; got != want {
		t.Errorf("first auth %s, want %s", got, want)
	}
	if got, want := within(t, "auth", auths), `{"offset":"offset-1","pid":"p1","user":"ada"}`; got != want {
		t.Errorf("second auth %s, want %s", got, want)
	}
	// The handler of the first connection answers over the second one.
	if err := ack.Reply(json.RawMessage(`"done"`)); err != nil {
		t.Fatal(err)
	}
	if got, want := within(t, "late ack", late), `37["done"]`; got != want {
		t.Errorf("late ack %s, want %s", got, want)
	}
}

func TestRequestsBeforeAdmissionAreAnswered(t *testing.T) {
	acks := make(chan string, 1)
	url := serve(t, func(p *peer) {
		p.greet("25000", "20000")
		p.send(`421["ask"]`)
		p.send(`40{"sid":"s1","pid":"p1"}`)
		p.each(func(packet socketio.Packet) { acks <- string(packet.Append(nil)) })
	})
	dial(t, url, Options{Handlers: map[string]Handler{"ask": func(_ []json.RawMessage, ack Ack) {
		if err := ack.Reply(json.RawMessage("7")); err != nil {
			t.Error(err)
		}
	}}})
	if got := within(t, "answer", acks); got != "31[7]" {
		t.Errorf("got %s", got)
	}
}

func TestServerDisconnectIsFinal(t *testing.T) {
	url := serve(t, func(p *peer) {
		p.open()
		p.send("41")
		p.idle()
	})
	c := dial(t, url, Options{Reconnect: true, ReconnectDelay: time.Millisecond})
	within(t, "end of the client", c.Done())
	if !errors.Is(c.Err(), ErrServerDisconnect) {
		t.Errorf("reason %v", c.Err())
	}
	if err := c.Connected(t.Context()); !errors.Is(err, ErrServerDisconnect) {
		t.Errorf("waiting for a connection got %v", err)
	}
}

func TestDropComesBack(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.open().echo() }), Options{Reconnect: true, ReconnectDelay: time.Millisecond})
	for range 5 {
		c.Drop()
		for {
			if err := c.Connected(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := c.EmitWithAck(t.Context(), "echo", json.RawMessage("1")); err == nil {
				break
			}
		}
	}
}

func TestCloseSaysGoodbye(t *testing.T) {
	packets := make(chan string, 1)
	ended := make(chan struct{})
	url := serve(t, func(p *peer) {
		p.open().each(func(packet socketio.Packet) { packets <- string(packet.Append(nil)) })
		close(ended)
	})
	c := dial(t, url, Options{Reconnect: true})
	call := make(chan error, 1)
	go func() {
		_, err := c.EmitWithAck(t.Context(), "unanswered")
		call <- err
	}()
	within(t, "call", packets)
	c.Close()
	if got := within(t, "goodbye", packets); got != "1" {
		t.Errorf("got %s, want a Socket.IO disconnect", got)
	}
	within(t, "end of the connection", ended)
	if err := within(t, "the waiting call", call); !errors.Is(err, ErrDisconnected) {
		t.Errorf("the waiting call got %v", err)
	}
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("reason %v", c.Err())
	}
	c.Close()
}

func TestCloseDuringReconnect(t *testing.T) {
	url := serve(t, func(p *peer) { p.open() }) // hangs up at once
	down := make(chan struct{}, 1)
	c := dial(t, url, Options{Reconnect: true, ReconnectDelay: time.Hour, ReconnectDelayMax: time.Hour,
		OnDisconnect: func(*Client, error) { down <- struct{}{} }})
	within(t, "disconnect", down)
	c.Close()
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("reason %v", c.Err())
	}
}

func TestEndpoint(t *testing.T) {
	for _, test := range []struct{ base, path, want string }{
		{"http://h:1", "", "ws://h:1/socket.io/?EIO=4&transport=websocket"},
		{"https://h", "v1/updates", "wss://h/v1/updates?EIO=4&transport=websocket"},
		{"ws://h:1/ignored?instance=a", "", "ws://h:1/socket.io/?EIO=4&instance=a&transport=websocket"},
	} {
		if got, err := endpoint(test.base, test.path); err != nil || got != test.want {
			t.Errorf("%s: got %s, %v, want %s", test.base, got, err, test.want)
		}
	}
	if _, err := endpoint("127.0.0.1:4001", ""); err == nil {
		t.Error("an address without a scheme is taken")
	}
}
