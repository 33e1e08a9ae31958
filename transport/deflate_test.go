package transport

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
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

// bomb sends a message of 500 MB, compressed about 500 kB, which is within the limit, and holds what is allocated
// until the connection is closed with the code.
func (c *raw) bomb(kind, code int) {
	c.t.Helper()
	w, err := c.ws.NextWriter(kind)
	if err != nil {
		c.t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 500 {
		if _, err := w.Write(zeros); err != nil {
			break // it may be refused before it has all come
		}
	}
	w.Close()
	c.wantClose(code)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 {
		c.t.Errorf("%d bytes were allocated for it", got)
	}
}

// A message that inflates beyond the limit ends its connection, and is never held as a whole.
func TestInflatedBeyondLimit(t *testing.T) {
	for _, kind := range []int{websocket.TextMessage, websocket.BinaryMessage} {
		app := newTestApp()
		_, url := start(t, Options{Deflate: true}, app)
		c, _ := joinDeflated(t, url)
		c.bomb(kind, websocket.CloseMessageTooBig)
		wantReason(t, app, ReasonProtocolError)
	}
}

// A message that cannot be inflated ends its connection, whatever comes after it.
func TestDamagedDeflate(t *testing.T) {
	for name, data := range map[string][]byte{
		"a block type that does not exist":   {0xFF, 0xFF, 0xFF},
		"a stored block that is cut off":     {0x00, 0xFF, 0xFF, 0x00, 0x00},
		"a block that is cut off, in binary": {0x00, 0xFF, 0xFF, 0x00, 0x00, 0x01},
	} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			_, url := start(t, Options{Deflate: true}, app)
			c, _ := joinDeflated(t, url)
			kind := byte(websocket.TextMessage)
			if len(data) > 5 {
				kind = websocket.BinaryMessage
			}
			// A frame that says it is compressed, masked with zeros.
			frame := append([]byte{0xC0 | kind, 0x80 | byte(len(data)), 0, 0, 0, 0}, data...)
			if _, err := c.ws.NetConn().Write(frame); err != nil {
				t.Fatal(err)
			}
			c.bomb(websocket.BinaryMessage, websocket.CloseInvalidFramePayloadData)
			wantReason(t, app, ReasonProtocolError)
		})
	}
}

// What a probe sends harms nothing but its WebSocket, damaged or too large as well.
func TestProbeDeflate(t *testing.T) {
	srv, url := start(t, Options{Deflate: true}, newTestApp())
	p := pollJoined(t, url)
	dialer := websocket.Dialer{EnableCompression: true}
	for _, frame := range [][]byte{{0xC1, 0x83, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF}, {0xC1, 0x85, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0}} {
		ws, _, err := dialer.Dial(url+"&sid="+p.sid, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		if _, err := ws.NetConn().Write(frame); err != nil {
			t.Fatal(err)
		}
		(&raw{t, ws}).wantClose(websocket.CloseInvalidFramePayloadData)
		until(t, "the probe is forgotten", func() bool {
			pl := srv.session(p.sid).polls()
			pl.mu.Lock()
			defer pl.mu.Unlock()
			return pl.probe == nil
		})
	}
	p.post(`421["e",1]`)
	p.want(`431[1]`)
}

// counting counts the writes to the connections that it accepts, which are no system's connections, like TLS's.
type counting struct {
	net.Listener
	writes atomic.Int64
}

type countedWrites struct {
	net.Conn
	l *counting
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countedWrites{c, l}, err
}

func (c *countedWrites) Write(b []byte) (int, error) {
	c.l.writes.Add(1)
	return c.Conn.Write(b)
}

// The compressor is given back before the network is waited for: what it makes of a packet is written at once.
func TestDeflatedAtOnce(t *testing.T) {
	app := newTestApp()
	srv := NewServer(Options{Deflate: true}, app)
	web := httptest.NewUnstartedServer(srv)
	l := &counting{Listener: web.Listener}
	web.Listener = l
	web.Start()
	defer web.Close()
	defer srv.Close(t.Context()) //nolint:errcheck // only that it returns
	c, _ := joinDeflated(t, wsURL(web.URL))
	s := recv(t, app.joined)
	half := make([]byte, 150_000)
	rand.Read(half)
	text := hex.EncodeToString(half)
	for range 3 {
		before := l.writes.Load()
		s.EmitBinary("e", [][]byte{[]byte(text)}, []byte(`"`+text+`"`), []byte(`{"_placeholder":true,"num":0}`))
		c.want(`451-["e","`+text+`",{"_placeholder":true,"num":0}]`, text)
		if n := l.writes.Load() - before; n != 2 {
			t.Errorf("%d writes of two packets", n)
		}
	}
}

// Who can inflate a smaller window only is sent nothing compressed.
func TestDeflateOffers(t *testing.T) {
	_, url := start(t, Options{Deflate: true}, newTestApp())
	for offer, agreed := range map[string]bool{
		"permessage-deflate":                                                     true,
		"permessage-deflate; client_max_window_bits":                             true,
		"permessage-deflate; server_max_window_bits=10":                          false,
		"permessage-deflate; Server_Max_Window_Bits=10, permessage-deflate":      false,
		"x-webkit-deflate-frame":                                                 false,
		"permessage-deflate; server_no_context_takeover; client_max_window_bits": true,
	} {
		req, err := http.NewRequest("GET", "http"+strings.TrimPrefix(url, "ws"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
			"Sec-WebSocket-Extensions": offer,
		} {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("Sec-WebSocket-Extensions"); res.StatusCode != 101 || (got != "") != agreed {
			t.Errorf("%s: %d, %q", offer, res.StatusCode, got)
		}
	}
}
