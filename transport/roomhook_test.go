package transport

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/store"
	"holdfast/store/redistest"
)

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
	for end := time.Now().Add(patience); a.rep.ReadyError() != nil; time.Sleep(time.Millisecond) {
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
					_, err := n.rep.Execute(t.Context(), n.joining(p, room))
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
		s.timeout = patience // the call is under way until the test has seen the other one try
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
