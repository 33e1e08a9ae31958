package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

const hookKey = "a key of 16 bytes and more"

// hookServer is a receiver. It checks every call, drops what it has had, and holds the order against the promise.
type hookServer struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex
	status int           // of the answers; 0 for 200
	stall  chan struct{} // answers wait for it
	heard  map[string]*heard
	events map[string][]string // by room, each once: "opened a"
	calls  int
}

func newHookServer(t *testing.T) *hookServer {
	s := &hookServer{t: t, heard: map[string]*heard{}, events: map[string][]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var b hookBody
	if err := json.Unmarshal(body, &b); err != nil {
		s.t.Errorf("%s: %v", body, err)
	}
	sign := r.Header.Get(HookSignatureHeader)
	var stamp int64
	_, _ = fmt.Sscanf(sign, "t=%d,", &stamp)
	if sign != signHook([]byte(hookKey), time.Unix(stamp, 0), body) {
		s.t.Errorf("the signature %q is not that of %s", sign, body)
	}
	s.mu.Lock()
	s.calls++
	stall := s.stall
	s.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != 0 {
		w.WriteHeader(s.status)
		return
	}
	h := s.heard[b.Room]
	if h == nil {
		h = &heard{}
		s.heard[b.Room] = h
	}
	known := len(h.seen)
	if err := h.take(hookCall{Event: b.Event, Token: b.Token}); err != nil {
		s.t.Errorf("%s: %v", b.Room, err)
	}
	if len(h.seen) > known {
		s.events[b.Room] = append(s.events[b.Room], b.Event+" "+b.Instance)
	}
}

func (s *hookServer) answer(status int, stall chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.stall = status, stall
}

func (s *hookServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *hookServer) of(room string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[room])
}

func (s *hookServer) wants(room string, events ...string) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); !slices.Equal(s.of(room), events); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("of %s the hook heard %q, want %q", room, s.of(room), events)
		}
	}
}

// hookNode is a replica with a hook.
type hookNode struct {
	t    *testing.T
	rep  *replica.Replica
	hook *RoomHook
	stop func()
}

type noLink struct{}

func (noLink) Emit(string, ...[]byte) bool                          { return true }
func (noLink) Broadcast(*replica.Broadcast) bool                    { return true }
func (noLink) Allow(int, int)                                       {}
func (noLink) Request(string, uint32, func(), replica.Payload) bool { return true }
func (noLink) Replaced(bool)                                        {}
func (noLink) Reconnect(replica.Why)                                {}

func startHooked(t *testing.T, instance string, st *store.Store, s *hookServer) *hookNode {
	t.Helper()
	log := zerolog.Nop()
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		log = zerolog.New(zerolog.NewTestWriter(t)).With().Timestamp().Logger()
	}
	n := &hookNode{t: t, rep: replica.New(replica.Config{
		Instance: instance, URL: "http://" + instance, LeaseTTL: 1200 * time.Millisecond, Patience: 3 * time.Second, Log: log,
		Graces: commands.Graces{Peer: 300 * time.Millisecond, RPC: 300 * time.Millisecond, Recovery: time.Second, Room: 100 * time.Millisecond},
	}, st)}
	n.hook = NewRoomHook(n.rep, RoomHookConfig{URL: s.URL, Key: hookKey, Timeout: time.Second, Log: log})
	n.hook.sweeps = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	hookCtx, endHook := context.WithCancel(context.Background())
	var rep, hook sync.WaitGroup
	rep.Go(func() {
		if err := n.rep.Run(ctx); err != nil {
			t.Errorf("%s: %v", instance, err)
		}
	})
	hook.Go(func() { n.hook.Run(hookCtx) })
	n.stop = sync.OnceFunc(func() { cancel(); rep.Wait(); endHook(); hook.Wait() })
	t.Cleanup(n.stop)
	select {
	case <-n.rep.Ready():
	case <-time.After(patience):
		t.Fatalf("%s is not ready: %v", instance, n.rep.ReadyError())
	}
	return n
}

func (n *hookNode) connect(peer string) *replica.Session {
	n.t.Helper()
	s := &replica.Session{User: "u", Peer: peer, Connection: ulid.Make().String(), SID: ulid.Make().String(), PID: ulid.Make().String(), Link: noLink{}}
	if err := n.rep.Connect(n.t.Context(), s, "", ""); err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *hookNode) join(s *replica.Session, room string) {
	n.t.Helper()
	if err := n.rep.Join(n.t.Context(), s, commands.JoinRoom{Room: room, Role: commands.Member, Claims: commands.Everything()}); err != nil {
		n.t.Fatalf("join %s: %v", room, err)
	}
}

func (n *hookNode) leave(s *replica.Session, room string) {
	n.t.Helper()
	if _, err := n.rep.Execute(n.t.Context(), commands.LeaveRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: room}); err != nil {
		n.t.Fatalf("leave %s: %v", room, err)
	}
}

func (n *hookNode) until(what string, is func(s *projections.State) bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ok := false
		n.rep.View(func(s *projections.State) { ok = is(s) })
		if ok {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("not in time: %s", what)
		}
	}
}

func (n *hookNode) untilClosed(room string) {
	n.t.Helper()
	n.until(room+" is closed", func(s *projections.State) bool { return s.Room(room) == nil })
}

func (n *hookNode) untilAt(room, owner string) {
	n.t.Helper()
	n.until(room+" is at "+owner, func(s *projections.State) bool { r := s.Room(room); return r != nil && r.Owner == owner })
}

// onHookStores runs a test on both stores.
func onHookStores(t *testing.T, f func(t *testing.T, open func() *store.Store)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		f(t, func() *store.Store { return openHookStore(t, server.URL) })
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		e, err := store.OpenEmbedded("test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		f(t, func() *store.Store {
			st, err := e.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			return st
		})
	})
}

func openHookStore(t *testing.T, url string) *store.Store {
	t.Helper()
	st, err := store.Open(store.Options{URL: url, Namespace: "test", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// records waits until nothing is left of rooms in the store.
func noHookRecords(t *testing.T, st *store.Store) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		left := map[string]string{}
		err := st.HookRecords(t.Context(), func(room string, record []byte) { left[room] = string(record) })
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("records are left: %q", left)
		}
	}
}

func TestRoomHookHearsOpeningMoveAndClosing(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		s := newHookServer(t)
		a, b := startHooked(t, "a", open(), s), startHooked(t, "b", open(), s)
		pa, pb := a.connect("pa"), b.connect("pb")
		a.join(pa, "r")
		s.wants("r", "opened a")
		b.join(pb, "r")
		if err := a.rep.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.wants("r", "opened a", "moved-away a", "moved-here b")
		a.leave(pa, "r")
		b.leave(pb, "r")
		s.wants("r", "opened a", "moved-away a", "moved-here b", "closed b")
		b.join(pb, "r")
		s.wants("r", "opened a", "moved-away a", "moved-here b", "closed b", "opened b")
		b.leave(pb, "r")
		b.untilClosed("r")
		noHookRecords(t, open())
	})
}

// The hook is away for a while. Its rooms wait, their clients do not; rooms that came and went are left out.
func TestRoomHookThatIsDown(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		s := newHookServer(t)
		s.answer(http.StatusServiceUnavailable, nil)
		a := startHooked(t, "a", open(), s)
		p := a.connect("p")
		for i := range 20 {
			began := time.Now()
			a.join(p, fmt.Sprintf("r%d", i))
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a join took %s", took)
			}
		}
		for range 3 {
			a.leave(p, "r0")
			a.untilClosed("r0")
			a.join(p, "r0")
		}
		for before := s.count(); s.count() < before+40; { // it is tried again
			time.Sleep(time.Millisecond)
		}
		if n := a.hook.waiting(); n != 20 {
			t.Errorf("%d rooms wait, want 20", n)
		}
		s.answer(0, nil)
		for i := 1; i < 20; i++ {
			s.wants(fmt.Sprintf("r%d", i), "opened a")
		}
		for end := time.Now().Add(patience); a.hook.waiting() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d rooms still wait", a.hook.waiting())
			}
		}
		if got := s.of("r0"); len(got)%2 != 1 || len(got) > 3 {
			t.Errorf("of r0 it heard %q: want its opening, after one that had been tried at most", got)
		}
	})
}

// The owner is cut off with a call under way that may have arrived, and with one that never left.
func TestRoomHookOfAKilledOwner(t *testing.T) {
	server := redistest.Start(t)
	s := newHookServer(t)
	proxy := redistest.NewProxy(t, server)
	a := startHooked(t, "a", openHookStore(t, proxy.URL), s)
	b := startHooked(t, "b", openHookStore(t, server.URL), s)
	pa, pb := a.connect("pa"), b.connect("pb")
	a.join(pa, "told")
	s.wants("told", "opened a")
	b.join(pb, "told")
	a.join(pa, "closing")
	s.wants("closing", "opened a")

	stall := make(chan struct{})
	s.answer(http.StatusServiceUnavailable, stall)
	a.join(pa, "under way")
	b.join(pb, "under way")
	a.leave(pa, "closing")
	b.untilClosed("closing")
	for end := time.Now().Add(patience); s.count() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no call is under way")
		}
	}
	proxy.Cut(true)
	b.untilAt("told", "b")
	close(stall)
	s.answer(0, nil)
	s.wants("told", "opened a", "moved-away a", "moved-here b")
	s.wants("under way", "opened a", "moved-away a", "moved-here b")
	s.wants("closing", "opened a", "closed a")
}

// The owner is held up, declared lost, and goes on: nothing that it says comes after what the next owner says.
func TestRoomHookOfAPausedOwner(t *testing.T) {
	server := redistest.Start(t)
	s := newHookServer(t)
	proxy := redistest.NewProxy(t, server)
	a := startHooked(t, "a", openHookStore(t, proxy.URL), s)
	b := startHooked(t, "b", openHookStore(t, server.URL), s)
	pa, pb := a.connect("pa"), b.connect("pb")
	const rooms = 40
	s.answer(http.StatusServiceUnavailable, nil)
	for i := range rooms {
		a.join(pa, fmt.Sprintf("r%d", i))
		b.join(pb, fmt.Sprintf("r%d", i))
	}
	proxy.Freeze(true)
	s.answer(0, nil)
	b.untilAt("r0", "b")
	for i := range rooms {
		room := fmt.Sprintf("r%d", i)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if got := s.of(room); len(got) > 0 && strings.HasSuffix(got[len(got)-1], " b") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("of %s the hook heard %q", room, s.of(room))
			}
		}
	}
	before := s.count()
	proxy.Freeze(false)
	a.until("a knows that the rooms have moved", func(s *projections.State) bool { return s.Room("r0").Owner == "b" })
	for end := time.Now().Add(patience); a.rep.ReadyError() != nil || !a.rep.Leased(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a is not back")
		}
	}
	a.join(a.connect("again"), "new")
	s.wants("new", "opened a")
	if n := s.count() - before; n != 1 {
		t.Errorf("%d calls came after the thaw, want that for the new room only", n)
	}
}

func TestRoomHookOverAWholeRestart(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		s := newHookServer(t)
		a, b := startHooked(t, "a", open(), s), startHooked(t, "b", open(), s)
		pa, pb := a.connect("pa"), b.connect("pb")
		a.join(pa, "ra")
		b.join(pb, "rb")
		s.wants("ra", "opened a")
		s.wants("rb", "opened b")
		a.stop()
		b.stop()
		startHooked(t, "a", open(), s)
		// Their peers do not come back: the rooms are moved and then closed, which may come too fast to be told apart.
		for _, room := range []string{"ra", "rb"} {
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				if got := s.of(room); strings.HasPrefix(got[len(got)-1], "closed") {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("of %s the hook heard %q", room, s.of(room))
				}
			}
		}
		noHookRecords(t, open())
	})
}

// Rooms open and close as fast as they can, at two replicas that take turns, while calls fail now and then.
func TestRoomHookKeepsTheOrderUnderLoad(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		s := newHookServer(t)
		nodes := []*hookNode{startHooked(t, "a", open(), s), startHooked(t, "b", open(), s)}
		var group sync.WaitGroup
		for i := range 8 {
			n := nodes[i%2]
			p := n.connect(fmt.Sprintf("p%d", i))
			group.Go(func() {
				for j := range 30 {
					room := fmt.Sprintf("r%d", (i+j)%4)
					err := n.rep.Join(t.Context(), p, commands.JoinRoom{Room: room, Role: commands.Member, Claims: commands.Everything()})
					if err == nil {
						_, err = n.rep.Execute(t.Context(), commands.LeaveRoom{User: p.User, Peer: p.Peer, Connection: p.Connection, Room: room})
					}
					if err != nil {
						t.Errorf("%s: %v", room, err)
					}
					if j%10 == 0 {
						s.answer(map[bool]int{true: http.StatusInternalServerError}[j == 10], nil)
					}
				}
			})
		}
		group.Wait()
		s.answer(0, nil)
		for i := range 4 {
			nodes[0].untilClosed(fmt.Sprintf("r%d", i))
		}
		noHookRecords(t, open())
		for i := range 4 {
			if got := s.of(fmt.Sprintf("r%d", i)); len(got)%2 != 0 {
				t.Errorf("r%d: %q has no end", i, got)
			}
		}
	})
}

func TestRoomHookSettings(t *testing.T) {
	ok := RoomHookConfig{URL: "https://media.example/rooms", Key: hookKey, Timeout: time.Second}
	for name, tc := range map[string]struct {
		change func(*RoomHookConfig)
		want   string
	}{
		"all":     {func(*RoomHookConfig) {}, ""},
		"off":     {func(c *RoomHookConfig) { *c = RoomHookConfig{} }, ""},
		"no key":  {func(c *RoomHookConfig) { c.Key = "" }, "--room-hook-key"},
		"short":   {func(c *RoomHookConfig) { c.Key = "too short" }, "16 bytes"},
		"no url":  {func(c *RoomHookConfig) { c.URL = "" }, "without --room-hook"},
		"scheme":  {func(c *RoomHookConfig) { c.URL = "ftp://media.example" }, "want a URL"},
		"timeout": {func(c *RoomHookConfig) { c.Timeout = 0 }, "--room-hook-timeout"},
	} {
		c := ok
		tc.change(&c)
		err := c.Check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestRoomHookSignature(t *testing.T) {
	// openssl: printf '1796006847.{}' | openssl dgst -sha256 -hmac 'a key of 16 bytes and more'
	const want = "t=1796006847,v1=a8dc424b8a76bcfdbb5887d4c4a541895b252c2efd25bf305a6c584ae953bd0d"
	if got := signHook([]byte(hookKey), time.Unix(1796006847, 0), []byte("{}")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// While one replica's call is under way, no other speaks of that room.
func TestRoomHookHasOneSpeaker(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		s := newHookServer(t)
		a, b := startHooked(t, "a", open(), s), startHooked(t, "b", open(), s)
		pa, pb := a.connect("pa"), b.connect("pb")
		a.join(pa, "r")
		s.wants("r", "opened a")
		stall := make(chan struct{})
		s.answer(0, stall)
		a.leave(pa, "r")
		a.untilClosed("r")
		b.untilClosed("r")
		for end := time.Now().Add(patience); s.count() < 2 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		b.join(pb, "r")
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			b.hook.mu.Lock()
			tried := b.hook.rooms["r"] != nil && b.hook.rooms["r"].failures > 0
			b.hook.mu.Unlock()
			if tried || s.count() > 2 {
				break
			}
			if time.Now().After(end) {
				t.Fatal("b does not try")
			}
		}
		if n := s.count(); n != 2 {
			t.Errorf("%d calls came, while the second one was under way", n)
		}
		s.answer(0, nil)
		close(stall)
		s.wants("r", "opened a", "closed a", "opened b")
	})
}
