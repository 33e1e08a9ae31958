package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// errBegun is a log whose beginning is gone, without a snapshot that it goes on from.
var errBegun = errors.New("the log begins after entries that have been removed and there is no usable snapshot, so what it adds " +
	"up to cannot be known: restore Redis from a backup, or begin a new log (docs/operations.md, The log grows)")

// folded is a state that nobody sees yet, and what goes with it.
type folded struct {
	state  *projections.State
	recent tokenRing
	base   events.Position // of the snapshot that it began with; zero for the beginning of the log
	read   int             // records since
}

// fold applies everything that is in the log now: after what this process has applied before, or else after the
// newest usable snapshot, or from the beginning.
func (r *Replica) fold(ctx context.Context) error {
	r.mu.RLock()
	begun := !r.state.Position.IsZero()
	r.mu.RUnlock()
	if begun { // a later incarnation of this process: its state is good, the feed goes on from it
		err := r.fillGap(ctx)
		if errors.Is(err, errForked) {
			return r.rebuild(ctx, err)
		}
		return err
	}
	started := time.Now()
	f, err := r.foldAnew(ctx)
	if err != nil {
		return err
	}
	position := f.state.Position
	r.mu.Lock()
	r.state, r.recent = f.state, f.recent
	r.state.Observe()
	r.announce()
	r.mu.Unlock()
	r.sessions.followTo(position)
	r.metrics.Applied.Add(uint64(f.read))
	r.log.Info().Stringer("position", position).Stringer("snapshot", f.base).Int("events", f.read).
		Dur("took", time.Since(started)).Msg("log read")
	return nil
}

// maxFolds bounds how often a fold begins again because the log was trimmed and its snapshots replaced meanwhile.
const maxFolds = 5

// foldAnew makes the state that the log as it stands adds up to.
func (r *Replica) foldAnew(ctx context.Context) (*folded, error) {
	list, err := r.st.Snapshots(ctx)
	for try := 1; err == nil; try++ {
		f, failed := r.foldFrom(ctx, list)
		if !errors.Is(failed, errBegun) || try == maxFolds {
			return f, failed
		}
		before := list
		if list, err = r.st.Snapshots(ctx); err == nil && slices.Equal(before, list) {
			return f, failed
		}
	}
	return nil, err
}

// foldFrom takes the first usable snapshot, or else the beginning of the log.
func (r *Replica) foldFrom(ctx context.Context, list []store.Snapshot) (*folded, error) {
	for _, snap := range list {
		f, why, err := r.load(ctx, snap)
		if err != nil {
			return nil, err
		}
		if why == nil {
			why = r.readOn(ctx, f)
		}
		if why == nil {
			return f, nil
		}
		if !errors.Is(why, errUnusable) && !errors.Is(why, errGap) {
			return nil, why
		}
		r.log.Warn().Err(why).Str("snapshot", snap.ID).Stringer("position", snap.Position).
			Msg("a snapshot is discarded")
		r.metrics.Anomalies.With("snapshot-discarded").Inc()
	}
	f := &folded{state: r.cfg.Base()}
	err := r.readOn(ctx, f)
	if errors.Is(err, errGap) && f.read == 0 {
		return nil, errBegun
	}
	return f, err
}

// readOn applies what stands in the log after the state's position, as far as it continues the chain. When the store
// fails on the way it goes on from there.
func (r *Replica) readOn(ctx context.Context, f *folded) error {
	for {
		before := f.read
		err := r.scan(ctx, f)
		if f.read == before || ctx.Err() != nil || !errors.Is(err, store.ErrUnavailable) {
			return err
		}
	}
}

func (r *Replica) scan(ctx context.Context, f *folded) error {
	return r.st.Scan(ctx, f.state.Position, pageSize, func(records []events.Record) error {
		for _, rec := range records {
			if rec.Previous != f.state.Token {
				return fmt.Errorf("replica: %w after %s", errGap, f.state.Position)
			}
			f.state.Apply(rec)
			f.recent.add(rec)
			f.read++
		}
		return nil
	})
}

// errUnusable is a snapshot that the state cannot begin with.
var errUnusable = errors.New("it cannot be used")

// load gives the state of a snapshot, if that can be trusted; else why says why it cannot, which is errUnusable. A
// damaged one is removed as well, so that the log is not trimmed in reliance on it.
func (r *Replica) load(ctx context.Context, snap store.Snapshot) (f *folded, why, err error) {
	if snap.ID == "" {
		return nil, fmt.Errorf("%w: its manifest cannot be read", errUnusable), r.st.DropSnapshot(ctx, snap)
	}
	if snap.Schema > projections.SnapshotSchema {
		return nil, fmt.Errorf("%w: it is of schema %d, this program reads up to %d", errUnusable, snap.Schema, projections.SnapshotSchema), nil
	}
	holds, err := r.st.Holds(ctx, snap.Position, snap.Token)
	if err != nil {
		return nil, nil, err
	}
	if !holds {
		return nil, fmt.Errorf("%w: the log does not go on from it", errUnusable), nil
	}
	data, err := r.st.ReadSnapshot(ctx, snap)
	if errors.Is(err, store.ErrDamaged) {
		return nil, fmt.Errorf("%w: %w", errUnusable, err), r.st.DropSnapshot(ctx, snap)
	}
	if err != nil {
		return nil, nil, err
	}
	state, err := projections.Decode(data)
	if err == nil && (state.Position != snap.Position || state.Token != snap.Token) {
		err = errors.New("it holds another position than its manifest says")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnusable, err), r.st.DropSnapshot(ctx, snap)
	}
	f = &folded{state: state, base: state.Position}
	f.recent.add(events.Record{Position: state.Position, Token: state.Token})
	return f, nil, nil
}
