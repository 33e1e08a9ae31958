package store

import (
	"errors"
	"testing"
	"time"

	"holdfast/events"
	"holdfast/store/redistest"
)

func openReplicated(t *testing.T, url string, wait time.Duration) *Store {
	t.Helper()
	s, err := Open(Options{URL: url, Namespace: "test", Replicated: true, ReplicaWait: wait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestReplicatedAppendWaitsForAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	follower := master.Follow(t)
	s := openReplicated(t, master.URL, 10*time.Second)
	for range 20 {
		position := write(t, s, command(nil, connected("p")))[0]
		// What was acknowledged is there already, without any waiting.
		last := follower.Do(t, "EVAL", "return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]", "1", "{test}:log")
		if last != position.String() {
			t.Fatalf("the replica is at %s, acknowledged was %s", last, position)
		}
	}

	follower.Pause(t)
	s = openReplicated(t, master.URL, 300*time.Millisecond)
	began := time.Now()
	checked := command(absent(peer("taken")), connected("taken"))
	verdicts, err := s.Append(t.Context(), Fence{Instance: "a"}, []Append{
		command(nil, connected("p")), command(at(peer("p"), events.Position{Ms: 1}), connected("p")), checked,
	})
	if !errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrUnavailable) {
		t.Fatalf("with the replica paused: %v", err)
	}
	if took := time.Since(began); took < 250*time.Millisecond || took > 2*time.Second {
		t.Errorf("it took %s, the wait is 300 ms", took)
	}
	if len(verdicts) != 3 || verdicts[0].Positions == nil || verdicts[1].Conflict == nil || verdicts[2].Positions == nil {
		t.Errorf("verdicts %+v", verdicts)
	}
	if _, err := s.ConfirmedHead(t.Context()); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("the head is confirmed by a paused replica: %v", err)
	}
	// Nothing else waits behind it.
	if _, err := s.Head(t.Context()); err != nil {
		t.Error(err)
	}

	follower.Resume(t)
	s = openReplicated(t, master.URL, 10*time.Second)
	eventually(t, "the head is confirmed", func() bool {
		head, err := s.ConfirmedHead(t.Context())
		return err == nil && head.Position == verdicts[2].Positions[0]
	})
	write(t, s, command(nil, connected("p")))
}

// Where there is no replica, or on a cluster, the answer is the same and not a fault.
func TestReplicatedAppendWithoutAReplica(t *testing.T) {
	for name, server := range map[string]*sharedServer{"redis": &plain, "cluster": &cluster} {
		t.Run(name, func(t *testing.T) {
			s := openReplicated(t, server.get(t).URL, 50*time.Millisecond)
			_, err := s.Append(t.Context(), Fence{Instance: "a"}, []Append{command(nil, connected("p"))})
			if !errors.Is(err, ErrNotReplicated) {
				t.Errorf("%v, want ErrNotReplicated", err)
			}
		})
	}
}

func TestReplicatedAppendToADeadRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openReplicated(t, server.URL, time.Second)
	server.Kill(t)
	_, err := s.Append(t.Context(), Fence{Instance: "a"}, []Append{command(nil, connected("p"))})
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}
