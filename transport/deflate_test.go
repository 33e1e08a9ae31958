package transport

import (
	"crypto/rand"
	"encoding/json"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
)

// counted counts what arrives.
type counted struct {
	net.Conn
	in *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

func joinDeflated(t *testing.T, url string) (*raw, *atomic.Int64) {
	t.Helper()
	in := new(atomic.Int64)
	dialer := websocket.Dialer{EnableCompression: true, NetDial: func(network, addr string) (net.Conn, error) {
		tcp, err := net.Dial(network, addr)
		return counted{tcp, in}, err
	}}
	ws, answer, err := dialer.Dial(url, http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	if !strings.Contains(answer.Header.Get("Sec-WebSocket-Extensions"), "permessage-deflate") {
		t.Fatalf("the extension was not agreed on: %v", answer.Header)
	}
	c := &raw{t, ws}
	c.read()
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	return c, in
}

func TestDeflate(t *testing.T) {
	app := newTestApp()
	const limit = 200_000
	_, url := start(t, Options{Deflate: true, MaxPayload: limit}, app)
	c, in := joinDeflated(t, url)
	before := in.Load()
	text := strings.Repeat("again ", limit/7)
	c.send(`421["e","` + text + `"]`)
	c.want(`431["` + text + `"]`)
	if got := in.Load() - before; got > limit/20 {
		t.Errorf("%d bytes came for an answer of %d", got, len(text))
	}
	noise := make([]byte, limit)
	rand.Read(noise)
	c.send(`451-2["e",{"_placeholder":true,"num":0}]`)
	c.sendBinary(string(noise)) // compressed, it is larger than the limit
	c.want(`461-2[{"_placeholder":true,"num":0}]`, string(noise))

	// Many at once, so that some are gathered; who does not compress is served as well.
	plain := join(t, url)
	for _, c := range []*raw{c, plain} {
		var want []string
		for i := range 200 {
			arg, _ := json.Marshal(strings.Repeat("x", i*20))
			c.send(`42["e",` + string(arg) + `]`)
			want = append(want, `42["e",`+string(arg)+`]`)
		}
		c.want(want...)
	}
}

// A message that inflates beyond the limit ends its connection, and is never held as a whole.
func TestInflatedBeyondLimit(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{Deflate: true}, app)
	c, _ := joinDeflated(t, url)
	w, err := c.ws.NextWriter(websocket.TextMessage)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 500 { // about 500 kB when compressed, which is within the limit
		if _, err := w.Write(zeros); err != nil {
			break // it may be refused before it has all come
		}
	}
	w.Close()
	c.wantClose(websocket.CloseMessageTooBig)
	wantReason(t, app, ReasonProtocolError)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 {
		t.Errorf("%d bytes were allocated for it", got)
	}
}

func TestDamagedDeflate(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{Deflate: true}, app)
	c, _ := joinDeflated(t, url)
	// A frame that says it is compressed, masked with zeros, of a block type that does not exist.
	if _, err := c.ws.NetConn().Write([]byte{0xC1, 0x83, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF}); err != nil {
		t.Fatal(err)
	}
	c.wantClose(websocket.CloseInvalidFramePayloadData)
	wantReason(t, app, ReasonProtocolError)
}
