package transport

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// move opens the WebSocket of an upgrade.
func (p *poller) move(url string) *raw {
	p.t.Helper()
	ws, _, err := websocket.DefaultDialer.Dial(url+"&sid="+p.sid, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { ws.Close() })
	return &raw{p.t, ws}
}

func TestUpgrade(t *testing.T) {
	app := newTestApp()
	srv, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	s := recv(t, app.joined)
	waiting := p.waiting(srv)
	c := p.move(url)
	c.send("2probe")
	c.want("3probe")
	p.wants(<-waiting, 200, "6")
	s.Emit("between")
	p.want(`42["between"]`) // it polls still
	s.Emit("last")
	c.send("5", `421["a"]`)
	c.want(`42["last"]`, `431[]`)
	p.wants(p.get(), 400, badRequest)
	p.wants(p.do(context.Background(), "POST", "1"), 400, badRequest)
	p.move(url).wantClose(websocket.ClosePolicyViolation)
	c.send(`422["b"]`)
	c.want(`432[]`)
	if st := srv.Stats(); st.Connections != 1 || st.Opened != 1 || st.Upgraded != 1 {
		t.Fatalf("%+v", st)
	}
	c.ws.Close()
	wantReason(t, app, ReasonTransportClose)
}

// Until the upgrade is complete, whatever happens to the WebSocket does not happen to the session.
func TestUpgradeFails(t *testing.T) {
	const late = "late"
	for name, fail := range map[string]func(srv *Server, p *poller, url string, c *raw){
		"closed":   func(_ *Server, _ *poller, _ string, c *raw) { c.ws.Close() },
		"no probe": func(_ *Server, _ *poller, _ string, c *raw) { c.send("5"); c.wantClose(1002) },
		"no packet": func(_ *Server, _ *poller, _ string, c *raw) {
			c.send("2probe", "x")
			c.wantClose(1002)
		},
		"binary": func(_ *Server, _ *poller, _ string, c *raw) { c.sendBinary("x"); c.wantClose(1002) },
		late: func(_ *Server, _ *poller, _ string, c *raw) {
			c.send("2probe")
			c.want("3probe")
			if _, _, err := c.ws.ReadMessage(); err == nil {
				t.Error("open after the upgrade timeout")
			}
		},
		"a second one": func(_ *Server, p *poller, url string, c *raw) {
			p.move(url).wantClose(websocket.ClosePolicyViolation)
			c.ws.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			srv, url := start(t, Options{}, app)
			srv.upgradeTimeout = patience
			if name == late {
				srv.upgradeTimeout = time.Second
			}
			p := pollJoined(t, url)
			fail(srv, p, url, p.move(url))
			p.post(`421["a"]`)
			until(t, "the probe is gone", func() bool {
				pl := srv.session(p.sid).polls()
				pl.mu.Lock()
				defer pl.mu.Unlock()
				return pl.probe == nil
			})
			p.want(`431[]`)
			srv.upgradeTimeout = patience
			c := p.move(url) // and it may try again
			c.send("2probe")
			c.want("3probe")
			c.send("5", `422["b"]`)
			c.want(`432[]`)
		})
	}
}

func TestSessionEndsDuringUpgrade(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	p := pollJoined(t, url)
	c := p.move(url)
	c.send("2probe")
	c.want("3probe")
	p.post("1")
	wantReason(t, app, ReasonTransportClose)
	c.ws.SetReadDeadline(time.Now().Add(patience))
	if _, _, err := c.ws.ReadMessage(); err == nil {
		t.Fatal("the WebSocket outlives its session")
	}
}

// A GET that overtakes the end of the upgrade is out of place; one before it is sent back.
func TestGetDuringUpgrade(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	p := pollJoined(t, url)
	c := p.move(url)
	c.send("2probe")
	c.want("3probe")
	begin := time.Now()
	p.wants(p.get(), 200, "6")
	if d := time.Since(begin); d < probeSlack {
		t.Fatal("sent back after", d)
	}
	got := make(chan reply, 1)
	go func() { got <- p.get() }()
	c.send("5")
	p.wants(recv(t, got), 400, badRequest)
}

// Packets are neither lost nor doubled nor out of order while sessions move, in both directions.
func TestUpgradeUnderLoad(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	const n = 300
	for range 10 {
		p := pollJoined(t, url)
		s := recv(t, app.joined)
		go func() {
			for i := range n {
				s.Emit("e", fmt.Appendf(nil, "%d", i))
			}
		}()
		next := 0
		take := func(packet string) {
			if packet == "6" || packet == "3probe" {
				return
			}
			if want := fmt.Sprintf(`42["e",%d]`, next); packet != want {
				t.Fatalf("got %q, want %q", packet, want)
			}
			next++
		}
		c := p.move(url)
		c.send("2probe")
		take(c.read())
		if r := p.get(); r.status == 200 {
			for _, packet := range strings.Split(r.body, "\x1e") {
				take(packet)
			}
		}
		c.send("5")
		for next < n {
			take(c.read())
		}
		c.ws.Close()
		wantReason(t, app, ReasonTransportClose)
	}
}
