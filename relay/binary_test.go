package relay

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

func TestBinaryCallsAcrossReplicas(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		daemon := at.connect("daemon", "")
		daemon.register("m", false)
		caller := from.connect("caller", "")
		value := replica.Payload{JSON: []byte(`[{"_placeholder":true,"num":0}]`), Attachments: [][]byte{{0, 255, 10}}}
		for _, id := range []string{"", "repeatable"} {
			for range 2 {
				call := caller.call(Request{Method: "m", Params: value, ID: id})
				r := daemon.request()
				if string(r.Params) != string(value.JSON) || len(r.attachments) != 1 || !bytes.Equal(r.attachments[0], value.Attachments[0]) {
					t.Fatalf("%+v", r)
				}
				daemon.n.relay.Answer(daemon.session, uint64(r.ack), replica.Payload{
					JSON: []byte(`{"_placeholder":true,"num":0}`), Attachments: [][]byte{r.attachments[0], {7}},
				})
				o := call.outcome()
				if string(o.Ack.JSON) != `{"ok":true,"result":{"_placeholder":true,"num":0}}` || len(o.Ack.Attachments) != 2 || !bytes.Equal(o.Ack.Attachments[0], value.Attachments[0]) {
					t.Fatalf("%+v", o)
				}
				if id == "" {
					continue
				}
				again := caller.call(Request{Method: "m", ID: id}).outcome()
				if !bytes.Equal(again.Ack.Pack(), o.Ack.Pack()) {
					t.Fatalf("the repeat got %+v", again)
				}
				break
			}
		}
	})
}

// What has more attachments than clients read goes to nobody.
func TestTooManyAttachments(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		ten := replica.Payload{JSON: []byte("1"), Attachments: make([][]byte, replica.MaxAttachments)}
		more := replica.Payload{JSON: []byte("1"), Attachments: make([][]byte, replica.MaxAttachments+1)}
		daemon := at.connect("daemon", "")
		daemon.register("m", false)
		caller := from.connect("caller", "")
		caller.call(Request{Method: "m", Params: more}).wants(commands.CodeTooLarge, "")
		daemon.noRequest()
		for _, answer := range []replica.Payload{more, ten} {
			call := caller.call(Request{Method: "m", Params: ten})
			daemon.n.relay.Answer(daemon.session, uint64(daemon.request().ack), answer)
			if got := call.outcome().Ack; (len(got.Attachments) == len(answer.Attachments)) != (len(answer.Attachments) == len(ten.Attachments)) ||
				bytes.Contains(got.JSON, []byte("TOO_LARGE")) != (len(answer.Attachments) > len(ten.Attachments)) {
				t.Errorf("%d attachments: %+v", len(answer.Attachments), got)
			}
		}
		subscriber := at.come("subscriber", "", "")
		subscriber.subscribe("c")
		published := make(chan error, 2)
		for _, data := range []replica.Payload{more, ten} {
			from.relay.Channels().Publish(Publication{Channel: "c", Event: "e", Data: data}, func(_ string, err error) { published <- err })
		}
		var refusal *commands.Refusal
		if err := <-published; !errors.As(err, &refusal) || refusal.Code != commands.CodeTooLarge {
			t.Error(err)
		}
		if err := <-published; err != nil {
			t.Error(err)
		}
		subscriber.gets("1")
	})
}

// While a replica of an older build lives, it gets nothing that it would misread.
func TestBinaryWithAnOlderReplica(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	old := store.Inbox{Instance: "old", Incarnation: ulid.Make().String()}
	if err := n.st.AcquireLease(ctx, old, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := n.rep.Execute(ctx, commands.StartReplica{
		Instance: old.Instance, Incarnation: old.Incarnation, PreferredSlot: -1, Understands: binaryGeneration - 1,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.rep.Execute(ctx, commands.ConnectPeer{
		User: "u", Peer: "far", NewPeer: "far", Connection: ulid.Make().String(), Instance: old.Instance,
		NewSession: "s", NewPid: "p", Now: n.rep.Now(), Graces: n.rep.Graces(),
	}); err != nil {
		t.Fatal(err)
	}
	var far projections.Peer
	n.rep.View(func(s *projections.State) { far, _ = s.Peer(projections.PeerID{User: "u", Peer: "far"}) })
	if _, err := n.rep.Execute(ctx, commands.RegisterMethod{User: "u", Peer: "far", Connection: far.Connection, Method: "there"}); err != nil {
		t.Fatal(err)
	}
	binary := replica.Payload{JSON: []byte(`{"_placeholder":true,"num":0}`), Attachments: [][]byte{{1}}}
	daemon, caller := n.connect("daemon", ""), n.connect("caller", "")
	caller.call(Request{Method: "there", Params: binary}).wants(CodeStoreUnavailable, "")

	daemon.register("here", false) // a call within one replica concerns nobody else,
	call := caller.call(Request{Method: "here", Params: binary, ID: "id"})
	n.relay.Answer(daemon.session, uint64(daemon.request().ack), binary)
	if o := call.outcome(); o.Code != "" || len(o.Ack.Attachments) != 1 {
		t.Fatalf("%+v", o)
	}
	caller.call(Request{Method: "here", ID: "id"}).wants(CodeStoreUnavailable, "") // but its record does
	if got := n.relay.readable("old", binary.Pack()); string(got) != binaryRefused {
		t.Fatalf("%q", got)
	}
}

// Attachments of a channel's messages come on every replica, live and at a recovery, and nothing of the batch that
// they came with is kept for them.
func TestBinaryMessagesOfChannels(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		n1, n2 := w.nodes[0], w.nodes[1]
		value := func(i byte) replica.Payload {
			return replica.Payload{
				JSON:        []byte(`[{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]`),
				Attachments: [][]byte{{0, 255, 10, i}, {}},
			}
		}
		publish := func(v replica.Payload) error {
			done := make(chan error, 1)
			n2.relay.Channels().Publish(Publication{Channel: "c:x", Event: "e", Data: v}, func(_ string, err error) { done <- err })
			return <-done
		}
		gets := func(c *testClient, want ...byte) {
			t.Helper()
			w.eventually("the client has all", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.got) == len(want)
			})
			c.mu.Lock()
			defer c.mu.Unlock()
			for i, b := range c.got {
				v := value(want[i])
				if got := (replica.Payload{JSON: bytes.Join(b.Args, nil), Attachments: b.Attachments}); !bytes.Equal(got.Pack(), v.Pack()) {
					t.Errorf("got %q %q, want %q", got.JSON, got.Attachments, v.Attachments)
				}
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		a, b := n1.come("a", "", ""), n2.come("b", "", "")
		a.subscribe("c:x")
		b.subscribe("c:x")
		must(publish(value(1)))
		gets(a, 1)
		a.drop(true)
		must(publish(value(2)))
		must(publish(value(3)))
		gets(b, 1, 2, 3)
		a = a.again(n2).wantRecovered(true)
		gets(a, 2, 3)
		must(publish(value(4)))
		gets(a, 2, 3, 4)

		large := replica.Payload{JSON: value(0).JSON, Attachments: [][]byte{make([]byte, 600_000), make([]byte, 400_000)}}
		var refused *commands.Refusal
		if err := publish(large); !errors.As(err, &refused) || refused.Code != commands.CodeTooLarge {
			t.Errorf("a message beyond the limit: %v", err)
		}
	})
}

// A build of this generation that does not know a form goes past it; what it does know it reads to the end.
func TestFormsOfMessages(t *testing.T) {
	value := replica.Payload{JSON: []byte(`{"_placeholder":true,"num":0}`), Attachments: [][]byte{{1, 2}}}
	m := message{Channel: "c:x", Event: "e", Data: value}
	for _, c := range []struct {
		m    message
		form byte
	}{{message{Channel: "c:x", Event: "e", Data: replica.Payload{JSON: []byte("1")}}, 0}, {message{Channel: "c:x", Event: "e"}, 0}, {m, 1}} {
		b := append(c.m.encode(), "rest"...)
		got, known, rest, err := decodeMessage(b)
		if err != nil || !known || string(rest) != "rest" || b[1] != c.form || got.Channel != c.m.Channel || !bytes.Equal(got.Data.Pack(), c.m.Data.Pack()) {
			t.Errorf("%q: %+v %v %q %v", b, got, known, rest, err)
		}
		b[1] = binaryForm + 1
		if _, known, rest, err = decodeMessage(b); known || err != nil || string(rest) != "rest" {
			t.Errorf("a newer form: %v %q %v", known, rest, err)
		}
	}
	b := m.encode()
	b[len(b)-len(value.Pack())+1] = 200 // more attachments than there are
	if _, _, _, err := decodeMessage(b); err == nil {
		t.Error("damaged attachments were read")
	}
}

func FuzzDecodeMessage(f *testing.F) {
	f.Add((&message{Channel: "c:x", Event: "e", To: "p", Data: replica.Payload{JSON: []byte("1")}}).encode())
	f.Add((&message{Channel: "r:x", Event: "e", Data: replica.Payload{JSON: []byte("1"), Attachments: [][]byte{{1}, {}}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, known, rest, err := decodeMessage(b)
		if err != nil || !known {
			return
		}
		again, known, none, err := decodeMessage(m.encode())
		if err != nil || !known || len(none) > 0 || again.Channel != m.Channel || again.Event != m.Event || again.To != m.To || !bytes.Equal(again.Data.Pack(), m.Data.Pack()) {
			t.Fatalf("%q came back as %+v, not %+v (%v)", b, again, m, err)
		}
		if len(rest) > len(b) {
			t.Fatal(rest)
		}
	})
}
