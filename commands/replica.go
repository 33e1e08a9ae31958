package commands

import (
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// StartReplica opens an incarnation. A former one of the same instance ends in the same step. Repeated for an
// incarnation that lives already, it changes nothing.
type StartReplica struct {
	Instance    string
	Incarnation string
	URL         string
	Understands int
	// PreferredSlot is kept if it is free (after the log was emptied); negative for none.
	PreferredSlot int
	Silent        time.Duration // how long a former incarnation has been silent at least
}

func (c StartReplica) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.IncarnationKey(c.Instance), events.ReplicasKey()}}
	former, restarted := s.Replica(c.Instance)
	if restarted && former.Incarnation == c.Incarnation {
		return d, nil
	}
	slot := freeSlot(s, c.PreferredSlot)
	if restarted {
		d.Events = append(d.Events, events.ReplicaLost{
			Instance: former.Instance, Incarnation: former.Incarnation,
			SilentMs: c.Silent.Milliseconds(), Reason: "restarted",
		})
	}
	if slot < 0 {
		return d, doubt(refuse(CodeTooMany, "all %d replica slots of this namespace are taken", events.Slots))
	}
	d.Events = append(d.Events, events.ReplicaStarted{
		Instance: c.Instance, Incarnation: c.Incarnation, URL: c.URL, Slot: slot, Understands: c.Understands,
	})
	return d, nil
}

// freeSlot is the preferred slot if free, else the one free for the longest time, so that a late ack of a
// dead replica's call never meets a living call with its number; -1 when all are taken.
func freeSlot(s *projections.State, preferred int) int {
	if preferred >= 0 && preferred < events.Slots && !s.Slot(preferred).Live {
		return preferred
	}
	best := -1
	for i := range events.Slots {
		slot := s.Slot(i)
		if slot.Live {
			continue
		}
		if best < 0 || slot.Freed.Before(s.Slot(best).Freed) {
			best = i
		}
	}
	return best
}

// StopReplica ends the replica's own incarnation cleanly.
type StopReplica struct {
	Instance    string
	Incarnation string
}

func (c StopReplica) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.IncarnationKey(c.Instance)}}
	if live, ok := s.Replica(c.Instance); ok && live.Incarnation == c.Incarnation {
		d.Events = []events.Event{events.ReplicaStopped{Instance: c.Instance, Incarnation: c.Incarnation}}
	}
	return d, nil
}

// LoseReplica declares an incarnation lost whose lease is gone. Any survivor may ask; one wins.
type LoseReplica struct {
	Instance    string
	Incarnation string
	Silent      time.Duration // at least this long nothing was heard of it
}

func (c LoseReplica) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.IncarnationKey(c.Instance)}}
	if live, ok := s.Replica(c.Instance); ok && live.Incarnation == c.Incarnation {
		d.Events = []events.Event{events.ReplicaLost{
			Instance: c.Instance, Incarnation: c.Incarnation, SilentMs: c.Silent.Milliseconds(), Reason: "lease",
		}}
	}
	return d, nil
}

// DrainReplica says that the replica's own incarnation is about to stop, so that its rooms move now.
type DrainReplica struct {
	Instance    string
	Incarnation string
}

func (c DrainReplica) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.IncarnationKey(c.Instance), events.ReplicasKey()}}
	if live, ok := s.Replica(c.Instance); ok && live.Incarnation == c.Incarnation && !live.Draining {
		d.Events = []events.Event{events.ReplicaDraining{Instance: c.Instance, Incarnation: c.Incarnation}}
	}
	return d, nil
}
