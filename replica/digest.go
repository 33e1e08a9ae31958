package replica

import (
	"crypto/sha256"
	"sync"
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// A digest of a large state holds the log up for a moment (0.1 to 0.2 s for 100,000 peers): a new one is made once a
// second at most, and so that at most a 50th of the time goes into it.
const (
	digestEvery = time.Second
	digestShare = 50
)

// Digest names the state at a position. Two replicas that give different sums for one position of one log do not
// agree: one of them is wrong.
type Digest struct {
	Position                       events.Position
	Sum                            [sha256.Size]byte
	Generation                     uint64 // how often this replica has rebuilt its state
	Understood                     int    // the newest generation of events that all live replicas understand
	Peers, Registrations, Replicas int
}

type digests struct {
	mu   sync.Mutex
	last Digest
	next time.Time // no new one before
}

// Digest is that of the present state, or of one up to a second ago; longer ago when the state is large.
func (r *Replica) Digest() Digest {
	d := &r.digests
	d.mu.Lock()
	defer d.mu.Unlock()
	began := time.Now()
	if began.Before(d.next) {
		return d.last
	}
	r.mu.RLock()
	now := Digest{Position: r.state.Position, Generation: r.generation, Sum: d.last.Sum}
	if d.next.IsZero() || now.Position != d.last.Position || now.Generation != d.last.Generation {
		now.Sum = r.state.Digest()
	}
	now.count(r.state)
	r.mu.RUnlock()
	d.last, d.next = now, time.Now().Add(max(digestEvery, digestShare*time.Since(began)))
	return now
}

func (d *Digest) count(s *projections.State) {
	d.Understood = s.Understood()
	d.Peers, d.Registrations, d.Replicas = s.PeerCount(), s.RegistrationCount(), s.ReplicaCount()
}
