package transport

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

// neighbour is a replica that runs, and whom it knows.
type neighbour struct {
	*Neighbours
	t    *testing.T
	rep  *replica.Replica
	st   *store.Store
	stop func()
}

func newNeighbour(t *testing.T, instance, key string, st *store.Store) *neighbour {
	rep := replica.New(replica.Config{
		Instance: instance, URL: "http://" + instance, Secret: key, LeaseTTL: 1200 * time.Millisecond, Patience: 3 * time.Second, Log: zerolog.Nop(),
		Graces: commands.Graces{Peer: time.Second, RPC: time.Second, Recovery: time.Second, Room: time.Second},
	}, st)
	return &neighbour{Neighbours: NewNeighbours(rep), t: t, rep: rep, st: st}
}

func startNeighbour(t *testing.T, instance, key string, st *store.Store) *neighbour {
	t.Helper()
	n := newNeighbour(t, instance, key, st)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.rep.Run(ctx) }) // it fails when its store is closed
	n.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(n.stop)
	select {
	case <-n.rep.Ready():
	case <-time.After(patience):
		t.Fatalf("%s is not ready: %v", instance, n.rep.ReadyError())
	}
	return n
}

// sid is one that the replica gives.
func (n *neighbour) sid() string {
	n.t.Helper()
	tag, ok := n.Tag()
	if !ok || len(tag) != tagBytes {
		n.t.Fatalf("the tag is %q, %v", tag, ok)
	}
	return tag + newSID()
}

// locates waits until the sid is located there, which the log may have to tell first.
func (n *neighbour) locates(sid, want string) {
	n.t.Helper()
	until(n.t, sid+" is at "+strconv.Quote(want), func() bool { return n.Locate(sid) == want })
}

func TestNeighboursLocate(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		unready := newNeighbour(t, "c", "", open())
		if tag, ok := unready.Tag(); ok {
			t.Errorf("a replica that does not run has the tag %q", tag)
		}
		a, b := startNeighbour(t, "a", "", open()), startNeighbour(t, "b", "", open())
		ofA, ofB := a.sid(), b.sid()
		a.locates(ofB, "http://b")
		b.locates(ofA, "http://a")
		free := string([]byte{tagAlphabet[(events.Slots-1)>>4], tagAlphabet[(events.Slots-1)&15]})
		for name, sid := range map[string]string{
			"its own": ofA, "nobody's": free + newSID(), "beyond the last slot": string([]byte{tagAlphabet[events.Slots>>4], 'a'}) + newSID(),
			"no letter for a slot": "zz" + newSID(), "a letter and none": "a-" + newSID(), "none and a letter": "\xffa", "one letter": "a", "nothing": "",
		} {
			if url := a.Locate(sid); url != "" {
				t.Errorf("%s: %q is at %s", name, sid, url)
			}
		}
		b.stop() // an end that is recorded
		a.locates(ofB, "")
		again := startNeighbour(t, "b", "", open())
		a.locates(again.sid(), "http://b")
		again.st.Close() // one that is not: its lease runs out
		a.locates(again.sid(), "")
	})
}

func TestNeighboursKnowEachOther(t *testing.T) {
	onHookStores(t, func(t *testing.T, open func() *store.Store) {
		a, b := startNeighbour(t, "a", "", open()), startNeighbour(t, "b", "", open())
		keyed := [2]*neighbour{startNeighbour(t, "c", "a key of 16 bytes", open()), startNeighbour(t, "d", "a key of 16 bytes", open())}
		other := startNeighbour(t, "e", "another of 16 bytes", open())
		request := func() *http.Request { return httptest.NewRequest("POST", "/socket.io/?EIO=4&sid=x", nil) }
		if r := request(); a.Signed(r) || keyed[0].Signed(r) {
			t.Error("a request without a signature is taken")
		}
		for _, c := range []struct {
			by, at *neighbour
			want   bool
		}{
			{a, b, true}, {b, a, true}, {keyed[0], keyed[1], true}, {keyed[0], other, false}, {a, other, false}, {keyed[0], a, false},
		} {
			r := request()
			c.by.Sign(r)
			if got := c.at.Signed(r); got != c.want {
				t.Errorf("what %s has signed is taken by %s: %v", c.by.rep.Instance(), c.at.rep.Instance(), got)
			}
		}
		for name, change := range map[string]func(r *http.Request){
			"method": func(r *http.Request) { r.Method = "GET" },
			"target": func(r *http.Request) { r.URL.RawQuery += "y" },
			"time": func(r *http.Request) {
				at, mac, _ := strings.Cut(r.Header.Get(forwardHeader), " ")
				ms, _ := strconv.ParseInt(at, 10, 64)
				r.Header.Set(forwardHeader, strconv.FormatInt(ms+1, 10)+" "+mac)
			},
			"no mac": func(r *http.Request) {
				at, _, _ := strings.Cut(r.Header.Get(forwardHeader), " ")
				r.Header.Set(forwardHeader, at)
			},
			"no time": func(r *http.Request) { r.Header.Set(forwardHeader, "x"+r.Header.Get(forwardHeader)) },
		} {
			r := request()
			a.Sign(r)
			change(r)
			if b.Signed(r) {
				t.Errorf("a request is taken whose signature has another %s", name)
			}
		}
		// What is older, or of the future, was kept by somebody.
		for late, want := range map[time.Duration]bool{signedFor - 5*time.Second: true, signedFor + 5*time.Second: false, -signedFor - 5*time.Second: false} {
			r := request()
			at := strconv.FormatInt(a.rep.Now().Add(-late).UnixMilli(), 10)
			r.Header.Set(forwardHeader, at+" "+seal(a.rep.Secret().Bytes(), r, at))
			if got := b.Signed(r); got != want {
				t.Errorf("%v late: %v", late, got)
			}
		}
	})
}

// With a store that does not answer, requests are signed without waiting, and those with signatures that do not fit are
// held up once for all of them, and not for long.
func TestNeighboursWithoutTheStore(t *testing.T) {
	server := redistest.Start(t)
	a := startNeighbour(t, "a", "", openHookStore(t, server.URL))
	r := httptest.NewRequest("GET", "/", nil)
	a.Sign(r)
	forged := httptest.NewRequest("GET", "/other", nil)
	forged.Header = r.Header.Clone()
	server.Pause(t)
	defer server.Resume(t)
	began := time.Now()
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			if a.Signed(forged) {
				t.Error("a forged request is taken")
			}
		})
	}
	for range 1000 {
		one := time.Now()
		a.Sign(r)
		if took := time.Since(one); took > 500*time.Millisecond {
			t.Fatalf("held up for %v", took)
		}
	}
	asking.Wait()
	if took := time.Since(began); took > 3*time.Second { // a look takes 2 s at most
		t.Errorf("50 requests were held up for %v", took)
	}
}
