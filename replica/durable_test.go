package replica

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

func openReplicated(t *testing.T, url string) *store.Store {
	t.Helper()
	st, err := store.Open(store.Options{URL: url, Namespace: "test", Timeout: time.Second, Replicated: true, ReplicaWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func TestNothingIsAcknowledgedThatNoReplicaOfRedisHas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	follower := master.Follow(t)
	a := start(t, "a", openReplicated(t, master.URL))
	session := a.connect("p")
	a.register(session, "before")

	follower.Pause(t)
	for try := range 3 { // a repeat finds it registered already, and must not take that for durable
		_, err := a.Register(t.Context(), session, "m", false)
		var refusal *commands.Refusal
		if !errors.As(err, &refusal) || refusal.Code != commands.CodeStoreUnavailable || !strings.Contains(refusal.Text, "replica of the store") {
			t.Fatalf("try %d: %v", try, err)
		}
	}
	if n := a.Metrics().Unreplicated.Load(); n != 3 {
		t.Errorf("%d commands are counted as unreplicated, want 3", n)
	}
	if _, av := a.resolve("m"); av != projections.Available {
		t.Error("what is in the log does not show")
	}

	follower.Resume(t)
	eventually(t, "it is acknowledged", func() bool {
		_, err := a.Register(t.Context(), session, "m", false)
		return err == nil
	})
	a.inOrder()
}

// A lost answer is settled by looking, and acknowledged only once a replica of Redis has it.
func TestLostReplyOfAReplicatedAppend(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	follower := master.Follow(t)
	proxy := redistest.NewProxy(t, master)
	a := start(t, "a", openReplicated(t, proxy.URL))
	session := a.connect("p")
	lose := func(method string) {
		before := proxy.Lost()
		proxy.LoseReplyTo(`"` + method + `"`)
		t.Cleanup(func() {
			if proxy.Lost() == before {
				t.Errorf("the reply for %s was not lost", method)
			}
		})
	}
	lose("m1")
	a.register(session, "m1")
	follower.Pause(t)
	lose("m2")
	if _, err := a.Register(t.Context(), session, "m2", false); err == nil {
		t.Error("acknowledged while no replica of Redis could have it")
	}
}

func TestAReplicaStartsOnceAReplicaOfRedisIsThere(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	a := launch(t, "a", openReplicated(t, master.URL))
	eventually(t, "its start is in the log", func() bool { return master.Do(t, "EXISTS", "{test}:log") == "1" })
	select {
	case <-a.Ready():
		t.Error("it is ready, and a failover would lose its start")
	default:
	}
	master.Follow(t)
	eventually(t, "it is ready", func() bool { return a.ReadyError() == nil })
}
