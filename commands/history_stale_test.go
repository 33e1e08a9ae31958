package commands

import (
	"errors"
	"fmt"
	"os"
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
	at      events.Position // of the state decided on
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
	one := &decision{command: command, by: d.instance, at: d.state.Position, events: out.Events, reads: map[events.Aggregate]events.Position{}}
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
	if err == nil && c.excused(one, now.Events) || err != nil && unregisters(one.command) {
		now.Events, err = one.events, nil
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

// unregisters: the session that wanted it is named in the event, and goes on over a newer connection.
func unregisters(c Command) bool {
	_, ok := c.(UnregisterMethod)
	return ok
}

// excused are two decisions that do not read the roster, so that a loss of a replica which they do not know of makes
// another difference than they decide. It costs no more than a moment: a session is recovered a little later than its
// window allows, or what is due for a peer is done in two steps.
func (c *cluster) excused(one *decision, now []events.Event) bool {
	switch one.command.(type) {
	case ConnectPeer:
		e := one.events[0].(events.PeerConnected)
		return e.Recovered && !one.at.Before(c.state.Version(events.PeerKey(e.User, e.Peer)))
	case ExpirePeer:
		return !slices.ContainsFunc(one.events, func(e events.Event) bool {
			return !slices.ContainsFunc(now, func(o events.Event) bool { return fmt.Sprintf("%T%+v", o, o) == fmt.Sprintf("%T%+v", e, e) })
		})
	}
	return false
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

// A history goes wrong when a check is left out: one kind of aggregate in one kind of command, or several which stand in
// for each other. What is not here but read is either among those (a peer's seat changes with the peer itself), or is
// read because the event ends it, and RoomKey is written by whatever could change it.
func TestAHistoryGoesWrongWithoutEachCheck(t *testing.T) {
	cases := []string{
		"JoinRoom peer", "JoinRoom room-open", "JoinRoom room-seat/host", "LeaveRoom peer", "CloseRoom peer", "ExpireRoom room",
		"ExpirePeer peer", "ExpirePeer method", "UpdateRoom peer", "UpdateRoom room-open room-seat/host", "UpdateGuest peer",
		"SetSetting settings", "RegisterMethod peer", "DisconnectPeer peer", "ConnectPeer peer", "StartReplica replicas",
		"LoseReplica incarnation",
	}
	if os.Getenv("HOLDFAST_LONG") != "" { // their histories are rare
		cases = append(cases, "JoinRoom room", "JoinRoom room-seat/guest", "LeaveRoom room-open", "CloseRoom room-open room-seat/host",
			"ExpirePeer room-open", "UpdateRoom room-settings", "UpdateRoom room", "UpdateRoom replicas", "UpdateGuest room",
			"UpdateGuest replicas", "UpdateGuest room-open room-seat/guest room-seat/host", "RegisterMethod method", "DrainReplica replicas")
	}
	for _, without := range cases {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(without)
			found := find(4000, func(c Command, a events.Aggregate) bool {
				return fmt.Sprintf("%T", c) == "commands."+words[0] && slices.Contains(words[1:], kindOf(a))
			})
			if found == "" {
				t.Error("no history goes wrong")
			}
			t.Log(strings.ReplaceAll(found, "\n", " "))
		})
	}
}
