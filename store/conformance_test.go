package store

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"

	"holdfast/events"
	"holdfast/store/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, shared := range []*sharedServer{&plain, &cluster} {
		if shared.server != nil {
			shared.server.Kill(shared.t)
			_ = os.RemoveAll(shared.server.Dir)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// backend is one Redis, embedded or real, that tests open Stores on.
type backend struct {
	open  func(t testing.TB) *Store
	flush func(t testing.TB)
}

// onEach runs a case against the embedded Redis, a real one and a cluster of one node, which is enough to
// refuse commands across slots. Each has a namespace of its own.
func onEach(t *testing.T, test func(t *testing.T, b backend)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { test(t, embeddedBackend(t)) })
	t.Run("redis", func(t *testing.T) { test(t, redisBackend(t, plain.get(t))) })
	t.Run("cluster", func(t *testing.T) { test(t, redisBackend(t, cluster.get(t))) })
}

func embeddedBackend(t testing.TB) backend {
	t.Helper()
	e, err := OpenEmbedded("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return backend{
		open: func(t testing.TB) *Store {
			t.Helper()
			s, err := e.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		},
		flush: func(testing.TB) { e.server.FlushAll() },
	}
}

func redisBackend(t testing.TB, server *redistest.Server) backend {
	t.Helper()
	namespace := "test-" + ulid.Make().String()
	return backend{
		open: func(t testing.TB) *Store { return openOn(t, server, namespace) },
		flush: func(t testing.TB) {
			t.Helper()
			server.Do(t, "FLUSHALL")
		},
	}
}

func openOn(t testing.TB, server *redistest.Server, namespace string) *Store {
	t.Helper()
	s, err := Open(Options{URL: server.URL, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// sharedServer is a real Redis of all cases that do not harm it; it lasts to the end of TestMain.
type sharedServer struct {
	args   []string
	ready  func(t testing.TB, server *redistest.Server)
	once   sync.Once
	t      testing.TB
	server *redistest.Server
}

var (
	plain   = sharedServer{ready: func(testing.TB, *redistest.Server) {}}
	cluster = sharedServer{
		args: []string{"--cluster-enabled", "yes"},
		ready: func(t testing.TB, server *redistest.Server) {
			server.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
			eventually(t, "the cluster serves", func() bool {
				return strings.Contains(server.Do(t, "CLUSTER", "INFO"), "cluster_state:ok")
			})
		},
	}
)

// lasting is a test that does not end before the process does.
type lasting struct{ testing.TB }

func (lasting) Cleanup(func()) {}

func (s *sharedServer) get(t testing.TB) *redistest.Server {
	t.Helper()
	s.once.Do(func() {
		s.t = lasting{t}
		server := redistest.Start(s.t, s.args...)
		s.ready(t, server)
		s.server = server
	})
	if s.server == nil {
		t.Fatal("no redis-server")
	}
	return s.server
}

// eventually waits until a state is reached.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !reached() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func connected(peer string) events.PeerConnected {
	return events.PeerConnected{User: "u", Peer: peer, Connection: ulid.Make().String(), Instance: "a", Session: "s", Recovery: "r"}
}

func forgotten(peer string) events.PeerForgotten { return events.PeerForgotten{User: "u", Peer: peer} }

func peer(id string) events.Aggregate { return events.PeerKey("u", id) }

func command(checks []Check, evs ...events.Event) Append {
	return Append{Command: ulid.Make(), Checks: checks, Events: evs}
}

func absent(a events.Aggregate) []Check { return []Check{{Aggregate: a}} }

func at(a events.Aggregate, p events.Position) []Check { return []Check{{Aggregate: a, Version: p}} }

// write appends one command that must pass.
func write(t testing.TB, s *Store, c Append) []events.Position {
	t.Helper()
	verdicts, err := s.Append(t.Context(), Fence{Instance: "a"}, []Append{c})
	if err != nil {
		t.Fatal(err)
	}
	if verdicts[0].Positions == nil {
		t.Fatalf("refused: %+v", verdicts[0])
	}
	return verdicts[0].Positions
}

func refused(t testing.TB, s *Store, c Append) Conflict {
	t.Helper()
	verdicts, err := s.Append(t.Context(), Fence{Instance: "a"}, []Append{c})
	if err != nil {
		t.Fatal(err)
	}
	if verdicts[0].Conflict == nil || verdicts[0].Positions != nil || verdicts[0].Fenced {
		t.Fatalf("no conflict: %+v", verdicts[0])
	}
	return *verdicts[0].Conflict
}

// raw runs any command, to put things in Redis that the Store never would.
func raw(t testing.TB, s *Store, args ...string) {
	t.Helper()
	if err := s.client.Do(t.Context(), s.client.B().Arbitrary(args...).Build()).Error(); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

func incarnation() Inbox { return Inbox{Instance: "a", Incarnation: ulid.Make().String()} }

// canceledSoon ends a context once the read it is given to can be assumed to wait.
func canceledSoon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	timer := time.AfterFunc(50*time.Millisecond, cancel)
	t.Cleanup(func() { timer.Stop(); cancel() })
	return ctx
}
