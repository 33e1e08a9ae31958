package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

const (
	// keeperTick is how often a replica asks to be the keeper and looks at what is due; keeperTTL is how long the
	// place of one that died stays empty at most, besides a tick.
	keeperTick = 2 * time.Second
	keeperTTL  = 30 * time.Second
	// snapshotTimeout bounds the storing of one snapshot. It is below keeperTTL, so that nobody else begins meanwhile.
	snapshotTimeout = 25 * time.Second
	// restAfterSnapshot keeps a large state under many events from being written all the time: that much longer than
	// the writing took nothing is due.
	restAfterSnapshot = 10
	// trimEvery and trimRounds bound how long the log is above its bounds, and one pass.
	trimEvery  = 30 * time.Second
	trimRounds = 1000
	// sweepEvery is rare, since it looks at every key of the database.
	sweepEvery = 10 * time.Minute
	// inboxAge is how old an inbox without an owner has to be: a start makes its inbox before it is in the log.
	inboxAge = time.Minute
)

// Keeping says how long the log and what belongs to it are kept.
type Keeping struct {
	SnapshotEvents int           // a snapshot is due after that many events; default 10,000
	SnapshotEvery  time.Duration // or when the last one is that old and anything has happened since; default 5 m
	Retain         time.Duration // how long events stay in the log; default 24 h
	RetainMemory   int64         // bytes that the log may take; it goes before Retain; 0 for any
	ForgetReplica  time.Duration // how long after it has gone a replica can hold the log; default 1 h
}

func (k *Keeping) defaults() {
	if k.SnapshotEvents == 0 {
		k.SnapshotEvents = 10_000
	}
	if k.SnapshotEvery == 0 {
		k.SnapshotEvery = 5 * time.Minute
	}
	if k.Retain == 0 {
		k.Retain = 24 * time.Hour
	}
	if k.ForgetReplica == 0 {
		k.ForgetReplica = time.Hour
	}
}

// keeper is what a replica knows of the keeping of the log. It belongs to the goroutine of keep, and after its end
// to stop.
type keeper struct {
	newest  events.Position // of the newest snapshot known
	applied uint64          // what Metrics.Applied was when that was noticed
	taken   time.Time       // when it was written, by the store's clock
	cost    time.Duration   // how long the last one took that this replica wrote
	trimmed time.Time
	swept   time.Time
	tight   bool // the last pass found the log beyond its memory
	urgent  bool // it could not be made shorter: newer snapshots may let it
	apart   bool // the two snapshots are of two positions
}

// pace is how often the keeper does what, and how old an inbox has to be before it is looked at.
type pace struct{ tick, trim, sweep, inboxAge time.Duration }

// keep asks to be the keeper of the log, and as long as this replica is it, writes snapshots, trims the log and
// removes what dead replicas have left.
func (r *Replica) keep(ctx context.Context, l *life) error {
	tick := time.NewTicker(r.pace.tick)
	defer tick.Stop()
	for {
		if held, err := r.st.Keep(ctx, l.inbox, keeperTTL); err == nil && held {
			if err := r.keepOnce(ctx, l); err != nil && ctx.Err() == nil {
				r.log.Warn().Err(err).Msg("could not keep the log; trying again")
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Replica) keepOnce(ctx context.Context, l *life) error {
	if r.ReadyError() != nil { // what it shows may not be the log's
		return nil //nolint:nilerr // it is told elsewhere, and keeping can wait
	}
	k := &r.keeper
	since, err := r.sinceSnapshot(ctx)
	if err != nil {
		return err
	}
	age := r.Now().Sub(k.taken)
	if since >= uint64(r.cfg.Keeping.SnapshotEvents) && age >= restAfterSnapshot*k.cost ||
		since > 0 && age >= r.cfg.Keeping.SnapshotEvery ||
		k.urgent && k.apart && age >= max(r.pace.trim, restAfterSnapshot*k.cost) {
		if err := r.writeSnapshot(ctx, l); err != nil {
			r.metrics.Anomalies.With("snapshot-failed").Inc()
			return fmt.Errorf("write a snapshot: %w", err)
		}
	}
	if time.Since(k.trimmed) >= r.pace.trim {
		if err := r.trim(ctx, l); err != nil {
			return fmt.Errorf("trim the log: %w", err)
		}
		k.trimmed = time.Now()
	}
	if time.Since(k.swept) >= r.pace.sweep {
		if err := r.sweepInboxes(ctx); err != nil {
			return fmt.Errorf("look for inboxes that were left: %w", err)
		}
		k.swept = time.Now()
	}
	return nil
}

// sinceSnapshot is how many events this replica has applied since it noticed the newest snapshot. It may be a
// tick's worth too many, or too few after a start from that snapshot, never none if there were any.
func (r *Replica) sinceSnapshot(ctx context.Context) (uint64, error) {
	k := &r.keeper
	list, err := r.st.Snapshots(ctx)
	if err != nil {
		return 0, err
	}
	applied := r.metrics.Applied.Load()
	var newest store.Snapshot
	for _, snap := range list {
		if snap.Schema <= projections.SnapshotSchema {
			newest = snap
			break
		}
	}
	if newest.Position != k.newest {
		if !k.newest.IsZero() || !newest.Position.Before(r.position()) {
			k.applied = applied
		}
		k.newest, k.taken = newest.Position, newest.Time
	}
	k.apart = len(list) < store.KeptSnapshots || list[0].Position != list[1].Position
	if k.taken.IsZero() {
		k.taken = r.Now() // there is none: the first is due as if one had been written now
	}
	if newest.Position == r.position() {
		k.applied = applied
		return 0, nil
	}
	return max(1, applied-k.applied), nil
}

// writeSnapshot makes the state from the newest snapshot and the log after it, beside the one that this replica
// shows, and stores that. It takes no lock of the state, which would stop everything for as long as encoding takes,
// and what it stores is the log's and not a memory of entries that the log has lost.
func (r *Replica) writeSnapshot(ctx context.Context, l *life) error {
	started := time.Now()
	applied := r.metrics.Applied.Load()
	f, err := r.foldAsKeeper(ctx, l)
	if err != nil {
		return err
	}
	position, token := f.state.Position, f.state.Token
	if position == f.base && !r.keeper.urgent { // nothing has happened since
		return nil
	}
	data := f.state.Encode()
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	if ok, err := r.st.Keep(ctx, l.inbox, keeperTTL); err != nil || !ok { // that took its time
		return errors.Join(err, ctx.Err())
	}
	snap, err := r.st.WriteSnapshot(ctx, l.inbox, store.Snapshot{
		ID: ulid.Make().String(), Position: position, Token: token, Schema: f.state.Schema(),
		Instance: r.cfg.Instance, Time: r.Now().UTC(),
	}, data)
	if err != nil {
		return err
	}
	k := &r.keeper
	k.newest, k.applied, k.taken, k.cost = position, applied, snap.Time, time.Since(started)
	r.metrics.Snapshots.Add(1)
	r.metrics.SnapshotAt.Store(snap.Time.UnixMilli())
	r.log.Info().Stringer("position", position).Int("bytes", snap.Size).Int("packed", snap.Packed).
		Dur("took", k.cost).Msg("snapshot written")
	return nil
}

// foldAsKeeper is foldAnew, which may take long for want of a snapshot; meanwhile the keeper's lease is renewed.
func (r *Replica) foldAsKeeper(ctx context.Context, l *life) (*folded, error) {
	ctx, cancel := context.WithCancel(ctx)
	var renewal sync.WaitGroup
	defer renewal.Wait()
	defer cancel()
	renewal.Go(func() {
		tick := time.NewTicker(keeperTTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if held, err := r.st.Keep(ctx, l.inbox, keeperTTL); err == nil && !held {
					cancel() // it is another one's work now
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return r.foldAnew(ctx)
}

// lastSnapshot leaves a snapshot behind at a clean end, so that a cluster that was stopped as a whole starts from its
// end. While another replica is the keeper that is its business.
func (r *Replica) lastSnapshot(l *life) {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Patience)
	defer cancel()
	held, err := r.st.Keep(ctx, l.inbox, keeperTTL)
	if err != nil || !held {
		return
	}
	since, err := r.sinceSnapshot(ctx)
	if err == nil && since > 0 {
		err = r.writeSnapshot(ctx, l)
	}
	if err != nil {
		r.log.Warn().Err(err).Msg("could not write a snapshot at the end; the next start reads more of the log")
	}
	r.releaseKeep(l)
}

// releaseKeep lets another replica be the keeper at once.
func (r *Replica) releaseKeep(l *life) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.st.ReleaseKeep(ctx, l.inbox); err != nil {
		r.log.Debug().Err(err).Msg("release the keeper's lease")
	}
}

// trim removes from the log what its settings and its readers allow.
func (r *Replica) trim(ctx context.Context, l *life) error {
	k := &r.keeper
	var removed int64
	var last store.Trimmed
	shortened := false
	for round := 0; ; round++ {
		var live []string
		schema := 0
		r.View(func(s *projections.State) {
			schema = projections.ReadableSchema(s.Understood())
			for o := range s.Replicas() {
				live = append(live, o.Instance)
			}
		})
		t, err := r.st.Trim(ctx, store.Retention{
			Keep: r.cfg.Keeping.Retain, Memory: r.cfg.Keeping.RetainMemory, Forget: r.cfg.Keeping.ForgetReplica,
			Live: live, Schema: schema,
		})
		if err != nil {
			return err
		}
		removed += t.Removed
		shortened = shortened || t.Shortened
		for _, instance := range t.Forgotten {
			r.log.Info().Str("forgotten", instance).Msg("a replica has been gone for long: its place in the log is given up")
		}
		last = t
		if !t.More || round == trimRounds {
			break
		}
		if held, err := r.st.Keep(ctx, l.inbox, keeperTTL); err != nil || !held {
			return err
		}
	}
	r.metrics.Trimmed.Add(uint64(removed))
	r.metrics.LogMemory.Store(last.Memory)
	if removed > 0 {
		r.log.Info().Int64("entries", removed).Int64("bytes", last.Memory).Msg("log trimmed")
	}
	tight := shortened || last.Exceeded
	if shortened {
		r.metrics.Anomalies.With("retention-shortened").Inc()
	}
	if last.Exceeded {
		r.metrics.Anomalies.With("retention-exceeded").Inc()
	}
	if tight && !k.tight {
		r.log.Warn().Int64("bytes", last.Memory).Int64("allowed", r.cfg.Keeping.RetainMemory).Bool("exceeded", last.Exceeded).
			Msg("the log takes more memory than --retain-memory allows: it is kept for less than --retain, or cannot be made shorter now")
	}
	k.tight, k.urgent = tight, last.Exceeded
	return nil
}

// sweepInboxes removes the inboxes of incarnations that have ended and whose inbox nobody could remove then.
func (r *Replica) sweepInboxes(ctx context.Context) error {
	inboxes, err := r.st.Inboxes(ctx)
	if err != nil {
		return err
	}
	for _, in := range inboxes {
		made, err := ulid.ParseStrict(in.Incarnation)
		if err != nil || r.Now().Sub(ulid.Time(made.Time())) < r.pace.inboxAge {
			continue
		}
		known := false
		r.View(func(s *projections.State) {
			live, ok := s.Replica(in.Instance)
			known = ok && live.Incarnation == in.Incarnation
		})
		if known {
			continue
		}
		holder, _, err := r.st.LeaseState(ctx, in.Instance)
		if err != nil {
			return err
		}
		if holder != in.Incarnation {
			r.log.Info().Str("of", in.Instance).Str("incarnation", in.Incarnation).Msg("an inbox that was left by an ended run is removed")
			r.dropInbox(ctx, in)
		}
	}
	return nil
}
