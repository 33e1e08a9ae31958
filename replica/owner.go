package replica

import (
	"context"
	"sync"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// Ownership is one stay of a room with one replica. Token is the position since when it is there: of two ownerships of
// a room the later one has the greater token, so whoever remembers the greatest can refuse what a former owner says.
type Ownership struct {
	Room     string
	Instance string
	Token    events.Position
}

// RoomWork is what an owner does for its rooms: the place where a media router attaches.
//
// Each ownership of this replica is begun by Opened or MovedHere, once, and ended by MovedAway or Closed, once. One
// that is over before its turn comes is not told at all. The calls for one room come one after another, those for
// several at the same time, none from the goroutine that follows the log: they may block, and then delay their own
// room and, while roomWorkers of them do, other rooms.
//
// The ctx of a beginning ends with the ownership, also after the call has returned, and when the replica ends or is
// declared lost. That of an end lasts until the replica ends, and then the patience longer.
//
// Nothing is begun once the lease has run out by this replica's own clock, until it is renewed and the log is read up
// to where it stood then. A process can be stopped between that look and what it does next, so what is outside of it
// must compare tokens.
type RoomWork interface {
	// Opened comes when a room is opened here.
	Opened(ctx context.Context, o Ownership)
	// MovedHere comes when a room is pinned to this replica that was somewhere else. former is zero when it is not
	// known, as after a start.
	MovedHere(ctx context.Context, o, former Ownership)
	// MovedAway comes when the room has another owner, and when this replica was declared lost or ends.
	MovedAway(ctx context.Context, o Ownership)
	// Closed comes when the room has ended while it was here.
	Closed(ctx context.Context, o Ownership, reason string)
}

// roomWorkers bounds the calls to a RoomWork that are under way at a time.
const roomWorkers = 32

// ReasonLost is the reason of a room that is gone without an event that closed it: the log has lost it.
const ReasonLost = "lost"

// Attach gives the rooms of this replica to work. Only before Run, and once.
func (r *Replica) Attach(work RoomWork) {
	r.owner = &owner{r: r, work: work, rooms: map[string]*owned{}}
	r.Listen(r.owner)
}

// Owns reports whether the ownership is the present one as far as this replica can know: its lease is good by its own
// clock, and it has read the log at least up to where that was renewed.
func (r *Replica) Owns(o Ownership) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	room := r.state.Room(o.Room)
	return room != nil && room.Open && room.Owner == r.cfg.Instance && o.Instance == room.Owner &&
		room.Pinned == o.Token && r.leased()
}

// Leased reports whether this replica may act as an owner: see Owns.
func (r *Replica) Leased() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.leased()
}

// leased is Leased for who holds mu, for reading at least.
func (r *Replica) leased() bool {
	l := r.life.Load()
	if l == nil {
		return false
	}
	select {
	case <-l.fenced:
		return false
	default:
	}
	return time.Now().Before(r.leasedUntil) && !r.state.Position.Before(r.leasedFrom)
}

// leaseRenewed notes a beat that was sent then and has seen the log's head. Had the lease run out, others may have
// recorded anything up to that head. A head before that one is of a log that has gone back.
func (r *Replica) leaseRenewed(sent time.Time, head events.Position) {
	r.mu.Lock()
	if !sent.Before(r.leasedUntil) || head.Before(r.leasedFrom) {
		r.leasedFrom = head
	}
	r.leasedUntil = sent.Add(r.cfg.LeaseTTL)
	r.mu.Unlock()
	if r.owner != nil {
		r.owner.goOn()
	}
}

// endTenure makes an end of acting as an owner, with the incarnation.
func (r *Replica) endTenure() {
	r.mu.Lock()
	r.leasedUntil, r.leasedFrom = time.Time{}, events.Position{}
	r.mu.Unlock()
	if r.owner != nil {
		r.owner.release()
	}
}

// Fence is what a script checks that must not run for a replica that was declared lost, and the incarnation that it
// is about. ok is false while the replica starts.
func (r *Replica) Fence() (f store.Fence, in store.Inbox, ok bool) {
	l := r.life.Load()
	if l == nil {
		return store.Fence{}, store.Inbox{}, false
	}
	return r.fence(l), l.inbox, true
}

// owner brings what a RoomWork was told into line with what the log says, room by room: it compares the two and does
// not follow single events, so an ownership that began and ended meanwhile is passed over.
type owner struct {
	r    *Replica
	work RoomWork

	mu     sync.Mutex // guards what follows; taken before Replica.mu
	acting bool       // an incarnation lives
	root   context.Context
	rooms  map[string]*owned
	// ready are the rooms with something to tell, each once: as many as there are at most. A room that is busy or
	// waits in it has one place, whatever happens to it, so the queue is bounded by the rooms themselves.
	ready   []*owned
	running int // workers
	group   sync.WaitGroup
}

// owned is one room that is here, or that something remains to be told of.
type owned struct {
	room   string
	want   Ownership // as the log has it; zero when it is not here
	former Ownership // of want
	told   Ownership // begun and not ended yet; zero for none
	ended  ending    // how told has, if that is known
	reason string
	cancel context.CancelFunc // of told
	busy   bool               // in ready, or with a worker
	parked bool               // waits for the lease
}

type ending uint8

const (
	endedSomehow ending = iota
	endedMoved
	endedClosed
)

// Applied does nothing: Changed has it all.
func (w *owner) Applied([]events.Record) {}

// Receive does nothing.
func (w *owner) Receive(int, []store.Message, bool) {}

// Fenced does nothing: release has been called.
func (w *owner) Fenced() {}

// Changed takes note of rooms that came here or are here no longer.
func (w *owner) Changed(changes []projections.Change) {
	me := w.r.cfg.Instance
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.acting {
		return
	}
	for _, c := range changes {
		switch {
		case c.Kind == projections.RoomChangedClosed && c.Owner == me:
			w.noteEnd(c.Room, c.Pinned, endedClosed, c.Reason)
			w.settle(c.Room, projections.Change{})
		case c.Kind == projections.RoomChangedPin && (c.Owner == me || c.Former == me):
			if c.Former == me {
				w.noteEnd(c.Room, c.Unpinned, endedMoved, "")
			}
			w.settle(c.Room, c)
		}
	}
}

// noteEnd remembers how an ownership ended that was begun. The caller holds mu.
func (w *owner) noteEnd(room string, token events.Position, how ending, reason string) {
	if o := w.rooms[room]; o != nil && o.told != (Ownership{}) && o.told.Token == token {
		o.ended, o.reason = how, reason
	}
}

// Rebuilt compares everything.
func (w *owner) Rebuilt() { w.compare() }

// resume begins to act, in a new incarnation.
func (w *owner) resume() {
	w.mu.Lock()
	w.acting = true
	w.mu.Unlock()
	w.compare()
}

func (w *owner) compare() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.acting {
		return
	}
	look := map[string]bool{}
	for id := range w.rooms {
		look[id] = true
	}
	w.r.View(func(s *projections.State) {
		for room := range s.RoomsOn(w.r.cfg.Instance) {
			look[room.ID] = true
		}
	})
	for id := range look {
		w.settle(id, projections.Change{})
	}
}

// settle looks at what the log says of a room. why is the change of its pin that was the reason, if it was one. The
// caller holds mu.
func (w *owner) settle(id string, why projections.Change) {
	var want Ownership
	exists := false
	w.r.View(func(s *projections.State) {
		room := s.Room(id)
		exists = room != nil && room.Open
		if exists && room.Owner == w.r.cfg.Instance {
			want = Ownership{Room: id, Instance: room.Owner, Token: room.Pinned}
		}
	})
	o := w.rooms[id]
	if o == nil {
		if want == (Ownership{}) {
			return
		}
		o = &owned{room: id}
		w.rooms[id] = o
	}
	if want != o.want {
		if o.told != (Ownership{}) && o.told == o.want { // its end is noticed now
			o.cancel()
			if !exists && o.ended == endedSomehow {
				o.ended, o.reason = endedClosed, ReasonLost
			}
		}
		o.want, o.former = want, Ownership{}
	}
	if why.Former != "" && why.Owner == want.Instance && why.Pinned == want.Token {
		o.former = Ownership{Room: id, Instance: why.Former, Token: why.Unpinned}
	}
	w.enqueue(o)
}

// release ends every ownership: the incarnation has ended.
func (w *owner) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acting = false
	for _, o := range w.rooms {
		if o.told != (Ownership{}) {
			o.cancel()
		}
		o.want, o.former = Ownership{}, Ownership{}
		w.enqueue(o)
	}
}

// run gives the calls their context. What it returns ends every ownership and waits for the calls, for the patience at
// most.
func (w *owner) run() (end func()) {
	root, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.root = root
	w.mu.Unlock()
	return func() {
		w.release()
		idle := make(chan struct{})
		go func() { w.group.Wait(); close(idle) }()
		defer cancel()
		select {
		case <-idle:
			return
		case <-time.After(w.r.cfg.Patience):
		}
		cancel()
		select {
		case <-idle:
		case <-time.After(w.r.cfg.Patience):
			w.r.log.Warn().Msg("the end of work for rooms takes too long; it is not waited for any longer")
		}
	}
}

// goOn takes up again what has waited for the lease.
func (w *owner) goOn() {
	if !w.r.Leased() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.rooms {
		if o.parked {
			w.enqueue(o)
		}
	}
}

// enqueue gives a room its turn. The caller holds mu.
func (w *owner) enqueue(o *owned) {
	o.parked = false
	if o.busy || o.told == o.want && o.told != (Ownership{}) {
		return
	}
	o.busy = true
	w.ready = append(w.ready, o)
	if w.running < roomWorkers {
		w.running++
		w.group.Go(w.serve)
	}
}

// serve makes calls until there are none to make.
func (w *owner) serve() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.ready) > 0 {
		o := w.ready[0]
		w.ready = w.ready[1:]
		call := w.next(o)
		if call != nil {
			w.mu.Unlock()
			call()
			w.mu.Lock()
		}
		o.busy = false
		if call != nil {
			w.enqueue(o)
		}
	}
	w.running--
}

// next is the call that comes next for a room; nil for none now. The caller holds mu.
func (w *owner) next(o *owned) func() {
	none := Ownership{}
	switch told, want, former := o.told, o.want, o.former; {
	case told != none && told != want:
		how, reason := o.ended, o.reason
		o.told, o.ended, o.reason = none, endedSomehow, ""
		if how == endedClosed {
			return func() { w.work.Closed(w.root, told, reason) }
		}
		return func() { w.work.MovedAway(w.root, told) }
	case told == none && want == none:
		delete(w.rooms, o.room)
	case told == none && !w.r.Owns(want):
		o.parked = true
	case told == none:
		ctx, cancel := context.WithCancel(w.root)
		o.told, o.cancel = want, cancel
		opened := false
		w.r.View(func(s *projections.State) { opened = s.Version(events.RoomOpenKey(o.room)) == want.Token })
		if opened {
			return func() { w.work.Opened(ctx, want) }
		}
		return func() { w.work.MovedHere(ctx, want, former) }
	}
	return nil
}
