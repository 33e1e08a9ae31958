package transport

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestHandshake(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	ws, _, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	open := (&raw{t, ws}).read()
	var got map[string]any
	if open[0] != '0' || json.Unmarshal([]byte(open[1:]), &got) != nil {
		t.Fatal(open)
	}
	if sid, ok := got["sid"].(string); !ok || len(sid) != 20 {
		t.Fatal(open)
	}
	delete(got, "sid")
	rest, _ := json.Marshal(got)
	if want := `{"maxPayload":1000000,"pingInterval":25000,"pingTimeout":20000,"upgrades":[]}`; string(rest) != want {
		t.Fatalf("got %s, want %s", rest, want)
	}
}

func TestPingKeepsAlive(t *testing.T) {
	_, url := start(t, Options{PingInterval: 10 * time.Millisecond, PingTimeout: patience}, newTestApp())
	c := dial(t, url)
	for range 5 {
		c.want("2")
		c.send("3")
	}
	c.want("2")
}

func TestUnsolicitedPongIsIgnored(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	c := join(t, url)
	c.send("3", "3", `421["echo",1]`)
	c.want(`431[1]`)
}

func TestPingTimeout(t *testing.T) {
	app := newTestApp()
	const timeout = time.Second // in which some of the other traffic comes back
	srv, url := start(t, Options{PingInterval: 20 * time.Millisecond, PingTimeout: timeout}, app)
	begin := time.Now()
	c := join(t, url)
	c.want("2")
	// Other traffic does not stand in for the pong.
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				c.ws.WriteMessage(websocket.TextMessage, []byte(`42["noise"]`))
			}
		}
	}()
	before := c.wantClose(websocket.CloseGoingAway)
	if len(before) == 0 {
		t.Fatal("no traffic while the pong was due")
	}
	close(stop)
	<-done
	wantReason(t, app, ReasonPingTimeout)
	if d := time.Since(begin); d < timeout || d > 5*time.Second {
		t.Fatal("timed out after", d)
	}
	if n := srv.Stats().Closed[ReasonPingTimeout]; n != 1 {
		t.Fatal(n)
	}
}

// A ping overtakes a backlog, so a client that reads slowly is not taken for a dead one.
func TestPingOvertakesBacklog(t *testing.T) {
	var got []string
	o := &outbox{maxBytes: 1 << 20, maxMessages: 100}
	o.to = carrierFunc(func(p []byte, _ bool) error { got = append(got, string(p)); return nil })
	for i := range 10 {
		o.put([]byte{'a' + byte(i)}, nil, nil)
	}
	o.putFirst([]byte("2"))
	for range 11 {
		o.sent()
	}
	if s := strings.Join(got, ""); s != "a2bcdefghij" {
		t.Fatal(s)
	}
}

func TestEngineViolations(t *testing.T) {
	for _, frame := range []string{"", "abc", "7", "2", "2probe", `0{"sid":"x"}`} {
		t.Run(frame, func(t *testing.T) {
			app := newTestApp()
			_, url := start(t, Options{}, app)
			c := join(t, url)
			c.send(frame)
			c.wantClose(websocket.CloseProtocolError)
			wantReason(t, app, ReasonProtocolError)
		})
	}
}

func TestClientCloses(t *testing.T) {
	for name, end := range map[string]func(*raw){
		"close packet": func(c *raw) { c.send("1") },
		"close frame": func(c *raw) {
			c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(patience))
		},
		"end of stream": func(c *raw) { c.ws.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			_, url := start(t, Options{}, app)
			c := join(t, url)
			end(c)
			if name != "end of stream" {
				c.wantClose(1000)
			}
			wantReason(t, app, ReasonTransportClose)
		})
	}
}

func TestOversizedMessage(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{MaxPayload: 100_000}, app)
	c := join(t, url)
	fits := `42["e","` + strings.Repeat("x", 100_000-10) + `"]`
	c.send(fits)
	c.want(fits)
	// Larger than the socket buffers, so that the server leaves most of it unread.
	go c.ws.WriteMessage(websocket.TextMessage, make([]byte, 8<<20))
	c.wantClose(websocket.CloseMessageTooBig)
	wantReason(t, app, ReasonProtocolError)
}

// The client that does not read is cut off; nobody waits for it, and the other notices nothing.
func TestOutboxFullCutsOnlyTheSlowClient(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{OutboxBytes: 1 << 20}, app)
	slow := join(t, url)
	slowSocket := recv(t, app.joined)
	quick := join(t, url)
	recv(t, app.joined)

	packet := EncodeEvent("e", []byte(`"`+strings.Repeat("x", 10_000)+`"`))
	sent := 0
	for slowSocket.SendRaw(packet) {
		sent++
		if sent > 100_000 {
			t.Fatal("the outbox has no bound")
		}
	}
	quick.send(`421["echo",1]`)
	quick.want(`431[1]`)
	wantReason(t, app, ReasonOutboxFull)
	if slowSocket.SendRaw(packet) {
		t.Fatal("sent after the end")
	}
	if st := srv.Stats(); st.OutboxOverflows != 1 || st.Closed[ReasonOutboxFull] != 1 || st.Connections != 1 {
		t.Fatalf("%+v", st)
	}
	_ = slow
}

// A client that reads, but not fast enough, is told why it is cut off.
func TestOutboxFullCloseCode(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{OutboxMessages: 100}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	packet := EncodeEvent("e", []byte(`"`+strings.Repeat("x", 100_000)+`"`))
	for s.SendRaw(packet) {
	}
	c.wantClose(websocket.CloseTryAgainLater)
	wantReason(t, app, ReasonOutboxFull)
}

// Every request is either read by the client or reported as dropped; the one that was being
// written when the connection was cut may be neither, and none is both.
func TestDroppedIsToldExactlyForTheUnsent(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{OutboxBytes: 1 << 20}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	arg := []byte(`"` + strings.Repeat("x", 10_000) + `"`)
	var dropped []*atomic.Int32
	for {
		n := &atomic.Int32{}
		if !s.Request("r", uint32(len(dropped)+1), func() { n.Add(1) }, arg, nil) {
			if n.Load() != 0 {
				t.Fatal("dropped called for a request that was not queued")
			}
			break
		}
		dropped = append(dropped, n)
	}
	wantReason(t, app, ReasonOutboxFull)
	read := 0
	for {
		c.ws.SetReadDeadline(time.Now().Add(patience))
		_, b, err := c.ws.ReadMessage()
		if err != nil {
			break
		}
		if !strings.HasPrefix(string(b), "42") {
			t.Fatalf("got %.20q", b)
		}
		read++
	}
	lost := 0
	for i, n := range dropped {
		switch {
		case i < read && n.Load() != 0:
			t.Fatalf("request %d was read and reported as dropped", i+1)
		case n.Load() > 1:
			t.Fatalf("request %d reported %d times", i+1, n.Load())
		case i >= read && n.Load() == 0:
			lost++
		}
	}
	if lost > 1 || read == len(dropped) {
		t.Fatalf("%d of %d read, %d neither read nor reported", read, len(dropped), lost)
	}
}
