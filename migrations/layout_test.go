package migrations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// memory is a Target in the process. What it holds is what Redis would.
type memory struct {
	mu     sync.Mutex
	layout Layout
	holder string
	alive  []string
	parts  int
}

func (m *memory) Layout(context.Context) (Layout, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.layout, nil
}

func (m *memory) LockLayout(_ context.Context, holder string, _ time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != "" && m.holder != holder {
		return fmt.Errorf("%w: %s", ErrLocked, m.holder)
	}
	m.holder = holder
	return nil
}

func (m *memory) UnlockLayout(_ context.Context, holder string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder == holder {
		m.holder = ""
	}
	return nil
}

func (m *memory) AdvanceLayout(_ context.Context, holder string, from, to Layout) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != holder || m.layout != from {
		return ErrLocked
	}
	m.layout = to
	return nil
}

func (m *memory) Alive(context.Context) ([]string, error) { return m.alive, nil }

func (m *memory) Do(context.Context, string, []string, []string) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts++
	return m.parts, nil
}

// threeSteps: one that adds, one that breaks and takes three parts, one that adds.
func threeSteps() []Step {
	once := func(ctx context.Context, do Do) (bool, error) { _, err := do(ctx, "", nil, nil); return true, err }
	return []Step{
		{Version: 1, Title: "one", Apply: once},
		{Version: 2, Title: "two", Breaking: true, Apply: func(ctx context.Context, do Do) (bool, error) {
			n, err := do(ctx, "", nil, nil)
			return n == 4, err
		}},
		{Version: 3, Title: "three", Apply: once},
	}
}

func TestStepsAreTakenInOrderAndOnce(t *testing.T) {
	m := &memory{}
	var group sync.WaitGroup
	var mu sync.Mutex
	var all []int
	for i := range 8 {
		group.Go(func() {
			taken, err := up(t.Context(), threeSteps(), m, fmt.Sprint("p", i))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, s := range taken {
				all = append(all, s.Version)
			}
		})
	}
	group.Wait()
	if len(all) != 3 || m.parts != 5 {
		t.Errorf("steps %v in %d parts, want each of 3 once, in 5", all, m.parts)
	}
	if m.layout != (Layout{Version: 3, Oldest: 2}) || m.holder != "" {
		t.Errorf("%+v, locked by %q", m.layout, m.holder)
	}
}

func TestABreakingStepWaitsForTheEndOfAllReplicas(t *testing.T) {
	m := &memory{alive: []string{"r1"}}
	taken, err := up(t.Context(), threeSteps(), m, "p")
	if !errors.Is(err, ErrAlive) || len(taken) != 1 {
		t.Errorf("took %d steps, %v", len(taken), err)
	}
	if m.layout != (Layout{Version: 1}) || m.holder != "" {
		t.Errorf("%+v, locked by %q", m.layout, m.holder)
	}
	m.alive = nil
	if _, err := up(t.Context(), threeSteps(), m, "p"); err != nil || m.layout.Version != 3 {
		t.Errorf("%+v, %v", m.layout, err)
	}
}

func TestAFailedStepIsTakenAgain(t *testing.T) {
	m := &memory{}
	steps := threeSteps()
	bad := errors.New("bad")
	good := steps[0].Apply
	steps[0].Apply = func(context.Context, Do) (bool, error) { return false, bad }
	if _, err := up(t.Context(), steps, m, "p"); !errors.Is(err, bad) || m.layout.Version != 0 || m.holder != "" {
		t.Errorf("%v, %+v, locked by %q", err, m.layout, m.holder)
	}
	steps[0].Apply = good
	if taken, err := up(t.Context(), steps, m, "p"); err != nil || len(taken) != 3 {
		t.Errorf("took %d, %v", len(taken), err)
	}
}

func TestALockedLayoutIsWaitedForUntilTheEnd(t *testing.T) {
	m := &memory{holder: "another"}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := up(ctx, threeSteps(), m, "p"); !errors.Is(err, ErrLocked) {
		t.Errorf("%v, want ErrLocked", err)
	}
	if m.holder != "another" {
		t.Error("the lock of another was given back")
	}
}

func TestNewerLayouts(t *testing.T) {
	for _, c := range []struct {
		at      Layout
		pending int
		newer   bool
	}{
		{Layout{}, 3, false},
		{Layout{Version: 2, Oldest: 2}, 1, false},
		{Layout{Version: 3, Oldest: 2}, 0, false},
		{Layout{Version: 5, Oldest: 3}, 0, false}, // newer steps that only add something
		{Layout{Version: 5, Oldest: 4}, 0, true},
	} {
		left, err := pending(threeSteps(), c.at)
		if errors.Is(err, ErrNewer) != c.newer || len(left) != c.pending {
			t.Errorf("%+v: %d steps, %v", c.at, len(left), err)
		}
	}
}

func TestStepsAreNumberedFromOne(t *testing.T) {
	for i, s := range steps {
		if s.Version != i+1 || s.Title == "" || s.Apply == nil {
			t.Errorf("step %d: %+v", i+1, s)
		}
	}
}
