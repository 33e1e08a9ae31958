package replica

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// diary is a RoomWork that writes down what it is told, and checks what RoomWork promises.
type diary struct {
	t      *testing.T
	hold   func(room string) // called by every beginning, may block
	mu     sync.Mutex
	calls  map[string][]string // by room: "opened", "moved-here a", "moved-away", "closed empty"
	begun  map[string]Ownership
	ctxs   map[Ownership]context.Context
	tokens map[string]events.Position
	inside map[string]bool
	most   int
}

func newDiary(t *testing.T) *diary {
	return &diary{
		t: t, calls: map[string][]string{}, begun: map[string]Ownership{}, ctxs: map[Ownership]context.Context{},
		tokens: map[string]events.Position{}, inside: map[string]bool{},
	}
}

func (d *diary) enter(o Ownership, call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside[o.Room] {
		d.t.Errorf("%s: two calls for %s at a time", call, o.Room)
	}
	d.inside[o.Room] = true
	d.most = max(d.most, len(d.inside))
	d.calls[o.Room] = append(d.calls[o.Room], call)
}

func (d *diary) leave(o Ownership) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.inside, o.Room)
}

func (d *diary) begin(ctx context.Context, o Ownership, call string) {
	d.enter(o, call)
	defer d.leave(o)
	d.mu.Lock()
	if d.begun[o.Room] != (Ownership{}) || !d.tokens[o.Room].Before(o.Token) {
		d.t.Errorf("%s %+v begins after %+v", call, o, d.begun[o.Room])
	}
	d.begun[o.Room], d.tokens[o.Room], d.ctxs[o] = o, o.Token, ctx
	d.mu.Unlock()
	if d.hold != nil {
		d.hold(o.Room)
	}
}

func (d *diary) end(ctx context.Context, o Ownership, call string) {
	d.enter(o, call)
	defer d.leave(o)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun[o.Room] != o {
		d.t.Errorf("%s %+v ends, begun was %+v", call, o, d.begun[o.Room])
	}
	if d.ctxs[o] != nil && d.ctxs[o].Err() == nil {
		d.t.Errorf("%s: the context of %+v goes on", call, o)
	}
	if ctx.Err() != nil {
		d.t.Errorf("%s: the end's own context has ended", call)
	}
	delete(d.begun, o.Room)
}

func (d *diary) Opened(ctx context.Context, o Ownership) { d.begin(ctx, o, "opened") }
func (d *diary) MovedHere(ctx context.Context, o, former Ownership) {
	d.begin(ctx, o, strings.TrimSpace("moved-here "+former.Instance))
}
func (d *diary) MovedAway(ctx context.Context, o Ownership) { d.end(ctx, o, "moved-away") }
func (d *diary) Closed(ctx context.Context, o Ownership, reason string) {
	d.end(ctx, o, "closed "+reason)
}

func (d *diary) of(room string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls[room])
}

func (d *diary) wants(room string, calls ...string) {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("%s is told %q, has %q", room, calls, d.of(room)), func() bool { return slices.Equal(d.of(room), calls) })
}

// attach has rooms that are empty close soon, and peers that are away stay in them.
func attach(d *diary) func(*Replica) {
	return func(r *Replica) {
		r.Attach(d)
		r.cfg.Graces.Room, r.cfg.Graces.Peer = 100*time.Millisecond, time.Minute
	}
}

func (r *running) enterRoom(s *Session, room string) {
	r.t.Helper()
	_, err := r.Execute(r.t.Context(), joining(s, r.Instance(), room))
	if err != nil {
		r.t.Fatalf("join %s: %v", room, err)
	}
}

func (r *running) leaveRoom(s *Session, room string) {
	r.t.Helper()
	c := commands.LeaveRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: room}
	if _, err := r.Execute(r.t.Context(), c); err != nil {
		r.t.Fatalf("leave %s: %v", room, err)
	}
}

func (r *running) ownerOf(room string) (owner string) {
	r.View(func(s *projections.State) {
		if x := s.Room(room); x != nil {
			owner = x.Owner
		}
	})
	return owner
}

func TestOwnersWorkFollowsTheLog(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		da, db := newDiary(t), newDiary(t)
		a, b := start(t, "a", open(), attach(da)), start(t, "b", open(), attach(db))
		sa, sb := a.connect("pa"), b.connect("pb")
		a.enterRoom(sa, "r")
		da.wants("r", "opened")
		b.enterRoom(sb, "r") // whoever joins later changes nothing
		a.leaveRoom(sa, "r")
		b.leaveRoom(sb, "r")
		da.wants("r", "opened", "closed empty")
		a.enterRoom(sa, "r")
		da.wants("r", "opened", "closed empty", "opened")
		if err := a.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		da.wants("r", "opened", "closed empty", "opened", "moved-away")
		db.wants("r", "moved-here a")
		a.stop()
		b.stop()
		db.wants("r", "moved-here a", "moved-away") // what was begun is ended with the replica
		da.wants("r", "opened", "closed empty", "opened", "moved-away")
	})
}

// A room that comes and goes while its owner is busy with it is not told; the calls under way are bounded.
func TestOwnersWorkMayBlock(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *store.Store) {
		d := newDiary(t)
		gate := make(chan struct{})
		d.hold = func(string) { <-gate }
		a := start(t, "a", open(), attach(d))
		s := a.connect("p")
		a.enterRoom(s, "slow")
		eventually(t, "its work has begun", func() bool { return len(d.of("slow")) == 1 })
		for range 3 { // no call waits for it
			a.leaveRoom(s, "slow")
			eventually(t, "it is closed", func() bool { return a.ownerOf("slow") == "" })
			a.enterRoom(s, "slow")
		}
		for i := range 2 * roomWorkers {
			a.enterRoom(s, fmt.Sprintf("r%d", i))
		}
		eventually(t, "all workers are busy", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.inside) == roomWorkers })
		close(gate)
		d.wants("slow", "opened", "closed empty", "opened")
		for i := range 2 * roomWorkers {
			d.wants(fmt.Sprintf("r%d", i), "opened")
		}
		if d.most > roomWorkers {
			t.Errorf("%d calls at a time, promised are %d", d.most, roomWorkers)
		}
	})
}

// While it cannot renew its lease an owner begins nothing, and what it does first when it can again is to let go.
func TestOwnerThatWasCutOffBeginsNothing(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s)
	da, db := newDiary(t), newDiary(t)
	gate := make(chan struct{})
	da.hold = func(room string) {
		if room == "first" {
			<-gate
		}
	}
	a, b := start(t, "a", openStore(t, proxy.URL), attach(da)), start(t, "b", openStore(t, s.URL), attach(db))
	sa, sb := a.connect("pa"), b.connect("pb")
	b.enterRoom(sb, "first") // b's
	a.enterRoom(sa, "own")
	da.wants("own", "opened")
	a.enterRoom(sa, "closing")
	da.wants("closing", "opened")
	var o Ownership
	a.View(func(s *projections.State) {
		o = Ownership{Room: "own", Instance: "a", Token: s.Room("own").Pinned}
	})
	if !a.Owns(o) || b.Owns(o) {
		t.Error("a does not own what it has opened, or b does")
	}
	proxy.Freeze(true)
	eventually(t, "its lease runs out", func() bool { return !a.Leased() })
	if a.Owns(o) {
		t.Error("it owns a room without a lease")
	}
	db.wants("own", "moved-here a")
	db.wants("closing", "moved-here a")
	proxy.Freeze(false)
	close(gate)
	da.wants("own", "opened", "moved-away")
	da.wants("closing", "opened", "moved-away")
	eventually(t, "it is back", func() bool { return a.Leased() })
	if a.Owns(o) {
		t.Error("it owns a room that has moved")
	}
	if n := len(da.of("own")); n != 2 {
		t.Errorf("it was told %q", da.of("own"))
	}
}

// A killed owner's rooms come to the other one; all stop and start: the rooms are told anew, with newer tokens.
func TestOwnersWorkAfterAKillAndAWholeRestart(t *testing.T) {
	s := redistest.Start(t)
	da, db := newDiary(t), newDiary(t)
	proxy := redistest.NewProxy(t, s)
	a, b := launch(t, "a", openStore(t, proxy.URL), attach(da)), start(t, "b", openStore(t, s.URL), attach(db))
	<-a.Ready()
	sa, sb := a.connect("pa"), b.connect("pb")
	a.enterRoom(sa, "r")
	b.enterRoom(sb, "r")
	da.wants("r", "opened")
	proxy.Cut(true)
	db.wants("r", "moved-here a")
	b.stop()
	db.wants("r", "moved-here a", "moved-away")
	dc := newDiary(t)
	c := start(t, "b", openStore(t, s.URL), attach(dc))
	eventually(t, "the room is at the only replica", func() bool { return c.ownerOf("r") == "b" })
	eventually(t, "it was told", func() bool { return len(dc.of("r")) == 1 && strings.HasPrefix(dc.of("r")[0], "moved-here") })
	dc.mu.Lock()
	token := dc.tokens["r"]
	dc.mu.Unlock()
	db.mu.Lock()
	defer db.mu.Unlock()
	if !db.tokens["r"].Before(token) {
		t.Errorf("the token %s does not come after %s", token, db.tokens["r"])
	}
}

func TestOwnersWorkWhenTheLogIsLost(t *testing.T) {
	s := redistest.Start(t)
	d := newDiary(t)
	a := start(t, "a", openStore(t, s.URL), attach(d))
	p := a.connect("p")
	a.enterRoom(p, "r")
	d.wants("r", "opened")
	s.Do(t, "FLUSHALL")
	d.wants("r", "opened", "closed "+ReasonLost, "opened")
}

// joining is what a session asks that joins a room as a member.
func joining(s *Session, instance, room string) commands.JoinRoom {
	return commands.JoinRoom{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Instance: instance, Room: room, Role: commands.Member,
		Claims: commands.Everything(),
	}
}

// A lease that had run out counts from the head that was seen when it was renewed, and no further than the log still goes.
func TestLeaseIsReadUpToTheHeadThatThereIs(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Start(t))
	a := start(t, "a", openStore(t, proxy.URL))
	eventually(t, "its first beat has been", func() bool { return a.ReadyError() == nil })
	proxy.Cut(true) // no beat of its own comes between
	eventually(t, "its beats fail", func() bool { return a.healthy.Load() == 0 })
	at := a.position()
	later := at
	later.Ms += 3_600_000
	lapsed := time.Now().Add(time.Hour)
	a.leaseRenewed(lapsed, later) // it had run out, and the log goes on beyond what was read
	if a.Leased() || a.ReadyError() == nil {
		t.Error("it is leased, or ready, without having read the log up to where its lease was renewed")
	}
	a.leaseRenewed(lapsed, at) // the log has gone back since
	if !a.Leased() {
		t.Error("it waits for what the log does not hold any more")
	}
}
