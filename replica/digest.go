package replica

import (
	"crypto/sha256"
	"sync"
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// digestEvery is how often a new digest is made at most: one of a large state takes a while.
const digestEvery = time.Second

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
	made time.Time
}

// Digest is that of the present state, or of the one up to a second ago.
func (r *Replica) Digest() Digest {
	d := &r.digests
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.made.IsZero() && time.Since(d.made) < digestEvery {
		return d.last
	}
	var encoded []byte
	r.mu.RLock()
	now := Digest{Position: r.state.Position, Generation: r.generation, Sum: d.last.Sum}
	if now.Position != d.last.Position || now.Generation != d.last.Generation || d.made.IsZero() {
		encoded = r.state.Encode()
	}
	now.count(r.state)
	r.mu.RUnlock()
	if encoded != nil {
		now.Sum = sha256.Sum256(encoded)
	}
	d.last, d.made = now, time.Now()
	return now
}

func (d *Digest) count(s *projections.State) {
	d.Understood = s.Understood()
	d.Peers, d.Registrations, d.Replicas = s.PeerCount(), s.RegistrationCount(), s.ReplicaCount()
}
