package transport

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
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

// Packets that are written at once, whole, in part or not at all as the system likes, and those that go through the
// outbox arrive whole and in order, with control frames in between.
func TestPromptWrites(t *testing.T) {
	const rounds, packets = 40, 100
	sizes := []int{0, 1, 100, 110, 120, 130, 500, 900, promptBytes, 2 * promptBytes, 20_000}
	var whole, parts, none int // of the one handler
	app := newTestApp()
	app.event = func(s *Socket, _ string, _ []json.RawMessage, _ [][]byte, _ Ack) {
		for i := range packets {
			packet := fmt.Appendf(nil, `42["e","%d %s"]`, i, strings.Repeat("x", sizes[rand.IntN(len(sizes))]))
			if rand.IntN(10) == 0 {
				s.send(packet, nil, nil)
			} else {
				s.c.sendNow(packet)
			}
			if rand.IntN(3) == 0 {
				eventually(func() bool { s.c.out.mu.Lock(); defer s.c.out.mu.Unlock(); return s.c.out.n == 0 })
			}
		}
	}
	srv, url := start(t, Options{}, app)
	srv.write = func(fd int, b []byte) (int, error) {
		switch rand.IntN(4) {
		case 0:
			none++
			return -1, syscall.EAGAIN
		case 1:
			whole++
			return syscall.Write(fd, b)
		default:
			parts++
			return syscall.Write(fd, b[:1+rand.IntN(len(b)-1)])
		}
	}
	c := join(t, url)
	pongs := 0
	c.ws.SetPongHandler(func(string) error { pongs++; return nil })
	for range rounds {
		c.send(`42["go"]`)
		for i := range packets {
			if i%10 == 0 {
				if err := c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
			}
			got := c.read()
			if begin, end := fmt.Sprintf(`42["e","%d `, i), `"]`; !strings.HasPrefix(got, begin) ||
				strings.Trim(strings.TrimSuffix(got[len(begin):], end), "x") != "" {
				t.Fatalf("packet %d: got %d bytes, %.40q", i, len(got), got)
			}
		}
	}
	const sent = 2 + rounds*packets
	if !eventually(func() bool { return srv.Stats().MessagesOut == sent }) {
		t.Errorf("%d messages counted, want %d", srv.Stats().MessagesOut, sent)
	}
	if whole == 0 || parts == 0 || none == 0 || pongs == 0 {
		t.Errorf("%d whole, %d in part, %d not at all, %d pongs: not all was tried", whole, parts, none, pongs)
	}
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
