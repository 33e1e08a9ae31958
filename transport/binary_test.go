package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"holdfast/transport/socketio"
)

const placeholders = `{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}`

func TestBinaryBothWays(t *testing.T) {
	app := newTestApp()
	acks := make(chan string, 1)
	app.ack = func(_ *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
		acks <- fmt.Sprintf("%d %s %q", id, args, attachments)
	}
	_, url := start(t, Options{}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	c.send(`452-9["e",` + placeholders + `]`)
	c.sendBinary("a\x00\xff")
	c.sendBinary("")
	c.want(`462-9[`+placeholders+`]`, "a\x00\xff", "")
	c.send(`451-["back",{"_placeholder":true,"num":0}]`)
	c.sendBinary("b")
	c.want(`451-["back",{"_placeholder":true,"num":0}]`, "b")
	c.send(`461-5[{"_placeholder":true,"num":0}]`)
	c.sendBinary("c")
	if got := recv(t, acks); got != `5 [{"_placeholder":true,"num":0}] ["c"]` {
		t.Fatal(got)
	}
	c.send(`450-7["e",1]`, `460-8[2]`)
	c.want(`437[1]`)
	if got := recv(t, acks); got != `8 [2] []` {
		t.Fatal(got)
	}
	s.Request("r", 3, nil, []byte(placeholders), [][]byte{[]byte("x"), []byte("y")})
	c.want(`452-3["r",`+placeholders+`]`, "x", "y")
}

// Nothing but pings comes between a packet and its attachments, whoever sends at the same time.
func TestAttachmentsStayTogether(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{}, app)
	c := join(t, url)
	s := recv(t, app.joined)
	const senders, each = 4, 200
	for i := range senders {
		go func() {
			for j := range each {
				if i%2 == 0 {
					s.Emit("text")
				} else {
					part := fmt.Sprintf("%d %d", i, j)
					s.EmitBinary("e", [][]byte{[]byte(part), []byte(part + strings.Repeat("x", j*100))}, []byte(`"`+part+`"`), []byte(placeholders))
				}
			}
		}()
	}
	for range senders * each {
		head := c.read()
		if head == `42["text"]` {
			continue
		}
		var data []any
		if err := json.Unmarshal([]byte(strings.TrimPrefix(head, "452-")), &data); err != nil {
			t.Fatalf("%.80q: %v", head, err)
		}
		part := data[1].(string)
		c.want(part)
		if got := c.read(); !strings.HasPrefix(got, part) {
			t.Fatalf("%.80q after %q", got, head)
		}
	}
}

// What is too large to be handed on is refused, and the connection goes on.
func TestLargeBinaryIsRefused(t *testing.T) {
	app := newTestApp()
	acks := make(chan string, 1)
	app.ack = func(_ *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
		acks <- fmt.Sprintf("%d %s %d", id, args, len(attachments))
	}
	_, url := start(t, Options{MaxPayload: 1000, OutboxBytes: 1500}, app)
	c := join(t, url)
	const refusal = `{"ok":false,"error":"The message is too large","code":"TOO_LARGE"}`
	for _, header := range []string{`452-["e",` + placeholders + `]`, `452-1["e",` + placeholders + `]`, `462-2[` + placeholders + `]`} {
		c.send(header)
		c.sendBinary(strings.Repeat("x", 900))
		c.sendBinary(strings.Repeat("x", 900))
	}
	c.want(`431[` + refusal + `]`)
	if got := recv(t, acks); got != `2 [`+refusal+`] 0` {
		t.Fatal(got)
	}
	c.send(`423["e",1]`)
	c.want(`433[1]`)
}

// placeholdersOf are so many placeholders.
func placeholdersOf(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"_placeholder":true,"num":%d}`, i)
	}
	return strings.Join(all, ",")
}

const manyAttachments = `{"ok":false,"error":"A message may have 10 attachments at most","code":"TOO_LARGE"}`

// A packet with more attachments than there may be is read to its end and refused, and the connection goes on.
func TestTooManyAttachmentsAreRefused(t *testing.T) {
	app := newTestApp()
	var handled atomic.Int64
	app.event = func(_ *Socket, _ string, args []json.RawMessage, attachments [][]byte, ack Ack) {
		handled.Add(1)
		ack.ReplyBinary(attachments, args[0])
	}
	acks := make(chan string, 1)
	app.ack = func(_ *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
		acks <- fmt.Sprintf("%d %s %d", id, args, len(attachments))
	}
	srv, url := start(t, Options{MaxPayload: 2000, OutboxBytes: 20_000, OutboxMessages: 100, PingInterval: 50 * time.Millisecond}, app)
	part := strings.Repeat("x", 1500) // a few of them are more than may be kept
	many := func(id string, n int) []string {
		return append([]string{fmt.Sprintf(`45%d-%s["e",[%s]]`, n, id, placeholdersOf(min(n, 20)))}, slices.Repeat([]string{part}, n)...)
	}

	c := join(t, url)
	for _, packet := range [][]string{many("1", 11), many("", 11), many("", 1000), many("2", 1000)} {
		c.send(packet[0])
		for _, a := range packet[1:] {
			c.sendBinary(a)
		}
	}
	c.send(`4611-5[` + placeholdersOf(11) + `]`)
	for range 11 {
		c.sendBinary("x")
	}
	c.send(`4510-3["e",[` + placeholdersOf(10) + `]]`)
	for range 10 {
		c.sendBinary("x")
	}
	c.wantUnpinged(append([]string{`431[` + manyAttachments + `]`, `432[` + manyAttachments + `]`, `4610-3[[` + placeholdersOf(10) + `]]`},
		slices.Repeat([]string{"x"}, 10)...)...)
	if got := recv(t, acks); got != "5 ["+manyAttachments+"] 0" {
		t.Error(got)
	}
	if n := handled.Load(); n != 1 {
		t.Errorf("%d events were handled", n)
	}
	if n := srv.Stats().Refused["too-many-attachments"]; n != 5 {
		t.Errorf("%d were counted", n)
	}
	c.send(`4511-["e"]`, `42["e"]`)
	c.wantClose(websocket.CloseProtocolError)

	c = join(t, url)
	c.send(`4510001-["e"]`)
	c.wantClose(websocket.CloseProtocolError)
}

func TestTooManyAttachmentsOverPolling(t *testing.T) {
	_, url := start(t, Options{}, newTestApp())
	p := pollJoined(t, url)
	for _, n := range []int{11, socketio.MaxAnnounced} {
		p.post(append([]string{fmt.Sprintf(`45%d-1["e"]`, n)}, slices.Repeat([]string{"bAQID"}, n-1)...)...)
		p.post("bAQID", `452-2["e",`+placeholders+`]`, "bAQID", "b") // it may come in several bodies
		p.want(`431[`+manyAttachments+`]`, `462-2[`+placeholders+`]`, "bAQID", "b")
	}
	p.wants(p.do(context.Background(), "POST", `4510001-1["e"]`), 400, badRequest)
	p.wantUnknown()
}

// wantUnpinged is want, between pings.
func (c *raw) wantUnpinged(frames ...string) {
	c.t.Helper()
	for _, f := range frames {
		got := c.read()
		for got == "2" {
			c.send("3")
			got = c.read()
		}
		if got != f {
			c.t.Fatalf("got %q, want %q", got, f)
		}
	}
}

func TestNamespaces(t *testing.T) {
	app := newTestApp()
	_, url := start(t, Options{Namespaces: []string{"/", "/other"}}, app)
	c := dial(t, url)
	c.send("40/other")
	c.want(`40/other,{"sid":"sid","pid":"pid"}`)
	s := recv(t, app.joined)
	if s.Namespace() != "/other" {
		t.Fatal(s.Namespace())
	}
	c.send(`42/other,1["e",2]`)
	c.want(`43/other,1[2]`)
	c.send("40")
	c.want(`40{"sid":"sid","pid":"pid"}`)
	if s := recv(t, app.joined); s.Namespace() != "/" {
		t.Fatal(s.Namespace())
	}
	c.send(`452-/other,["e",` + placeholders + `]`)
	c.sendBinary("a")
	c.sendBinary("b")
	c.want(`452-/other,["e",`+placeholders+`]`, "a", "b")
	packet := EncodeEvent("shared")
	s.SendRaw(packet)
	c.want(`42/other,["shared"]`)
	if string(packet) != `42["shared"]` {
		t.Fatal("a shared packet was changed")
	}
	c.send("40/third?x=1")
	c.want(`44/third?x=1,{"message":"Invalid namespace"}`)
	c.send("41/other")
	wantReason(t, app, ReasonClient)
	c.send(`421["e",3]`)
	c.want(`431[3]`)
	c.send("40/other,{}")
	c.want(`40/other,{"sid":"sid","pid":"pid"}`)
	c.ws.Close()
	wantReason(t, app, ReasonTransportClose)
	wantReason(t, app, ReasonTransportClose)
}
