package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/store/redistest"
)

// acked is a registration that a client was told to be made, and where in the log.
type acked struct{ method, version string }

// load registers methods one after another until it is told to stop, and keeps what was acknowledged.
func load(c *peer, stop *atomic.Bool, prefix string) (all []acked, failed int) {
	for i := 0; !stop.Load(); i++ {
		method := fmt.Sprint(prefix, i%400) // a peer may hold 1,000
		ack, err := c.ask("rpc-register", map[string]any{"method": method, "replaySafe": i/400%2 == 0})
		if err != nil {
			failed++
			time.Sleep(10 * time.Millisecond) // it fails at once while there is no connection
			continue
		}
		var a struct{ Version string }
		if json.Unmarshal(ack, &a) == nil {
			all = append(all, acked{method, a.Version})
		}
	}
	return all, failed
}

// failOver lets a Redis die whose replica has not had the last of its writes, and has a Sentinel make that replica the
// master. It returns how many registrations were acknowledged in all, and which of them the new master does not have.
func failOver(t *testing.T, durability string) (w *world, total int, lost []acked) {
	t.Helper()
	master := redistest.Start(t)
	follower := master.Follow(t)
	sentinel := master.Watch(t)
	eventually(t, "the Sentinel knows the replica", func() bool {
		return strings.Contains(sentinel.Do(t, "INFO", "sentinel"), "slaves=1")
	})
	w = newWorld(t, master, sentinel.URL, "--durability", durability)

	var stop atomic.Bool
	var group sync.WaitGroup
	var mu sync.Mutex
	var all []acked
	var progress atomic.Int64
	failures := 0
	for i, c := range []*peer{w.pa, w.pb} {
		group.Go(func() {
			got, failed := load(c, &stop, fmt.Sprint("load", i, "-"))
			mu.Lock()
			defer mu.Unlock()
			all, failures = append(all, got...), failures+failed
		})
	}
	length := func(s *redistest.Server) int64 {
		n := int64(0)
		_, _ = fmt.Sscan(s.Do(t, "XLEN", "{holdfast}:log"), &n)
		return n
	}
	progress.Store(length(master))
	eventually(t, "the load runs", func() bool { return length(master) > progress.Load()+200 })
	// From here on the replica gets nothing more; its connection is cut so that the kernel keeps nothing for it either.
	follower.Pause(t)
	master.Do(t, "CLIENT", "KILL", "TYPE", "replica")
	progress.Store(length(master))
	eventually(t, "the load has gone on", func() bool { return length(master) > progress.Load() })
	if durability == "fast" {
		eventually(t, "the load goes on", func() bool { return length(master) > progress.Load()+100 })
	}
	master.Kill(t)
	follower.Resume(t)
	within(t, 40*time.Second, "the replica is the master", func() bool {
		return strings.Contains(follower.Do(t, "INFO", "replication"), "role:master")
	})
	if durability == "replicated" {
		follower.Follow(t) // without a replica it would acknowledge nothing any more
	}
	within(t, 40*time.Second, "both are ready on the new master", func() bool {
		x, _ := w.a.get(w.a.URL + "/readyz")
		y, _ := w.b.get(w.b.URL + "/readyz")
		return x == 200 && y == 200
	})
	stop.Store(true)
	group.Wait()
	w.heals(20 * time.Second)
	for _, r := range all {
		entry := follower.Do(t, "EVAL", `local e = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
			return e and table.concat(e[2], ' ') or ''`, "1", "{holdfast}:log", r.version)
		if !strings.Contains(entry, fmt.Sprintf("%q", r.method)) {
			lost = append(lost, r)
		}
	}
	t.Logf("%s: %d acknowledged, %d of them lost, %d failed", durability, len(all), len(lost), failures)
	return w, len(all), lost
}

func TestFailoverThatLosesAcknowledgedWrites(t *testing.T) {
	long(t)
	w, total, lost := failOver(t, "fast")
	if total == 0 || len(lost) == 0 {
		t.Fatalf("%d of %d were lost: the failover did not do what this test is about", len(lost), total)
	}
	w.noticed("rebuilt", rebuilding, w.a, w.b)
	// Lost entries are gone, but what their clients hold is recorded again.
	for _, r := range lost {
		by := map[bool]string{true: "pa", false: "pb"}[strings.HasPrefix(r.method, "load0")]
		from := map[string]*peer{"pa": w.pb, "pb": w.pa}[by]
		if err := from.calls(r.method, by); err != nil {
			t.Errorf("%s was acknowledged at %s and lost: %v", r.method, r.version, err)
		}
	}
	w.undisturbed()
}

func TestFailoverLosesNothingThatWasAcknowledgedAsReplicated(t *testing.T) {
	long(t)
	w, total, lost := failOver(t, "replicated")
	if total == 0 {
		t.Fatal("nothing was acknowledged")
	}
	for _, r := range lost {
		t.Errorf("%s was acknowledged at %s and is not in the new master's log", r.method, r.version)
	}
	w.undisturbed()
}
