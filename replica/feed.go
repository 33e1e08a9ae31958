package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

const (
	pageSize = 1000 // records read at a time; the figure at which Redis's streams read fastest
	// feedBlock bounds how long entries can go unnoticed that the group has skipped and nothing follows.
	feedBlock = 500 * time.Millisecond
)

// errGap and errForked are what the chain of tokens tells: entries are missing between what was applied and
// what was read, or what was applied is not in the log any more.
var (
	errGap    = errors.New("entries are missing in the log as it was read")
	errForked = errors.New("the log no longer holds what was applied")
)

// fillGap applies what stands in the log after the position reached, by plain reads.
func (r *Replica) fillGap(ctx context.Context) error {
	for {
		records, err := r.st.Range(ctx, r.position(), pageSize)
		if len(records) > 0 {
			if err := r.ingest(records); err != nil {
				return errForked // a plain read has no gaps: another history follows ours
			}
		}
		if err != nil || len(records) < pageSize {
			return err
		}
	}
}

// follow is the feed: it reads the log through the replica's own consumer group and applies it, until its
// incarnation ends.
func (r *Replica) follow(ctx context.Context, l *life) error {
	if _, err := r.st.EnsureGroup(ctx, r.cfg.Instance, r.position()); err == nil {
		if n, err := r.st.AckPending(ctx, r.cfg.Instance); err == nil && n > 0 {
			r.log.Info().Int("entries", n).Msg("a former run had read these without acknowledging them; they are applied")
		}
	}
	for pause := time.Duration(0); ctx.Err() == nil; {
		records, err := r.st.ReadGroup(ctx, r.cfg.Instance, pageSize, feedBlock)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of the incarnation is no failure
		}
		if len(records) > 0 {
			if e := r.take(ctx, records); e != nil {
				err = errors.Join(err, e)
			}
		}
		if err == nil && (r.suspect.Swap(false) || len(records) == 0 && r.behind()) {
			err = r.recheck(ctx)
		}
		switch {
		case err == nil:
			pause = 0
			continue
		case errors.Is(err, events.ErrUnknown), errors.Is(err, store.ErrDamaged):
			r.defer_(fmt.Errorf("cannot follow the log: %w", err), "not-understood",
				"not ready: the log goes on with what this version of the program does not know; a newer version is needed")
		case errors.Is(err, store.ErrNoGroup):
			r.log.Warn().Msg("the log or this replica's consumer group has vanished: checking the log and making it again")
			r.metrics.Anomalies.With("group-vanished").Inc()
			err = r.recheck(ctx)
		default:
			// The reply may have been lost after Redis moved the group's cursor: plain reads find what it held.
			err = r.recheck(ctx)
		}
		if err != nil && ctx.Err() == nil {
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// noteHead remembers how far the log is known to go.
func (r *Replica) noteHead(at events.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.head.Before(at) {
		r.head = at
	}
}

// behind reports whether the log is known to go further than what was applied.
func (r *Replica) behind() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state.Position.Before(r.head)
}

// recheck makes sure that the state belongs to the log as it stands, and that the group exists.
func (r *Replica) recheck(ctx context.Context) error {
	head, err := r.st.Head(ctx)
	if err != nil {
		return err
	}
	if err := r.checkHead(head); err != nil {
		return r.rebuild(ctx, err)
	}
	if err := r.fillGap(ctx); err != nil {
		if errors.Is(err, errForked) {
			return r.rebuild(ctx, err)
		}
		return err
	}
	_, err = r.st.EnsureGroup(ctx, r.cfg.Instance, r.position())
	return err
}

// checkHead compares the log's head with what was applied: a head before it, or another token at it, is
// another history.
func (r *Replica) checkHead(head store.Head) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch head.Position.Compare(r.state.Position) {
	case -1:
		return fmt.Errorf("%w: its head %s is before %s", errForked, head.Position, r.state.Position)
	case 0:
		if head.Token != r.state.Token {
			return fmt.Errorf("%w: another entry stands at %s", errForked, head.Position)
		}
	}
	return nil
}

// take applies what the group delivered and acknowledges it; a broken chain is read anew or rebuilt.
func (r *Replica) take(ctx context.Context, records []events.Record) error {
	err := r.ingest(records)
	if errors.Is(err, errGap) {
		r.log.Warn().Stringer("position", r.position()).Msg("a read of the log had a gap: reading it again")
		r.metrics.Anomalies.With("gap").Inc()
		err = r.fillGap(ctx)
	}
	if errors.Is(err, errForked) {
		err = r.rebuild(ctx, err)
	}
	if err != nil {
		return err
	}
	positions := make([]events.Position, len(records))
	for i, rec := range records {
		positions[i] = rec.Position
	}
	return r.st.Ack(ctx, r.cfg.Instance, positions)
}

// ingest applies the records that come after the present position, as far as they continue the chain, and
// tells the listeners.
func (r *Replica) ingest(records []events.Record) error {
	r.mu.Lock()
	fresh := records[:0:0]
	var err error
	for _, rec := range records {
		if !r.state.Position.Before(rec.Position) {
			if r.recent.contradicts(rec) {
				err = errForked
				break
			}
			continue // read before, by a plain read
		}
		if rec.Previous != r.state.Token {
			err = errGap
			break
		}
		r.state.Apply(rec)
		r.recent.add(rec)
		if own, ok := r.causes[rec.Cause]; ok && own.applied(rec.Position) {
			delete(r.causes, rec.Cause)
		}
		fresh = append(fresh, rec)
	}
	changes := r.state.Changes()
	if len(fresh) > 0 {
		r.deferred = nil
		r.noteDue(fresh)
		r.noteOwnEnd(fresh)
		r.announce()
	}
	r.mu.Unlock()
	if len(fresh) > 0 {
		r.metrics.Applied.Add(uint64(len(fresh)))
		for _, li := range r.listeners {
			li.Applied(fresh)
			if len(changes) > 0 {
				li.Changed(changes)
			}
		}
		r.sessions.follow(fresh)
		r.mu.Lock()
		r.announce() // to those who wait for the sessions to have followed
		r.mu.Unlock()
		if ended(fresh) { // not before the clients are told: it is long, and no deadline is near
			r.scheduleAll()
		}
	}
	return err
}

// announce wakes everybody who waits for the state to move. The caller holds mu.
func (r *Replica) announce() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// noteOwnEnd fences this incarnation when an event has ended it. The caller holds mu: nobody sees a state without this
// incarnation and takes it for one that the log has lost.
func (r *Replica) noteOwnEnd(records []events.Record) {
	l := r.life.Load()
	if l == nil {
		return
	}
	for _, rec := range records {
		var incarnation string
		switch e := rec.Event.(type) {
		case events.ReplicaLost:
			incarnation = e.Incarnation
		case events.ReplicaStopped:
			incarnation = e.Incarnation
		}
		if incarnation == l.inbox.Incarnation {
			l.end()
		}
	}
}

// rebuild replaces the state by a fold of the log as it stands now, and has what this replica knows of its
// own sessions recorded again.
func (r *Replica) rebuild(ctx context.Context, why error) error {
	r.mu.RLock()
	stuck := r.deferred != nil
	r.mu.RUnlock()
	if !stuck { // else it was said, and is tried again and again
		r.log.Warn().Err(why).Msg("rebuilding the state from the log as it stands")
		r.metrics.Anomalies.With("rebuilt").Inc()
	}
	f, err := r.foldAnew(ctx)
	if errors.Is(err, errGap) || errors.Is(err, errBegun) {
		err = fmt.Errorf("cannot follow the log: rebuild: %w", err)
		r.defer_(err, "trimmed", "not ready: the log was trimmed past this replica and cannot be folded from its beginning")
	}
	if err != nil {
		return err
	}
	state, position := f.state, f.state.Position
	if err := r.st.DestroyGroup(ctx, r.cfg.Instance); err != nil {
		return err
	}
	if _, err := r.st.EnsureGroup(ctx, r.cfg.Instance, position); err != nil {
		return err
	}
	r.mu.Lock()
	r.rememberRoster()
	r.rememberRooms()
	changes := projections.Diff(r.state, state)
	r.state = state
	r.state.Observe()
	r.deferred = nil
	r.generation++
	r.head = events.Position{}
	r.leasedUntil, r.leasedFrom = time.Time{}, events.Position{} // positions of the former log mean nothing
	r.recent = f.recent
	if l := r.life.Load(); l != nil {
		if live, ok := r.state.Replica(r.cfg.Instance); ok && live.Incarnation != l.inbox.Incarnation {
			l.end()
		}
	}
	r.announce()
	r.mu.Unlock()
	r.sessions.followTo(position)
	r.scheduleAll()
	for _, li := range r.listeners {
		li.Rebuilt()
		if len(changes) > 0 {
			li.Changed(changes)
		}
	}
	r.sessions.nudge()
	return nil
}

// defer_ stops following, as long as it is so: what comes next in the log is not understood or missing, and must
// not be skipped. It is said once, with the message, and counted as an anomaly of the kind.
func (r *Replica) defer_(why error, kind, message string) {
	r.mu.Lock()
	first := r.deferred == nil
	r.deferred = why
	r.mu.Unlock()
	if first {
		r.log.Error().Err(why).Msg(message)
		r.metrics.Anomalies.With(kind).Inc()
	}
}

// tokenRing remembers the last records applied, to tell a record read twice from another one that took the
// same position after a failover.
type tokenRing struct {
	at     [4096]events.Position
	tokens [4096]ulid.ULID
	next   int
}

func (t *tokenRing) add(rec events.Record) {
	t.at[t.next], t.tokens[t.next] = rec.Position, rec.Token
	t.next = (t.next + 1) % len(t.at)
}

func (t *tokenRing) contradicts(rec events.Record) bool {
	for i, at := range t.at {
		if at == rec.Position {
			return t.tokens[i] != rec.Token
		}
	}
	return false
}
