package cli

import (
	"os"
	"syscall"
	"testing"
	"time"

	"holdfast/hammer"
	"holdfast/store/redistest"
)

// crowd lets many peers come through two replicas, and asserts that all are in their rooms and that each heard of each.
func crowd(t *testing.T, o hammer.RoomsOptions) hammer.RoomsReport {
	t.Helper()
	o.User, o.Parallel, o.Timeout, o.Settle = "u", 16, 30*time.Second, 30*time.Second
	r, err := hammer.RunRooms(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Servers == nil {
		t.Fatalf("not all are in and told: %+v", r)
	}
	t.Logf("%d joins in %.2f s: p50 %.1f ms, p99 %.1f ms; %d conflicts, %.4f per join; the last of %d notices after %.2f s",
		r.Joins.Calls, r.Joins.Seconds, r.Joins.Latency.P50, r.Joins.Latency.P99, r.Servers.Conflicts,
		r.Servers.ConflictsPerJoin, r.Notices.Received, r.Notices.Seconds)
	return r
}

func TestS2_24AllAtOnce(t *testing.T) {
	t.Parallel()
	peers := 300
	if os.Getenv("HOLDFAST_LONG") != "" {
		peers = 2000
	}
	redis := redistest.Start(t, "--appendonly", "yes")
	bin := binary(t, "")
	a, b := serve(t, bin, redis.URL, "a"), serve(t, bin, redis.URL, "b")
	t.Run("S2.24 all join one room at once: all are in, few conflicts", func(t *testing.T) {
		r := crowd(t, hammer.RoomsOptions{URLs: []string{a.URL, b.URL}, Rooms: 1, Peers: peers, Role: "member"})
		if r.Servers.ConflictsPerJoin >= 0.1 {
			t.Errorf("%.4f conflicts per join, want less than 0.1", r.Servers.ConflictsPerJoin)
		}
	})
	agree(t, a, b)
}

// Half of the rooms lose their owner; each peer of them is told of the new one once, and soon.
func TestRoomsHaveANewOwnerSoonAfterTheirsWasKilled(t *testing.T) {
	t.Parallel()
	rooms := 50
	if os.Getenv("HOLDFAST_LONG") != "" {
		rooms = 1000
	}
	redis := redistest.Start(t, "--appendonly", "yes")
	bin := binary(t, "")
	a, b := serve(t, bin, redis.URL, "a"), serve(t, bin, redis.URL, "b")
	r := crowd(t, hammer.RoomsOptions{
		URLs: []string{a.URL, b.URL}, Rooms: rooms, Peers: 4, Rate: 500, Hold: 8 * time.Second,
		Joined: func() { a.signal(syscall.SIGKILL) },
	})
	if r.Moves == nil {
		t.Fatal("no room got another owner")
	}
	t.Logf("%d of %d rooms moved within %.2f s, the last %.0f ms after the kill", r.Moves.Rooms, rooms, r.Moves.SpanSeconds, r.Moves.SinceLost.Max)
	if r.Lost != rooms*2 || r.Moves.Once != r.Moves.Rooms || r.Moves.Rooms == rooms {
		t.Errorf("%d connections lost, want %d; %d of %d rooms told each peer once: %+v", r.Lost, rooms*2, r.Moves.Once, r.Moves.Rooms, r.Moves)
	}
	if r.Moves.SinceLost.Max >= 6000 {
		t.Errorf("the last room had a new owner %.0f ms after the kill, want less than 6 s", r.Moves.SinceLost.Max)
	}
}
