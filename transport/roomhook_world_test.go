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
	t       *testing.T
	timeout time.Duration // how long its callers wait for an answer

	mu     sync.Mutex
	status int           // of the answers; 0 for 200
	stall  chan struct{} // answers wait for it
	heard  map[string]*heard
	events map[string][]string // by room, each once: "opened a"
	calls  int
}

func newHookServer(t *testing.T) *hookServer {
	s := &hookServer{t: t, timeout: time.Second, heard: map[string]*heard{}, events: map[string][]string{}}
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
	n.hook = NewRoomHook(n.rep, RoomHookConfig{URL: s.URL, Key: hookKey, Timeout: s.timeout, Log: log})
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

func (n *hookNode) joining(s *replica.Session, room string) commands.JoinRoom {
	return commands.JoinRoom{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Instance: n.rep.Instance(), Room: room, Role: commands.Member,
		Claims: commands.Everything(),
	}
}

func (n *hookNode) join(s *replica.Session, room string) {
	n.t.Helper()
	if _, err := n.rep.Execute(n.t.Context(), n.joining(s, room)); err != nil {
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
