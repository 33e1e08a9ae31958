package transport

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"holdfast/transport/socketio"
)

// FuzzSession feeds a polling session that has joined whatever a POST may bring: packets, attachments, anything.
// It either goes on or is ended for the protocol's sake; the App is told of nothing malformed, and another
// session of the server notices nothing.
func FuzzSession(f *testing.F) {
	for _, body := range []string{
		`421["e",1]`, "3\x1e41", "1", `452-["e",{"_placeholder":true,"num":1},{"_placeholder":true,"num":0}]` + "\x1ebAQID\x1eb",
		`451-7["e",{"_placeholder":true,"num":0}]` + "\x1ebAQID" + "\x1e" + `461-3[{"_placeholder":true,"num":0}]` + "\x1ebAA==",
		"bAQID", `451-["e",{"_placeholder":true,"num":3}]` + "\x1ebAQID", "40\x1e40", "40/a", `450-["e"]`, `4511-1["e"]` + strings.Repeat("\x1eb", 11) + "\x1e" + `42["e"]`, `4512-["e"]` + "\x1eb", "2", "6", "5", "\x1e", `42["disconnect"]`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		app := newTestApp()
		check := func(args []json.RawMessage, attachments [][]byte) {
			for _, a := range args {
				if !json.Valid(a) || len(attachments) > 0 && socketio.CheckPlaceholders(a, len(attachments)) != nil {
					t.Errorf("%q of %q", a, body)
				}
			}
		}
		app.event = func(_ *Socket, _ string, args []json.RawMessage, attachments [][]byte, ack Ack) {
			check(args, attachments)
			ack.Reply()
		}
		app.ack = func(_ *Socket, _ uint64, args []json.RawMessage, attachments [][]byte) { check(args, attachments) }
		srv := NewServer(Options{}, app)
		open := func() *conn {
			srv.enter()
			c := &conn{srv: srv, id: newSID()}
			c.begin(&polling{c: c, wake: make(chan struct{}, 1)})
			srv.register(c)
			if !c.handle([]byte("40")) {
				t.Fatal("joining failed")
			}
			recv(t, app.joined)
			return c
		}
		tried, other := open(), open()
		fine := tried.handle(body)
		if _, reason := tried.ending(); !fine && reason != ReasonProtocolError {
			t.Errorf("refused with %q", reason)
		}
		if !other.handle([]byte(`421["e"]`)) || other.hasEnded() {
			t.Error("another session has ended")
		}
		tried.cut(ReasonServer)
		other.cut(ReasonServer)
		if err := srv.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
