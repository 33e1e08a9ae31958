package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

const (
	maxTries   = 16   // decisions of one command that lose to others before it fails with CONFLICT
	maxWaiting = 4096 // commands waiting to be appended; more of them wait at the door, within their patience
)

var (
	// ErrFenced: this incarnation has ended; nothing more can be written by it.
	ErrFenced = errors.New("this replica was declared lost and is starting anew")
	// errUnsettled: the fate of an append could not be found out within the patience.
	errUnsettled = errors.New("the log did not answer in time")
)

// Result is what came of a command.
type Result struct {
	Decision commands.Decision
	// Position is that of the last event appended; zero when nothing had to change.
	Position events.Position
}

// Execute decides the command, appends what was decided and returns once this replica has applied it. It is
// the one place that retries: a lost race is decided again on the newer state, a refusal for want of
// something is decided again after catching up. The error is a *commands.Refusal.
func (r *Replica) Execute(ctx context.Context, c commands.Command) (Result, error) {
	l := r.life.Load()
	if l == nil {
		return Result{}, &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "this replica is starting"}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Patience)
	defer cancel()
	res, err := r.execute(ctx, c, l)
	var refusal *commands.Refusal
	switch {
	case err == nil, errors.As(err, &refusal):
	case errors.Is(err, store.ErrNotReplicated):
		r.metrics.Unreplicated.Add(1)
		err = &commands.Refusal{
			Code: commands.CodeStoreUnavailable,
			Text: "The change was written, but no replica of the store has confirmed it in time: a failover may lose it",
		}
	case errors.Is(err, ErrFenced):
		err = &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: err.Error()}
	default:
		r.metrics.Unavailable.Add(1)
		r.log.Debug().Err(err).Type("command", c).Msg("command failed")
		err = &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "The log cannot be reached"}
	}
	return res, err
}

// execute is Execute without its bounds and codes. Without a life it appends unfenced: only the append that
// starts an incarnation may do so.
func (r *Replica) execute(ctx context.Context, c commands.Command, l *life) (Result, error) {
	id := ulid.Make()
	caughtUp := false
	pause := 50 * time.Millisecond
	var changing change
	defer func() { r.changing.end(&changing) }()
	for try := 0; try < maxTries; {
		r.changing.end(&changing) // only now: what it lost against, if it did, has been applied
		d, app, generation, before, err := r.decide(c, id, &changing)
		var refusal *commands.Refusal
		// That nothing needs to change is trusted only on the newest state: what was so may be so no longer.
		unsure := d.Doubt || errors.As(err, &refusal) && refusal.Doubt || err == nil && len(d.Events) == 0
		if unsure && !caughtUp {
			if err := r.CatchUp(ctx); err != nil {
				return Result{}, err
			}
			caughtUp = true
			continue
		}
		if err == nil && len(d.Events) == 0 {
			// What is so already may have been written by a command that failed for want of a replica.
			return Result{Decision: d}, r.confirm(ctx, generation)
		}
		if err != nil {
			return Result{Decision: d}, err
		}
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
				return Result{}, errUnsettled
			}
			continue
		}
		fence := r.fence(l)
		verdict, err := r.append(ctx, app, generation, fence)
		switch {
		case errors.Is(err, store.ErrUnavailable): // certainly not written; the store may take it in a moment
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return Result{}, err
			}
			pause = min(2*pause, 500*time.Millisecond)
			continue
		case err != nil:
			return Result{}, err
		case verdict.Fenced:
			if err := r.awaitFence(ctx, l, fence); err != nil {
				return Result{}, err
			}
			continue
		case verdict.Conflict != nil:
			try++
			r.metrics.Conflicts.Add(1)
			if err := r.awaitConflict(ctx, generation, *verdict.Conflict); err != nil {
				return Result{}, err
			}
			continue
		}
		r.metrics.Appended.Add(uint64(len(app.Events)))
		last := verdict.Positions[len(verdict.Positions)-1]
		if err := r.await(ctx, generation, last); err != nil {
			return Result{}, err
		}
		return Result{Decision: d, Position: last}, nil
	}
	return Result{}, &commands.Refusal{Code: commands.CodeConflict, Text: "Too many others change the same thing; try again"}
}

// fence is what an append of this life is checked against.
func (r *Replica) fence(l *life) store.Fence {
	f := store.Fence{Instance: r.cfg.Instance}
	if l != nil {
		r.mu.RLock()
		f.Started = l.started
		r.mu.RUnlock()
	}
	return f
}

// awaitFence tells the two reasons of a fenced append apart. Either this incarnation was ended by an event:
// ErrFenced. Or the log has lost its start (it was emptied or rolled back): wait until it is known again.
func (r *Replica) awaitFence(ctx context.Context, l *life, refused store.Fence) error {
	if err := r.CatchUp(ctx); err != nil {
		return err
	}
	ended := false
	err := r.awaitState(ctx, func(*projections.State, uint64) bool {
		select {
		case <-l.fenced:
			ended = true
		default:
		}
		return ended || l.started != refused.Started
	})
	if ended {
		return ErrFenced
	}
	return err
}

// decide runs the command on the present state and notes the versions that it read. What it is to change is noted in
// mine in the same view of the state: a change that has ended shows in what is decided, and one that has not is waited
// for. before is the end of that, or nil.
func (r *Replica) decide(c commands.Command, id ulid.ULID, mine *change) (d commands.Decision, app store.Append, generation uint64, before <-chan struct{}, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d, err = c.Decide(r.state)
	app = store.Append{Command: id, Events: d.Events}
	for _, a := range d.Reads {
		app.Checks = append(app.Checks, store.Check{Aggregate: a, Version: r.state.Version(a)})
	}
	if err == nil {
		err = r.suit(&app)
	}
	if r.careless {
		app.Checks = nil
	}
	if err == nil && len(app.Events) > 0 {
		*mine, before = r.changing.begin(app)
	}
	return d, app, r.generation, before, err
}

// pending is an append that waits for its turn.
type pending struct {
	app   store.Append
	fence store.Fence
	done  chan settled // buffered
}

type settled struct {
	verdict store.Verdict
	err     error
}

// append hands one decision to the appender. An append whose answer was lost is settled by looking for its
// command in the log, never by repeating it blindly. With an error of store.ErrUnavailable it was not written;
// with errUnsettled nobody knows.
func (r *Replica) append(ctx context.Context, app store.Append, generation uint64, fence store.Fence) (store.Verdict, error) {
	own := &awaited{left: len(app.Events), seen: make(chan struct{})}
	r.mu.Lock()
	r.causes[app.Command] = own
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.causes, app.Command)
		r.mu.Unlock()
	}()
	p := &pending{app: app, fence: fence, done: make(chan settled, 1)}
	select {
	case r.appends <- p:
	case <-ctx.Done():
		return store.Verdict{}, errUnsettled
	}
	var s settled
	select {
	case s = <-p.done:
	case <-early(own.seen, !r.st.Replicated()): // applied before the answer came, or although it was lost
		return own.verdict(), nil
	case <-ctx.Done():
		return store.Verdict{}, errUnsettled
	}
	if s.err == nil || !errors.Is(s.err, store.ErrUnavailable) || errors.Is(s.err, store.ErrRefused) {
		return s.verdict, s.err
	}
	// Ambiguous. Once the log's head can be read, everything up to it tells.
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := r.CatchUp(ctx)
		select {
		case <-own.seen:
			return own.verdict(), r.confirm(ctx, generation)
		default:
		}
		if err == nil {
			return store.Verdict{}, s.err // not written
		}
		select {
		case <-own.seen:
			return own.verdict(), r.confirm(ctx, generation)
		case <-time.After(pause):
		case <-ctx.Done():
			return store.Verdict{}, errUnsettled
		}
	}
}

// awaited is an own append until all its events have been applied.
type awaited struct {
	left int // events to be applied; guarded by Replica.mu
	at   events.Position
	seen chan struct{} // closed when at is that of the last event
}

// applied counts an event that was applied; true after the last one. The caller holds Replica.mu.
func (a *awaited) applied(at events.Position) bool {
	a.left--
	if a.left > 0 {
		return false
	}
	a.at = at
	close(a.seen)
	return true
}

// verdict stands for that of an append whose events have been applied already. Its position is that of its own last
// event, not a later one that the replica shows by now: a client takes it for the version that its change has made.
func (a *awaited) verdict() store.Verdict {
	return store.Verdict{Positions: []events.Position{a.at}}
}

// appender groups waiting appends into one script call each; one call is under way at a time, so groups grow
// under load by themselves.
func (r *Replica) appender(ctx context.Context, _ *life) error {
	for {
		var first *pending
		select {
		case first = <-r.appends:
		case <-ctx.Done():
			return nil
		}
		batch := []*pending{first}
	fill:
		for len(batch) < store.MaxGroup {
			select {
			case p := <-r.appends:
				if p.fence != first.fence {
					r.flush(ctx, batch)
					batch, first = nil, p
				}
				batch = append(batch, p)
			default:
				break fill
			}
		}
		r.flush(ctx, batch)
	}
}

func (r *Replica) flush(ctx context.Context, batch []*pending) {
	group := make([]store.Append, len(batch))
	for i, p := range batch {
		group[i] = p.app
	}
	verdicts, err := r.st.Append(ctx, batch[0].fence, group)
	r.metrics.Groups.Add(1)
	for i, p := range batch {
		switch {
		case errors.Is(err, store.ErrNotReplicated) && verdicts[i].Positions == nil: // refused, so nothing to lose
			p.done <- settled{verdict: verdicts[i]}
		case err != nil:
			p.done <- settled{err: err}
		default:
			p.done <- settled{verdict: verdicts[i]}
		}
	}
}

// failWaiting answers the appends that nobody will take any more.
func (r *Replica) failWaiting() {
	for {
		select {
		case p := <-r.appends:
			p.done <- settled{err: ErrFenced}
		default:
			return
		}
	}
}

// position is that of the last record applied.
func (r *Replica) position() events.Position {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state.Position
}

// await waits until the state includes the position, or has been rebuilt.
func (r *Replica) await(ctx context.Context, generation uint64, at events.Position) error {
	return r.awaitState(ctx, func(s *projections.State, g uint64) bool {
		return g != generation || !s.Position.Before(at)
	})
}

// awaitConflict waits until the state shows what the append lost against.
func (r *Replica) awaitConflict(ctx context.Context, generation uint64, c store.Conflict) error {
	if !c.Actual.IsZero() {
		return r.await(ctx, generation, c.Actual)
	}
	return r.CatchUp(ctx) // the aggregate has ended, or the append was lost: nothing names the position
}

func (r *Replica) awaitState(ctx context.Context, reached func(*projections.State, uint64) bool) error {
	return r.awaitStateAnd(ctx, nil, reached)
}

// awaitStateAnd is awaitState that holds another lock while it looks. That must be one that is taken before mu; nil is
// none.
func (r *Replica) awaitStateAnd(ctx context.Context, other sync.Locker, reached func(*projections.State, uint64) bool) error {
	for {
		if other != nil {
			other.Lock()
		}
		r.mu.RLock()
		ok, moved := reached(r.state, r.generation), r.moved
		r.mu.RUnlock()
		if other != nil {
			other.Unlock()
		}
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return errUnsettled
		}
	}
}

// CatchUp returns once this replica has applied everything that was in the log when CatchUp was called.
// Callers that arrive together share one look at the log's head. It fails when that takes longer than the
// patience.
func (r *Replica) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Patience)
	defer cancel()
	return r.barriers.wait(ctx)
}

// barrier shares looks at the head: whoever arrives while one is under way waits for the next, since the one
// under way may have looked too early for him.
type barrier struct {
	r       *Replica
	mu      sync.Mutex
	running bool
	next    *look
}

type look struct {
	done chan struct{}
	head store.Head
	gen  uint64
	err  error
}

func (b *barrier) wait(ctx context.Context) error {
	b.mu.Lock()
	if b.next == nil {
		b.next = &look{done: make(chan struct{})}
	}
	mine := b.next
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		return errUnsettled
	}
	if mine.err != nil {
		return mine.err
	}
	return b.r.await(ctx, mine.gen, mine.head.Position)
}

// run takes looks until nobody waits. It ends by itself: each look is bounded by the store's timeout.
func (b *barrier) run() {
	for {
		b.mu.Lock()
		l := b.next
		b.next = nil
		if l == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.r.mu.RLock()
		l.gen = b.r.generation
		b.r.mu.RUnlock()
		ctx, cancel := context.WithTimeout(context.Background(), b.r.cfg.Patience)
		l.head, l.err = b.r.st.Head(ctx)
		cancel()
		b.r.noteHead(l.head.Position)
		close(l.done)
	}
}
