package relay

import (
	"testing"

	"holdfast/replica"
	"holdfast/store"
)

// epochs are those of the partitions.
func (n *testNode) epochs() []string {
	var list []string
	for p := range n.rep.Partitions() {
		rec, err := n.st.Session(n.w.t.Context(), p, "", store.Mark{})
		if err != nil {
			n.w.t.Fatal(err)
		}
		list = append(list, rec.Mark.Epoch)
	}
	return list
}

// A client may not end the sessions of others by an offset that says that the store has lost messages.
func TestForgedOffsetsHarmNobody(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		n := w.nodes[0]
		other, forger := n.come("other", "", ""), n.come("forger", "", "")
		other.subscribe("c:x")
		forger.subscribe("c:x")
		n.publish("c:x", "1")
		other.gets("1")
		forger.gets("1")
		before := n.epochs()
		channels := n.relay.Channels()
		seen, ours := channels.place(forger.offset())
		if !ours {
			t.Fatal("an offset is not known where it was made")
		}
		if _, ours := w.nodes[1].relay.Channels().place(forger.offset()); !ours {
			t.Fatal("the replicas do not know each other's offsets")
		}
		forger.drop(true)
		n.publish("c:x", "2")
		p := store.PartitionOf("c:x", in.partitions)
		for name, change := range map[string]func(*store.Mark){
			"further than the store": func(m *store.Mark) { m.Seq += 1000 },
			"another message":        func(m *store.Mark) { m.Token ^= 1 },
			"a later message":        func(m *store.Mark) { m.Seq++ },
		} {
			at := append(cursor(nil), seen...)
			change(&at[p])
			plan, err := channels.Prepare(t.Context(), forger.session.PID, testSigner().offset(at))
			if plan != nil || err != nil {
				t.Fatalf("%s: %+v %v", name, plan, err)
			}
		}
		if got := channels.Metrics().Count.With("offsets-refused").Load(); got != 3 {
			t.Errorf("%d offsets were counted as refused, want 3", got)
		}
		n.publish("c:x", "3")
		other.gets("1 2 3")
		for i, epoch := range n.epochs() {
			if epoch != before[i] {
				t.Errorf("partition %d has been turned", i)
			}
		}
		if other.left() {
			t.Error("another client was sent away")
		}
		// The attempts have destroyed nothing.
		forger.again(w.nodes[1]).wantRecovered(true).gets("2 3")
	})
}

// What many get is encoded and signed once.
func TestSubscribersShareAnOffset(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		n := newWorldIn(t, 1, in).nodes[0]
		a, b := n.come("a", "", ""), n.come("b", "", "")
		a.subscribe("c:x")
		b.subscribe("c:x")
		n.publish("c:x", "1")
		a.gets("1")
		b.gets("1")
		if a.got[0] != b.got[0] {
			t.Fatal("each has an encoding of its own")
		}
	})
}

const secretKey = "{test}:secret"

// agreed reports whether the replicas and the store have this secret.
func (w *world) agreed(secret string) bool {
	for _, n := range w.nodes {
		if string(n.rep.Secret().Bytes()) != secret {
			return false
		}
	}
	return w.do("GET", secretKey) == secret
}

// A store that is emptied gets the secret back that the replicas know, so that they go on agreeing on it.
func TestSecretOutlastsTheStore(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		secret := w.do("GET", secretKey)
		if !w.agreed(secret) {
			t.Fatal("the replicas have several secrets")
		}
		a := w.nodes[0].come("a", "", "")
		w.nodes[0].publish("c:user:u", "1")
		a.gets("1")
		w.flush()
		w.eventually("the secret is back", func() bool { return w.agreed(secret) })
		w.nodes = append(w.nodes, w.start("r3"))
		if !w.agreed(secret) {
			t.Fatal("a replica that came later has another secret")
		}
		w.nodes[2].publish("c:user:u", "2")
		a.gets("1 2") // its record has been made again
		a.drop(true)
		a.mu.Lock()
		a.got = a.got[:1]
		a.mu.Unlock()
		// This offset is of an epoch that is no more, and still good: it says that the client got nothing of the new one.
		a.again(w.nodes[2]).wantRecovered(true).gets("2")
	})
}

// A secret that is changed in the store is that of all replicas within a beat. Offsets from before it are texts like any
// other.
func TestSecretIsChanged(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a, b := w.nodes[0].come("a", "", ""), w.nodes[0].come("b", "", "")
		a.subscribe("c:x")
		b.subscribe("c:x")
		w.nodes[0].publish("c:x", "1")
		a.gets("1")
		b.gets("1")
		w.do("SET", secretKey, "another")
		w.eventually("all replicas have it", func() bool { return w.agreed("another") })
		if n := w.nodes[0].rep.Metrics().Anomalies.With("secret-changed").Load(); n != 1 {
			t.Errorf("counted %d times", n)
		}
		a.drop(true)
		w.nodes[0].publish("c:x", "2")
		b.gets("1 2")
		b.drop(true)
		w.nodes[0].publish("c:x", "3")
		a.again(w.nodes[1]).wantRecovered(false)
		b.again(w.nodes[1]).wantRecovered(true).gets("3")
	})
}

// A replica that has not heard of the present secret yet asks for it before it refuses an offset.
func TestOffsetOfASecretNotYetKnown(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	a := n.come("a", "", "")
	w.do("SET", secretKey, "another")
	offset := newSigner(replica.New(replica.Config{Secret: "another"}, nil).Secret()).offset(cursor{{Epoch: n.epochs()[0], Seq: 0}})
	if _, ours := n.relay.Channels().place(offset); !ours {
		t.Fatal("an offset by the present secret is refused")
	}
	a.drop(true)
}
