package transport

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
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
