package projections

import (
	"fmt"
	"slices"
	"testing"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// twoReplicas is a state with rooms of four peers, half of each room's peers and half of the rooms on either of two
// replicas, and what applies the loss of the first one and returns what it has changed.
func twoReplicas(rooms int) (*State, func() []Change) {
	s := New()
	seq := uint64(0)
	apply := func(e events.Event) {
		seq++
		s.Apply(events.Record{Position: events.Position{Ms: 1_796_000_000_000, Seq: seq}, Token: ulid.Make(), Event: e})
	}
	apply(events.ReplicaStarted{Instance: "a", Incarnation: "1"})
	apply(events.ReplicaStarted{Instance: "b", Incarnation: "2", Slot: 1})
	instances := []string{"a", "b"}
	for room := range rooms {
		id := fmt.Sprintf("room-%d", room)
		for peer := range 4 {
			e := events.PeerConnected{
				User: fmt.Sprintf("user-%d", room), Peer: fmt.Sprintf("peer-%d", peer), Connection: ulid.Make().String(),
				Session: fmt.Sprintf("session-%d-%d", room, peer), Instance: instances[peer%2],
			}
			apply(e)
			if peer == 0 {
				apply(events.RoomOpened{Room: id, Instance: instances[room%2]})
			}
			apply(events.RoomJoined{
				Room: id, User: e.User, Peer: e.Peer, Connection: e.Connection, Session: e.Session, Role: events.Member,
			})
		}
	}
	s.Observe()
	return s, func() []Change {
		apply(events.ReplicaLost{Instance: "a", Incarnation: "1"})
		return s.Changes()
	}
}

func TestALossTellsOfOwnersFirst(t *testing.T) {
	s, lose := twoReplicas(10)
	before := map[string]events.Position{}
	for room := range s.Rooms() {
		before[room.ID] = room.Version
	}
	var moved []string
	away := map[string]int{}
	for _, c := range lose() {
		switch c.Kind {
		case RoomChangedPin:
			if len(away) > 0 {
				t.Errorf("the owner of %s is told after who is away", c.Room)
			}
			if c.Owner != "b" || c.Former != "a" {
				t.Errorf("%s moved from %q to %q", c.Room, c.Former, c.Owner)
			}
			moved = append(moved, c.Room)
		case RoomChangedAway:
			away[c.Room]++
		}
		if c.Room != "" && (c.At != s.Position || c.Previous != before[c.Room]) {
			t.Errorf("%s: %s after %s, want %s after %s", c.Room, c.At, c.Previous, s.Position, before[c.Room])
		}
	}
	if len(moved) != 5 || !slices.IsSorted(moved) {
		t.Errorf("moved, in order: %q", moved)
	}
	for room := range before {
		if away[room] != 2 {
			t.Errorf("%d peers of %s are away", away[room], room)
		}
	}
}

// All that is done under the state's lock before anybody is told of a room's new owner.
func BenchmarkLossWithRooms(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		_, lose := twoReplicas(10_000)
		b.StartTimer()
		lose()
	}
}
