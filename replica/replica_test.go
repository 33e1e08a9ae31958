package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

const testLease = 1200 * time.Millisecond

// onEachStore runs a test on a real Redis and on the embedded one.
func onEachStore(t *testing.T, f func(t *testing.T, open func() *store.Store)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		f(t, func() *store.Store { return openStore(t, s.URL) })
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		e, err := store.OpenEmbedded("test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		f(t, func() *store.Store {
			st, err := e.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			return st
		})
	})
}

func openStore(t *testing.T, url string) *store.Store {
	t.Helper()
	st, err := store.Open(store.Options{URL: url, Namespace: "test", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

type running struct {
	*Replica
	t    *testing.T
	stop func()
	seen *listener
	err  atomic.Pointer[error]
}

type listener struct {
	applied, rebuilt, fenced atomic.Int64
	mu                       sync.Mutex
	order                    []events.Position
}

func (l *listener) Applied(records []events.Record) {
	l.applied.Add(int64(len(records)))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		l.order = append(l.order, r.Position)
	}
}
func (l *listener) Rebuilt()                      { l.rebuilt.Add(1) }
func (l *listener) Receive([]store.Message, bool) {}
func (l *listener) Fenced()                       { l.fenced.Add(1) }

func start(t *testing.T, instance string, st *store.Store, change ...func(*Replica)) *running {
	t.Helper()
	r := launch(t, instance, st, change...)
	select {
	case <-r.Ready():
	case <-time.After(15 * time.Second):
		t.Fatalf("%s is not ready: %v", instance, r.ReadyError())
	}
	return r
}

func launch(t *testing.T, instance string, st *store.Store, change ...func(*Replica)) *running {
	log := zerolog.Nop()
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		log = zerolog.New(zerolog.NewTestWriter(t)).With().Timestamp().Logger()
	}
	r := &running{t: t, seen: &listener{}, Replica: New(Config{
		Instance: instance, LeaseTTL: testLease, Patience: 4 * time.Second, Log: log,
		Graces: commands.Graces{Peer: 300 * time.Millisecond, RPC: 300 * time.Millisecond, Recovery: 6 * time.Second},
	}, st)}
	r.Listen(r.seen)
	for _, f := range change {
		f(r.Replica)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := r.Run(ctx)
		r.err.Store(&err)
	}()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

type link struct {
	replaced   atomic.Int64
	reconnects atomic.Int64
}

func (*link) Emit(string, ...[]byte) bool                 { return true }
func (*link) Request(string, uint32, func(), []byte) bool { return true }
func (l *link) Replaced(bool)                             { l.replaced.Add(1) }
func (l *link) Reconnect(Why)                             { l.reconnects.Add(1) }

func (r *running) connect(peer string) *Session {
	r.t.Helper()
	s := &Session{User: "u", Peer: peer, Connection: ulid.Make().String(), SID: ulid.Make().String(), PID: ulid.Make().String(), Link: &link{}}
	if err := r.Connect(r.t.Context(), s, "", ""); err != nil {
		r.t.Fatalf("connect %s: %v", peer, err)
	}
	return s
}

func (r *running) register(s *Session, method string) {
	r.t.Helper()
	if _, err := r.Register(r.t.Context(), s, method, false); err != nil {
		r.t.Fatalf("register %s: %v", method, err)
	}
}

func (r *running) resolve(method string) (reg projections.Registration, a projections.Availability) {
	r.View(func(s *projections.State) {
		reg, _, a = s.Resolve(projections.MethodID{User: "u", Method: method})
	})
	return reg, a
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not within 15 s: %s", what)
}

// inOrder asserts that every record was applied once and in order.
func (r *running) inOrder() {
	r.t.Helper()
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	for i := 1; i < len(r.seen.order); i++ {
		if !r.seen.order[i-1].Before(r.seen.order[i]) {
			r.t.Errorf("applied %s after %s", r.seen.order[i], r.seen.order[i-1])
		}
	}
}

func TestExecuteReturnsWhatIsVisibleHereAndSoonElsewhere(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open()), start(t, "b", open())
		s := a.connect("p")
		for i := range 50 {
			m := fmt.Sprintf("m%d", i)
			a.register(s, m)
			if _, av := a.resolve(m); av != projections.Available {
				t.Fatalf("%s is not available right after its registration was acknowledged", m)
			}
			if err := b.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, av := b.resolve(m); av != projections.Available {
				t.Fatalf("%s is not available on the other replica after it caught up", m)
			}
		}
		a.inOrder()
		b.inOrder()
	})
}

// Two replicas change one thing again and again: every change is acknowledged, and they agree.
func TestRacingCommandsAreDecidedAgain(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open()), start(t, "b", open())
		sa, sb := a.connect("pa"), b.connect("pb")
		var group sync.WaitGroup
		for i := range 30 {
			for _, x := range []struct {
				r *running
				s *Session
			}{{a, sa}, {b, sb}} {
				group.Go(func() {
					if _, err := x.r.Register(t.Context(), x.s, fmt.Sprintf("m%d", i%3), false); err != nil {
						t.Errorf("register: %v", err)
					}
				})
			}
		}
		group.Wait()
		if err := errors.Join(a.CatchUp(t.Context()), b.CatchUp(t.Context())); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			ra, _ := a.resolve(fmt.Sprintf("m%d", i))
			rb, _ := b.resolve(fmt.Sprintf("m%d", i))
			if ra != rb || ra.Session == "" {
				t.Errorf("m%d: %+v on a, %+v on b", i, ra, rb)
			}
		}
	})
}

// That a registration is there already is not believed of a view that is behind: whoever registered last holds.
func TestLastRegistrationWins(t *testing.T) {
	s := redistest.Start(t)
	a, b := start(t, "a", openStore(t, s.URL)), start(t, "b", openStore(t, s.URL))
	sa, sb := a.connect("pa"), b.connect("pb")
	for range 200 {
		a.register(sa, "m")
		b.register(sb, "m")
		if reg, _ := b.resolve("m"); reg.Holder.Peer != "pb" {
			t.Fatalf("b acknowledged pb's registration, and shows %s", reg.Holder.Peer)
		}
		a.register(sa, "m")
		if reg, _ := a.resolve("m"); reg.Holder.Peer != "pa" {
			t.Fatalf("a acknowledged pa's registration, and shows %s", reg.Holder.Peer)
		}
	}
}

func TestRestartResumes(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a := start(t, "a", open())
		s := a.connect("p")
		a.register(s, "m")
		a.stop()
		st := open()
		before, err := st.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// While it is away, others go on.
		b := start(t, "b", open())
		b.register(b.connect("q"), "n")
		again := start(t, "a", open())
		if _, av := again.resolve("n"); av != projections.Available {
			t.Errorf("what happened while it was away is missing")
		}
		again.View(func(s *projections.State) {
			if s.Position.Before(before.Position) {
				t.Errorf("restarted at %s, before %s", s.Position, before.Position)
			}
		})
		at, ok, err := st.GroupPosition(t.Context(), "a")
		if err != nil || !ok {
			t.Fatalf("no consumer group: %v", err)
		}
		eventually(t, "the group's position follows", func() bool {
			now, _, _ := st.GroupPosition(t.Context(), "a")
			return !now.Before(at) && !now.Before(again.position())
		})
		again.inOrder()
	})
}

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

func (r *running) ReplicaCount() (n int) {
	r.View(func(s *projections.State) { n = s.ReplicaCount() })
	return n
}

// What a recovered session holds is restored though its present replica never heard it register.
func TestEmptiedStoreAfterARecovery(t *testing.T) {
	s := redistest.Start(t)
	a, b := start(t, "a", openStore(t, s.URL)), start(t, "b", openStore(t, s.URL))
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
	a, b := start(t, "a", openStore(t, proxy.URL)), start(t, "b", openStore(t, s.URL))
	session := a.connect("p")
	a.register(session, "m")
	first, _, _ := a.Self()
	proxy.Cut(true) // as if the process stood still, or the network did
	eventually(t, "b has declared it lost, and its registration is not callable", func() bool {
		_, av := b.resolve("m")
		return b.ReplicaCount() == 1 && av == projections.NotAvailable
	})
	proxy.Cut(false)
	eventually(t, "it has started anew", func() bool {
		self, _, ok := a.Self()
		return ok && self != first && a.ReadyError() == nil && b.ReplicaCount() == 2
	})
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

func TestOneInstanceRunsOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a := start(t, "a", open())
		second := launch(t, "a", open())
		eventually(t, "the second ends", func() bool { return second.err.Load() != nil })
		if err := *second.err.Load(); !errors.Is(err, ErrInstanceTaken) {
			t.Errorf("it ended with %v", err)
		}
		if err := a.ReadyError(); err != nil {
			t.Errorf("the first is harmed: %v", err)
		}
	})
}

func TestSuccessorOfADeadProcessWaitsForItsLease(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a := start(t, "a", st)
	session := a.connect("p")
	a.register(session, "m")
	st.Close() // dead: it can end nothing
	again := start(t, "a", openStore(t, s.URL))
	if again.ReplicaCount() != 1 {
		t.Errorf("%d replicas live, want its own", again.ReplicaCount())
	}
	if _, av := again.resolve("m"); av != projections.NotAvailable {
		t.Error("what was registered on the dead one is still callable")
	}
}

func TestWhatIsDueIsDoneOnceAndByAnyReplica(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open()), start(t, "b", open())
		for i := range 8 {
			r := []*running{a, b}[i%2]
			s := r.connect(fmt.Sprintf("p%d", i))
			r.register(s, fmt.Sprintf("m%d", i))
			r.Disconnect(s, "test", i%4 < 2)
		}
		eventually(t, "all are forgotten on both", func() bool {
			n := 0
			for _, r := range []*running{a, b} {
				r.View(func(s *projections.State) { n += s.PeerCount() + s.RegistrationCount() })
			}
			return n == 0
		})
		counts := map[string]int{}
		records, err := open().Range(t.Context(), events.Position{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range records {
			counts[events.Name(rec.Event)]++
		}
		if counts["peer-gone"] != 8 || counts["peer-forgotten"] != 8 {
			t.Errorf("%v: want each peer gone once and forgotten once", counts)
		}
	})
}

func TestNewerConnectionReplacesTheOlderOnAnotherReplica(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		a, b := start(t, "a", open()), start(t, "b", open())
		older := a.connect("p")
		newer := b.connect("p")
		eventually(t, "the older is told", func() bool { return older.Link.(*link).replaced.Load() == 1 })
		a.Disconnect(older, "late", true)
		if err := b.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.View(func(s *projections.State) {
			if p, ok := s.Peer(newer.ID()); !ok || !p.Connected || p.Connection != newer.Connection || p.SessionEnded {
				t.Errorf("the older one's end changed the newer: %+v", p)
			}
		})
		if newer.Link.(*link).replaced.Load() != 0 {
			t.Error("the newer was replaced")
		}
	})
}
