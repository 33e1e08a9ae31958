package commands

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"holdfast/events"
	"holdfast/projections"
)

// history decides random commands one after another, as one replica that is never behind would, and keeps the
// log that comes of it.
type history struct {
	state *projections.State
	log   []events.Record
	now   time.Time
	count int // makes ids
}

var historyGraces = Graces{Peer: 10 * time.Second, RPC: 15 * time.Second, Recovery: time.Minute}

func newHistory() *history {
	return &history{state: projections.New(), now: time.UnixMilli(scriptStart).UTC()}
}

func (h *history) id(kind string) string {
	h.count++
	return fmt.Sprintf("%s%04d", kind, h.count)
}

func (h *history) execute(t *rapid.T, c Command) {
	d, err := c.Decide(h.state)
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		t.Fatalf("%T: %v is not a Refusal", c, err)
	}
	if err != nil {
		return
	}
	before := h.state.Digest()
	if again, _ := c.Decide(h.state); fmt.Sprint(again) != fmt.Sprint(d) || h.state.Digest() != before {
		t.Fatalf("%T: deciding twice gives two decisions, or changes the state", c)
	}
	written := map[events.Aggregate]bool{}
	for _, a := range d.Reads {
		written[a] = true
	}
	for _, e := range d.Events {
		// What an event ends was read, or a racing change of it could be lost unseen.
		for _, a := range e.Ends() {
			if !written[a] {
				t.Fatalf("%T ends %s without having read it", e, a)
			}
		}
		rec := events.Record{
			Position: events.Position{Ms: uint64(h.now.UnixMilli()), Seq: uint64(len(h.log))},
			Token:    ulid.ULID{14: byte(len(h.log) >> 8), 15: byte(len(h.log)), 0: 1}, Previous: h.state.Token, Event: e,
		}
		h.log = append(h.log, rec)
		h.state.Apply(rec)
	}
	if again, err := c.Decide(h.state); err == nil && len(again.Events) > 0 {
		switch c.(type) {
		case ConnectPeer, UnregisterMethod:
		default:
			t.Fatalf("%T is not so already once it was done: %v", c, again.Events)
		}
	}
}

// step executes one random command about few enough things that they meet.
func (h *history) step(t *rapid.T) {
	h.now = h.now.Add(time.Duration(rapid.IntRange(0, 12_000).Draw(t, "ms")) * time.Millisecond)
	instance := fmt.Sprintf("r%d", rapid.IntRange(1, 3).Draw(t, "replica"))
	user, peer := "u", fmt.Sprintf("p%d", rapid.IntRange(1, 4).Draw(t, "peer"))
	method := fmt.Sprintf("m%d", rapid.IntRange(1, 3).Draw(t, "method"))
	p, known := h.state.Peer(projections.PeerID{User: user, Peer: peer})
	connection := p.Connection
	if !known || rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
		connection = "C0000" // of the past
	}
	switch rapid.IntRange(0, 9).Draw(t, "command") {
	case 0:
		h.execute(t, StartReplica{Instance: instance, Incarnation: h.id("I"), PreferredSlot: -1, Silent: 4 * time.Second})
	case 1:
		if live, ok := h.state.Replica(instance); ok {
			h.execute(t, LoseReplica{Instance: instance, Incarnation: live.Incarnation, Silent: 4 * time.Second})
		}
	case 2:
		if live, ok := h.state.Replica(instance); ok {
			h.execute(t, StopReplica{Instance: instance, Incarnation: live.Incarnation})
		}
	case 3, 4:
		if _, ok := h.state.Replica(instance); !ok {
			return
		}
		recovery := ""
		if known && rapid.Bool().Draw(t, "recovers") {
			recovery = p.Recovery
		}
		h.execute(t, ConnectPeer{
			User: user, Peer: peer, Connection: h.id("C"), Instance: instance, Recovery: recovery,
			NewSession: h.id("s"), NewPid: h.id("pid"), Now: h.now, Graces: historyGraces,
		})
	case 5:
		h.execute(t, DisconnectPeer{User: user, Peer: peer, Connection: connection, SessionEnded: rapid.Bool().Draw(t, "ended")})
	case 6, 7:
		h.execute(t, RegisterMethod{
			User: user, Peer: peer, Connection: connection, Method: method,
			ReplaySafe: rapid.Bool().Draw(t, "safe"), Restore: rapid.IntRange(0, 4).Draw(t, "restore") == 0,
		})
	case 8:
		h.execute(t, UnregisterMethod{User: user, Peer: peer, Connection: connection, Method: method})
	case 9:
		h.execute(t, ExpirePeer{User: user, Peer: peer, Now: h.now, Graces: historyGraces})
	}
}

// check looks at the whole state for what must always hold.
func (h *history) check(t *rapid.T) {
	s := h.state
	slots := map[int]string{}
	for r := range s.Replicas() {
		if other, twice := slots[r.Slot]; twice {
			t.Fatalf("%s and %s share slot %d", r.Instance, other, r.Slot)
		}
		slots[r.Slot] = r.Instance
		if slot := s.Slot(r.Slot); !slot.Live || slot.Instance != r.Instance || slot.Incarnation != r.Incarnation {
			t.Fatalf("slot %d is %+v, its replica %+v", r.Slot, slot, r)
		}
		if s.Version(events.IncarnationKey(r.Instance)) != r.Started {
			t.Fatalf("the fence of %s is not at its start", r.Instance)
		}
	}
	on := map[projections.PeerID]string{}
	held := 0
	for p := range s.Peers() {
		if found, ok := s.PeerByRecovery(p.Recovery); !ok || found.PeerID != p.PeerID {
			t.Fatalf("the pid of %v leads to %v", p.PeerID, found.PeerID)
		}
		if p.Connected {
			on[p.PeerID] = p.Instance
			if _, ok := s.Replica(p.Instance); !ok {
				t.Fatalf("%v is connected to %s, which does not live", p.PeerID, p.Instance)
			}
		}
		for r := range s.Held(p.PeerID) {
			held++
			if full, ok := s.Registration(r.MethodID); !ok || full != r || r.Holder != p.PeerID {
				t.Fatalf("%v is said to hold %+v, which is %+v", p.PeerID, r, full)
			}
		}
		if next := NextDue(s, p.PeerID, historyGraces); !p.Connected && next.IsZero() {
			t.Fatalf("%v is away and nothing is ever due for it", p.PeerID)
		}
	}
	for r := range s.Replicas() {
		for id := range s.PeersOn(r.Instance) {
			if on[id] != r.Instance {
				t.Fatalf("%v stands at %s, and is at %q", id, r.Instance, on[id])
			}
			delete(on, id)
		}
	}
	if len(on) != 0 || held != s.RegistrationCount() {
		t.Fatalf("connected but at no replica: %v; %d registrations, %d with a holder", on, s.RegistrationCount(), held)
	}
	for i := 1; i <= 3; i++ {
		id := projections.MethodID{User: "u", Method: fmt.Sprintf("m%d", i)}
		if _, peer, a := s.Resolve(id); a == projections.Available && !peer.Connected {
			t.Fatalf("%v is available from a peer that is away", id)
		}
	}
}

// In any order of commands and losses: one holder of a method, one place of a peer, indexes that equal a full
// scan, and a fold that depends on the log alone.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			h.step(t)
			h.check(t)
		}
		cut := rapid.IntRange(0, len(h.log)).Draw(t, "cut")
		part := projections.New()
		for _, rec := range h.log[:cut] {
			part.Apply(rec)
		}
		resumed, err := projections.Decode(part.Encode())
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range h.log[cut:] {
			resumed.Apply(rec)
		}
		if resumed.Digest() != h.state.Digest() {
			t.Fatalf("a snapshot at %d of %d and the rest of the log are not the full fold", cut, len(h.log))
		}
	})
}

// must executes a command that prepares a test.
func (h *history) must(t *testing.T, c Command) {
	t.Helper()
	d, err := c.Decide(h.state)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	for _, e := range d.Events {
		h.state.Apply(events.Record{Position: h.state.Position.Next(), Event: e})
	}
}
