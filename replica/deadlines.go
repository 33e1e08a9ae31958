package replica

import (
	"container/heap"
	"context"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
)

const (
	// standIn is how long another replica waits before it does what was the chosen one's turn.
	standIn = 1500 * time.Millisecond
	// dueWorkers bounds the commands that one replica has under way for what is due.
	dueWorkers = 32
)

// subject is what has a deadline: a peer or, with Room set, a room.
type subject struct {
	Peer projections.PeerID
	Room string
}

// dueQueue holds when to look at what. An entry may be early or void: looking costs nothing, since the
// command decides on the state.
type dueQueue struct {
	mu    sync.Mutex
	heap  dueHeap
	after map[subject]time.Time // the entry that counts, of each subject
	wake  chan struct{}
}

type dueEntry struct {
	at time.Time
	of subject
}

type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

func (q *dueQueue) add(at time.Time, id subject) {
	q.mu.Lock()
	if q.after == nil {
		q.after = map[subject]time.Time{}
	}
	if known, ok := q.after[id]; ok && known.Equal(at) {
		q.mu.Unlock()
		return
	}
	q.after[id] = at
	heap.Push(&q.heap, dueEntry{at: at, of: id})
	first := q.heap[0].of == id
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// take removes and returns the first entry due at now; else it says how long to wait.
func (q *dueQueue) take(now time.Time) (subject, time.Duration, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.heap) > 0 {
		first := q.heap[0]
		if at, ok := q.after[first.of]; !ok || !at.Equal(first.at) {
			heap.Pop(&q.heap) // a later look has taken its place
			continue
		}
		if wait := first.at.Sub(now); wait > 0 {
			return subject{}, wait, false
		}
		heap.Pop(&q.heap)
		delete(q.after, first.of)
		return first.of, 0, true
	}
	return subject{}, time.Hour, false
}

// noteDue plans a look at whatever the records may have set a deadline for. The caller holds mu.
func (r *Replica) noteDue(records []events.Record) {
	for _, rec := range records {
		switch e := rec.Event.(type) {
		case events.PeerConnected:
			r.plan(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.PeerDisconnected:
			r.plan(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.PeerGone:
			r.plan(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.RegistrationsLapsed:
			r.plan(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.RoomOpened:
			r.planRoom(e.Room)
		case events.RoomJoined:
			r.planRooms(e)
		case events.RoomMoved:
			r.planRoom(e.From)
			r.planRooms(e.RoomJoined)
		case events.RoomLeft:
			r.planRoom(e.Room)
		case events.RoomSettingsChanged:
			r.planRoom(e.Room)
		}
	}
}

// ended reports whether a replica's end is among the records. Then others have its turns, and its peers have deadlines.
func ended(records []events.Record) bool {
	return slices.ContainsFunc(records, func(rec events.Record) bool {
		switch rec.Event.(type) {
		case events.ReplicaLost, events.ReplicaStopped:
			return true
		}
		return false
	})
}

// plan enters the peer's next deadline. The caller holds mu, for reading at least.
func (r *Replica) plan(id projections.PeerID) {
	if at := commands.NextDue(r.state, id, r.cfg.Graces); !at.IsZero() {
		of := subject{Peer: id}
		r.due.add(at.Add(r.turn(of)), of)
	}
}

func (r *Replica) planRooms(e events.RoomJoined) {
	r.planRoom(e.Room)
	for _, room := range e.Unwatched {
		r.planRoom(room)
	}
}

// planRoom enters the room's deadline. The caller holds mu, for reading at least.
func (r *Replica) planRoom(id string) {
	if at := commands.RoomDue(r.state.Room(id), r.cfg.Graces); !at.IsZero() {
		of := subject{Room: id}
		r.due.add(at.Add(r.turn(of)), of)
	}
}

func (r *Replica) planAll() {
	for p := range r.state.Peers() {
		r.plan(p.PeerID)
	}
	for room := range r.state.Rooms() {
		r.planRoom(room.ID)
	}
}

func (r *Replica) scheduleAll() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.planAll()
}

// turn is how long this replica leaves a deadline to the one whose turn it is: that with the highest hash of its name
// and the subject's. The caller holds mu, for reading at least.
func (r *Replica) turn(of subject) time.Duration {
	var best string
	var most uint64
	for o := range r.state.Replicas() {
		h := fnv.New64a()
		for _, part := range []string{o.Instance, of.Peer.User, of.Peer.Peer, of.Room} {
			_, _ = h.Write([]byte(part))
			_, _ = h.Write([]byte{0})
		}
		if sum := h.Sum64(); best == "" || sum > most || sum == most && o.Instance < best {
			best, most = o.Instance, sum
		}
	}
	if best == "" || best == r.cfg.Instance {
		return 0
	}
	return standIn
}

// actOnDue executes what is due, when it is.
func (r *Replica) actOnDue(ctx context.Context, _ *life) error {
	r.scheduleAll()
	slots := make(chan struct{}, dueWorkers)
	var work sync.WaitGroup
	defer work.Wait()
	for {
		id, wait, ok := r.due.take(r.Now())
		if !ok {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-r.due.wake:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
			timer.Stop()
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		work.Go(func() {
			defer func() { <-slots }()
			r.expire(ctx, id)
		})
	}
}

// expire has what is due recorded.
func (r *Replica) expire(ctx context.Context, of subject) {
	r.mu.RLock()
	due, replan, ask := r.dueOf(of)
	if due.IsZero() || due.After(r.Now()) {
		replan() // back, or it has become later meanwhile
		r.mu.RUnlock()
		return
	}
	r.mu.RUnlock()
	pid := r.pidOf(of.Peer)
	res, err := r.Execute(ctx, ask)
	if err != nil {
		r.log.Debug().Err(err).Str("user", of.Peer.User).Str("peer", of.Peer.Peer).Str("room", of.Room).
			Msg("a deadline could not be acted on; trying again")
		if ctx.Err() == nil {
			r.due.add(r.Now().Add(standIn), of)
		}
		return
	}
	for _, e := range res.Decision.Events {
		if _, forgotten := e.(events.PeerForgotten); forgotten {
			r.sessionEnded(pid)
		}
	}
	if len(res.Decision.Events) == 0 {
		r.mu.RLock()
		replan()
		r.mu.RUnlock()
	}
}

// dueOf is when something is due, what plans the next look, and what does it. The caller holds mu, for reading at least.
func (r *Replica) dueOf(of subject) (due time.Time, replan func(), ask commands.Command) {
	if of.Room != "" {
		return commands.RoomDue(r.state.Room(of.Room), r.cfg.Graces), func() { r.planRoom(of.Room) },
			commands.ExpireRoom{Room: of.Room, Now: r.Now(), Graces: r.cfg.Graces}
	}
	id := of.Peer
	return commands.NextDue(r.state, id, r.cfg.Graces), func() { r.plan(id) },
		commands.ExpirePeer{User: id.User, Peer: id.Peer, Now: r.Now(), Graces: r.cfg.Graces}
}
