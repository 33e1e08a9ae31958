package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
)

// callApp passes each event of the first client on to the second as a request, and its answer
// back: a call without any routing.
type callApp struct {
	testApp
	handler atomic.Pointer[Socket]
	next    atomic.Uint32
	mu      sync.Mutex
	running map[uint64]Ack
}

func (a *callApp) Event(_ *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack) {
	id := a.next.Add(1)
	a.mu.Lock()
	a.running[uint64(id)] = ack
	a.mu.Unlock()
	a.handler.Load().Request(name, id, nil, args[0], nil)
}

func (a *callApp) Ack(_ *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
	a.mu.Lock()
	ack := a.running[id]
	delete(a.running, id)
	a.mu.Unlock()
	ack.Reply(args[0])
}

// BenchmarkCall is a call from one client through the server to another and back, 256 at a time.
// The clients share the machine with the server.
func BenchmarkCall(b *testing.B) {
	app := &callApp{testApp: *newTestApp(), running: map[uint64]Ack{}}
	srv := NewServer(Options{}, app)
	web := httptest.NewServer(srv)
	defer web.Close()
	dial := func() *websocket.Conn {
		ws, _, err := websocket.DefaultDialer.Dial(wsURL(web.URL), nil)
		if err != nil {
			b.Fatal(err)
		}
		ws.WriteMessage(websocket.TextMessage, []byte("40"))
		ws.ReadMessage() // the open packet
		ws.ReadMessage() // the answer
		return ws
	}
	handler := dial()
	app.handler.Store(<-app.joined)
	caller := dial()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			_, m, err := handler.ReadMessage()
			if err != nil {
				return
			}
			if i := bytes.IndexByte(m, '['); i > 2 {
				handler.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `43%s[{"ok":true}]`, m[2:i]))
			}
		}
	})
	arg := bytes.Repeat([]byte("x"), 200)
	slots := make(chan struct{}, 256)
	b.ReportAllocs()
	b.ResetTimer()
	wg.Go(func() {
		for range b.N {
			_, m, err := caller.ReadMessage()
			if err != nil {
				b.Error(err)
				return
			}
			if len(m) > 1 {
				<-slots
			}
		}
	})
	for i := range b.N {
		slots <- struct{}{}
		m := append(strconv.AppendInt([]byte("42"), int64(i), 10), `["rpc-call",{"params":"`...)
		m = append(append(m, arg...), `"}]`...)
		if err := caller.WriteMessage(websocket.TextMessage, m); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	if err := srv.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	wg.Wait()
}
