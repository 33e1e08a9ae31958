package cli

import (
	"strings"
	"testing"

	"holdfast/store/redistest"
)

// firstGeneration is the last commit whose program knew the first generation of events only.
const firstGeneration = "deba3ac5d5749c9c2e0db3b6c62f5d263882114c"

// registrations counts those of each schema in the log.
func registrations(t *testing.T, s *redistest.Server) string {
	t.Helper()
	return s.Do(t, "EVAL", `local n = {0, 0}
		for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
			local f = {} for i = 1, #e[2], 2 do f[e[2][i]] = e[2][i+1] end
			if f.t == 'method-registered' then n[tonumber(f.s)] = n[tonumber(f.s)] + 1 end
		end
		return n[1] .. ' ' .. n[2]`, "1", "{holdfast}:log")
}

// The program of firstGeneration the second generation runs beside this one, as in a rolling upgrade: they serve calls
// across each other, and nothing is written that the older one does not understand until it has left.
func TestRollingUpgradeFromTheFirstGeneration(t *testing.T) {
	t.Parallel()
	older, newer := binary(t, firstGeneration), binary(t, "")
	redis := redistest.Start(t)
	a, b := serve(t, older, redis.URL, "a"), serve(t, older, redis.URL, "b")
	pa, pb := dial(t, a, "pa", "ma"), dial(t, b, "pb", "mb")
	across := func(what string) {
		t.Helper()
		for _, c := range []struct {
			from   *peer
			method string
			by     string
		}{{pa, "mb", "pb"}, {pb, "ma", "pa"}} {
			if err := c.from.calls(c.method, c.by); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	across("both old")

	// b is replaced by a new one.
	pb.Close()
	b.stop()
	b = serve(t, newer, redis.URL, "b")
	pb = dial(t, b, "pb", "mb")
	across("old and new")
	if err := pb.register("mb2"); err != nil {
		t.Error(err)
	}
	if err := pa.register("ma2"); err != nil {
		t.Error(err)
	}
	if err := pa.calls("mb2", "pb"); err != nil {
		t.Error(err)
	}
	if got := registrations(t, redis); got != "5 0" {
		t.Errorf("registrations of schema 1 and 2 while an old replica lives: %s, want 5 0", got)
	}
	for _, p := range []*process{a, b} {
		p.ready()
		if p.anomaly("not-understood") {
			t.Errorf("%s met an event that it does not understand", p.instance)
		}
	}
	if d := b.digest(); d.Understood != 1 {
		t.Errorf("all are said to understand generation %d", d.Understood)
	}

	// The old one restarts, which it may while both live, and leaves then for good.
	pa.Close()
	a.stop()
	a = serve(t, older, redis.URL, "a")
	pa = dial(t, a, "pa", "ma")
	across("old and new, after the old one's restart")
	if got := registrations(t, redis); got != "6 0" {
		t.Errorf("registrations of schema 1 and 2 after the restart of the old replica: %s, want 6 0", got)
	}
	pa.Close()
	a.stop()
	a = serve(t, newer, redis.URL, "a")
	pa = dial(t, a, "pa", "ma")
	across("both new")
	if got := registrations(t, redis); got != "6 1" {
		t.Errorf("registrations of schema 1 and 2 once the old replica has left: %s, want 6 1", got)
	}
	agree(t, a, b)

	// An old one that starts now says why it cannot, and changes nothing.
	position := a.digest().Position
	late := launch(t, older, redis.URL, "late")
	eventually(t, "the old one ends", func() bool {
		select {
		case <-late.exited:
			return true
		default:
			code, _ := late.get(late.URL + "/readyz")
			if code == 200 {
				t.Fatal("the old one is ready")
			}
			return false
		}
	})
	if text := late.log.String(); !strings.Contains(text, `"method-registered" schema 2`) || !strings.Contains(text, "unknown event") {
		t.Errorf("it does not say why: %s", text)
	}
	if at := agree(t, a, b).Position; at != position {
		t.Errorf("the log has gone on from %s to %s", position, at)
	}
	across("after the attempt")
}
