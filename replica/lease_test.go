package replica

import (
	"testing"
	"time"
)

func TestABeatIsEarlyWhenALeaseRunsOut(t *testing.T) {
	const every = 500 * time.Millisecond
	for name, c := range map[string]struct {
		left map[string]time.Duration
		want time.Duration
	}{
		"nobody else":               {nil, every},
		"the others beat":           {map[string]time.Duration{"b": 3600 * time.Millisecond, "c": 4 * time.Second}, every},
		"one runs out":              {map[string]time.Duration{"b": 300 * time.Millisecond, "c": 4 * time.Second}, 300*time.Millisecond + lookAfter},
		"the first to run out":      {map[string]time.Duration{"b": 300 * time.Millisecond, "c": 20 * time.Millisecond}, 20*time.Millisecond + lookAfter},
		"one as good as out":        {map[string]time.Duration{"b": 0}, lookAfter},
		"one runs out at the pause": {map[string]time.Duration{"b": every}, every},
	} {
		if got := pause(every, c.left); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
