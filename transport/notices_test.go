package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/relay"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/transport/socketio"
)

// whole is a replica with all that clients meet.
type whole struct {
	t    *testing.T
	gate *Gateway
	url  string
}

func startWhole(t *testing.T) *whole {
	t.Helper()
	embedded, err := store.OpenEmbedded("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(embedded.Close)
	st, err := embedded.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	grace := time.Minute // whoever goes comes back within it
	rep := replica.New(replica.Config{Instance: "a", URL: "http://a", Log: zerolog.Nop(), Graces: commands.Graces{
		Peer: grace, RPC: grace, Room: grace, Unused: grace, Recovery: grace,
	}}, st)
	rel := relay.New(rep, relay.Config{Log: zerolog.Nop()})
	gate := NewGateway(rep, rel, relay.NewAudience(rep), Authenticator{Insecure: true}, Rooms{Limits: commands.RoomLimits{
		PeersPerRoom: 10, RoomsPerPeer: 10, Settings: 1000, Meta: 1000,
	}}, zerolog.Nop())
	srv := NewServer(Options{}, gate)
	web := httptest.NewServer(srv)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := rep.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { rel.Run(ctx) })
	t.Cleanup(func() {
		closing, end := context.WithTimeout(context.Background(), patience)
		defer end()
		if err := srv.Close(closing); err != nil {
			t.Error("close:", err)
		}
		web.Close()
		cancel()
		running.Wait()
	})
	return &whole{t, gate, wsURL(web.URL)}
}

// notice is an event that the server sent.
type notice struct {
	name string
	ack  bool              // an answer is wanted
	args []json.RawMessage // as in the packet, without the name
}

// last is the last argument if that is a text, or else empty.
func (h notice) last() (text string) {
	if len(h.args) == 0 {
		return h.name // what a stock client takes for an offset
	}
	_ = json.Unmarshal(h.args[len(h.args)-1], &text)
	return text
}

// listener is a client that keeps what it is sent.
type listener struct {
	*raw
	peer     string
	sid, pid string
	before   []notice // what came before the answer to CONNECT
	ended    chan struct{}

	mu    sync.Mutex
	got   []notice
	acks  map[int]json.RawMessage
	next  int
	ready chan struct{} // closed when more has come, and made anew
}

// listen connects a client that answers all calls, unless they are to wait.
func (w *whole) listen(peer string, more map[string]string) *listener {
	w.t.Helper()
	l := &listener{raw: dial(w.t, w.url), peer: peer, acks: map[int]json.RawMessage{}, ready: make(chan struct{}), ended: make(chan struct{})}
	auth := map[string]string{"user": "u", "peer": peer}
	for k, v := range more {
		auth[k] = v
	}
	b, _ := json.Marshal(auth)
	l.send("40" + string(b))
	for l.pid == "" {
		l.take(l.read())
	}
	l.before, l.got = l.got, nil
	go func() {
		defer close(l.ended)
		for {
			_ = l.ws.SetReadDeadline(time.Now().Add(time.Minute))
			_, b, err := l.ws.ReadMessage()
			if err != nil {
				return
			}
			l.take(string(b))
		}
	}()
	w.t.Cleanup(func() { l.ws.Close(); <-l.ended })
	return l
}

func (l *listener) take(frame string) {
	if frame == "2" {
		_ = l.ws.WriteMessage(websocket.TextMessage, []byte("3"))
		return
	}
	p, err := socketio.Decode([]byte(frame[1:]))
	if err != nil {
		l.t.Errorf("%q: %v", frame, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p.Type {
	case socketio.Connect:
		var a struct{ SID, PID string }
		_ = json.Unmarshal(p.Data, &a)
		l.sid, l.pid = a.SID, a.PID
	case socketio.Event:
		var parts []json.RawMessage
		h := notice{ack: p.HasID}
		if err := json.Unmarshal(p.Data, &parts); err != nil || json.Unmarshal(parts[0], &h.name) != nil {
			l.t.Errorf("%q: %v", frame, err)
			return
		}
		h.args = parts[1:]
		l.got = append(l.got, h)
	case socketio.Ack:
		var parts []json.RawMessage
		_ = json.Unmarshal(p.Data, &parts)
		l.acks[int(p.ID)] = parts[0]
	}
	close(l.ready)
	l.ready = make(chan struct{})
}

// until waits for something that the client hears.
func (l *listener) until(what string, f func() bool) {
	l.t.Helper()
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		ok, more := f(), l.ready
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-timeout:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("%s: not %s; it notice %v", l.peer, what, names(l.got))
		}
	}
}

func (l *listener) hears(name string) (found notice) {
	l.t.Helper()
	l.until("hears "+name, func() bool {
		i := slices.IndexFunc(l.got, func(h notice) bool { return h.name == name })
		if i >= 0 {
			found = l.got[i]
		}
		return i >= 0
	})
	return found
}

// ask emits an event and returns the answer.
func (l *listener) ask(name, arg string) (answer json.RawMessage) {
	l.t.Helper()
	l.mu.Lock()
	id := l.next
	l.next++
	l.mu.Unlock()
	l.send(fmt.Sprintf(`42%d["%s",%s]`, id, name, arg))
	l.until("is answered "+name, func() bool { answer = l.acks[id]; return answer != nil })
	return answer
}

// does is ask, which has to succeed.
func (l *listener) does(name, arg string) {
	l.t.Helper()
	if answer := l.ask(name, arg); !strings.HasPrefix(string(answer), `{"ok":true`) {
		l.t.Fatalf("%s %s: %s", name, arg, answer)
	}
}

func names(list []notice) (names []string) {
	for _, h := range list {
		names = append(names, h.name)
	}
	return names
}

// everything has a server send each event that it knows to somebody. chat and bare are an app's, with data and without.
func everything(w *whole) (clients []*listener) {
	a, b := w.listen("a", nil), w.listen("b", nil)
	a.hears("presence")
	a.does("rpc-register", `{"method":"m"}`)
	a.ask("rpc-register", `{"method":""}`)
	a.hears("rpc-error")
	b.send(`42["rpc-call",{"method":"m","params":"a text","timeout":50}]`)
	a.hears("rpc-request")
	a.hears("rpc-cancel")
	a.does("rpc-unregister", `{"method":"m"}`)
	a.does("channel-subscribe", `{"channel":"x"}`)
	b.does("channel-publish", `{"channel":"x","event":"chat","data":"a text"}`)
	b.does("channel-publish", `{"channel":"x","event":"bare"}`)
	a.does("rooms-watch", `{}`)
	a.does("room-join", `{"room":"r","role":"member"}`)
	b.does("room-join", `{"room":"r","role":"host"}`)
	guest := w.listen("g", nil)
	guest.does("room-join", `{"room":"r","role":"guest"}`)
	guest.does("guest-update", `{"room":"r","state":{"x":1}}`)
	b.does("room-update", `{"room":"r","settings":{"x":1}}`)
	b.does("room-emit", `{"room":"r","event":"said","data":"a text"}`)
	guest.ws.Close()
	a.hears("peer-away")
	guest = w.listen("g", nil)
	a.hears("peer-back")
	guest.does("room-leave", `{"room":"r"}`)
	b.does("settings-set", `{"key":"k","value":"a text"}`)
	b.does("room-close", `{"room":"r"}`)
	a.hears("room-closed")
	a.hears("settings-changed")
	newer := w.listen("g", nil)
	guest.hears("peer-replaced")
	w.gate.Drain(time.Second)
	a.hears("server-draining")
	return []*listener{a, b, guest, newer}
}

// A stock client takes the last text of any event for the offset, the event's name included, and shows it when it comes
// back; and of an event that it has to answer, the last argument is the answer's.
func TestOffsetsAreOnTheEventsThatAreKept(t *testing.T) {
	w := startWhole(t)
	clients := everything(w)
	kept := []string{"chat", "bare", "said"}
	seen := map[string]bool{}
	for _, l := range clients {
		l.mu.Lock()
		for _, h := range l.got {
			seen[h.name] = true
			offset := strings.HasPrefix(h.last(), "hf")
			switch {
			case slices.Contains(kept, h.name):
				if !offset || h.ack {
					t.Errorf("%s %s has no offset", h.name, h.args)
				}
			case h.last() != "":
				t.Errorf("%s %s ends with a text, which poisons the client's offset", h.name, h.args)
			case h.ack != (h.name == "rpc-request"):
				t.Errorf("%s: wants an answer: %v", h.name, h.ack)
			}
		}
		l.mu.Unlock()
	}
	// Whoever adds an event has it sent here, too.
	for name := range reserved {
		switch name {
		case "connect", "connect_error", "disconnect", "disconnecting", "newListener", "removeListener":
		case "room-owner": // needs a second replica; is made as the others of rooms are
		default:
			if !seen[name] {
				t.Errorf("%s was not sent", name)
			}
		}
	}
	for _, name := range append(kept, "rpc-registered", "rpc-unregistered", "rpc-error", "rpc-request", "rpc-cancel") {
		if !seen[name] {
			t.Errorf("%s was not sent", name)
		}
	}
}

// What is not a message of a channel is not kept for who is away, and does not move the place that a client shows.
func TestNoticesAreNotRecovered(t *testing.T) {
	w := startWhole(t)
	a, b := w.listen("a", nil), w.listen("b", nil)
	a.does("channel-subscribe", `{"channel":"x"}`)
	a.does("rooms-watch", `{}`)
	b.does("room-join", `{"room":"r","role":"host"}`)
	b.does("channel-publish", `{"channel":"x","event":"chat","data":1}`)
	offset := a.hears("chat").last()
	a.does("rpc-register", `{"method":"m","replaySafe":true}`)
	b.does("settings-set", `{"key":"k","value":1}`)
	a.hears("settings-changed")
	a.ws.Close()
	<-a.ended
	b.does("settings-set", `{"key":"k","value":2}`)
	b.does("channel-publish", `{"channel":"x","event":"chat","data":2}`)
	b.does("room-update", `{"room":"r","settings":{"x":1}}`)
	b.does("room-close", `{"room":"r"}`)
	again := w.listen("a", map[string]string{"pid": a.pid, "offset": offset})
	if again.sid != a.sid {
		t.Fatal("not recovered")
	}
	if got := names(again.before); !slices.Equal(got, []string{"chat"}) || string(again.before[0].args[0]) != "2" {
		t.Fatalf("was given %v before the answer to CONNECT", got)
	}
	b.does("channel-publish", `{"channel":"x","event":"end"}`)
	again.hears("end")
	again.mu.Lock()
	defer again.mu.Unlock()
	for _, h := range again.got {
		if h.name == "settings-changed" || strings.HasPrefix(h.name, "room") || h.name == "chat" {
			t.Errorf("%s %s came afterwards", h.name, h.args)
		}
	}
}
