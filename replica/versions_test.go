package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// join records the start of a replica of an older generation. Nothing runs, but its lease lasts the test.
func (r *running) join(st *store.Store, instance string, understands int) store.Inbox {
	r.t.Helper()
	in := store.Inbox{Instance: instance, Incarnation: ulid.Make().String()}
	if err := st.AcquireLease(r.t.Context(), in, time.Minute); err != nil {
		r.t.Fatal(err)
	}
	_, err := r.execute(r.t.Context(), commands.StartReplica{
		Instance: instance, Incarnation: in.Incarnation, PreferredSlot: -1, Understands: understands,
	}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return in
}

// schemas are those of the registrations in the log, in order.
func schemas(t *testing.T, s *redistest.Server) (all []string) {
	t.Helper()
	for _, schema := range []string{"1", "2"} {
		n := s.Do(t, "EVAL", `local n = 0
			for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
				local f = {} for i = 1, #e[2], 2 do f[e[2][i]] = e[2][i+1] end
				if f.t == 'method-registered' and f.s == ARGV[1] then n = n + 1 end
			end
			return tostring(n)`, "1", "{test}:log", schema)
		all = append(all, n)
	}
	return all
}

func TestEventsAreWrittenSoThatEveryLiveReplicaUnderstandsThem(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a, b := start(t, "a", st), start(t, "b", openStore(t, s.URL))
	session := a.connect("p")
	step := func(method, what, one, two string) {
		t.Helper()
		if _, err := a.Register(t.Context(), session, method, true); err != nil {
			t.Fatal(err)
		}
		if got := schemas(t, s); got[0] != one || got[1] != two {
			t.Errorf("%s: %s registrations of schema 1 and %s of schema 2, want %s and %s", what, got[0], got[1], one, two)
		}
		if err := b.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*running{a, b} {
			if reg, _ := r.resolve(method); !reg.ReplaySafe {
				t.Errorf("%s: %s shows %+v", what, r.Instance(), reg)
			}
		}
	}
	step("m0", "all are new", "0", "1")
	old := a.join(st, "old", events.First)
	step("m1", "an old one has joined", "1", "1")
	if _, err := a.Execute(t.Context(), commands.StopReplica{Instance: old.Instance, Incarnation: old.Incarnation}); err != nil {
		t.Fatal(err)
	}
	step("m2", "it has left", "1", "2")
}

// A decision to write the newest form loses to an older replica that starts in the meantime.
func TestAnOlderReplicaThatJoinsMeanwhileIsAConflict(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a := start(t, "a", st)
	session := a.connect("p")
	c := commands.RegisterMethod{User: "u", Peer: "p", Connection: session.Connection, Method: "m"}
	var mine change
	_, app, _, _, err := a.decide(c, ulid.Make(), &mine)
	a.changing.end(&mine)
	if err != nil || app.Generation != events.Generation {
		t.Fatalf("decided for generation %d, %v", app.Generation, err)
	}
	a.join(st, "old", events.First)
	verdicts, err := st.Append(t.Context(), a.fence(a.life.Load()), []store.Append{app})
	if err != nil {
		t.Fatal(err)
	}
	if c := verdicts[0].Conflict; c == nil || c.Aggregate != events.ReplicasKey() {
		t.Errorf("%+v, want a conflict at the roster", verdicts[0])
	}
	_, app, _, _, err = a.decide(c, ulid.Make(), &mine)
	a.changing.end(&mine)
	if err != nil || app.Generation != events.First {
		t.Errorf("decided anew for generation %d, %v", app.Generation, err)
	}
	for _, check := range app.Checks {
		if check.Aggregate == events.ReplicasKey() {
			t.Error("the oldest form, which everybody understands, is checked against the roster")
		}
	}
}

// A replica that understands no form at all of an event holds that event up, and nothing else.
func TestAnEventWithoutAFormForALiveReplicaIsRefused(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a := start(t, "a", st)
	session := a.connect("p")
	a.join(st, "older", events.First-1)
	_, err := a.Register(t.Context(), session, "m", false)
	var refusal *commands.Refusal
	if !errors.As(err, &refusal) || refusal.Code != commands.CodeStoreUnavailable {
		t.Errorf("%v, want %s", err, commands.CodeStoreUnavailable)
	}
	if got := schemas(t, s); got[0] != "0" || got[1] != "0" {
		t.Errorf("%v registrations were written", got)
	}
}

// An emptied log has no roster until every replica has recorded its start again.
func TestAnOlderReplicaIsRememberedOverARebuild(t *testing.T) {
	s := redistest.Start(t)
	st := openStore(t, s.URL)
	a := start(t, "a", st)
	session := a.connect("p")
	a.join(st, "old", events.First)
	if err := a.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Do(t, "FLUSHALL")
	eventually(t, "it has rebuilt and recorded its start and its client again", func() bool {
		found := false
		a.View(func(s *projections.State) {
			p, ok := s.Peer(session.ID())
			found = ok && p.Connected && s.ReplicaCount() == 1
		})
		return a.seen.rebuilt.Load() > 0 && found
	})
	a.register(session, "m")
	if got := schemas(t, s); got[0] != "1" || got[1] != "0" {
		t.Errorf("%s registrations of schema 1 and %s of schema 2, want the first", got[0], got[1])
	}
}

// What is newer than this build stops a start, too, with the reason.
func TestUnknownEventIsNotStartedPast(t *testing.T) {
	s := redistest.Start(t)
	a := start(t, "a", openStore(t, s.URL))
	a.register(a.connect("p"), "m")
	s.Do(t, "EVAL", `local e = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][2]
		for i = 1, #e, 2 do if e[i] == 'p' then e[i+1] = ARGV[1] elseif e[i] == 's' then e[i+1] = '99' elseif e[i] == 'u' then e[i+1] = ARGV[2] end end
		local id = redis.call('XADD', KEYS[1], '*', unpack(e))
		redis.call('HSET', KEYS[2], '@head', id .. ' ' .. ARGV[2])`, "2", "{test}:log", "{test}:versions", a.token().String(), ulid.Make().String())
	b := launch(t, "b", openStore(t, s.URL))
	eventually(t, "it ends", func() bool { return b.err.Load() != nil })
	if err := *b.err.Load(); !errors.Is(err, events.ErrUnknown) {
		t.Errorf("it ended with %v", err)
	}
	if b.ReadyError() == nil {
		t.Error("it was ready")
	}
}

func (r *running) token() (token ulid.ULID) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state.Token
}
