package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"holdfast/events"
	"holdfast/projections"
)

// history decides random commands one after another, as one replica that is never behind would, and keeps the
// log that comes of it.
type history struct {
	failer
	pick    func(n int, what string) int // a number from 0 to n-1
	limits  RoomLimits
	state   *projections.State
	log     []events.Record
	changes [][]string // of each record, as text, sorted
	now     time.Time
	count   int  // makes ids
	local   bool // what a connection wants is decided by its own replica only, whose appends end with it
}

// failer is what of a test a history needs.
type failer interface{ Fatalf(string, ...any) }

var historyGraces = Graces{
	Peer: 10 * time.Second, RPC: 15 * time.Second, Recovery: time.Minute, Room: 5 * time.Second, Unused: 30 * time.Second,
}

// Small enough that histories reach them. A room that is near its limit decides joins in another way than one that is
// not, so half of the histories have the defaults.
var smallLimits = RoomLimits{PeersPerRoom: 3, RoomsPerPeer: 2, Settings: 24}

func newHistory() *history {
	h := &history{state: projections.New(), now: time.UnixMilli(scriptStart).UTC()}
	h.state.Observe()
	return h
}

// drawn is a history whose choices rapid makes, so that it finds the shortest that fails.
func drawn(t *rapid.T) *history {
	h := newHistory()
	h.failer = t
	h.pick = func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
	h.limits = []RoomLimits{{}, smallLimits}[h.pick(2, "limits")]
	return h
}

// seeded is a history whose choices are even. It wanders into corners that drawn, which likes small numbers, does not.
func seeded(t failer, seed int) *history {
	h := newHistory()
	h.failer = t
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	h.pick = func(n int, _ string) int { return rng.IntN(n) }
	h.limits = []RoomLimits{{}, smallLimits}[seed%2]
	return h
}

func (h *history) id(kind string) string {
	h.count++
	return fmt.Sprintf("%s%04d", kind, h.count)
}

func (h *history) execute(c Command) {
	d, err := c.Decide(h.state)
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		h.Fatalf("%T: %v is not a Refusal", c, err)
	}
	if err != nil {
		return
	}
	before := h.state.Digest()
	if again, _ := c.Decide(h.state); fmt.Sprint(again) != fmt.Sprint(d) || h.state.Digest() != before {
		h.Fatalf("%T: deciding twice gives two decisions, or changes the state", c)
	}
	for _, e := range d.Events {
		// What an event ends was read, or a racing change of it could be lost unseen. When a host closes a room that
		// is what he wants: whatever else happens in it comes before the closing or is decided again after it, since it
		// reads that the room is open.
		closed, byHost := e.(events.RoomClosed)
		if byHost = byHost && closed.User != ""; byHost {
			for _, a := range []events.Aggregate{events.RoomOpenKey(closed.Room), events.RoomSeatKey(closed.Room, Host)} {
				if !slices.Contains(d.Reads, a) {
					h.Fatalf("a host closes a room without having read %s", a)
				}
			}
		}
		for _, a := range e.Ends() {
			if !byHost && !slices.Contains(d.Reads, a) {
				h.Fatalf("%T ends %s without having read it", e, a)
			}
		}
	}
	h.append(d.Events)
	if again, err := c.Decide(h.state); err == nil && len(again.Events) > 0 {
		switch c.(type) {
		case ConnectPeer, UnregisterMethod:
		default:
			h.Fatalf("%T is not so already once it was done: %v", c, again.Events)
		}
	}
}

// append writes events to the log and applies them.
func (h *history) append(list []events.Event) {
	for _, e := range list {
		rec := events.Record{
			Position: events.Position{Ms: uint64(h.now.UnixMilli()), Seq: uint64(len(h.log))},
			Token:    ulid.ULID{14: byte(len(h.log) >> 8), 15: byte(len(h.log)), 0: 1}, Previous: h.state.Token, Event: e,
		}
		h.log = append(h.log, rec)
		before := viewOf(h.state)
		h.state.Apply(rec)
		h.changes = append(h.changes, h.compare(rec, before, viewOf(h.state), h.state.Changes()))
	}
}

// tick lets time pass: mostly little, sometimes longer than a grace.
func (h *history) tick() {
	most := 1500
	if h.pick(8, "long") == 0 {
		most = 20_000
	}
	h.now = h.now.Add(time.Duration(h.pick(most, "ms")) * time.Millisecond)
}

// command makes one that the instance might execute whose state is s, about few enough things that they meet; nil
// for none.
func (h *history) command(s *projections.State, instance string) Command {
	live, alive := s.Replica(instance)
	if !alive {
		return StartReplica{Instance: instance, Incarnation: h.id("I"), PreferredSlot: -1, Silent: 4 * time.Second}
	}
	other := fmt.Sprintf("r%d", 1+h.pick(3, "other"))
	user, peer := "u", fmt.Sprintf("p%d", 1+h.pick(4, "peer"))
	room := fmt.Sprintf("R%d", 1+h.pick(3, "room"))
	method := fmt.Sprintf("m%d", 1+h.pick(3, "method"))
	p, known := s.Peer(projections.PeerID{User: user, Peer: peer})
	if in := s.RoomsOf(p.PeerID); len(in) > 0 && h.pick(2, "own") == 0 {
		room = in[h.pick(len(in), "room")].ID // where it can do something
	}
	connection := p.Connection
	if !known || h.pick(12, "stale") == 0 {
		connection = "C0000" // of the past
	} else if p.Connected && p.Instance != instance && (h.local || h.pick(8, "elsewhere") != 0) {
		connection = "" // it has nothing to do with this replica: only what concerns others is done
	}
	what := h.pick(100, "command")
	switch {
	case what == 0 && h.pick(2, "restart") == 0:
		return StartReplica{Instance: instance, Incarnation: h.id("I"), PreferredSlot: -1, Silent: 4 * time.Second}
	case what == 1:
		if o, ok := s.Replica(other); ok {
			return LoseReplica{Instance: other, Incarnation: o.Incarnation, Silent: 4 * time.Second}
		}
	case what == 2 && h.pick(2, "stop") == 0:
		return StopReplica{Instance: instance, Incarnation: live.Incarnation}
	case what == 3 && h.pick(2, "drain") == 0:
		return DrainReplica{Instance: instance, Incarnation: live.Incarnation}
	case what < 12, what > 70 && !p.Connected && h.pick(2, "returns") == 0:
		recovery := ""
		if known && h.pick(2, "recovers") == 0 {
			recovery = p.Recovery
		}
		return ConnectPeer{
			User: user, Peer: peer, Connection: h.id("C"), Instance: instance, Recovery: recovery,
			NewSession: h.id("s"), NewPid: h.id("pid"), Now: h.now, Graces: historyGraces,
		}
	case what < 22:
		return ExpirePeer{User: user, Peer: peer, Now: h.now, Graces: historyGraces}
	case what < 30:
		return ExpireRoom{Room: room, Now: h.now, Graces: historyGraces}
	case what < 34:
		expected := ""
		if h.pick(2, "expects") == 0 {
			expected = s.Version(events.SettingsKey()).String()
		}
		return SetSetting{
			User: user, Peer: peer, Key: fmt.Sprintf("k%d", h.pick(2, "key")), Claims: Everything(), Expected: expected,
			Value: json.RawMessage([]string{"1", "2", "null"}[h.pick(3, "value")]), Restore: h.pick(3, "restore") == 0,
		}
	case connection == "":
	case what < 38:
		return DisconnectPeer{User: user, Peer: peer, Connection: connection, SessionEnded: h.pick(2, "ended") == 0}
	case what < 42:
		return RegisterMethod{
			User: user, Peer: peer, Connection: connection, Method: method,
			ReplaySafe: h.pick(2, "safe") == 0, Restore: h.pick(5, "restore") == 0,
		}
	case what < 44:
		return UnregisterMethod{User: user, Peer: peer, Connection: connection, Method: method}
	case what < 68:
		c := JoinRoom{
			User: user, Peer: peer, Connection: connection, Instance: instance, Room: room, Claims: Everything(), Limits: h.limits,
			Role: []Role{Host, Guest, Member, Monitor}[h.pick(4, "role")], Name: []string{"", "n"}[h.pick(2, "name")],
		}
		if h.pick(8, "restore") == 0 {
			c.Remains = &Remains{
				Settings: `{"old":1}`, GuestState: `{"old":1}`,
				PeerVersion: s.Version(events.PeerKey(user, peer)), OpenVersion: s.Version(events.RoomOpenKey(room)),
			}
		}
		return c
	case what < 75:
		return LeaveRoom{User: user, Peer: peer, Connection: connection, Room: room}
	case what < 83:
		return CloseRoom{User: user, Peer: peer, Connection: connection, Room: room}
	default:
		expected := ""
		if h.pick(2, "expects") == 0 {
			if r := s.Room(room); r != nil {
				expected = r.Version.String()
			} else {
				expected = events.Position{}.String()
			}
		}
		patch := json.RawMessage(fmt.Sprintf(`{"k%d":%s}`, h.pick(2, "key"), []string{"1", "2222222", "null"}[h.pick(3, "value")]))
		if what < 92 {
			return UpdateGuest{User: user, Peer: peer, Connection: connection, Room: room, Patch: patch, Expected: expected, Limits: h.limits}
		}
		c := UpdateRoom{
			User: user, Peer: peer, Connection: connection, Room: room, Patch: patch, Expected: expected, Limits: h.limits,
			Claims: Everything(),
		}
		c.Claims.Untold = h.pick(2, "untold") == 0
		return c
	}
	return nil
}

// step executes one random command.
func (h *history) step() {
	h.tick()
	if c := h.command(h.state, fmt.Sprintf("r%d", 1+h.pick(3, "replica"))); c != nil {
		h.execute(c)
	}
}

// In any order of commands and losses: one holder of a method and of a seat, one owner of a room, one place of a peer,
// indexes that equal a full scan, changes that are the differences, and a fold that depends on the log alone.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawn(t)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			h.step()
			h.check()
		}
		h.resume(rapid.IntRange(0, len(h.log)).Draw(t, "cut"))
	})
}

// The same with even choices, and longer. A failure names the seed by the subtest's name.
func TestManyHistories(t *testing.T) {
	kinds := map[string]int{}
	for seed := range 150 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := seeded(t, seed)
			for range 150 {
				h.step()
				h.check()
			}
			h.resume(h.pick(len(h.log)+1, "cut"))
			for _, rec := range h.log {
				kinds[fmt.Sprintf("%T", rec.Event)]++
			}
		})
	}
	t.Log(kinds)
	if len(kinds) < 19 {
		t.Errorf("only these events came up: %v", kinds)
	}
}

// resume folds the log up to a cut, stores and loads that, and folds the rest: nothing may be different.
func (h *history) resume(cut int) {
	part := projections.New()
	for _, rec := range h.log[:cut] {
		part.Apply(rec)
	}
	resumed, err := projections.Decode(part.Encode())
	if err != nil {
		h.Fatalf("%v", err)
	}
	resumed.Observe()
	for i, rec := range h.log[cut:] {
		resumed.Apply(rec)
		if got, want := texts(resumed.Changes()), h.changes[cut+i]; !slices.Equal(got, want) {
			h.Fatalf("after a snapshot at %d, record %d %T changes\n%q\nand without\n%q", cut, cut+i, rec.Event, got, want)
		}
	}
	if resumed.Digest() != h.state.Digest() {
		h.Fatalf("a snapshot at %d of %d and the rest of the log are not the full fold", cut, len(h.log))
	}
}

// must executes a command that prepares a test.
func (h *history) must(t *testing.T, c Command) {
	t.Helper()
	d, err := c.Decide(h.state)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	for _, e := range d.Events {
		h.state.Apply(events.Record{Position: h.state.Position.Next(), Event: e})
	}
}
