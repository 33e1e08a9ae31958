package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// Somebody else has read entries of the replica's group: as after a reply that was lost on its way.
func TestEntriesThatTheGroupSkipsAreReadAnyway(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open()), start(t, "b", open())
		thief := open()
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			for ctx.Err() == nil {
				_, _ = thief.ReadGroup(ctx, "a", 1, 50*time.Millisecond)
			}
		})
		s := b.connect("p")
		for i := range 60 {
			b.register(s, fmt.Sprintf("m%d", i))
		}
		if err := a.CatchUp(t.Context()); err != nil { // also when nothing follows what was stolen last
			t.Fatal(err)
		}
		cancel()
		group.Wait()
		for i := range 60 {
			if _, av := a.resolve(fmt.Sprintf("m%d", i)); av != projections.Available {
				t.Errorf("m%d is missing", i)
			}
		}
		a.inOrder()
		if a.seen.rebuilt.Load() != 0 {
			t.Error("a gap was taken for another history")
		}
	})
}

func TestLostReplyOfAnAppendIsSettledByLooking(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s)
	a := start(t, "a", openStore(t, proxy.URL))
	session := a.connect("p")
	for i := range 10 {
		m := fmt.Sprintf("lost-%d", i)
		before := proxy.Lost()
		proxy.LoseReplyTo(`"` + m + `"`)
		a.register(session, m)
		eventually(t, "the reply was lost", func() bool { return proxy.Lost() == before+1 })
	}
	records, err := openStore(t, s.URL).Range(t.Context(), events.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, rec := range records {
		if _, ok := rec.Event.(events.MethodRegistered); ok {
			n++
		}
	}
	if n != 10 {
		t.Errorf("%d registrations are in the log, want 10: an append was repeated or lost", n)
	}
	a.inOrder()
}

func TestStoreAwayFailsInTimeAndRecovers(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes")
	a := start(t, "a", openStore(t, s.URL))
	session := a.connect("p")
	a.register(session, "before")
	s.Kill(t)
	started := time.Now()
	_, err := a.Register(t.Context(), session, "meanwhile", false)
	var refusal *commands.Refusal
	if !errors.As(err, &refusal) || refusal.Code != commands.CodeStoreUnavailable {
		t.Fatalf("%v, want %s", err, commands.CodeStoreUnavailable)
	}
	if took := time.Since(started); took > 4*time.Second+time.Second {
		t.Errorf("failed after %s, the patience is 4 s", took)
	}
	eventually(t, "it says that it is not ready", func() bool { return a.ReadyError() != nil })
	s.Restart(t)
	eventually(t, "it is ready again", func() bool { return a.ReadyError() == nil })
	// The client was told that it failed, but it is still connected and still wants it: reconcile.
	eventually(t, "what the client wanted is recorded", func() bool { _, av := a.resolve("meanwhile"); return av == projections.Available })
	if _, av := a.resolve("before"); av != projections.Available {
		t.Error("what was acknowledged before is gone")
	}
	if a.seen.fenced.Load() != 0 {
		t.Error("the replica was fenced by the outage of the store")
	}
}

func TestEmptiedStoreHeals(t *testing.T) {
	s := redistest.Start(t)
	a, b := start(t, "a", openStore(t, s.URL)), start(t, "b", openStore(t, s.URL))
	sa, sb := a.connect("pa"), b.connect("pb")
	a.register(sa, "ma")
	b.register(sb, "mb")
	for range 3 {
		s.Do(t, "FLUSHALL")
		emptied := time.Now()
		eventually(t, "both show both again", func() bool {
			for _, r := range []*running{a, b} {
				for _, m := range []string{"ma", "mb"} {
					if _, av := r.resolve(m); av != projections.Available {
						return false
					}
				}
				if r.seen.rebuilt.Load() == 0 || r.ReplicaCount() != 2 {
					return false
				}
			}
			return true
		})
		if took := time.Since(emptied); took > 5*time.Second {
			t.Errorf("healed after %s, promised are 5 s", took)
		}
		a.seen.rebuilt.Store(0)
		b.seen.rebuilt.Store(0)
	}
	for _, r := range []*running{a, b} {
		if r.seen.fenced.Load() != 0 {
			t.Errorf("%s was fenced", r.Instance())
		}
	}
	for _, x := range []*Session{sa, sb} {
		if l := x.Link.(*link); l.replaced.Load()+l.reconnects.Load() != 0 {
			t.Errorf("client %s noticed", x.Peer)
		}
	}
	// The restored world works like any other.
	a.register(sa, "more")
	if err := b.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, av := b.resolve("more"); av != projections.Available {
		t.Error("a registration after the healing is not seen elsewhere")
	}
}

// What a recovered session holds is restored though its present replica never heard it register.
func TestEmptiedStoreAfterARecovery(t *testing.T) {
	s := redistest.Start(t)
	a, b := start(t, "a", openStore(t, s.URL), patient), start(t, "b", openStore(t, s.URL), patient)
	first := a.connect("p")
	a.register(first, "m")
	a.Disconnect(first, "test", false)
	second := &Session{User: "u", Connection: b.NewConnection(), SID: "x", PID: "y", Link: &link{}}
	if err := b.Connect(t.Context(), second, first.PID, ""); err != nil || !second.Recovered {
		t.Fatalf("recovered %v, %v", second.Recovered, err)
	}
	s.Do(t, "FLUSHALL")
	eventually(t, "both have noticed, and show it again", func() bool {
		_, x := a.resolve("m")
		_, y := b.resolve("m")
		return a.seen.rebuilt.Load() > 0 && b.seen.rebuilt.Load() > 0 && x == projections.Available && y == projections.Available
	})
}

// A Redis that is full answers, and takes nothing.
func TestFullStore(t *testing.T) {
	s := redistest.Start(t, "--maxmemory-policy", "noeviction")
	a := start(t, "a", openStore(t, s.URL))
	session := a.connect("p")
	a.register(session, "before")
	s.Do(t, "CONFIG", "SET", "maxmemory", "1")
	_, err := a.Register(t.Context(), session, "meanwhile", false)
	var refusal *commands.Refusal
	if !errors.As(err, &refusal) || refusal.Code != commands.CodeStoreUnavailable {
		t.Errorf("%v, want %s", err, commands.CodeStoreUnavailable)
	}
	eventually(t, "it is noticed by its name", func() bool {
		n := uint64(0)
		a.Metrics().Anomalies.Each(func(kind string, count uint64) {
			if kind == "refused" {
				n = count
			}
		})
		return n > 0
	})
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	eventually(t, "what the client wanted is recorded", func() bool { _, av := a.resolve("meanwhile"); return av == projections.Available })
	eventually(t, "it is ready", func() bool { return a.ReadyError() == nil })
	a.inOrder()
}

// The store comes back as it was some time ago, with other entries at positions that were seen before: as
// after a failover that lost acknowledged writes.
func TestRolledBackLogIsNoticedAndWhatItLostIsRecordedAgain(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	a, b := start(t, "a", openStore(t, s.URL)), start(t, "b", openStore(t, s.URL))
	sa := a.connect("pa")
	a.register(sa, "kept")
	s.Do(t, "COPY", "{test}:log", "{test}:old-log", "REPLACE")
	s.Do(t, "COPY", "{test}:versions", "{test}:old-versions", "REPLACE")
	a.register(sa, "lost")
	sb := b.connect("pb")
	b.register(sb, "lost-too")
	eventually(t, "both have seen what is about to be lost", func() bool {
		_, x := a.resolve("lost-too")
		_, y := b.resolve("lost")
		return x == projections.Available && y == projections.Available
	})
	s.Do(t, "EVAL", `redis.call('RENAME', KEYS[1], KEYS[2]) redis.call('RENAME', KEYS[3], KEYS[4])`, "4",
		"{test}:old-log", "{test}:log", "{test}:old-versions", "{test}:versions")
	eventually(t, "both have noticed", func() bool { return a.seen.rebuilt.Load() > 0 && b.seen.rebuilt.Load() > 0 })
	eventually(t, "all is back on both", func() bool {
		for _, r := range []*running{a, b} {
			for _, m := range []string{"kept", "lost", "lost-too"} {
				if _, av := r.resolve(m); av != projections.Available {
					return false
				}
			}
		}
		return true
	})
	if a.seen.fenced.Load()+b.seen.fenced.Load() != 0 {
		t.Error("a replica was fenced")
	}
}

func TestUnknownEventStopsTheReplicaBeforeIt(t *testing.T) {
	s := redistest.Start(t)
	a := start(t, "a", openStore(t, s.URL))
	session := a.connect("p")
	head := strings.Fields(s.Do(t, "HGET", "{test}:versions", "@head"))
	token := ulid.Make().String()
	id := strings.TrimSpace(s.Do(t, "XADD", "{test}:log", "*", "t", "from-the-future", "s", "1", "u", token, "p", head[1],
		"c", ulid.Make().String(), "r", "x", "k", "", "d", "{}"))
	s.Do(t, "HSET", "{test}:versions", "@head", id+" "+token)
	eventually(t, "it is not ready and says why", func() bool {
		err := a.ReadyError()
		return err != nil && strings.Contains(err.Error(), "from-the-future")
	})
	before := a.position()
	if _, err := a.Register(t.Context(), session, "m", false); err == nil {
		t.Error("it acknowledged a change that it cannot show")
	}
	if at := a.position(); at != before {
		t.Errorf("it went past the entry: from %s to %s", before, at)
	}
}

func TestPausedReplicaIsFencedAndStartsAnew(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s)
	a, b := start(t, "a", openStore(t, proxy.URL), patient), start(t, "b", openStore(t, s.URL), patient)
	session := a.connect("p")
	a.register(session, "m")
	first, _, _ := a.Self()
	proxy.Cut(true) // as if the process stood still, or the network did
	eventually(t, "b has declared it lost, and its registration is not callable", func() bool {
		_, av := b.resolve("m")
		return b.ReplicaCount() == 1 && av == projections.NotAvailable
	})
	proxy.Cut(false)
	for ready, end := false, time.Now().Add(20*time.Second); !ready; { // without a pause: the time it does not know is short
		if time.Now().After(end) {
			t.Fatal("it has not started anew")
		}
		ready = a.ReadyError() == nil
		if self, _, _ := a.Self(); ready && self == first {
			t.Fatal("a replica that was declared lost says that it is ready")
		}
	}
	eventually(t, "all know of it", func() bool { return a.ReplicaCount() == 2 && b.ReplicaCount() == 2 })
	if session.Link.(*link).reconnects.Load() != 1 || a.seen.fenced.Load() != 1 {
		t.Error("its client was not closed, or nobody was told")
	}
	_, err := a.Execute(t.Context(), commands.RegisterMethod{User: "u", Peer: "p", Connection: session.Connection, Method: "n"})
	if err == nil {
		t.Error("a connection of the former incarnation registered a method")
	}
	// Its client comes back with its pid, here or elsewhere, and holds again what it held.
	again := &Session{User: "u", Connection: ulid.Make().String(), SID: "x", PID: "y", Link: &link{}}
	if err := b.Connect(t.Context(), again, session.PID, ""); err != nil {
		t.Fatal(err)
	}
	if !again.Recovered || again.SID != session.SID || again.Peer != "p" {
		t.Errorf("recovered %v as %s, sid %s", again.Recovered, again.Peer, again.SID)
	}
	if _, av := b.resolve("m"); av != projections.Available {
		t.Error("the recovered session does not hold what it held")
	}
}
