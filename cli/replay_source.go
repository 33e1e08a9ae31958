package cli

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

// source is a log that is only read.
type source interface {
	// now is the clock that ages are told by: Redis's, or the one at the time of the export.
	now() time.Time
	// base is a new copy of the latest state that is known without folding and not after a position; of the earliest
	// one if all are after it.
	base(ctx context.Context, notAfter events.Position) (*projections.State, error)
	// each gives the entries from one position to another, both included, in order, until f fails.
	each(ctx context.Context, from, to events.Position, f func(store.Entry) error) error
}

// replayPage is how many entries are read at a time; see pageSize in replica.
const replayPage = 1000

// liveSource is the log in Redis.
type liveSource struct {
	st    *store.Store
	clock time.Time
}

func newLiveSource(ctx context.Context, st *store.Store) (*liveSource, error) {
	now, err := st.Now(ctx)
	return &liveSource{st: st, clock: now}, err
}

func (l *liveSource) now() time.Time { return l.clock }

var errTrimmed = errors.New("the log begins after entries that have been removed, and there is no usable snapshot: what they added up to cannot be known")

// base begins with a snapshot, or with nothing if the log is whole. A snapshot that a replica would not use is passed
// over, and stays.
func (l *liveSource) base(ctx context.Context, notAfter events.Position) (*projections.State, error) {
	list, err := l.st.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, snap := range list { // the newest first
		if notAfter.Before(snap.Position) {
			continue
		}
		if state, err := l.load(ctx, snap); state != nil || err != nil {
			return state, err
		}
	}
	first, err := l.st.Entries(ctx, events.Position{}, store.Last, 1)
	if err != nil {
		return nil, err
	}
	if len(first) == 0 || first[0].Previous.IsZero() {
		return projections.New(), nil
	}
	for _, snap := range slices.Backward(list) {
		if state, err := l.load(ctx, snap); state != nil || err != nil {
			return state, err
		}
	}
	return nil, errTrimmed
}

// load is the state of a snapshot; nil if that cannot be used.
func (l *liveSource) load(ctx context.Context, snap store.Snapshot) (*projections.State, error) {
	if snap.ID == "" || snap.Schema > projections.SnapshotSchema {
		return nil, nil
	}
	if holds, err := l.st.Holds(ctx, snap.Position, snap.Token); !holds {
		return nil, err
	}
	data, err := l.st.ReadSnapshot(ctx, snap)
	if errors.Is(err, store.ErrDamaged) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state, err := projections.Decode(data)
	if err != nil || state.Position != snap.Position || state.Token != snap.Token {
		return nil, nil //nolint:nilerr // it cannot be used
	}
	return state, nil
}

func (l *liveSource) each(ctx context.Context, from, to events.Position, f func(store.Entry) error) error {
	for {
		page, err := l.st.Entries(ctx, from, to, replayPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := f(e); err != nil {
				return err
			}
			from = e.Position.Next()
		}
		if len(page) < replayPage {
			return nil
		}
	}
}

// folding gives entries of a log one after the other to the state that they change. It stops at what a replica would
// stop at: an entry that this build does not understand, and a break of the chain.
type folding struct {
	state *projections.State
}

func (f *folding) apply(e store.Entry) error {
	record, err := e.Record()
	if err != nil {
		return fmt.Errorf("what the log adds up to is not known from %s on: %w", e.Position, err)
	}
	if record.Previous != f.state.Token {
		return fmt.Errorf("what the log adds up to is not known from %s on: %w", e.Position, brokenChain(f.state.Position, e))
	}
	f.state.Apply(record)
	return nil
}

func brokenChain(after events.Position, e store.Entry) error {
	return fmt.Errorf("the chain is broken: the entry does not follow the one at %s (entries were removed, or Redis has lost or changed some)", after)
}

// foldTo is the state after the last entry that is not after a position.
func foldTo(ctx context.Context, src source, to events.Position) (*projections.State, error) {
	base, err := src.base(ctx, to)
	if err != nil {
		return nil, err
	}
	if to.Before(base.Position) {
		return nil, fmt.Errorf("%s is before what can be known: this log begins after %s", to, base.Position)
	}
	f := folding{state: base}
	err = src.each(ctx, base.Position.Next(), to, f.apply)
	return f.state, err
}

// before is the highest position before p.
func before(p events.Position) events.Position {
	switch {
	case p.IsZero():
		return p
	case p.Seq == 0:
		return events.Position{Ms: p.Ms - 1, Seq: store.Last.Seq}
	}
	return events.Position{Ms: p.Ms, Seq: p.Seq - 1}
}
