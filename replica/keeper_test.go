package replica

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// hasty is a replica that keeps the log as often as it can: a snapshot after that many events.
func hasty(every int, change ...func(*Keeping)) func(*Replica) {
	return func(r *Replica) {
		r.pace = pace{tick: 10 * time.Millisecond, trim: 10 * time.Millisecond, sweep: 10 * time.Millisecond, inboxAge: time.Minute}
		r.cfg.Keeping.SnapshotEvents = every
		for _, f := range change {
			f(&r.cfg.Keeping)
		}
	}
}

// keepNothing lets go of the log what no snapshot and no reader needs.
func keepNothing(k *Keeping) { k.Retain = time.Nanosecond }

func snapshots(t *testing.T, st *store.Store) []store.Snapshot {
	t.Helper()
	list, err := st.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// anew folds the log as a start does.
func anew(t *testing.T, st *store.Store) (*folded, *Replica) {
	t.Helper()
	r := New(Config{Instance: "reader"}, st)
	f, err := r.foldAnew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f, r
}

// whole folds the log from its first entry.
func whole(t *testing.T, st *store.Store) [sha256.Size]byte {
	t.Helper()
	f := &folded{state: projections.New()}
	if err := New(Config{Instance: "reader"}, st).readOn(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	return f.state.Digest()
}

func (r *running) digest() (d [sha256.Size]byte) {
	r.View(func(s *projections.State) { d = s.Digest() })
	return d
}

// work makes n registrations of some peers, of which some leave.
func (r *running) work(name string, n int) {
	r.t.Helper()
	for i := range n {
		s := r.connect(fmt.Sprintf("%s-%d", name, i%5))
		r.register(s, fmt.Sprintf("%s-m%d", name, i))
		if i%3 == 0 {
			r.Disconnect(s, "test", i%2 == 0)
		}
	}
}

func first(t *testing.T, st *store.Store) events.Record {
	t.Helper()
	records, err := st.Range(t.Context(), events.Position{}, 1)
	if err != nil || len(records) == 0 {
		t.Fatalf("the log has no first entry: %v", err)
	}
	return records[0]
}

func TestStartFromSnapshotIsTheFullFold(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		st := open()
		a := start(t, "a", st, hasty(20), patient)
		for i := range 4 {
			a.work(fmt.Sprintf("w%d", i), 10)
			eventually(t, "there is a snapshot", func() bool { return int(a.metrics.Snapshots.Load()) > i })
		}
		a.work("tail", 3)
		a.stop()
		f, _ := anew(t, st)
		if f.base.IsZero() {
			t.Fatal("the start did not use a snapshot")
		}
		if f.state.Digest() != whole(t, st) {
			t.Error("a snapshot and the rest of the log are not the full fold")
		}
		list := snapshots(t, st)
		if len(list) != store.KeptSnapshots || !list[1].Position.Before(list[0].Position) {
			t.Errorf("%+v", list)
		}
		b := start(t, "b", open(), patient)
		if _, av := b.resolve("tail-m2"); av == projections.NotAvailable {
			t.Error("what was registered last is unknown")
		}
	})
}

// A cluster that is stopped as a whole leaves a snapshot of its end.
func TestCleanEndLeavesASnapshot(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		st := open()
		a, b := start(t, "a", open()), start(t, "b", open())
		a.work("w", 5)
		a.stop()
		b.stop()
		head, err := st.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list := snapshots(t, st)
		if len(list) == 0 || list[0].Position != head.Position || list[0].Token != head.Token {
			t.Fatalf("the head is %v, the snapshots are %+v", head, list)
		}
		if f, _ := anew(t, st); f.read != 0 || f.state.Digest() != whole(t, st) {
			t.Errorf("%d events read after the last snapshot", f.read)
		}
		again := start(t, "a", open())
		again.stop()
	})
}

func TestUnusableSnapshotsAreDiscarded(t *testing.T) {
	s := redistest.Start(t)
	list := func() []store.Snapshot { return snapshots(t, openStore(t, s.URL)) }
	manifest := func(i int) string { return s.Do(t, "LINDEX", "{test}:snapshots", fmt.Sprint(i)) }
	for name, harm := range map[string]func(){
		"damaged":      func() { s.Do(t, "HSET", "{test}:snapshot:"+list()[0].ID, "0", "damage") },
		"half-written": func() { s.Do(t, "HDEL", "{test}:snapshot:"+list()[0].ID, "0") },
		"gone":         func() { s.Do(t, "DEL", "{test}:snapshot:"+list()[0].ID) },
		"unreadable":   func() { s.Do(t, "LSET", "{test}:snapshots", "0", "{") },
		"of another schema": func() {
			s.Do(t, "LSET", "{test}:snapshots", "0", strings.Replace(manifest(0), `"schema":`, `"schema":9`, 1))
		},
		"of another history": func() {
			s.Do(t, "LSET", "{test}:snapshots", "0", strings.Replace(manifest(0), list()[0].Token.String(), ulid.Make().String(), 1))
		},
		"of a position that the log does not have": func() {
			s.Do(t, "LSET", "{test}:snapshots", "0", strings.Replace(manifest(0), list()[0].Position.String(), "99999999999999-0", 1))
		},
		"of another position than it says": func() {
			newest, older := list()[0], list()[1]
			text := strings.Replace(manifest(0), newest.Position.String(), older.Position.String(), 1)
			s.Do(t, "LSET", "{test}:snapshots", "0", strings.Replace(text, newest.Token.String(), older.Token.String(), 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.Do(t, "FLUSHALL")
			st := openStore(t, s.URL)
			a := start(t, "a", st, hasty(20))
			a.work("first", 10)
			eventually(t, "there is a snapshot", func() bool { return a.metrics.Snapshots.Load() > 0 })
			a.work("second", 10)
			a.stop()
			if len(list()) != 2 {
				t.Fatalf("%+v", list())
			}
			older := list()[1]
			want := whole(t, st)
			harm()
			f, r := anew(t, st)
			if f.base != older.Position || f.state.Digest() != want {
				t.Errorf("it began at %s, the older snapshot is at %s", f.base, older.Position)
			}
			if r.metrics.Anomalies.With("snapshot-discarded").n.Load() != 1 {
				t.Error("nothing was counted")
			}
			s.Do(t, "HSET", "{test}:snapshot:"+older.ID, "0", "damage")
			f, _ = anew(t, st)
			if !f.base.IsZero() || f.state.Digest() != want {
				t.Errorf("with both unusable it began at %s", f.base)
			}
		})
	}
}

func TestOneReplicaKeepsTheLog(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open(), hasty(5)), start(t, "b", open(), hasty(5))
		written := func() (uint64, uint64) { return a.metrics.Snapshots.Load(), b.metrics.Snapshots.Load() }
		for i := range 3 {
			a.work(fmt.Sprintf("w%d", i), 5)
			eventually(t, "one of them writes", func() bool { x, y := written(); return x+y > uint64(i) })
		}
		x, y := written()
		if x != 0 && y != 0 {
			t.Fatalf("both have written: %d and %d", x, y)
		}
		keeper, other := a, b
		if x == 0 {
			keeper, other = b, a
		}
		keeper.stop()
		other.work("after", 5)
		eventually(t, "the other one keeps the log now", func() bool { return other.metrics.Snapshots.Load() > 0 })
	})
}

func TestStartAfterATrim(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		st := open()
		a := start(t, "a", st, hasty(10, keepNothing))
		began := first(t, st)
		for i := 0; first(t, st).Token == began.Token && i < 100; i++ {
			a.work(fmt.Sprintf("w%d", i), 5)
		}
		if first(t, st).Token == began.Token {
			t.Fatal("the log was not trimmed")
		}
		if _, err := New(Config{Instance: "reader"}, st).foldFrom(t.Context(), nil); !errors.Is(err, errBegun) {
			t.Errorf("a fold without its snapshots: %v", err)
		}
		held := a.connect("held")
		a.register(held, "held")
		b := start(t, "b", open())
		if _, av := b.resolve("held"); av != projections.Available {
			t.Error("a replica that started after the trim does not know what was registered")
		}
		if err := errors.Join(a.CatchUp(t.Context()), b.CatchUp(t.Context())); err != nil {
			t.Fatal(err)
		}
		eventually(t, "they agree", func() bool { return a.digest() == b.digest() })
		a.stop()
		b.stop()
		for _, snap := range snapshots(t, st) {
			if err := st.DropSnapshot(t.Context(), snap); err != nil {
				t.Fatal(err)
			}
		}
		c := launch(t, "c", open())
		eventually(t, "one without a snapshot ends", func() bool { return c.err.Load() != nil })
		if err := *c.err.Load(); !errors.Is(err, errBegun) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Without room for the log it is as short as two snapshots allow, and these are made as new as can be.
func TestLogBeyondItsMemory(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a := start(t, "a", st, hasty(1_000_000, func(k *Keeping) { k.RetainMemory = 1 }))
	a.work("w", 20)
	eventually(t, "the log is short", func() bool {
		records, err := st.Range(t.Context(), events.Position{}, 10)
		return err == nil && len(records) < 10
	})
	eventually(t, "that it was kept for less than was asked for is counted", func() bool {
		return a.metrics.Anomalies.With("retention-shortened").n.Load() > 0
	})
	a.work("v", 3)
	a.stop()
	if f, _ := anew(t, st); f.base.IsZero() || f.state.PeerCount() == 0 {
		t.Errorf("a start begins at %s and shows %d peers", f.base, f.state.PeerCount())
	}
}

// A replica that was paused finds what it has not read, however little of the log is kept.
func TestTrimWaitsForAPausedReplica(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s)
	st := openStore(t, s.URL)
	a, b := start(t, "a", st, hasty(10, keepNothing)), start(t, "b", openStore(t, proxy.URL))
	eventually(t, "b has read all", func() bool { return b.position() == a.position() })
	proxy.Cut(true)
	at := b.position()
	for i := range 10 {
		a.work(fmt.Sprintf("w%d", i), 5)
	}
	eventually(t, "b is declared lost, and there are newer snapshots", func() bool {
		list := snapshots(t, st)
		return a.ReplicaCount() == 1 && len(list) == 2 && at.Before(list[1].Position)
	})
	a.work("more", 5)
	if at.Before(first(t, st).Position) {
		t.Errorf("the log begins at %s, b has read up to %s", first(t, st).Position, at)
	}
	proxy.Cut(false)
	eventually(t, "b is back and agrees", func() bool {
		return b.ReadyError() == nil && a.ReplicaCount() == 2 && a.digest() == b.digest()
	})
	if b.seen.rebuilt.Load() != 0 {
		t.Error("it had to rebuild")
	}
	b.inOrder()
}

// One that was away for longer than it is waited for begins with a snapshot.
func TestForgottenReplicaComesBack(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s)
	st := openStore(t, s.URL)
	a := start(t, "a", st, hasty(10, keepNothing, func(k *Keeping) { k.ForgetReplica = time.Nanosecond }))
	b := start(t, "b", openStore(t, proxy.URL))
	eventually(t, "b has read all", func() bool { return b.position() == a.position() })
	proxy.Cut(true)
	at := b.position()
	i := 0
	eventually(t, "b is forgotten, and the log begins after what it has read", func() bool {
		a.work(fmt.Sprintf("w%d", i), 5)
		i++
		_, known, err := st.GroupPosition(t.Context(), "b")
		return err == nil && !known && at.Before(first(t, st).Position)
	})
	proxy.Cut(false)
	eventually(t, "b is back and agrees", func() bool {
		return b.ReadyError() == nil && a.ReplicaCount() == 2 && a.digest() == b.digest()
	})
	if b.seen.rebuilt.Load() == 0 {
		t.Error("it went on as if it had missed nothing")
	}
}

// The log is emptied, with its snapshots or, by hand, without.
func TestSnapshotsOfAnEmptiedLogAreNotTrusted(t *testing.T) {
	for name, empty := range map[string]func(t *testing.T, s *redistest.Server){
		"with its snapshots": func(t *testing.T, s *redistest.Server) { s.Do(t, "FLUSHALL") },
		"by hand": func(t *testing.T, s *redistest.Server) {
			s.Do(t, "DEL", "{test}:log", "{test}:versions")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			a, b := start(t, "a", openStore(t, s.URL), hasty(10)), start(t, "b", openStore(t, s.URL), hasty(10))
			st := openStore(t, s.URL)
			sa := a.connect("pa")
			a.register(sa, "ma")
			a.work("w", 10)
			eventually(t, "there are two snapshots", func() bool { a.work("v", 3); return len(snapshots(t, st)) == 2 })
			empty(t, s)
			eventually(t, "both have noticed and show it again", func() bool {
				_, x := a.resolve("ma")
				_, y := b.resolve("ma")
				return a.seen.rebuilt.Load() > 0 && b.seen.rebuilt.Load() > 0 && a.ReplicaCount() == 2 && b.ReplicaCount() == 2 &&
					x == projections.Available && y == projections.Available
			})
			c := start(t, "c", openStore(t, s.URL))
			eventually(t, "all agree", func() bool { return a.digest() == b.digest() && b.digest() == c.digest() })
			a.stop()
			b.stop()
			c.stop()
			if f, _ := anew(t, st); f.state.Digest() != whole(t, st) {
				t.Error("a start would show what the log does not")
			}
		})
	}
}

func TestInboxesOfEndedRunsAreRemoved(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		st := open()
		id := func(age time.Duration) string {
			return ulid.MustNew(ulid.Timestamp(time.Now().Add(-age)), ulid.DefaultEntropy()).String()
		}
		left := store.Inbox{Instance: "dead", Incarnation: id(time.Hour)}
		young := store.Inbox{Instance: "starting", Incarnation: id(0)}
		leased := store.Inbox{Instance: "leased", Incarnation: id(time.Hour)}
		for _, in := range []store.Inbox{left, young, leased} {
			if err := st.CreateInbox(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.AcquireLease(t.Context(), leased, time.Minute); err != nil {
			t.Fatal(err)
		}
		a := start(t, "a", open(), hasty(1000), func(r *Replica) { r.pace.inboxAge = 30 * time.Second })
		own, _, _ := a.Self()
		eventually(t, "the inbox of the dead one is gone, and no other", func() bool {
			list, err := st.Inboxes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			there := map[store.Inbox]bool{}
			for _, in := range list {
				there[in] = true
			}
			if !there[young] || !there[leased] || !there[own] {
				t.Fatalf("one that is needed is gone: %v", list)
			}
			return !there[left]
		})
	})
}
