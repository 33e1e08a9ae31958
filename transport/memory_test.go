package transport

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

var (
	idle     = flag.Int("idle", 0, "measure the memory of this many idle connections")
	deflated = flag.Bool("deflate", false, "with permessage-deflate")
)

// idleClientEnv makes the test binary the clients' process of TestIdleMemory.
const idleClientEnv = "TRANSPORT_IDLE_CLIENTS"

func TestMain(m *testing.M) {
	if spec := os.Getenv(idleClientEnv); spec != "" {
		runIdleClients(spec)
		return
	}
	os.Exit(runTests(m))
}

// TestIdleMemory holds the layer to 15,000 bytes of RSS, 20,000 with -deflate, for each connection that has joined, sent an
// event, and is pinged. Run it alone, without the race detector:
//
//	go test ./transport -run TestIdleMemory -idle 10000 -v
func TestIdleMemory(t *testing.T) {
	if *idle == 0 {
		t.Skip("needs -idle")
	}
	app := newTestApp()
	app.joined, app.ended = make(chan *Socket, *idle), make(chan Reason, *idle)
	srv := NewServer(Options{PingInterval: 10 * time.Second, Deflate: *deflated}, &deepApp{app})
	web := httptest.NewServer(srv)
	defer web.Close()
	before := rss(t)

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", idleClientEnv, *idle, wsURL(web.URL)))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // it ends with its stdin
	defer stdin.Close()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && lines.Text() != "pinged" {
		t.Log(lines.Text(), "RSS per connection", (rss(t)-before) / *idle)
	}
	if n := srv.Connections(); n != *idle {
		t.Fatalf("%d connections, want %d", n, *idle)
	}
	per := (rss(t) - before) / *idle
	t.Logf("%d bytes of RSS per idle connection", per)
	most := 15_000
	if *deflated {
		most = 20_000
	}
	if per > most {
		t.Errorf("%d bytes of RSS per idle connection, want at most %d", per, most)
	}
}

// deepApp uses as much of the stack as a real App does, once; an idle connection must not keep it.
type deepApp struct{ *testApp }

func (a *deepApp) Event(s *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack) {
	deep(make([]byte, 1), 4)
	a.testApp.Event(s, name, args, attachments, ack)
}

//go:noinline
func deep(b []byte, more int) byte {
	var frame [1 << 10]byte
	copy(frame[:], b)
	if more > 0 {
		return deep(frame[:1], more-1) + frame[len(b)]
	}
	return frame[len(frame)-1]
}

func rss(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("needs /proc:", err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// runIdleClients connects, joins, sends one event each, answers one ping each, and stays until
// its stdin ends.
func runIdleClients(spec string) {
	var n int
	var url string
	if _, err := fmt.Sscan(spec, &n, &url); err != nil {
		panic(err)
	}
	var acked, pinged sync.WaitGroup
	slots := make(chan struct{}, 64)
	for range n {
		acked.Add(1)
		pinged.Add(1)
		slots <- struct{}{}
		go func() {
			dialer := websocket.Dialer{EnableCompression: true} // used if the server does
			ws, _, err := dialer.Dial(url, nil)
			if err != nil {
				panic(err)
			}
			<-slots
			for {
				_, b, err := ws.ReadMessage()
				if err != nil {
					return
				}
				switch s := string(b); {
				case s[0] == '0':
					err = ws.WriteMessage(websocket.TextMessage, []byte(`40`))
				case strings.HasPrefix(s, "40"):
					err = ws.WriteMessage(websocket.TextMessage, []byte(`421["echo","x"]`))
				case strings.HasPrefix(s, "43"):
					acked.Done()
				case s == "2":
					err = ws.WriteMessage(websocket.TextMessage, []byte(`3`))
					pinged.Done()
				}
				if err != nil {
					panic(err)
				}
			}
		}()
	}
	acked.Wait()
	fmt.Println("acked")
	pinged.Wait()
	fmt.Println("pinged")
	os.Stdin.Read(make([]byte, 1)) // its end is what counts
}
