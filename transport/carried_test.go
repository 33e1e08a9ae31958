package transport

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// Packets of all sizes, alone and gathered, arrive whole and in order, with control frames in between.
func TestBurst(t *testing.T) {
	const rounds = 50
	sizes := []int{0, 1, 100, 125, 126, 200, 300, 5_000, 1, 1, 17_000, 1, 65_535, 65_536, 70_000, 2}
	app := newTestApp()
	app.event = func(s *Socket, _ string, _ []json.RawMessage, _ [][]byte, _ Ack) {
		for i, n := range sizes {
			s.Emit("e", fmt.Appendf(nil, `"%d %s"`, i, strings.Repeat("x", n)))
		}
	}
	srv, url := start(t, Options{}, app)
	c := join(t, url)
	pongs := 0
	c.ws.SetPongHandler(func(string) error { pongs++; return nil })
	for range rounds {
		c.send(`42["go"]`)
		if err := c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		c.send(`42["go"]`)
		for range 2 {
			for i, n := range sizes {
				want := fmt.Sprintf(`42["e","%d %s"]`, i, strings.Repeat("x", n))
				if got := c.read(); got != want {
					t.Fatalf("packet %d of %d bytes: got %d bytes, %.20q, want %d", i, n, len(got), got, len(want))
				}
			}
		}
	}
	if pongs == 0 {
		t.Error("no pong came")
	}
	wait := time.Now().Add(patience)
	const sent = 2 + 2*rounds*16 // the handshakes, and all of the above
	for srv.Stats().MessagesOut != sent && time.Now().Before(wait) {
		time.Sleep(time.Millisecond)
	}
	if n := srv.Stats().MessagesOut; n != sent {
		t.Errorf("%d messages counted, want %d", n, sent)
	}
}

// A message that comes in pieces, and several that come in one.
func TestReadPieces(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	c := join(t, url)
	long := strings.Repeat("y", 100_000)
	for range 5 {
		c.send(fmt.Sprintf(`42["long",%q]`, long))
		for i := range 100 {
			c.send(fmt.Sprintf(`42["short",%d]`, i))
		}
		if got := c.read(); got != fmt.Sprintf(`42["long",%q]`, long) {
			t.Fatalf("got %d bytes, %.20q", len(got), got)
		}
		for i := range 100 {
			if got := c.read(); got != fmt.Sprintf(`42["short",%d]`, i) {
				t.Fatalf("got %.40q, want %d", got, i)
			}
		}
	}
}
