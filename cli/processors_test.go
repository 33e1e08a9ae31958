package cli

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestProcessorsFollowTheLoad(t *testing.T) {
	type phase struct {
		busy float64
		want []int // after which looks it has which number is checked in turn: look, number, look, number …
	}
	for name, c := range map[string]struct {
		most, now int
		phases    []phase
	}{
		"an idle process gives up all but one": {8, 8, []phase{{0.1, []int{loadLooks - 1, 8, loadLooks, 4, 2 * loadLooks, 2, 3 * loadLooks, 1, 9 * loadLooks, 1}}}},
		"a burst gets one more, then double":   {8, 1, []phase{{1, []int{loadRise - 1, 1, loadRise, 2}}, {2, []int{loadRise, 4}}, {4, []int{loadRise, 8, 50, 8}}}},
		"an odd number is the most":            {3, 3, []phase{{0, []int{loadLooks, 2, 2 * loadLooks, 1}}, {1, []int{loadRise, 2}}, {2, []int{loadRise, 3, 99, 3}}}},
		"between the bounds nothing changes":   {2, 2, []phase{{0.7, []int{5 * loadLooks, 2}}, {0.1, []int{loadLooks, 1}}, {0.7, []int{5 * loadLooks, 1}}}},
		"a moment is no burst":                 {2, 1, []phase{{0.2, []int{50, 1}}, {1, []int{loadRise / 2, 1}}, {0.2, []int{loadRise / 2, 1}}, {1, []int{loadRise / 2, 1}}}},
		"one more thread than it may use":      {2, 2, []phase{{2.3, []int{5 * loadLooks, 2}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := processors{most: c.most, now: c.now}
			for i, phase := range c.phases {
				look := 0
				for at := 0; at < len(phase.want); at += 2 {
					for ; look < phase.want[at]; look++ {
						before := p.now
						if changed := p.follow(phase.busy); changed != (p.now != before) {
							t.Fatalf("phase %d, look %d: changed %t, from %d to %d", i, look, changed, before, p.now)
						}
					}
					if p.now != phase.want[at+1] {
						t.Errorf("phase %d: %d processors after %d looks, want %d", i, p.now, look, phase.want[at+1])
					}
				}
			}
		})
	}
}

func TestRuntimeFollowsTheLoad(t *testing.T) {
	former := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(former)
	becomes := func(n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); runtime.GOMAXPROCS(0) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it has %d processors, want %d", runtime.GOMAXPROCS(0), n)
			}
		}
	}
	// What the process really uses is up to what else runs on the machine.
	var busy atomic.Bool
	var total time.Duration
	last := time.Now()
	spent := func() time.Duration {
		now := time.Now()
		if busy.Load() {
			total += now.Sub(last)
		}
		last = now
		return total
	}
	stop := followLoad(processors{most: 2, now: 2}, true, 5*time.Millisecond, spent)
	becomes(1)
	busy.Store(true)
	becomes(2)
	busy.Store(false)
	becomes(1)
	stop()
	if n := runtime.GOMAXPROCS(0); n != 2 {
		t.Errorf("%d processors after the end, want 2 as before", n)
	}
}

func TestProcessorTimeIsWhatIsUsed(t *testing.T) {
	before := processorTime()
	for end := time.Now().Add(20 * time.Second); processorTime() < before+20*time.Millisecond; {
		if time.Now().After(end) {
			t.Fatal("none is used by what does nothing else")
		}
	}
}

func TestProcessorsOfTheEnvironmentStay(t *testing.T) {
	former := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(former)
	t.Setenv("GOMAXPROCS", "")
	if p, ok := processorsToFollow(); !ok || p.most != 2 || p.now != 2 {
		t.Errorf("%+v, %t: it does not follow the load with the 2 processors that it has", p, ok)
	}
	t.Setenv("GOMAXPROCS", "2")
	if _, ok := processorsToFollow(); ok {
		t.Error("it changes what the environment says")
	}
	t.Setenv("GOMAXPROCS", "")
	runtime.GOMAXPROCS(1)
	if _, ok := processorsToFollow(); ok {
		t.Error("it follows the load with a single processor")
	}
}
