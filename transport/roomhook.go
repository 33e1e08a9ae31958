package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// RoomHookConfig says whom to tell of the rooms' owners.
type RoomHookConfig struct {
	URL     string // empty: nobody
	Key     string // of the signature
	Timeout time.Duration
	Log     zerolog.Logger
}

// MinRoomHookKey is how many bytes the key must have at least.
const MinRoomHookKey = 16

// Check finds what is wrong with the settings.
func (c RoomHookConfig) Check() error {
	if c.URL == "" {
		if c.Key != "" {
			return errors.New("--room-hook-key is given without --room-hook: set both, or neither")
		}
		return nil
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("--room-hook: want a URL such as https://media.example.com/rooms")
	case len(c.Key) < MinRoomHookKey:
		return fmt.Errorf("--room-hook needs --room-hook-key (HOLDFAST_ROOM_HOOK_KEY), a secret of %d bytes at least, which signs the calls",
			MinRoomHookKey)
	case c.Timeout <= 0:
		return errors.New("--room-hook-timeout must be more than 0, such as 5s")
	}
	return nil
}

const (
	// hookWorkers bounds the calls to the hook that one replica has under way.
	hookWorkers = 32
	// hookMargin is how much longer than a call may last nobody else speaks of its room: for the way to Redis and back.
	hookMargin = time.Second
	// hookBackoff is the pause after a first failure. It doubles up to maxHookBackoff, so that long after a hook that was
	// away is back its rooms may wait.
	hookBackoff    = 200 * time.Millisecond
	maxHookBackoff = 10 * time.Second
	// maxOwnBackoff bounds the pause while the store is away, or another replica is telling of the room.
	maxOwnBackoff = time.Second
	// hookSweepEvery is how often one replica looks for rooms whose end nobody tells.
	hookSweepEvery = 10 * time.Second
)

// RoomHook tells an HTTP server when this replica becomes the owner of a room, and when rooms end or move. It is the
// replica's RoomWork. What the server hears of one room, from whichever replica, is beginnings and ends in turn: see
// hookRecord.
//
// A former owner says nothing any more of a room that has moved; its next owner tells that end before its own
// beginning. The end of a room that was closed is told by the owner it had, or by the first of the
// live replicas if that is gone.
type RoomHook struct {
	rep    *replica.Replica
	log    zerolog.Logger
	call   hookCaller
	sweeps time.Duration // changed by tests alone

	mu    sync.Mutex // guards what follows
	root  context.Context
	rooms map[string]*hookRoom
	// ready are the rooms whose turn has come, each once: as many as there are rooms at most. Nothing is dropped. What
	// is new about a room that waits replaces what was, so a hook that is down costs memory for each room, not for
	// each change.
	ready   []*hookRoom
	running int
	group   sync.WaitGroup
	down    int // failures since the last call that succeeded

	seen map[string]string // records that the last sweep found without a room; belongs to Run
}

// hookRoom is one room that something is to be told of, or was.
type hookRoom struct {
	id       string
	fact     *hookFact          // nil when all is told
	told     *hookCall          // the beginning that this replica has told last, until its end
	busy     bool               // in ready, or with a worker
	cancel   context.CancelFunc // of what a worker does; nil when none does
	retry    *time.Timer        // nil when none is set
	failures int
}

// hookFact is what this replica knows of a room and is entitled to tell: that it is the owner, or that the room had this
// owner when it ended.
type hookFact struct {
	replica.Ownership
	closed bool
	reason string
}

// NewRoomHook makes the hook and attaches it to the replica, which must not run yet.
func NewRoomHook(rep *replica.Replica, cfg RoomHookConfig) *RoomHook {
	h := &RoomHook{
		rep: rep, log: cfg.Log.With().Str("instance", rep.Instance()).Logger(), call: newHookCaller(cfg),
		sweeps: hookSweepEvery, root: context.Background(), rooms: map[string]*hookRoom{},
	}
	rep.Attach(h)
	return h
}

// Run looks for what nobody tells, as long as it is this replica's turn, until ctx ends. Then it ends the calls that
// are under way and returns; what has not been told is for the others, or the next start.
func (h *RoomHook) Run(ctx context.Context) {
	root, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	h.root = root
	h.mu.Unlock()
	tick := time.NewTicker(h.sweeps)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if h.rep.Leased() && h.first() {
				if err := h.sweep(ctx); err != nil && ctx.Err() == nil {
					h.log.Debug().Err(err).Msg("look for rooms whose end the room hook was not told")
				}
			}
		case <-ctx.Done():
			cancel()
			h.mu.Lock()
			for _, x := range h.rooms {
				x.fact = nil
				if x.retry != nil {
					x.retry.Stop()
				}
			}
			h.mu.Unlock()
			h.group.Wait()
			h.call.close()
			return
		}
	}
}

// Opened has the hook told.
func (h *RoomHook) Opened(_ context.Context, o replica.Ownership) { h.set(hookFact{Ownership: o}) }

// MovedHere has the hook told.
func (h *RoomHook) MovedHere(_ context.Context, o, _ replica.Ownership) {
	h.set(hookFact{Ownership: o})
}

// MovedAway stops telling: the room's next owner does.
func (h *RoomHook) MovedAway(_ context.Context, o replica.Ownership) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.rooms[o.Room]; x != nil && (x.fact == nil || !o.Token.Before(x.fact.Token)) {
		x.fact, x.told = nil, nil
		if x.cancel != nil {
			x.cancel()
		}
		h.enqueue(x)
	}
}

// Closed has the hook told.
func (h *RoomHook) Closed(_ context.Context, o replica.Ownership, reason string) {
	h.set(hookFact{Ownership: o, closed: true, reason: reason})
}

// set makes the fact the one to tell. One that is being told is told to its end first.
func (h *RoomHook) set(f hookFact) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.root.Err() != nil {
		return
	}
	x := h.rooms[f.Room]
	if x == nil {
		x = &hookRoom{id: f.Room}
		h.rooms[f.Room] = x
	}
	x.fact = &f
	h.enqueue(x)
}

// enqueue gives a room its turn now. The caller holds mu.
func (h *RoomHook) enqueue(x *hookRoom) {
	if x.retry != nil {
		x.retry.Stop()
		x.retry = nil
	}
	if x.busy {
		return
	}
	if x.fact == nil {
		if x.told == nil {
			delete(h.rooms, x.id)
		}
		return
	}
	x.busy = true
	h.ready = append(h.ready, x)
	if h.running < hookWorkers {
		h.running++
		h.group.Go(h.serve)
	}
}

// serve tells what there is to tell.
func (h *RoomHook) serve() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.ready) > 0 {
		x := h.ready[0]
		h.ready = h.ready[1:]
		f := x.fact
		if f == nil || h.root.Err() != nil {
			x.busy = false
			h.enqueue(x)
			continue
		}
		ctx, cancel := context.WithCancel(h.root)
		x.cancel = cancel
		told := x.told
		h.mu.Unlock()
		now, err := h.tell(ctx, *f, told)
		cancel()
		h.mu.Lock()
		x.busy, x.cancel = false, nil
		h.told(x, f, now, err)
	}
	h.running--
}

// told notes what came of telling a fact. The caller holds mu.
func (h *RoomHook) told(x *hookRoom, f *hookFact, open *hookCall, err error) {
	if err == nil {
		x.failures = 0
		if x.fact == f {
			x.fact, x.told = nil, open
		}
		h.enqueue(x)
		return
	}
	var failed *hookFailure
	most := maxOwnBackoff
	if errors.As(err, &failed) && failed.outcome != hookCancelled {
		most = maxHookBackoff
		if h.down++; h.down == 1 {
			h.log.Warn().Err(err).Str("room", x.id).Msg("the room hook fails; its calls are tried again")
		}
	}
	pause := min(hookBackoff<<min(x.failures, 10), most)
	pause = pause/2 + rand.N(pause/2) // so that the rooms do not come back in step
	x.failures++
	if x.fact != f || h.root.Err() != nil {
		h.enqueue(x) // something else is to be told now
		return
	}
	x.retry = time.AfterFunc(pause, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.enqueue(x)
	})
}

var (
	// errHookNotNow: this replica may not speak of the room now, or cannot. Its owner's work says when that is final.
	errHookNotNow = errors.New("not this replica's turn")
	errHookHeld   = errors.New("another replica tells of this room")
)

// tell brings the room's record up to date with the fact and makes the calls that are pending in it. It returns the
// beginning that was told last and has no end yet. told is what it returned before: what to believe if the store has
// lost the record.
func (h *RoomHook) tell(ctx context.Context, f hookFact, told *hookCall) (open *hookCall, err error) {
	fence, who, ok := h.rep.Fence()
	if !ok || !h.entitled(f) {
		return nil, errHookNotNow
	}
	raw, held, err := h.rep.Store().TakeHook(ctx, f.Room, who, fence, h.call.timeout+hookMargin)
	if err != nil {
		return nil, err
	}
	if held > 0 {
		return nil, errHookHeld
	}
	r := readHookRecord(raw)
	if r.empty() && told != nil {
		r.Open = told
	}
	give := func() error { // back to others, also when ctx has ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.rep.Patience())
		defer cancel()
		return h.put(ctx, f.Room, who, r, 0)
	}
	current, err := h.plan(&r, f)
	if err != nil || !current {
		return nil, errors.Join(err, give())
	}
	for err == nil && len(r.Pending) > 0 {
		until := time.Now().Add(h.call.timeout)
		tried := r.Tried
		r.Tried = true
		if err = h.put(ctx, f.Room, who, r, h.call.timeout+hookMargin); err != nil {
			break
		}
		if !h.entitled(f) { // after a pause of this process that took it all its time
			r.Tried, err = tried, errHookNotNow
			break
		}
		if err = h.call.do(ctx, until, f.Room, r.Pending[0]); err == nil {
			r.done()
			h.works()
		}
	}
	if errors.Is(err, errHookTaken) {
		return nil, err
	}
	return r.Open, errors.Join(err, give())
}

// plan puts the fact into the record; false when another replica knows better.
func (h *RoomHook) plan(r *hookRecord, f hookFact) (current bool, err error) {
	now := h.rep.Now().UTC().Truncate(time.Millisecond)
	if f.closed {
		return r.close(f.Token, f.reason, now), nil
	}
	var c hookCall
	var opened events.Position
	h.rep.View(func(s *projections.State) { c, opened, _ = hookBeginning(s, f.Room) })
	if c.Token != f.Token || c.Instance != f.Instance {
		return false, errHookNotNow
	}
	return r.begin(c, opened, now), nil
}

// entitled says whether this replica may speak: as the owner, or of a room that has ended.
func (h *RoomHook) entitled(f hookFact) bool {
	if f.closed {
		return h.rep.Leased()
	}
	return h.rep.Owns(f.Ownership)
}

var errHookTaken = errors.New("another replica has begun to tell of this room")

func (h *RoomHook) put(ctx context.Context, room string, who store.Inbox, r hookRecord, ttl time.Duration) error {
	var raw []byte
	if !r.empty() {
		var err error
		if raw, err = json.Marshal(r); err != nil {
			return err
		}
	}
	ok, err := h.rep.Store().PutHook(ctx, room, who, raw, ttl)
	if err == nil && !ok {
		return errHookTaken
	}
	return err
}

func readHookRecord(raw []byte) (r hookRecord) {
	if len(raw) > 0 && json.Unmarshal(raw, &r) != nil {
		return hookRecord{} // not ours: the room is told anew
	}
	return r
}

// works notes that a call has succeeded.
func (h *RoomHook) works() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down > 0 {
		h.log.Info().Int("failures", h.down).Msg("the room hook answers again")
		h.down = 0
	}
}

// first says whether this replica's name is the first of those that live. Two that disagree about it do no harm: a
// room's record lets one at a time speak.
func (h *RoomHook) first() (first bool) {
	h.rep.View(func(s *projections.State) {
		first = true
		for o := range s.Replicas() {
			first = first && o.Instance >= h.rep.Instance()
		}
	})
	return first
}

// sweep finds rooms that have ended and whose end nobody tells: because their owner has died, or was passed over. A
// live owner is given the time between two sweeps.
func (h *RoomHook) sweep(ctx context.Context) error {
	records := map[string]string{}
	err := h.rep.Store().HookRecords(ctx, func(room string, record []byte) { records[room] = string(record) })
	if err != nil || len(records) == 0 {
		h.seen = nil
		return err
	}
	if err := h.rep.CatchUp(ctx); err != nil { // so that the state knows every token that was read
		return err
	}
	seen := map[string]string{}
	var ended []hookFact
	h.rep.View(func(s *projections.State) {
		for id, raw := range records {
			if room := s.Room(id); room != nil && room.Open {
				continue
			}
			r := readHookRecord([]byte(raw))
			f := hookFact{Ownership: replica.Ownership{Room: id, Token: r.latest()}, closed: true}
			var by string
			if r.Open != nil {
				by = r.Open.Instance
			} else if n := len(r.Pending); n > 0 {
				by = r.Pending[n-1].Instance
			}
			before, known := h.seen[id]
			if _, lives := s.Replica(by); lives && !(known && before == raw) {
				seen[id] = raw
				continue
			}
			ended = append(ended, f)
		}
	})
	h.seen = seen
	for _, f := range ended {
		h.mu.Lock()
		x := h.rooms[f.Room]
		acting := x != nil && x.fact != nil
		h.mu.Unlock()
		if !acting {
			h.set(f)
		}
	}
	return nil
}

// waiting is how many rooms have something that was not told.
func (h *RoomHook) waiting() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.rooms {
		if x.fact != nil {
			n++
		}
	}
	return n
}
