// Package replica is one running replica: it follows the log, executes commands against it, keeps its lease,
// acts on what is due and puts right what got lost.
//
// It promises that Execute returns only after this replica shows the change; that it never writes after it
// was declared lost; that a restart skips nothing and applies nothing twice. It never speaks to clients
// itself: sessions are given to it as Links.
package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// ErrInstanceTaken ends Run when another process runs under the same instance name.
var ErrInstanceTaken = errors.New("another replica runs under this instance name")

// Config is what a replica needs to know.
type Config struct {
	Instance string
	URL      string // where others and clients reach this replica; may be empty
	Graces   commands.Graces
	// Patience bounds every wait for the log, after which a command fails with STORE_UNAVAILABLE. Default 5 s.
	Patience time.Duration
	// LeaseTTL is how long after its last beat a replica counts as alive. Default 4 s; beats come 8 times as often.
	LeaseTTL time.Duration
	// Partitions of the data plane: as many as the namespace has. Default 1.
	Partitions int
	Keeping    Keeping
	// Secret is what all replicas of the namespace share. Default: one that they keep in the store.
	Secret string
	// Base makes the state that the log's first entry follows, for a log that is a part of another one. Default:
	// projections.New, for a log that is whole.
	Base func() *projections.State
	Log  zerolog.Logger
}

// Replica follows one namespace's log under one instance name. Its methods are safe for concurrent use.
type Replica struct {
	cfg Config
	st  *store.Store
	log zerolog.Logger

	mu          sync.RWMutex // guards what follows
	state       *projections.State
	head        events.Position // the furthest that the log is known to go
	generation  uint64          // counts rebuilds: positions of different generations do not compare
	moved       chan struct{}
	recent      tokenRing
	causes      map[ulid.ULID]*awaited // own appends whose entries have not all been seen
	former      int                    // generation that the replicas understood before a rebuild,
	formerUntil time.Time              // kept to until then
	formerRooms formerRooms            // what was known before a rebuild
	deferred    error                  // why the log cannot be followed further; nil if it can
	leasedUntil time.Time              // by this machine's clock; zero when that must be found out anew
	leasedFrom  events.Position        // the log's head when the lease was taken up

	life         atomic.Pointer[life] // the present incarnation; nil while starting
	appends      chan *pending
	changing     changing
	barriers     barrier
	sessions     *sessions
	due          dueQueue
	offset       atomic.Int64 // Redis's clock minus ours, ns
	healthy      atomic.Int64 // when the store last started to answer without fail, unix ns; 0 while it does not
	lastBeat     atomic.Int64 // unix ns of the last good beat
	suspect      atomic.Bool  // a beat saw a head that contradicts the state: the feed must look
	ready        chan struct{}
	readyOnce    sync.Once
	listeners    []Listener
	onSessionEnd func(pid string)
	metrics      Metrics
	owner        *owner // nil when nothing is attached
	keeper       keeper
	pace         pace // changed by tests alone
	careless     bool // set by tests alone: appends compare no versions
	digests      digests
	secret       atomic.Pointer[Secret] // never nil
	shared       shared
}

// Listener is told what happens to the projections. Its methods are called one at a time, in order, by the
// goroutine that follows the log, and must not block.
type Listener interface {
	// Applied comes after the records were applied, in the log's order.
	Applied(records []events.Record)
	// Changed comes after Applied, with what the records have changed, in order.
	Changed(changes []projections.Change)
	// Rebuilt comes after the whole state was made anew, because the log had lost or changed entries.
	Rebuilt()
	// Receive gets the messages of this replica's inbox in a partition, in order; for each partition it has a
	// goroutine of its own, besides. lost says that some before them are missing.
	Receive(partition int, messages []store.Message, lost bool)
	// Fenced comes when this incarnation has ended against its will: every call and connection of it is void.
	Fenced()
}

// Marker is a Listener that knows how far it has got in each partition. Its methods are called by the beats, besides the
// others.
type Marker interface {
	// Seen is the last message of the partition that it knows of, and does not doubt: each beat compares it with the
	// store, and that of the beat before. No epoch: none.
	Seen(partition int) store.Mark
	// Lost says that the store does not have what was Seen at this beat or the one before.
	Lost(partition int, seen store.Mark)
	// Reached says that Receive has been given whatever it is to be given of the partition up to the mark, also if that
	// was nothing. It is told only when there are several partitions.
	Reached(partition int, at store.Mark)
}

// Doubter is a Listener that wants to know when an inbox could not be read.
type Doubter interface {
	// Doubted comes before the next Receive of the partition, when the connection to the store has failed: what is
	// there now may be a store that has lost its last messages.
	Doubted(partition int)
}

// life is one incarnation of the replica.
type life struct {
	inbox    store.Inbox
	slot     atomic.Int32
	started  events.Position // guarded by Replica.mu; of its ReplicaStarted: the fence; changes only when the log was emptied
	consumed []atomic.Uint64 // of each partition, the sequence of the last inbox message handled
	looked   []store.Mark    // of each partition, what was last found in the store; the beats' own
	fenced   chan struct{}   // closed when it has ended
	once     sync.Once
}

func (l *life) end() { l.once.Do(func() { close(l.fenced) }) }

// New makes a replica that does nothing until Run.
func New(cfg Config, st *store.Store) *Replica {
	if cfg.Patience == 0 {
		cfg.Patience = 5 * time.Second
	}
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = 4 * time.Second
	}
	if cfg.Partitions == 0 {
		cfg.Partitions = 1
	}
	if cfg.Base == nil {
		cfg.Base = projections.New
	}
	cfg.Keeping.defaults()
	r := &Replica{
		cfg: cfg, st: st, log: cfg.Log.With().Str("instance", cfg.Instance).Logger(),
		state: cfg.Base(), moved: make(chan struct{}), causes: map[ulid.ULID]*awaited{},
		appends: make(chan *pending, maxWaiting), ready: make(chan struct{}), sessions: newSessions(),
		pace: pace{tick: keeperTick, trim: trimEvery, sweep: sweepEvery, inboxAge: inboxAge},
	}
	r.barriers.r = r
	r.secret.Store(firstSecret(cfg.Secret))
	r.due.wake = make(chan struct{}, 1)
	return r
}

// Listen adds a listener. Only before Run.
func (r *Replica) Listen(l Listener) { r.listeners = append(r.listeners, l) }

// Instance is the replica's stable name.
func (r *Replica) Instance() string { return r.cfg.Instance }

// Patience bounds every wait for the log.
func (r *Replica) Patience() time.Duration { return r.cfg.Patience }

// Graces are the graces this replica acts by.
func (r *Replica) Graces() commands.Graces { return r.cfg.Graces }

// View calls f with the present state. f must not keep it, block, or call the replica.
func (r *Replica) View(f func(*projections.State)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f(r.state)
}

// Now is the store's time, as far as this replica knows it.
func (r *Replica) Now() time.Time { return time.Now().Add(time.Duration(r.offset.Load())) }

// NewConnection makes the id of a connection. Its order is that of the store's clock, so that of two
// connections of a peer the later one is known, whatever the replicas' clocks say.
func (r *Replica) NewConnection() string {
	return ulid.MustNew(ulid.Timestamp(r.Now()), ulid.DefaultEntropy()).String()
}

// Self is the present incarnation's inbox and slot. ok is false while the replica starts.
func (r *Replica) Self() (in store.Inbox, slot int, ok bool) {
	l := r.life.Load()
	if l == nil {
		return store.Inbox{}, 0, false
	}
	return l.inbox, int(l.slot.Load()), true
}

// Partitions of the data plane.
func (r *Replica) Partitions() int { return r.cfg.Partitions }

// Ready is closed once the replica has caught up with the log and started for the first time.
func (r *Replica) Ready() <-chan struct{} { return r.ready }

// ReadyError says why the replica is not ready to serve; nil if it is.
func (r *Replica) ReadyError() error {
	l := r.life.Load()
	if l == nil {
		return errors.New("starting: not caught up with the log yet")
	}
	select {
	case <-l.fenced:
		return errors.New("this replica was declared lost and is starting anew")
	default:
	}
	r.mu.RLock()
	stuck := r.deferred
	r.mu.RUnlock()
	if stuck != nil {
		return stuck
	}
	if since := time.Since(time.Unix(0, r.lastBeat.Load())); since > r.cfg.LeaseTTL {
		return fmt.Errorf("the store has not answered for %s", since.Round(100*time.Millisecond))
	}
	if !r.Leased() { // it may have been declared lost, and not know it yet
		return errors.New("its lease had run out, or is not confirmed yet: reading what the log has since")
	}
	return nil
}

// Run starts the replica and keeps it going until ctx ends; then it ends its incarnation cleanly. After it
// was fenced it starts anew by itself. It returns nil after a clean end.
func (r *Replica) Run(ctx context.Context) error {
	if r.owner != nil {
		defer r.owner.run()()
	}
	for {
		l, err := r.boot(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped before it had begun
			}
			return err
		}
		err = r.live(ctx, l)
		r.life.Store(nil)
		r.endTenure()
		if err != nil || ctx.Err() != nil {
			return err
		}
		r.log.Warn().Str("incarnation", l.inbox.Incarnation).
			Msg("this replica was declared lost: its clients are closed and it starts anew")
		r.metrics.Fenced.Add(1)
		r.releaseLease(l)
		r.releaseKeep(l)
		r.dropInbox(ctx, l.inbox)
		for _, s := range r.sessions.reset() {
			s.Link.Reconnect(WhyFenced)
		}
		for _, li := range r.listeners {
			li.Fenced()
		}
	}
}

// live runs the goroutines of one incarnation until it is fenced or ctx ends.
func (r *Replica) live(ctx context.Context, l *life) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	errs := make(chan error, 8+r.cfg.Partitions)
	var group sync.WaitGroup
	start := func(f func(context.Context, *life) error) {
		group.Go(func() {
			if err := f(inner, l); err != nil && inner.Err() == nil {
				errs <- err
			}
		})
	}
	// The incarnation's own ReplicaStarted is appended and seen by these three.
	start(r.follow)
	start(r.appender)
	if err := r.begin(ctx, l); err != nil {
		cancel()
		group.Wait()
		r.releaseLease(l)
		return err
	}
	r.life.Store(l)
	if r.owner != nil {
		r.owner.resume()
	}
	start(r.beat)
	for p := range r.cfg.Partitions {
		start(func(ctx context.Context, l *life) error { return r.readInbox(ctx, l, p) })
	}
	start(r.actOnDue)
	start(r.reconcile)
	start(r.keep)
	r.readyOnce.Do(func() { close(r.ready) })
	r.log.Info().Str("incarnation", l.inbox.Incarnation).Int32("slot", l.slot.Load()).Msg("replica is ready")

	var err error
	stopped := false
	select {
	case <-l.fenced:
	case err = <-errs:
	case <-ctx.Done():
		stopped = r.stop(l)
	}
	cancel()
	group.Wait()
	r.failWaiting()
	if stopped {
		r.lastSnapshot(l)
	}
	return err
}

// boot takes the lease and reads the log up to its end. It waits, as long as ctx lets it, for a store that
// cannot be reached and for the lease of a dead predecessor to run out.
func (r *Replica) boot(ctx context.Context) (*life, error) {
	l := &life{
		inbox:  store.Inbox{Instance: r.cfg.Instance, Incarnation: ulid.Make().String()},
		fenced: make(chan struct{}), consumed: make([]atomic.Uint64, r.cfg.Partitions),
		looked: make([]store.Mark, r.cfg.Partitions),
	}
	if err := r.insist(ctx, "take the lease", func(ctx context.Context) error { return r.takeLease(ctx, l) }); err != nil {
		return nil, err
	}
	err := r.insist(ctx, "learn the secret of the replicas", r.shareSecret) // before anything is signed
	if err == nil {
		err = r.insist(ctx, "read the log", r.fold)
	}
	if err != nil {
		r.releaseLease(l)
		return nil, err
	}
	err = r.insist(ctx, "make the inbox", func(ctx context.Context) error {
		for p := range r.cfg.Partitions {
			in := l.inbox
			in.Partition = p
			if err := r.st.CreateInbox(ctx, in); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.releaseLease(l)
		return nil, err
	}
	return l, nil
}

// begin appends the incarnation's ReplicaStarted and waits until it is applied.
func (r *Replica) begin(ctx context.Context, l *life) error {
	return r.insist(ctx, "start the incarnation", func(ctx context.Context) error {
		preferred := -1
		if !r.fence(l).Started.IsZero() {
			preferred = int(l.slot.Load()) // the log was emptied: the calls in flight go on under their numbers
		}
		res, err := r.execute(ctx, commands.StartReplica{
			Instance: r.cfg.Instance, Incarnation: l.inbox.Incarnation, URL: r.cfg.URL,
			Understands: events.Generation, PreferredSlot: preferred, Silent: r.cfg.LeaseTTL,
		}, nil)
		if err != nil {
			return err
		}
		for _, e := range res.Decision.Events {
			if former, ok := e.(events.ReplicaLost); ok {
				r.dropInbox(ctx, store.Inbox{Instance: former.Instance, Incarnation: former.Incarnation})
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if live, ok := r.state.Replica(r.cfg.Instance); ok && live.Incarnation == l.inbox.Incarnation {
			l.slot.Store(int32(live.Slot))
			l.started = live.Started
			r.announce()
		}
		return nil
	})
}

// stop ends the incarnation cleanly, within the patience; false when that could not be recorded.
func (r *Replica) stop(l *life) bool {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Patience)
	defer cancel()
	_, err := r.Execute(ctx, commands.StopReplica{Instance: r.cfg.Instance, Incarnation: l.inbox.Incarnation})
	if err != nil {
		r.log.Warn().Err(err).Msg("could not record the clean end; the others will notice within the lease")
		return false
	}
	r.dropInbox(ctx, l.inbox)
	r.releaseLease(l)
	return true
}

// dropInbox removes the inboxes of an incarnation that has ended, so that nothing more is sent to it.
func (r *Replica) dropInbox(ctx context.Context, in store.Inbox) {
	for in.Partition = range r.cfg.Partitions {
		if err := r.st.DropInbox(ctx, in); err != nil {
			r.log.Debug().Err(err).Str("of", in.Instance).Msg("drop inbox")
		}
	}
}

// insist calls f until it succeeds, with growing pauses while the store cannot be reached. Any other error,
// and the end of ctx, end it.
func (r *Replica) insist(ctx context.Context, what string, f func(context.Context) error) error {
	pause := 50 * time.Millisecond
	var said time.Time
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, errUnsettled) && !errors.Is(err, store.ErrNotReplicated) {
			return fmt.Errorf("replica: %s: %w", what, err)
		}
		if time.Since(said) > 5*time.Second {
			r.log.Warn().Err(err).Msgf("cannot %s yet: waiting for the store", what)
			said = time.Now()
		}
		select {
		case <-time.After(pause + rand.N(pause)):
		case <-ctx.Done():
		}
		pause = min(pause*2, time.Second)
	}
}
