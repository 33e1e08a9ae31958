package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/store/redistest"
)

// world is two replicas on one Redis, each with a client that the other one's client can call.
type world struct {
	t      *testing.T
	redis  *redistest.Server
	a, b   *process
	pa, pb *peer
}

func newWorld(t *testing.T, redis *redistest.Server, url string, more ...string) *world {
	t.Helper()
	bin := binary(t, "")
	w := &world{t: t, redis: redis, a: launch(t, bin, url, "a", more...), b: launch(t, bin, url, "b", more...)}
	w.a.ready()
	w.b.ready()
	w.pa, w.pb = dial(t, w.a, "pa", "ma"), dial(t, w.b, "pb", "mb")
	if err := w.across(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) across() error {
	if err := w.pa.calls("mb", "pb"); err != nil {
		return err
	}
	return w.pb.calls("ma", "pa")
}

// heals waits until both replicas are ready, show both clients with what they hold, and agree.
func (w *world) heals(within time.Duration) digest {
	w.t.Helper()
	began := time.Now()
	for {
		code, _ := w.a.get(w.a.URL + "/readyz")
		other, _ := w.b.get(w.b.URL + "/readyz")
		err := w.across()
		if code == 200 && other == 200 && err == nil {
			break
		}
		if time.Since(began) > within {
			w.t.Fatalf("not healed within %s: readyz %d and %d, call: %v", within, code, other, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.t.Logf("healed after %s", time.Since(began).Round(10*time.Millisecond))
	d := agree(w.t, w.a, w.b)
	if d.Replicas != 2 || d.Peers != 2 {
		w.t.Errorf("%+v, want 2 replicas and 2 peers", d)
	}
	return d
}

// noticed waits until each of the replicas has counted and logged an accident.
func (w *world) noticed(kind, line string, by ...*process) {
	w.t.Helper()
	for _, p := range by {
		eventually(w.t, fmt.Sprintf("%s has noticed %s", p.instance, kind), func() bool {
			return (kind == "" || p.anomaly(kind)) && strings.Contains(p.log.String(), line)
		})
	}
}

// undisturbed asserts that no client was cut off and no replica declared lost.
func (w *world) undisturbed() {
	w.t.Helper()
	for _, c := range []*peer{w.pa, w.pb} {
		if n := c.lost.Load(); n != 0 {
			w.t.Errorf("%s was disconnected %d times", c.name, n)
		}
	}
	for _, p := range []*process{w.a, w.b} {
		if n := p.metric("holdfast_fenced_total"); n != "0" {
			w.t.Errorf("%s was fenced %s times", p.instance, n)
		}
	}
}

const rebuilding = "rebuilding the state from the log as it stands"

func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL)
	redis.Restart(t)
	w.noticed("rebuilt", rebuilding, w.a, w.b)
	w.heals(15 * time.Second)
	w.undisturbed()
}

func TestRedisRestartsFromAnOlderFile(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	w := newWorld(t, redis, redis.URL)
	kept := filepath.Join(t.TempDir(), "kept")
	files := filepath.Join(redis.Dir, "appendonlydir")
	redis.Pause(t)
	if err := os.CopyFS(kept, os.DirFS(files)); err != nil {
		t.Fatal(err)
	}
	redis.Resume(t)
	for _, c := range []*peer{w.pa, w.pb} {
		for i := range 20 {
			if err := c.register(fmt.Sprint(c.name, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	redis.Kill(t)
	if err := os.RemoveAll(files); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(files, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
	redis.Restart(t)
	w.noticed("rebuilt", rebuilding, w.a, w.b)
	eventually(t, "what the file did not have is recorded again", func() bool {
		return w.a.digest().Registrations == 42 && w.b.digest().Registrations == 42
	})
	w.heals(15 * time.Second)
	w.undisturbed()
}

func TestRedisAnswersAfterTenSeconds(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL, "--peer-grace", "1s", "--rpc-grace", "1s")
	before := agree(t, w.a, w.b)
	local := dial(t, w.a, "pc")
	redis.Pause(t)
	stopped := time.Now()
	w.noticed("", "the store does not answer", w.a, w.b)
	eventually(t, "neither is ready", func() bool {
		a, _ := w.a.get(w.a.URL + "/readyz")
		b, _ := w.b.get(w.b.URL + "/readyz")
		return a == 503 && b == 503
	})
	if err := local.calls("ma", "pa"); err != nil {
		t.Errorf("a call within one replica: %v", err)
	}
	<-time.After(time.Until(stopped.Add(10 * time.Second)))
	redis.Resume(t)
	local.Close()
	eventually(t, "the client that left is gone on both", func() bool { return w.a.digest().Peers == 2 && w.b.digest().Peers == 2 })
	after := w.heals(15 * time.Second)
	w.undisturbed()
	if before.Generation != after.Generation {
		t.Error("the state was rebuilt, and the log had not changed")
	}
}

// A replica reads on only to find that the log was trimmed past what it had read.
func TestLogTrimmedUnderASlowReplica(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL)
	before, _, _ := strings.Cut(redis.Do(t, "HGET", "{holdfast}:versions", "@head"), " ")
	eventually(t, "it has read all there is", func() bool { return w.b.digest().Position == before })
	w.b.pause() // for less than a lease
	for i := range 5 {
		if err := w.pa.register(fmt.Sprint("pa", i)); err != nil {
			t.Fatal(err)
		}
	}
	redis.Do(t, "XTRIM", "{holdfast}:log", "MAXLEN", "1")
	w.b.signal(syscall.SIGCONT)
	w.noticed("trimmed", "the log was trimmed past this replica", w.b)
	eventually(t, "it is not ready, and says why", func() bool {
		code, text := w.b.get(w.b.URL + "/readyz")
		return code == 503 && strings.Contains(text, "cannot follow the log")
	})
	if code, _ := w.a.get(w.a.URL + "/readyz"); code != 200 {
		t.Error("the other is not ready either")
	}
	eventually(t, "the other one has gone on", func() bool { return w.a.digest().Position != before })
	if at := w.b.digest().Position; at != before {
		t.Errorf("it went past entries that it has not read: from %s to %s", before, at)
	}
	// Its clients can be called no further than what it knows; they are told so, not lied to.
	if err := w.pb.calls("pa4", "pa"); err == nil {
		t.Error("it resolved what it cannot have read")
	}
}

func TestReplicaPausedForThirtySeconds(t *testing.T) {
	long(t)
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL)
	w.b.pause()
	stopped := time.Now()
	w.noticed("", "a replica's lease is gone: it is declared lost", w.a)
	if err := w.pa.calls("mb", "pb"); err == nil {
		t.Error("what was registered on the lost replica is still callable")
	}
	for i := range 50 {
		if err := w.pa.register(fmt.Sprint("pa", i)); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Until(stopped.Add(30 * time.Second)))
	w.b.signal(syscall.SIGCONT)
	w.noticed("", "this replica was declared lost: its clients are closed and it starts anew", w.b)
	eventually(t, "its client has come back", func() bool { return w.pb.lost.Load() > 0 && w.pb.Err() == nil })
	eventually(t, "and holds what it held", func() bool { return w.across() == nil })
	w.heals(15 * time.Second)
	if n := w.pa.lost.Load(); n != 0 {
		t.Errorf("the client of the other replica was disconnected %d times", n)
	}
}

// With snapshots, as a running cluster has them, it is only slower for it: it goes on from the newest one.
func TestLogTrimmedUnderASlowReplicaWithSnapshots(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL, "--snapshot-events", "1", "--snapshot-every", "1s")
	var slow, keeper *process
	eventually(t, "one of the two keeps the log", func() bool {
		for _, p := range []*process{w.a, w.b} {
			if n := p.metric("holdfast_snapshots_total"); n != "" && n != "0" {
				keeper, slow = p, w.a
				if p == w.a {
					slow = w.b
				}
				return true
			}
		}
		return false
	})
	client, other := w.pa, w.pb
	if keeper == w.b {
		client, other = w.pb, w.pa
	}
	before := agree(t, w.a, w.b).Position
	slow.pause() // for less than a lease
	for i := range 5 {
		if err := client.register(fmt.Sprint("late", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the newest snapshot is of the log's end", func() bool {
		head, _, _ := strings.Cut(redis.Do(t, "HGET", "{holdfast}:versions", "@head"), " ")
		return strings.Contains(redis.Do(t, "LINDEX", "{holdfast}:snapshots", "0"), head)
	})
	redis.Do(t, "XTRIM", "{holdfast}:log", "MAXLEN", "1")
	slow.signal(syscall.SIGCONT)
	w.noticed("rebuilt", rebuilding, slow)
	w.heals(15 * time.Second)
	if at := slow.digest().Position; at == before {
		t.Error("it has not gone on")
	}
	if err := other.calls("late4", client.name); err != nil {
		t.Errorf("what was trimmed before it could read it: %v", err)
	}
}
