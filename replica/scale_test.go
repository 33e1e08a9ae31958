package replica

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// fill appends n events about so many peers with a registration each, as fast as the script takes them. The peers
// are on a replica that does not live.
func fill(t testing.TB, st *store.Store, n, peers int) {
	t.Helper()
	const callers = 4
	begin := time.Now()
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			batch := make([]store.Append, 0, store.MaxGroup)
			for i := caller; i < n/2; i += callers {
				peer := strconv.Itoa(i % peers)
				connection := ulid.Make().String()
				batch = append(batch, store.Append{Command: ulid.Make(), Events: []events.Event{
					events.PeerConnected{
						User: "user-" + peer, Peer: "peer-" + peer, Connection: connection, Instance: "elsewhere",
						Session: "session-" + peer + "-aaaaaaaaaa", Recovery: "recovery-" + peer + "-aaaaaaaa",
					},
					events.MethodRegistered{
						User: "user-" + peer, Method: "method", Peer: "peer-" + peer,
						Session: "session-" + peer + "-aaaaaaaaaa", Connection: connection,
					},
				}})
				if len(batch) == cap(batch) || i+callers >= n/2 {
					if _, err := st.Append(t.Context(), store.Fence{Instance: "elsewhere"}, batch); err != nil {
						t.Error(err)
						return
					}
					batch = batch[:0]
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d events written in %s", n, time.Since(begin).Round(time.Millisecond))
}

// justRead reads the whole log in pages and looks at nothing but the last id of each.
func justRead(t *testing.T, url string) (n int, took time.Duration) {
	t.Helper()
	option, err := rueidis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	option.DisableCache = true
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	for from := "-"; ; {
		page, err := client.Do(t.Context(), client.B().Xrange().Key("{test}:log").Start(from).End("+").Count(pageSize).Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		n += len(page)
		if len(page) < pageSize {
			return n, time.Since(begin)
		}
		last, _ := page[len(page)-1].ToArray()
		id, _ := last[0].ToString()
		from = "(" + id
	}
}

// The figures of a start: from a snapshot of 100,000 peers with a registration each, and without one, from
// 1,000,000 events.
func TestStartOfALargeState(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes two minutes: make chaos, or HOLDFAST_LONG=1")
	}
	s := redistest.Start(t)
	st, err := store.Open(store.Options{URL: s.URL, Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	fill(t, st, 1_000_000, 100_000)

	// The best of three, taken in turns: others use the machine too.
	var reading, folding float64
	var f *folded
	for range 3 {
		n, took := justRead(t, s.URL)
		reading = max(reading, float64(n)/took.Seconds())
		runtime.GC()
		begin := time.Now()
		if f, err = New(Config{Instance: "reader"}, st).foldAnew(t.Context()); err != nil {
			t.Fatal(err)
		}
		folding = max(folding, float64(f.read)/time.Since(begin).Seconds())
	}
	t.Logf("%d events: only reading %.0f/s, fold without a snapshot %.0f/s", f.read, reading, folding)
	if folding < min(200_000, reading/2) {
		t.Errorf("the fold is slower than 200,000/s and than half the rate of reading")
	}
	want := f.state.Digest()

	begin := time.Now()
	data := f.state.Encode()
	encoding := time.Since(begin)
	begin = time.Now()
	if _, err := projections.Decode(data); err != nil {
		t.Fatal(err)
	}
	decoding := time.Since(begin)
	in := store.Inbox{Instance: "reader", Incarnation: ulid.Make().String()}
	if ok, err := st.Keep(t.Context(), in, time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	begin = time.Now()
	snap, err := st.WriteSnapshot(t.Context(), in, store.Snapshot{
		ID: ulid.Make().String(), Position: f.state.Position, Token: f.state.Token, Schema: projections.SnapshotSchema,
	}, data)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d peers: encoded in %s (%d bytes), packed and written in %s (%d bytes), decoded in %s",
		f.state.PeerCount(), encoding, len(data), time.Since(begin), snap.Packed, decoding)
	if err := st.ReleaseKeep(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	runtime.GC()

	for i := range 3 {
		begin = time.Now()
		a := launchOn(t, fmt.Sprintf("a%d", i), st)
		<-a.Ready()
		took := time.Since(begin)
		t.Logf("ready from the snapshot in %s", took.Round(time.Millisecond))
		if took > 3*time.Second {
			t.Errorf("ready after %s, wanted within 3 s", took)
		}
		if i == 0 {
			g, why, err := a.load(t.Context(), snap)
			if err != nil || why != nil || g.state.Digest() != want {
				t.Errorf("the snapshot is not the fold: %v, %v", why, err)
			}
		}
		a.stop()
	}
}

func launchOn(t *testing.T, instance string, st *store.Store) *running {
	r := &running{t: t, seen: &listener{}, Replica: New(Config{Instance: instance}, st)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// What a replica holds for a peer, and what an append costs, depend on what there is, not on how much has ever
// happened.
func TestCostDoesNotGrowWithHistory(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes a minute: make chaos, or HOLDFAST_LONG=1")
	}
	s := redistest.Start(t)
	st, err := store.Open(store.Options{URL: s.URL, Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	const peers = 10_000
	var memory [2]float64
	var cost [2]time.Duration
	for i, more := range []int{100_000, 900_000} {
		fill(t, st, more, peers)
		memory[i] = bytesPerPeer(t, st, peers)
		cost[i] = medianAppend(t, st)
		t.Logf("after %d events: %.0f B of heap for each of %d peers with a registration, append p50 %s",
			[]int{100_000, 1_000_000}[i], memory[i], peers, cost[i])
	}
	if memory[1] > 1.15*memory[0] {
		t.Errorf("memory grows with the history: %.0f B a peer, then %.0f B", memory[0], memory[1])
	}
	if cost[1] > 2*cost[0] {
		t.Errorf("appends get slower with the history: %s, then %s", cost[0], cost[1])
	}
}

func bytesPerPeer(t *testing.T, st *store.Store, peers int) float64 {
	t.Helper()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	f, err := New(Config{Instance: "reader"}, st).foldAnew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after := heap()
	if f.state.PeerCount() != peers {
		t.Fatalf("%d peers, want %d", f.state.PeerCount(), peers)
	}
	runtime.KeepAlive(f)
	return float64(after-before) / float64(peers)
}

// medianAppend is that of 3,000 appends of one caller, each with two checks.
func medianAppend(t *testing.T, st *store.Store) time.Duration {
	t.Helper()
	took := make([]time.Duration, 3000)
	peer := events.PeerGone{User: "probe", Peer: "probe"}
	var at events.Position
	for i := range took {
		begin := time.Now()
		v, err := st.Append(t.Context(), store.Fence{Instance: "elsewhere"}, []store.Append{{
			Command: ulid.Make(), Events: []events.Event{peer},
			Checks: []store.Check{{Aggregate: events.PeerKey("probe", "probe"), Version: at}, {Aggregate: events.MethodKey("probe", "none")}},
		}})
		took[i] = time.Since(begin)
		if err != nil || v[0].Positions == nil {
			t.Fatalf("%+v, %v", v, err)
		}
		at = v[0].Positions[0]
	}
	if _, err := st.Append(t.Context(), store.Fence{Instance: "elsewhere"}, []store.Append{{
		Command: ulid.Make(), Events: []events.Event{events.PeerForgotten{User: "probe", Peer: "probe"}},
	}}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
