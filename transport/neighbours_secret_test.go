package transport

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

// startRarelyBeating starts a replica that beats every minute only, so that it learns of another secret by a refusal.
func startRarelyBeating(t *testing.T, server *redistest.Server, instance, key string) *Neighbours {
	t.Helper()
	st, err := store.Open(store.Options{URL: server.URL, Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	rep := replica.New(replica.Config{Instance: instance, LeaseTTL: 8 * time.Minute, Patience: time.Second, Secret: key, Log: zerolog.Nop()}, st)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rep.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", instance, err)
		}
		st.Close()
	})
	select {
	case <-rep.Ready():
	case <-time.After(patience):
		t.Fatalf("%s is not ready: %v", instance, rep.ReadyError())
	}
	until(t, "the first beat has been", func() bool { return rep.ReadyError() == nil })
	return NewNeighbours(rep)
}

// takes reports whether one replica takes what another hands to it.
func takes(from, to *Neighbours) bool {
	r := httptest.NewRequest("GET", "/socket.io/?sid=x", nil)
	from.Sign(r)
	return to.Signed(r)
}

func TestNeighboursShareASecret(t *testing.T) {
	server := redistest.Start(t)
	a, b := startRarelyBeating(t, server, "a", ""), startRarelyBeating(t, server, "b", "")
	if !takes(a, b) || !takes(b, a) {
		t.Fatal("they do not know each other")
	}
	// Emptied: whoever asks first puts back what both know.
	server.Do(t, "FLUSHALL")
	a.Refused()
	if server.Do(t, "GET", "{test}:secret") != string(a.rep.Secret().Bytes()) || !takes(a, b) || !takes(b, a) {
		t.Fatal("they do not know each other after the store was emptied")
	}
	if takes(NewNeighbours(replica.New(replica.Config{}, nil)), b) {
		t.Fatal("a stranger's request is taken")
	}
}

// A replica that starts on an emptied store, before the others have put their secret back, makes another one.
func TestNeighboursLearnOfAnotherSecret(t *testing.T) {
	server := redistest.Start(t)
	a, b := startRarelyBeating(t, server, "a", ""), startRarelyBeating(t, server, "b", "")
	server.Do(t, "FLUSHALL")
	c := startRarelyBeating(t, server, "c", "")
	if string(c.rep.Secret().Bytes()) == string(a.rep.Secret().Bytes()) {
		t.Fatal("the new replica knows the former secret")
	}
	if takes(a, c) {
		t.Fatal("a former secret is taken")
	}
	a.Refused()
	if !takes(a, c) {
		t.Fatal("the refused replica has not looked for the present secret")
	}
	if !takes(c, b) { // who takes it looks by himself
		t.Fatal("a replica does not look for the present secret before it refuses")
	}
}

func TestNeighboursWithAKey(t *testing.T) {
	server := redistest.Start(t)
	a, b := startRarelyBeating(t, server, "a", "a key of the cluster"), startRarelyBeating(t, server, "b", "a key of the cluster")
	other := startRarelyBeating(t, server, "c", "")
	server.Do(t, "FLUSHALL")
	if !takes(a, b) || takes(a, other) || takes(other, a) {
		t.Fatal("the key does not decide")
	}
}
