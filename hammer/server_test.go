package hammer

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"holdfast/transport/socketio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is the server's end of one connection, handshake done by open.
type peer struct {
	t       *testing.T
	request *http.Request
	mu      sync.Mutex
	ws      *websocket.Conn
	auth    json.RawMessage
}

// serve runs handle for each connection, after the WebSocket upgrade.
func serve(t *testing.T, handle func(p *peer)) string {
	t.Helper()
	var handlers sync.WaitGroup
	upgrader := websocket.Upgrader{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) { // it tells no figures of itself
			http.NotFound(w, r)
			return
		}
		handlers.Add(1)
		defer handlers.Done()
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Errorf("upgrade: %v", err)
			return
		}
		defer ws.Close()
		handle(&peer{t: t, request: r, ws: ws})
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		handlers.Wait()
	})
	return s.URL
}

// greet sends the Engine.IO handshake and reads the CONNECT packet.
func (p *peer) greet(interval, timeout string) {
	p.send(`0{"sid":"e","upgrades":[],"pingInterval":` + interval + `,"pingTimeout":` + timeout + `,"maxPayload":1000000}`)
	hello, ok := p.receive()
	if !ok || !strings.HasPrefix(hello, "40") {
		p.t.Errorf("want CONNECT, got %q", hello)
	}
	p.auth = json.RawMessage(strings.TrimPrefix(hello, "40"))
}

// open greets and admits.
func (p *peer) open() *peer {
	p.greet("25000", "20000")
	p.send(`40{"sid":"s1","pid":"p1"}`)
	return p
}

func (p *peer) send(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The client may have gone, which the test sees elsewhere.
	_ = p.ws.WriteMessage(websocket.TextMessage, []byte(text))
}

// receive is false when the connection is over.
func (p *peer) receive() (string, bool) {
	_, text, err := p.ws.ReadMessage()
	return string(text), err == nil
}

// each hands over every packet until the connection is over.
func (p *peer) each(handle func(socketio.Packet)) {
	for text, ok := p.receive(); ok; text, ok = p.receive() {
		if text[0] != '4' {
			continue
		}
		packet, err := socketio.DecodeFromClient([]byte(text[1:]))
		if err != nil {
			p.t.Errorf("packet %q: %v", text, err)
			return
		}
		handle(packet)
	}
}

// idle reads until the connection is over.
func (p *peer) idle() { p.each(func(socketio.Packet) {}) }

// echo acks every event with its arguments.
func (p *peer) echo() {
	p.each(func(packet socketio.Packet) {
		if packet.HasID {
			_, args, _ := socketio.SplitEvent(packet.Data)
			p.send("4" + string(socketio.AppendAck(nil, packet.ID, plain(nil, args)...)))
		}
	})
}
