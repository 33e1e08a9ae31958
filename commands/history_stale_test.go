package commands

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/events"
	"holdfast/projections"
)

// cluster is a history made by replicas that are behind the log, each on its own: they decide on what they have
// applied, and the append compares the versions that they have read, as the store does.
type cluster struct {
	*history
	replicas []*decider
	// drop leaves a check out; nil for none.
	drop func(Command, events.Aggregate) bool
	won  int // appends
	lost int // conflicts
}

// decider is one replica.
type decider struct {
	instance string
	state    *projections.State
	applied  int
	decided  []*decision // not appended yet
}

type decision struct {
	command Command
	by      string // instance
	events  []events.Event
	reads   map[events.Aggregate]events.Position
	fence   events.Position // of the incarnation that decided; zero for none: it starts one
}

func newCluster(h *history) *cluster {
	h.local = true
	c := &cluster{history: h}
	for i := range 3 {
		c.replicas = append(c.replicas, &decider{instance: fmt.Sprintf("r%d", i+1), state: projections.New()})
	}
	return c
}

// follow applies up to n further records.
func (c *cluster) follow(d *decider, n int) {
	for ; n > 0 && d.applied < len(c.log); n-- {
		d.state.Apply(c.log[d.applied])
		d.applied++
	}
}

// step lets one replica do one thing: apply some records, decide, or append what it has decided a while ago.
func (c *cluster) step() {
	c.tick()
	d := c.replicas[c.pick(len(c.replicas), "decider")]
	switch what := c.pick(10, "what"); {
	case what < 2:
		c.follow(d, 1+c.pick(4, "records"))
	case what < 3:
		c.follow(d, len(c.log))
	case what < 7 && len(d.decided) < 4:
		if command := c.command(d.state, d.instance); command != nil {
			c.decide(d, command)
		}
	case len(d.decided) > 0:
		i := c.pick(len(d.decided), "decision")
		one := d.decided[i]
		d.decided = slices.Delete(d.decided, i, i+1)
		c.compareAndAppend(one)
	}
}

// decide decides as replica.Execute does: what is in doubt is decided again on the newest state.
func (c *cluster) decide(d *decider, command Command) {
	out, err := command.Decide(d.state)
	var refusal *Refusal
	if unsure := out.Doubt || errors.As(err, &refusal) && refusal.Doubt || err == nil && len(out.Events) == 0; unsure {
		c.follow(d, len(c.log))
		out, err = command.Decide(d.state)
	}
	if err != nil || len(out.Events) == 0 {
		return
	}
	one := &decision{command: command, by: d.instance, events: out.Events, reads: map[events.Aggregate]events.Position{}}
	for _, a := range out.Reads {
		if c.drop == nil || !c.drop(command, a) {
			one.reads[a] = d.state.Version(a)
		}
	}
	if _, starts := command.(StartReplica); !starts {
		live, ok := d.state.Replica(d.instance)
		if !ok {
			return
		}
		one.fence = live.Started
	}
	d.decided = append(d.decided, one)
}

// compareAndAppend appends a decision if all that it has read is as it was. Then it must be what would be decided now,
// on the newest state: that is what a read set is for.
func (c *cluster) compareAndAppend(one *decision) {
	if !one.fence.IsZero() && c.state.Version(events.IncarnationKey(one.by)) != one.fence {
		c.lost++
		return
	}
	for a, version := range one.reads {
		if c.state.Version(a) != version {
			c.lost++
			return
		}
	}
	c.won++
	now, err := one.command.Decide(c.state)
	if _, unregisters := one.command.(UnregisterMethod); unregisters && err != nil {
		now.Events, err = one.events, nil // a newer connection carries on the session that wanted it
	}
	if wants, connects := one.command.(ConnectPeer); connects && err == nil && wants.Recovery != "" {
		now.Events = one.events // that a replica was lost, so that a session's window began, is not read: a later moment is all that it costs
	}
	if err != nil {
		c.Fatalf("%T is appended, and would be refused now: %v\n%+v", one.command, err, one.events)
	}
	if got, want := fmt.Sprintf("%+v", one.events), fmt.Sprintf("%+v", now.Events); got != want {
		c.Fatalf("%T is appended as\n%s\nand would be decided now as\n%s", one.command, got, want)
	}
	c.append(one.events)
	c.check()
}

// Replicas that are behind decide as if they were not, or lose: whatever is appended is what would have been decided
// on the newest state, so all that TestRandomHistories shows holds for many replicas too.
func TestStaleDeciders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(drawn(t))
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			c.step()
		}
		c.resume(len(c.log) / 2)
	})
}

func TestManyStaleDeciders(t *testing.T) {
	won, lost := 0, 0
	for seed := range 150 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newCluster(seeded(t, seed))
			for range 400 {
				c.step()
			}
			won, lost = won+c.won, lost+c.lost
		})
	}
	t.Logf("%d appended, %d conflicts", won, lost)
	if lost < won/10 {
		t.Errorf("%d conflicts in %d appends: the deciders hardly met", lost, won)
	}
}

// violation is what a history without a check ends with.
type violation string

type catcher struct{}

func (catcher) Fatalf(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// find looks for a history that goes wrong when checks are left out.
func find(seeds int, drop func(Command, events.Aggregate) bool) (found string) {
	for seed := range seeds {
		func() {
			defer func() {
				if v, ok := recover().(violation); ok {
					found = fmt.Sprintf("seed %d: %s", seed, v)
				}
			}()
			c := newCluster(seeded(catcher{}, seed))
			c.drop = drop
			for range 400 {
				c.step()
			}
		}()
		if found != "" {
			return found
		}
	}
	return ""
}

func kindOf(a events.Aggregate) string {
	kind, names := a.Parts()
	if kind == "room-seat" {
		return kind + "/" + strings.Join(names[1:], "/")
	}
	return kind
}

// Each check in a read set is there because a history goes wrong without it. What is left out in turn, of one kind of
// command, is one kind of aggregate.
func TestAHistoryGoesWrongWithoutEachCheck(t *testing.T) {
	reads := map[string]bool{}
	find(60, func(c Command, a events.Aggregate) bool {
		reads[fmt.Sprintf("%T %s", c, kindOf(a))] = true
		return false
	})
	for _, read := range slices.Sorted(maps.Keys(reads)) {
		found := find(3000, func(c Command, a events.Aggregate) bool { return fmt.Sprintf("%T %s", c, kindOf(a)) == read })
		t.Logf("%-45s %.150s", read, strings.ReplaceAll(found, "\n", " "))
	}
}
