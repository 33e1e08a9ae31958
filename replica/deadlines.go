package replica

import (
	"container/heap"
	"context"
	"hash/fnv"
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

// dueQueue holds when to look at which peer. An entry may be early or void: looking costs nothing, since the
// command decides on the state.
type dueQueue struct {
	mu    sync.Mutex
	heap  dueHeap
	after map[projections.PeerID]time.Time // the entry that counts, of each peer
	wake  chan struct{}
}

type dueEntry struct {
	at   time.Time
	peer projections.PeerID
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

func (q *dueQueue) add(at time.Time, id projections.PeerID) {
	q.mu.Lock()
	if q.after == nil {
		q.after = map[projections.PeerID]time.Time{}
	}
	if known, ok := q.after[id]; ok && known.Equal(at) {
		q.mu.Unlock()
		return
	}
	q.after[id] = at
	heap.Push(&q.heap, dueEntry{at: at, peer: id})
	first := q.heap[0].peer == id
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// take removes and returns the first entry due at now; else it says how long to wait.
func (q *dueQueue) take(now time.Time) (projections.PeerID, time.Duration, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.heap) > 0 {
		first := q.heap[0]
		if at, ok := q.after[first.peer]; !ok || !at.Equal(first.at) {
			heap.Pop(&q.heap) // a later look has taken its place
			continue
		}
		if wait := first.at.Sub(now); wait > 0 {
			return projections.PeerID{}, wait, false
		}
		heap.Pop(&q.heap)
		delete(q.after, first.peer)
		return first.peer, 0, true
	}
	return projections.PeerID{}, time.Hour, false
}

// noteDue plans a look at each peer that the records may have set a deadline for. The caller holds mu.
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
		case events.ReplicaLost, events.ReplicaStopped:
			r.planAll()
		}
	}
}

// plan enters the peer's next deadline. The caller holds mu, for reading at least.
func (r *Replica) plan(id projections.PeerID) {
	if at := commands.NextDue(r.state, id, r.cfg.Graces); !at.IsZero() {
		r.due.add(at.Add(r.turn(id)), id)
	}
}

func (r *Replica) planAll() {
	for p := range r.state.Peers() {
		r.plan(p.PeerID)
	}
}

func (r *Replica) scheduleAll() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.planAll()
}

// turn is how long this replica leaves a peer's deadline to the one whose turn it is: that with the highest
// hash of its name and the peer's. The caller holds mu, for reading at least.
func (r *Replica) turn(id projections.PeerID) time.Duration {
	var best string
	var most uint64
	for o := range r.state.Replicas() {
		h := fnv.New64a()
		for _, part := range []string{o.Instance, id.User, id.Peer} {
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

func (r *Replica) expire(ctx context.Context, id projections.PeerID) {
	r.mu.RLock()
	if at := commands.NextDue(r.state, id, r.cfg.Graces); at.IsZero() || at.After(r.Now()) {
		r.plan(id) // back, or it has become later meanwhile
		r.mu.RUnlock()
		return
	}
	r.mu.RUnlock()
	res, err := r.Execute(ctx, commands.ExpirePeer{User: id.User, Peer: id.Peer, Now: r.Now(), Graces: r.cfg.Graces})
	if err != nil {
		r.log.Debug().Err(err).Str("user", id.User).Str("peer", id.Peer).Msg("a deadline could not be acted on; trying again")
		if ctx.Err() == nil {
			r.due.add(r.Now().Add(standIn), id)
		}
		return
	}
	if len(res.Decision.Events) == 0 {
		r.mu.RLock()
		r.plan(id)
		r.mu.RUnlock()
	}
}
