package relay

import (
	"bytes"
	"context"
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
