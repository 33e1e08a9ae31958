package hammer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// RoomsOptions describe a run of joins.
type RoomsOptions struct {
	URLs     []string // the peers of a room connect to them in turn
	Path     string   // "/socket.io/" if empty
	User     string   // each room's peers are a user of their own: this and a number; all of a single room: each is one
	Token    string   // sent as auth.token if set; then all are the token's user
	Room     string   // name of the room; of several: what their names begin with. Empty: one that no other run has
	Rooms    int
	Peers    int           // of each room
	Role     string        // of all peers. Empty: the first is host, the second guest, the others are members
	Rate     float64       // joins a second, rooms and peers in any order; 0: all at once
	Parallel int           // handshakes at one time
	Timeout  time.Duration // of one join
	Settle   time.Duration // how long the notices of the joins may take after the last one
	Hold     time.Duration // how long the peers stay after that
	Joined   func()        // called as the hold begins, if set
	Progress io.Writer     // nil: none
}

// RoomsReport is the outcome of such a run.
type RoomsReport struct {
	URLs      []string `json:"urls"`
	Rooms     int      `json:"rooms"`
	Peers     int      `json:"peersPerRoom"`
	Rate      float64  `json:"rate"`
	Connected int      `json:"connected"`
	Joins     Figures  `json:"joins"`
	// Seen is how many peers the rooms show after the joins, each room asked at one peer of each server; the least.
	Seen    int           `json:"peersSeen"`
	Notices Notices       `json:"peerJoined"`
	Servers *RoomsServers `json:"servers,omitempty"` // none if they tell nothing
	Lost    int           `json:"connectionsLost"`
	Moves   *OwnerMoves   `json:"ownerMoves,omitempty"` // none if no room had another owner
	// ErrorsByCode are those of the connections.
	ErrorsByCode map[string]uint64 `json:"connectErrorsByCode"`
}

// Notices are the peer-joined events that the peers got.
type Notices struct {
	// Expected is one for each peer that is in the room by then, the one that joins included.
	Expected uint64  `json:"expected"`
	Received uint64  `json:"received"`
	Seconds  float64 `json:"seconds"` // from the first join to the last of them
}

// RoomsServers is what the servers tell of themselves at /metrics, all together.
type RoomsServers struct {
	Conflicts        uint64  `json:"conflicts"` // during the joins
	ConflictsPerJoin float64 `json:"conflictsPerJoin"`
	MemoryConnected  int64   `json:"memoryConnected"` // resident bytes before the joins
	MemoryJoined     int64   `json:"memoryJoined"`    // at the end of the hold, if nothing was lost, else at its beginning
}

// OwnerMoves are the room-owner events that came.
type OwnerMoves struct {
	Rooms int `json:"rooms"` // of which any peer got one
	Once  int `json:"once"`  // of which every peer that is still connected got exactly one
	// SpanSeconds is from the first of the events to the last.
	SpanSeconds float64 `json:"spanSeconds"`
	// SinceLost is from the first lost connection to a room's last event, over the rooms. Without a loss it is
	// from the first event.
	SinceLost Latency `json:"sinceLostMs"`
}

// RunRooms connects the peers, lets them join, and holds them. An error means that the run did not take place; what
// failed is in the report.
func RunRooms(ctx context.Context, o RoomsOptions) (RoomsReport, error) {
	if err := o.validate(); err != nil {
		return RoomsReport{}, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(benchGCPercent))
	b := newRoomsBench(o)
	defer b.close()
	r := RoomsReport{URLs: o.URLs, Rooms: o.Rooms, Peers: o.Peers, Rate: o.Rate, ErrorsByCode: b.errors}

	b.connect(ctx)
	r.Connected = int(b.connected.Load())
	before, serverErr := b.figures(ctx)
	r.Joins = b.join(ctx)
	r.Notices = b.awaitNotices(ctx, r)
	r.Seen = b.look(ctx)
	after, err := b.figures(ctx)
	serverErr = errors.Join(serverErr, err)
	if o.Joined != nil {
		o.Joined()
	}
	b.hold(ctx)

	if serverErr == nil {
		if b.lost.Load() == 0 && o.Hold > 0 {
			if held, err := b.figures(ctx); err == nil {
				after[figureMemory] = held[figureMemory]
			}
		}
		r.Servers = &RoomsServers{
			Conflicts:       uint64(after[figureConflicts] - before[figureConflicts]),
			MemoryConnected: int64(before[figureMemory]), MemoryJoined: int64(after[figureMemory]),
		}
		if r.Joins.Calls > 0 {
			r.Servers.ConflictsPerJoin = float64(r.Servers.Conflicts) / float64(r.Joins.Calls)
		}
	}
	r.Lost = int(b.lost.Load())
	r.Moves = b.moves()
	return r, nil
}

func (o RoomsOptions) validate() error {
	switch {
	case len(o.URLs) == 0:
		return errors.New("rooms: no server to connect to")
	case o.Rooms < 1 || o.Peers < 1:
		return errors.New("rooms: at least one room of one peer is needed")
	case o.Parallel < 1:
		return errors.New("rooms: at least one connection at a time is needed")
	case o.Rate < 0 || o.Hold < 0 || o.Settle < 0:
		return errors.New("rooms: negative rate, hold or settle")
	case o.Timeout < time.Millisecond:
		return errors.New("rooms: the timeout must be at least a millisecond")
	}
	return nil
}

// crowd is from how many peers on a room makes so many events that this process reads them by many at a time.
const crowd = 100

type roomsBench struct {
	options   RoomsOptions
	peers     []roomPeer // those of one room stand together
	clients   []*Client  // the same, without those that could not connect
	connected atomic.Int64
	joined    tally
	notices   atomic.Uint64
	made      time.Time
	noticed   atomic.Int64  // when the last notice came, ns after made
	began     time.Duration // of the joins, after made

	lost atomic.Int64 // connections that ended before close

	mu        sync.Mutex
	closing   bool
	errors    map[string]uint64
	firstLost time.Time
	owners    map[int]*roomMoves
}

type roomPeer struct {
	room     int
	argument json.RawMessage // of room-join
	owners   atomic.Int32    // room-owner events that came
}

type roomMoves struct{ first, last time.Time }

func newRoomsBench(o RoomsOptions) *roomsBench {
	n := o.Rooms * o.Peers
	b := &roomsBench{
		options: o, peers: make([]roomPeer, n), clients: make([]*Client, n), made: time.Now(),
		joined: tally{errors: map[string]uint64{}}, errors: map[string]uint64{}, owners: map[int]*roomMoves{},
	}
	name := o.Room
	if name == "" {
		name = "bench-" + runID()
	}
	for i := range b.peers {
		room := name
		if o.Rooms > 1 {
			room += "-" + strconv.Itoa(i/o.Peers)
		}
		b.peers[i].room = i / o.Peers
		b.peers[i].argument, _ = json.Marshal(map[string]string{"room": room, "role": o.roleOf(i % o.Peers), "name": "peer " + strconv.Itoa(i)})
	}
	return b
}

func (o RoomsOptions) roleOf(place int) string {
	switch {
	case o.Role != "":
		return o.Role
	case place == 0:
		return "host"
	case place == 1:
		return "guest"
	}
	return "member"
}

func (b *roomsBench) connect(ctx context.Context) {
	total := len(b.peers)
	start := time.Now()
	defer showProgress(b.options.Progress, func() string {
		up := b.connected.Load()
		return fmt.Sprintf("connect %s %d of %d  %.0f/s", bar(float64(up)/float64(total)), up, total,
			float64(up)/time.Since(start).Seconds())
	})()
	inTurn(ctx, total, b.options.Parallel, 0, func(i int) { b.dial(ctx, i) })
}

func (b *roomsBench) dial(ctx context.Context, i int) {
	o := b.options
	p := &b.peers[i]
	user := p.room
	if o.Rooms == 1 { // else each would hear of all others by presence, too
		user = i
	}
	auth := map[string]string{"user": o.User + strconv.Itoa(user)}
	if o.Token != "" {
		auth["token"] = o.Token
	}
	buffer := 512
	if o.Peers > crowd {
		buffer = sharedReadBuffer
	}
	c, err := Dial(ctx, o.URLs[i%o.Peers%len(o.URLs)], auth, Options{
		Path: o.Path, ReadBuffer: buffer,
		Handlers: map[string]Handler{
			"peer-joined": func([]json.RawMessage, Ack) {
				b.notices.Add(1)
				b.noticed.Store(int64(time.Since(b.made)))
			},
			"room-owner": func([]json.RawMessage, Ack) { b.moved(p) },
		},
		OnDisconnect: func(*Client, error) { b.disconnected() },
	})
	switch {
	case err == nil:
		b.clients[i] = c
		b.connected.Add(1)
	case ctx.Err() == nil:
		b.mu.Lock()
		b.errors[dialCode(err)]++
		b.mu.Unlock()
	}
}

func (b *roomsBench) disconnected() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return
	}
	b.lost.Add(1)
	if b.firstLost.IsZero() {
		b.firstLost = time.Now()
	}
}

func (b *roomsBench) moved(p *roomPeer) {
	now := time.Now()
	p.owners.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.owners[p.room]
	if m == nil {
		m = &roomMoves{first: now}
		b.owners[p.room] = m
	}
	m.last = now
}

// join lets all peers join.
func (b *roomsBench) join(ctx context.Context) Figures {
	o := b.options
	total := len(b.peers)
	began := time.Now()
	b.began = began.Sub(b.made)
	defer showProgress(o.Progress, func() string {
		f := b.joined.figures(time.Since(began))
		return fmt.Sprintf("join %s %d of %d  %.0f/s  p99 %.2f ms  %d errors", bar(float64(f.Calls+f.Errors)/float64(total)),
			f.Calls, total, f.CallsPerSecond, f.Latency.P99, f.Errors)
	})()
	never := began.Add(1 << 62)
	order := rand.Perm(total)
	slots := &pacer{start: began, rate: o.Rate}
	var joins sync.WaitGroup
	for _, i := range order {
		if b.clients[i] == nil {
			continue
		}
		from := began
		if o.Rate > 0 {
			due := slots.take()
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
			}
			from = startOf(due, time.Now())
		}
		if ctx.Err() != nil {
			break
		}
		// One goroutine for each join under way, and those are bounded by the peers.
		joins.Go(func() {
			if code := b.ask(ctx, i, "room-join", b.peers[i].argument); ctx.Err() == nil {
				b.joined.record(from, never, code)
			}
		})
	}
	joins.Wait()
	return b.joined.figures(time.Since(began))
}

func (b *roomsBench) ask(ctx context.Context, i int, event string, argument json.RawMessage) string {
	ctx, cancel := context.WithTimeout(ctx, b.options.Timeout)
	defer cancel()
	reply, err := b.clients[i].EmitWithAck(ctx, event, argument)
	switch {
	case err == nil:
		return outcomeOf(reply, nil)
	case errors.Is(err, context.DeadlineExceeded):
		return "NO_ACK"
	case errors.Is(err, ErrDisconnected):
		return "DISCONNECTED"
	}
	return "NOT_CONNECTED"
}

const noticesPause = 20 * time.Millisecond

// awaitNotices waits until the peers have got what they must.
func (b *roomsBench) awaitNotices(ctx context.Context, r RoomsReport) Notices {
	n := Notices{}
	for room := range b.options.Rooms {
		in := uint64(0)
		for i := room * b.options.Peers; i < (room+1)*b.options.Peers; i++ {
			if b.clients[i] != nil {
				in++
			}
		}
		n.Expected += in * (in + 1) / 2
	}
	end := time.Now().Add(b.options.Settle)
	for b.notices.Load() < n.Expected && time.Now().Before(end) && ctx.Err() == nil && r.Joins.Errors == 0 {
		time.Sleep(noticesPause)
	}
	n.Received = b.notices.Load()
	n.Seconds = max(time.Duration(b.noticed.Load())-b.began, 0).Seconds()
	return n
}

// look asks for each room at one peer of each server and adds up the least that they show.
func (b *roomsBench) look(ctx context.Context) int {
	var seen atomic.Int64
	o := b.options
	inTurn(ctx, o.Rooms, o.Parallel, 0, func(room int) {
		least := o.Peers
		for i := range min(len(o.URLs), o.Peers) {
			least = min(least, b.count(ctx, room*o.Peers+i))
		}
		seen.Add(int64(least))
	})
	return int(seen.Load())
}

// count is how many peers the room of a peer shows; 0 if it cannot be asked.
func (b *roomsBench) count(ctx context.Context, i int) int {
	if b.clients[i] == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, b.options.Timeout)
	defer cancel()
	reply, err := b.clients[i].EmitWithAck(ctx, "room-get", b.peers[i].argument)
	var state struct{ Room struct{ Peers []struct{} } }
	if err != nil || json.Unmarshal(reply, &state) != nil {
		return 0
	}
	return len(state.Room.Peers)
}

func (b *roomsBench) hold(ctx context.Context) {
	start := time.Now()
	defer showProgress(b.options.Progress, func() string {
		b.mu.Lock()
		moved := len(b.owners)
		b.mu.Unlock()
		return fmt.Sprintf("hold %s %d lost, %d rooms moved", bar(float64(time.Since(start))/float64(b.options.Hold)), b.lost.Load(), moved)
	})()
	select {
	case <-time.After(b.options.Hold):
	case <-ctx.Done():
	}
}

// moves sums up the room-owner events.
func (b *roomsBench) moves() *OwnerMoves {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.owners) == 0 {
		return nil
	}
	m := &OwnerMoves{Rooms: len(b.owners)}
	var first, last time.Time
	for _, one := range b.owners {
		if first.IsZero() || one.first.Before(first) {
			first = one.first
		}
		if one.last.After(last) {
			last = one.last
		}
	}
	m.SpanSeconds = last.Sub(first).Seconds()
	since := b.firstLost
	if since.IsZero() || since.After(first) {
		since = first
	}
	var latencies Histogram
	for room, one := range b.owners {
		latencies.Record(one.last.Sub(since))
		once := true
		for i := room * b.options.Peers; i < (room+1)*b.options.Peers; i++ {
			if c := b.clients[i]; c != nil && c.Err() == nil && b.peers[i].owners.Load() != 1 {
				once = false
			}
		}
		if once {
			m.Once++
		}
	}
	m.SinceLost = latencyOf(&latencies)
	return m
}

// figures adds up what the servers tell of themselves.
func (b *roomsBench) figures(ctx context.Context) (map[string]float64, error) {
	sum := map[string]float64{}
	for _, url := range b.options.URLs {
		f, err := serverFigures(ctx, url)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{figureConflicts, figureMemory} {
			value, ok := f[name]
			if !ok {
				return nil, fmt.Errorf("rooms: %s does not tell %s", url, name)
			}
			sum[name] += value
		}
	}
	return sum, nil
}

func (b *roomsBench) close() {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	closeInTurn(b.clients, b.options.Parallel)
}
