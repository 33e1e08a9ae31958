package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// linear is a cluster of three replicas with clients that call it and somebody who disturbs it.
type linear struct {
	t        *testing.T
	open     func(i int) *store.Store
	proxies  []*redistest.Proxy // of each replica; nil for the embedded store
	careless bool
	began    time.Time

	mu        sync.Mutex
	replicas  [3]*running
	accidents int
	ops       []porcupine.Operation
	rng       *rand.Rand
}

const (
	linearOps       = 320 // at least
	linearAccidents = 5   // at least
	linearClients   = 6
	linearLease     = 600 * time.Millisecond
)

func (l *linear) pick(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

func (l *linear) start(i int) *running {
	return launch(l.t, fmt.Sprintf("r%d", i+1), l.open(i), func(r *Replica) {
		r.cfg.LeaseTTL, r.cfg.Patience = linearLease, time.Second
		r.cfg.Graces = commands.Graces{Peer: time.Hour, RPC: time.Hour, Recovery: time.Hour, Room: time.Hour, Unused: time.Hour}
		r.careless = l.careless
	})
}

// at is the replica that runs in a place now.
func (l *linear) at(i int) *running {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replicas[i]
}

// record notes an action and its outcome; what is unknown never returns.
func (l *linear) record(client int, a action, call time.Duration, o outcome) {
	op := porcupine.Operation{ClientId: client, Input: a, Call: int64(call), Output: o, Return: int64(time.Since(l.began))}
	if o.unknown {
		op.Return = int64(time.Hour)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, op)
}

func (l *linear) done() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops) >= linearOps && l.accidents >= linearAccidents || len(l.ops) >= 8*linearOps
}

// client connects a peer through some replica and does what it likes, until it is thrown out; then again.
func (l *linear) client(client int) {
	peer := fmt.Sprintf("p%d", client/2*2) // two clients for one peer: they take over from each other
	if client%2 == 1 && client > 1 {
		peer = fmt.Sprintf("p%d", client)
	}
	for !l.done() {
		i := l.pick(3)
		r := l.at(i)
		if r.ReadyError() != nil {
			time.Sleep(5 * time.Millisecond) // the pace of a client that tries to connect
			continue
		}
		s := &Session{User: "u", Peer: peer, Connection: r.NewConnection(), SID: ulid.Make().String(), PID: ulid.Make().String(), Link: &link{}}
		a := action{kind: "connect", peer: peer, connection: s.Connection}
		call := time.Since(l.began)
		ctx, cancel := context.WithTimeout(l.t.Context(), 500*time.Millisecond)
		err := r.Connect(ctx, s, "", "")
		cancel()
		var refusal *commands.Refusal
		if errors.As(err, &refusal) && refusal.Code == commands.CodeReplaced {
			l.record(client, a, call, outcome{}) // it was current, for a moment
			continue
		}
		l.record(client, a, call, outcome{unknown: err != nil})
		if err != nil {
			continue
		}
		for n := 4 + l.pick(20); n > 0 && !l.done() && l.act(client, r, s); n-- {
		}
	}
}

// act does one thing over a connection; false when that has ended.
func (l *linear) act(client int, r *running, s *Session) bool {
	a := action{peer: s.Peer, connection: s.Connection, room: fmt.Sprintf("R%d", 1+l.pick(2))}
	var ask commands.Command
	switch what := l.pick(20); {
	case what < 8:
		a.kind, a.role = "join", []commands.Role{commands.Host, commands.Host, commands.Guest, commands.Member}[l.pick(4)]
		ask = commands.JoinRoom{
			User: s.User, Peer: s.Peer, Connection: s.Connection, Instance: r.Instance(), Room: a.room, Role: a.role, Claims: commands.Everything(),
		}
	case what < 10:
		a.kind = "leave"
		ask = commands.LeaveRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.room}
	case what < 14:
		a.kind, a.value = "update", 1+l.pick(1_000_000)
		c := commands.UpdateRoom{
			User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.room, Patch: json.RawMessage(fmt.Sprintf(`{"v":%d}`, a.value)),
		}
		if l.pick(2) == 0 {
			r.View(func(st *projections.State) {
				if room := st.Room(a.room); room != nil {
					a.expected, c.Expected = room.Version, room.Version.String()
				}
			})
		}
		ask = c
	case what < 15:
		a.kind = "close"
		ask = commands.CloseRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.room}
	default:
		a.kind, a.peer, a.connection = "read", "", ""
	}
	time.Sleep(time.Duration(l.pick(12)) * time.Millisecond) // the pace of a client
	ctx, cancel := context.WithTimeout(l.t.Context(), 500*time.Millisecond)
	defer cancel()
	call := time.Since(l.began)
	var o outcome
	if ask == nil {
		if r.CatchUp(ctx) != nil {
			return false // nothing was read
		}
		o.read = r.read(a.room)
	} else {
		res, err := r.Execute(ctx, ask)
		var refusal *commands.Refusal
		switch {
		case errors.As(err, &refusal) && refusal.Code == commands.CodeStoreUnavailable:
			o.unknown = true
		case errors.As(err, &refusal):
			o.code = refusal.Code
		case err != nil:
			l.t.Errorf("%s: %v", a, err)
		default:
			o.at = res.Position
			if at := r.position(); at.Before(o.at) {
				l.t.Errorf("%s is acknowledged at %s, and its replica shows %s", a, o.at, at)
			}
		}
	}
	if o.code == commands.CodeReplaced {
		r.View(func(st *projections.State) {
			p, ok := st.Peer(s.ID())
			a.lost = ok && p.Connection == s.Connection && !p.Connected
		})
	}
	l.record(client, a, call, o)
	return !o.unknown && o.code != commands.CodeReplaced
}

func (r *running) read(id string) (shown seen) {
	r.View(func(st *projections.State) {
		room := st.Room(id)
		if room == nil {
			return
		}
		shown.version = room.Version
		var members []string
		for _, seat := range room.Seats() {
			switch seat.Role {
			case commands.Host:
				shown.host = seat.Peer
			case commands.Guest:
				shown.guest = seat.Peer
			default:
				members = append(members, seat.Peer)
			}
		}
		slices.Sort(members)
		shown.members = strings.Join(members, " ")
		var settings struct{ V int }
		_ = json.Unmarshal([]byte(room.Settings), &settings)
		shown.value = settings.V
	})
	return shown
}

// disturb ends, fences, freezes and restarts replicas until the clients have done enough.
func (l *linear) disturb() {
	for !l.done() {
		time.Sleep(time.Duration(20+l.pick(60)) * time.Millisecond) // not for a state: it is the pace of the accidents
		i := l.pick(3)
		r := l.at(i)
		what := l.pick(10)
		switch {
		case what < 5: // declared lost though it lives
			other := l.at((i + 1) % 3)
			if in, _, ok := r.Self(); ok {
				_, _ = other.Execute(l.t.Context(), commands.LoseReplica{Instance: in.Instance, Incarnation: in.Incarnation})
			}
		case what < 7: // stopped
			r.stop()
			l.replace(i)
		case l.proxies == nil:
		case what < 9: // paused, and late with all that it was about to do
			l.proxies[i].Freeze(true)
			time.Sleep(time.Duration(50+l.pick(int(2*linearLease/time.Millisecond))) * time.Millisecond)
			l.proxies[i].Freeze(false)
		default: // killed
			l.proxies[i].Cut(true)
			r.stop() // in vain: nothing of it reaches the log
			l.proxies[i].Cut(false)
			l.replace(i)
		}
		l.mu.Lock()
		l.accidents++
		l.mu.Unlock()
	}
}

func (l *linear) replace(i int) {
	r := l.start(i)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replicas[i] = r
}

// run makes one history and checks it.
func (l *linear) run(seed int) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	l.rng = rand.New(rand.NewPCG(uint64(seed), 0))
	l.began = time.Now()
	for i := range l.replicas {
		l.replicas[i] = l.start(i)
	}
	for _, r := range l.replicas {
		<-r.Ready()
	}
	var group sync.WaitGroup
	for client := range linearClients {
		group.Go(func() { l.client(client) })
	}
	group.Go(l.disturb)
	group.Wait()
	unknown := 0
	for _, op := range l.ops {
		if op.Output.(outcome).unknown {
			unknown++
		}
	}
	took := time.Since(l.began)
	l.settle()
	result, info := porcupine.CheckOperationsVerbose(roomsModel, l.ops, 20*time.Second)
	l.t.Logf("%d operations, %d of them without an answer, in %s; checked in %s: %s", len(l.ops), unknown,
		took.Round(time.Millisecond), (time.Since(l.began) - took).Round(time.Millisecond), result)
	return result, info
}

// settle finds out from the log what came of the actions that were not answered. They still never return, but those that
// did not happen are left out and the others have their position: else the search for an order would try all cases.
func (l *linear) settle() {
	answered := map[events.Position]bool{}
	for _, op := range l.ops {
		answered[op.Output.(outcome).at] = true
	}
	var log []events.Record
	st := l.open(0)
	for from := (events.Position{}); ; {
		page, err := st.Range(context.Background(), from, 1000)
		if err != nil {
			l.t.Errorf("read the log: %v", err)
			return
		}
		if len(page) == 0 {
			break
		}
		log = append(log, page...)
		from = page[len(page)-1].Position
	}
	l.ops = slices.DeleteFunc(l.ops, func(op porcupine.Operation) bool {
		return op.Output.(outcome).unknown && !slices.ContainsFunc(log, func(r events.Record) bool { return did(op.Input.(action), r.Event) && !answered[r.Position] })
	})
	for i, op := range l.ops {
		if !op.Output.(outcome).unknown {
			continue
		}
		at := slices.IndexFunc(log, func(r events.Record) bool { return did(op.Input.(action), r.Event) && !answered[r.Position] })
		o := outcome{at: log[at].Position}
		if op.Input.(action).kind == "connect" {
			o.at = events.Position{}
		}
		l.ops[i].Output = o
	}
}

// did says whether the event is what the action wanted. A connection is given up after an action without an answer, so
// there is one of them at most.
func did(a action, e events.Event) bool {
	switch e := e.(type) {
	case events.PeerConnected:
		return a.kind == "connect" && e.Connection == a.connection
	case events.RoomMoved:
		return did(a, e.RoomJoined)
	case events.RoomJoined:
		return a.kind == "join" && e.Connection == a.connection && e.Room == a.room && e.Role == a.role
	case events.RoomLeft:
		return a.kind == "leave" && e.Connection == a.connection && e.Room == a.room
	case events.RoomSettingsChanged:
		return a.kind == "update" && string(e.Patch) == fmt.Sprintf(`{"v":%d}`, a.value)
	case events.RoomClosed:
		return a.kind == "close" && e.Peer == a.peer && e.Room == a.room
	}
	return false
}

// onRedis and onEmbedded make a cluster on either store.
func onRedis(t *testing.T) *linear {
	s := redistest.Start(t)
	l := &linear{t: t}
	for range l.replicas {
		l.proxies = append(l.proxies, redistest.NewProxy(t, s))
	}
	l.open = func(i int) *store.Store { return openStore(t, l.proxies[i].URL) }
	return l
}

func onEmbedded(t *testing.T) *linear {
	e, err := store.OpenEmbedded("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return &linear{t: t, open: func(int) *store.Store {
		st, err := e.Open()
		if err != nil {
			t.Error(err)
		}
		t.Cleanup(st.Close)
		return st
	}}
}

func histories() int {
	if os.Getenv("HOLDFAST_LONG") != "" {
		return 200
	}
	return 10
}

// In whatever order clients act through whichever replica, and whatever happens to the replicas: the answers fit one
// order of all that was done.
func TestRoomsAreLinearizable(t *testing.T) {
	for seed := range histories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			l := [...]func(*testing.T) *linear{onRedis, onEmbedded}[seed%2](t)
			result, info := l.run(seed)
			if result == porcupine.Ok {
				return
			}
			file := filepath.Join(t.ArtifactDir(), "history.html")
			if err := porcupine.VisualizePath(roomsModel, info, file); err != nil {
				t.Error(err)
			}
			t.Errorf("the history is %s; -artifacts keeps %s", result, file)
		})
	}
}

// With the comparison of versions left out the check finds a violation: so it would find one.
func TestRoomsAreNotLinearizableWithoutVersions(t *testing.T) {
	for seed := range 10 {
		found := false
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := onRedis(t)
			l.careless = true
			result, _ := l.run(seed)
			found = result == porcupine.Illegal
		})
		if found {
			return
		}
	}
	t.Error("no violation in 10 histories whose appends compare no versions")
}
