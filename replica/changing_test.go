package replica

import (
	"fmt"
	"sync"
	"testing"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/store"
)

// Many join a room that is not open yet, through two replicas: each makes one attempt to open it at most.
func TestACrowdMakesOneAttemptToOpenARoom(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		const peers = 100
		a, b := start(t, "a", open()), start(t, "b", open())
		var sessions [peers]*Session
		for i := range sessions {
			sessions[i] = []*running{a, b}[i%2].connect(fmt.Sprintf("p%d", i))
		}
		before := a.Metrics().Conflicts.Load() + b.Metrics().Conflicts.Load()
		var group sync.WaitGroup
		for i, s := range sessions {
			group.Go(func() {
				at := []*running{a, b}[i%2]
				if _, err := at.Execute(t.Context(), joining(s, at.Instance(), "r")); err != nil {
					t.Errorf("join of p%d: %v", i, err)
				}
			})
		}
		group.Wait()
		if n := a.Metrics().Conflicts.Load() + b.Metrics().Conflicts.Load() - before; n > 1 {
			t.Errorf("%d conflicts of %d joins, want one at most", n, peers)
		}
		if err := a.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.View(func(s *projections.State) {
			if room := s.Room("r"); room == nil || len(room.Seats()) != peers {
				t.Errorf("not all %d are in the room", peers)
			}
		})
	})
}

// Changes of one thing through one replica go one after the other and leave nothing behind.
func TestChangesOfOneThingTakeTurns(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a := start(t, "a", open())
		s := a.connect("p")
		before := a.Metrics().Conflicts.Load()
		var group sync.WaitGroup
		for i := range 60 {
			group.Go(func() {
				join := joining(s, a.Instance(), fmt.Sprintf("r%d", i%3))
				join.Role = commands.Host
				if _, err := a.Execute(t.Context(), join); err != nil {
					t.Errorf("join: %v", err)
				}
			})
		}
		group.Wait()
		if n := a.Metrics().Conflicts.Load() - before; n > 0 {
			t.Errorf("%d conflicts of 60 moves of one peer, want none", n)
		}
		eventually(t, "nothing is noted as being changed any more", func() bool { // rooms that were left are closed, too
			a.changing.mu.Lock()
			defer a.changing.mu.Unlock()
			return len(a.changing.by) == 0
		})
	})
}
