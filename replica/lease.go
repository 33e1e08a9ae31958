package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/store"
)

const (
	// beatsPerLease is how many beats fit into a lease: several may fail before it runs out.
	beatsPerLease = 8
	// sightings is how many beats in a row must find another replica's lease gone before that is declared lost.
	// One that only lost its lease, not its life, has made it again by then. The first of them comes as the lease
	// runs out, so a killed replica is declared lost 1 + 2/8 leases after its last beat: 5 s.
	sightings = 3
	// lookAfter is how long after the end of a lease it is looked for: Redis counts in milliseconds, and the clocks
	// of two machines do not run quite alike.
	lookAfter = 5 * time.Millisecond
)

// takeLease waits until the lease of a dead predecessor has run out. A lease that is renewed meanwhile
// belongs to a living process under the same name: that is an error.
func (r *Replica) takeLease(ctx context.Context, l *life) error {
	var last time.Duration
	waiting := false
	for {
		err := r.st.AcquireLease(ctx, l.inbox, r.cfg.LeaseTTL)
		if !errors.Is(err, store.ErrLeaseHeld) {
			return err
		}
		holder, ttl, err := r.st.LeaseState(ctx, r.cfg.Instance)
		if err != nil {
			return err
		}
		if waiting && ttl > last {
			return fmt.Errorf("%w: %q is held by incarnation %s, which is alive; give each replica its own --instance (HOLDFAST_INSTANCE)",
				ErrInstanceTaken, r.cfg.Instance, holder)
		}
		if !waiting {
			r.log.Info().Str("holder", holder).Dur("left", ttl).
				Msg("the lease of a former run under this instance name has not run out yet: waiting for it")
			waiting = true
		}
		last = ttl
		select {
		case <-time.After(min(max(ttl, 5*time.Millisecond), 100*time.Millisecond)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// releaseLease gives the lease back so that a successor need not wait for it to run out.
func (r *Replica) releaseLease(l *life) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.st.ReleaseLease(ctx, l.inbox); err != nil {
		r.log.Debug().Err(err).Msg("release lease")
	}
}

// beat keeps the lease, watches those of the others and declares lost whose lease is gone.
func (r *Replica) beat(ctx context.Context, l *life) error {
	w := watch{absent: map[string]int{}}
	defer w.group.Wait()
	for {
		var others []projections.Replica
		r.View(func(s *projections.State) {
			for o := range s.Replicas() {
				if o.Instance != r.cfg.Instance {
					others = append(others, o)
				}
			}
		})
		left, err := r.beatOnce(ctx, l, others, &w)
		if err != nil {
			return err
		}
		timer := time.NewTimer(pause(r.cfg.LeaseTTL/beatsPerLease, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// pause is how long to wait after the answer to a beat, given how long the leases of others last then: the next beat is
// early when one of them runs out before it. After one that has run out there is no early beat, so between two beats
// that find a lease gone its holder has the whole pause for a beat of its own.
func pause(every time.Duration, left map[string]time.Duration) time.Duration {
	for _, lasts := range left {
		every = min(every, lasts+lookAfter)
	}
	return every
}

// watch is what the beats have seen of the other replicas.
type watch struct {
	absent map[string]int // incarnation → beats in a row that found its lease gone
	group  sync.WaitGroup // losses being declared
}

// beatOnce returns how long the leases of the others last.
func (r *Replica) beatOnce(ctx context.Context, l *life, others []projections.Replica, w *watch) (map[string]time.Duration, error) {
	instances := make([]string, len(others))
	for i, o := range others {
		instances[i] = o.Instance
	}
	before := r.position()
	sent := time.Now()
	b, err := r.st.Beat(ctx, l.inbox, r.cfg.LeaseTTL, l.consumed[0].Load(), instances)
	took := time.Since(sent)
	switch {
	case errors.Is(err, store.ErrLeaseLost):
		// Another incarnation of this instance has started; its ReplicaStarted fences this one.
		r.log.Warn().Err(err).Msg("the lease is held by another incarnation")
		return nil, fmt.Errorf("%w: %q", ErrInstanceTaken, r.cfg.Instance)
	case err != nil:
		if ctx.Err() == nil && r.healthy.Swap(0) != 0 {
			kind, message := "unreachable", "the store does not answer"
			if errors.Is(err, store.ErrRefused) {
				kind, message = "refused", "the store answers, but takes no writes"
			}
			r.log.Warn().Err(err).Msg(message)
			r.metrics.Anomalies.With(kind).Inc()
		}
		return nil, nil
	}
	now := time.Now()
	r.offset.Store(int64(b.Now.Sub(sent.Add(took / 2))))
	r.lastBeat.Store(now.UnixNano())
	r.noteHead(b.Head.Position)
	r.leaseRenewed(sent, b.Head.Position)
	r.metrics.InboxDepth.Store(b.Lag)
	r.learnSecret(ctx, b.Secret)
	// An answer that was long under way says that the others' beats may have been held up as well.
	if r.healthy.Load() == 0 || took > r.cfg.LeaseTTL/4 {
		r.healthy.Store(now.UnixNano())
	}
	if b.Healed {
		r.log.Warn().Msg("this replica's lease or inbox had vanished from the store and was made again")
		r.metrics.Anomalies.With("lease-or-inbox-vanished").Inc()
		r.suspect.Store(true)
		r.healthy.Store(now.UnixNano()) // the others' leases may have vanished with it
		for _, li := range r.listeners {
			li.Receive(0, nil, true)
		}
	}
	if b.Head.Position.Before(before) {
		r.suspect.Store(true)
	}
	r.beatPartitions(ctx, l)
	// Only who has seen the store healthy for a whole lease may say that another one's silence is its own.
	if now.Sub(time.Unix(0, r.healthy.Load())) < r.cfg.LeaseTTL {
		return b.Left, nil
	}
	for _, o := range others {
		if _, alive := b.Left[o.Instance]; alive {
			delete(w.absent, o.Incarnation)
			continue
		}
		w.absent[o.Incarnation]++
		if w.absent[o.Incarnation]%sightings == 0 { // and again, should the declaration have failed
			w.group.Go(func() { r.declareLost(ctx, o) })
		}
	}
	return b.Left, nil
}

// declareLost appends the loss. It ends within the patience.
func (r *Replica) declareLost(ctx context.Context, o projections.Replica) {
	res, err := r.Execute(ctx, commands.LoseReplica{
		Instance: o.Instance, Incarnation: o.Incarnation, Silent: r.cfg.LeaseTTL,
	})
	if err != nil {
		r.log.Warn().Err(err).Str("lost", o.Instance).Msg("could not declare a silent replica lost")
		return
	}
	if len(res.Decision.Events) > 0 {
		r.dropInbox(ctx, store.Inbox{Instance: o.Instance, Incarnation: o.Incarnation})
		r.log.Warn().Str("lost", o.Instance).Str("incarnation", o.Incarnation).
			Msg("a replica's lease is gone: it is declared lost")
	}
}
