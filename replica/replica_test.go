package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
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
func (l *listener) Changed([]projections.Change)       {}
func (l *listener) Rebuilt()                           { l.rebuilt.Add(1) }
func (l *listener) Receive(int, []store.Message, bool) {}
func (l *listener) Fenced()                            { l.fenced.Add(1) }

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

// patient is a replica that waits for who is away, however long a busy machine takes to bring them back.
func patient(r *Replica) {
	r.cfg.Graces.Peer, r.cfg.Graces.RPC, r.cfg.Graces.Recovery = time.Minute, time.Minute, time.Minute
}

type link struct {
	replaced   atomic.Int64
	reconnects atomic.Int64
}

func (*link) Emit(string, ...[]byte) bool                  { return true }
func (*link) Broadcast(*Broadcast) bool                    { return true }
func (*link) Request(string, uint32, func(), Payload) bool { return true }
func (l *link) Replaced(bool)                              { l.replaced.Add(1) }
func (l *link) Reconnect(Why)                              { l.reconnects.Add(1) }
func (*link) Allow(int, int)                               {}

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

func (r *running) ReplicaCount() (n int) {
	r.View(func(s *projections.State) { n = s.ReplicaCount() })
	return n
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
