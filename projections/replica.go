package projections

import (
	"iter"
	"maps"
	"time"

	"holdfast/events"
)

// Replica is a live incarnation of an instance.
type Replica struct {
	Instance    string
	Incarnation string
	URL         string
	Slot        int
	Started     events.Position // its fence
	Understands int
	Draining    bool // about to stop: it gets no more rooms
}

// Slot is one of the numbers that make ack ids unique; see events.ReplicaStarted.
type Slot struct {
	Instance    string // the present or last holder; empty when never used
	Incarnation string
	Live        bool
	Freed       events.Position
}

// Replica finds the live incarnation of an instance.
func (s *State) Replica(instance string) (Replica, bool) {
	r, ok := s.replicas[instance]
	if !ok {
		return Replica{}, false
	}
	return *r, true
}

// Replicas are the live ones, in no order.
func (s *State) Replicas() iter.Seq[Replica] {
	return func(yield func(Replica) bool) {
		for _, r := range s.replicas {
			if !yield(*r) {
				return
			}
		}
	}
}

// ReplicaCount is how many replicas live.
func (s *State) ReplicaCount() int { return len(s.replicas) }

// Understood is the newest generation of events that every live replica can fold; events.Generation when none
// lives.
func (s *State) Understood() int {
	least := events.Generation
	for _, r := range s.replicas {
		least = min(least, r.Understands)
	}
	return least
}

// Slot is the slot with number i, 0 to events.Slots-1.
func (s *State) Slot(i int) Slot { return s.slots[i] }

// PeersOn are the peers connected to an instance, in no order.
func (s *State) PeersOn(instance string) iter.Seq[PeerID] { return maps.Keys(s.onto[instance]) }

func (s *State) replicaStarted(r events.Record, e events.ReplicaStarted) {
	unhoused := s.unhoused() // those of a former life of this instance too
	s.replicas[e.Instance] = &Replica{
		Instance: e.Instance, Incarnation: e.Incarnation, URL: e.URL, Slot: e.Slot,
		Started: r.Position, Understands: e.Understands,
	}
	s.slots[e.Slot] = Slot{Instance: e.Instance, Incarnation: e.Incarnation, Live: true}
	s.rehome(r, unhoused...)
}

func (s *State) replicaDraining(r events.Record, e events.ReplicaDraining) {
	if live, ok := s.replicas[e.Instance]; ok && live.Incarnation == e.Incarnation {
		live.Draining = true
		s.rehome(r, e.Instance)
	}
}

func (s *State) replicaStopped(r events.Record, e events.ReplicaStopped) {
	s.endReplica(r, e.Instance, e.Incarnation, r.Time(), false)
}

func (s *State) replicaLost(r events.Record, e events.ReplicaLost) {
	silent := time.Duration(e.SilentMs) * time.Millisecond
	s.endReplica(r, e.Instance, e.Incarnation, r.Time().Add(-silent), true)
}

func (s *State) endReplica(r events.Record, instance, incarnation string, since time.Time, lapse bool) {
	live, ok := s.replicas[instance]
	if !ok || live.Incarnation != incarnation {
		return
	}
	s.slots[live.Slot].Live = false
	s.slots[live.Slot].Freed = r.Position
	delete(s.replicas, instance)
	reason := "replica-stopped"
	if lapse {
		reason = "replica-lost"
	}
	gone := s.onto[instance]
	delete(s.onto, instance)
	for _, p := range gone {
		p.Connected = false
		p.Changed = since
		if lapse {
			s.lapse(p)
		}
	}
	// Where the rooms go depends on who is left, and is told before who is away: of thousands of rooms the last one
	// would else hear of its owner after all the others have heard of every peer.
	s.expect(len(s.pins[instance]) + 2*len(gone))
	s.rehome(r, instance)
	for _, p := range gone {
		s.connectionChanged(r, p)
		s.roomsChanged(r, p, RoomChangedAway, reason)
	}
}
