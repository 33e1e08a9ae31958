package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// noise does not pack, so that a snapshot has several chunks.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func keeperOf(t testing.TB, s *Store) Inbox {
	t.Helper()
	in := incarnation()
	if ok, err := s.Keep(t.Context(), in, time.Minute); err != nil || !ok {
		t.Fatalf("not the keeper: %v, %v", ok, err)
	}
	return in
}

// snapshotAt writes a snapshot of the log as it stands at its head.
func snapshotAt(t testing.TB, s *Store, keeper Inbox, data []byte) Snapshot {
	t.Helper()
	head := must[Head](t)(s.Head(t.Context()))
	return must[Snapshot](t)(s.WriteSnapshot(t.Context(), keeper, Snapshot{
		ID: ulid.Make().String(), Position: head.Position, Token: head.Token, Schema: 1, Instance: "a", Time: time.UnixMilli(1).UTC(),
	}, data))
}

func chunkKeys(t testing.TB, s *Store) int {
	t.Helper()
	keys, err := s.client.Do(t.Context(), s.client.B().Keys().Pattern(s.keys.snapshot+"*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return len(keys)
}

func TestSnapshotsComeBackAndTwoAreKept(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		keeper := keeperOf(t, s)
		if list := must[[]Snapshot](t)(s.Snapshots(t.Context())); len(list) != 0 {
			t.Fatalf("%+v", list)
		}
		var want []Snapshot
		var data [][]byte
		for i, size := range []int{0, 100, 3*chunkSize + 1, chunkSize} {
			write(t, s, command(nil, connected(strconv.Itoa(i))))
			data = append(data, noise(size))
			want = append(want, snapshotAt(t, s, keeper, data[i]))
		}
		list := must[[]Snapshot](t)(s.Snapshots(t.Context()))
		if len(list) != KeptSnapshots || list[0] != want[3] || list[1] != want[2] {
			t.Fatalf("%+v", list)
		}
		for i, snap := range list {
			if got := must[[]byte](t)(s.ReadSnapshot(t.Context(), snap)); !bytes.Equal(got, data[3-i]) {
				t.Errorf("snapshot %d has changed", i)
			}
			if holds := must[bool](t)(s.Holds(t.Context(), snap.Position, snap.Token)); !holds {
				t.Errorf("the log does not go on from snapshot %d", i)
			}
		}
		if n := chunkKeys(t, s); n != KeptSnapshots {
			t.Errorf("the chunks of %d snapshots are there", n)
		}
		if ttl := must[int64](t)(s.client.Do(t.Context(), s.client.B().Pttl().Key(s.keys.snapshotOf(list[0].ID)).Build()).AsInt64()); ttl != -1 {
			t.Errorf("a listed snapshot ends in %d ms", ttl)
		}
		if err := s.DropSnapshot(t.Context(), list[0]); err != nil {
			t.Fatal(err)
		}
		if list := must[[]Snapshot](t)(s.Snapshots(t.Context())); len(list) != 1 || list[0] != want[2] || chunkKeys(t, s) != 1 {
			t.Errorf("after a drop: %+v", list)
		}
	})
}

func TestDamagedSnapshotsAreNoticed(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		keeper := keeperOf(t, s)
		write(t, s, command(nil, connected("p")))
		snap := snapshotAt(t, s, keeper, noise(chunkSize+1))
		key := s.keys.snapshotOf(snap.ID)
		refusedAs := func(what string, snap Snapshot) {
			t.Helper()
			if _, err := s.ReadSnapshot(t.Context(), snap); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", what, err)
			}
		}
		other := snap
		other.Size++
		refusedAs("longer than it is", other)
		other = snap
		other.Sum = strings.Repeat("0", 64)
		refusedAs("of another sum", other)
		raw(t, s, "HSET", key, "1", "something else")
		refusedAs("changed", snap)
		raw(t, s, "HDEL", key, "1")
		refusedAs("half", snap)
		raw(t, s, "DEL", key)
		refusedAs("without chunks", snap)
		raw(t, s, "LPUSH", s.keys.snapshots, "{")
		list := must[[]Snapshot](t)(s.Snapshots(t.Context()))
		if len(list) != 2 || list[0].ID != "" || list[1] != snap {
			t.Fatalf("%+v", list)
		}
		refusedAs("an unreadable manifest", list[0])
		if err := s.DropSnapshot(t.Context(), list[0]); err != nil {
			t.Fatal(err)
		}
		if list := must[[]Snapshot](t)(s.Snapshots(t.Context())); len(list) != 1 {
			t.Errorf("it stays: %+v", list)
		}
	})
}

// What is written by one who is no longer the keeper, or not to its end, is never listed and goes by itself.
func TestOnlyTheKeeperWrites(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		write(t, s, command(nil, connected("p")))
		first := keeperOf(t, s)
		second := incarnation()
		if ok, err := s.Keep(t.Context(), second, time.Minute); err != nil || ok {
			t.Fatalf("two keepers: %v, %v", ok, err)
		}
		if ok, err := s.Keep(t.Context(), first, time.Minute); err != nil || !ok {
			t.Fatalf("it cannot renew: %v, %v", ok, err)
		}
		if err := s.ReleaseKeep(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		if _, err := s.WriteSnapshot(t.Context(), second, Snapshot{ID: ulid.Make().String()}, noise(10)); !errors.Is(err, ErrNotKeeper) {
			t.Fatalf("%v", err)
		}
		if list := must[[]Snapshot](t)(s.Snapshots(t.Context())); len(list) != 0 || chunkKeys(t, s) != 0 {
			t.Fatalf("%+v", list)
		}
		if err := s.ReleaseKeep(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Keep(t.Context(), second, time.Minute); err != nil || !ok {
			t.Fatalf("nobody was the keeper: %v, %v", ok, err)
		}
		// As a writer leaves it that dies before the manifest.
		raw(t, s, "HSET", s.keys.snapshotOf("x"), "0", "chunk")
		snap := snapshotAt(t, s, second, noise(10))
		if list := must[[]Snapshot](t)(s.Snapshots(t.Context())); len(list) != 1 || list[0] != snap {
			t.Fatalf("%+v", list)
		}
	})
}

func TestHolds(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		holds := func(at events.Position, token ulid.ULID) bool {
			t.Helper()
			return must[bool](t)(s.Holds(t.Context(), at, token))
		}
		if holds(events.Position{Ms: 1}, ulid.Make()) {
			t.Error("an empty log holds something")
		}
		var heads []Head
		for i := range 3 {
			write(t, s, command(nil, connected(strconv.Itoa(i))))
			heads = append(heads, must[Head](t)(s.Head(t.Context())))
		}
		for _, h := range heads {
			if !holds(h.Position, h.Token) || holds(h.Position, ulid.Make()) {
				t.Errorf("at %s", h.Position)
			}
		}
		raw(t, s, "XTRIM", s.keys.log, "MINID", heads[1].Position.String())
		if !holds(heads[0].Position, heads[0].Token) {
			t.Error("the entry right before the first is not known by what follows it")
		}
		raw(t, s, "XTRIM", s.keys.log, "MINID", heads[2].Position.String())
		if holds(heads[0].Position, heads[0].Token) {
			t.Error("what was before an entry that is gone too is taken for held")
		}
		raw(t, s, "XTRIM", s.keys.log, "MAXLEN", "0")
		if !holds(heads[2].Position, heads[2].Token) || holds(heads[1].Position, heads[1].Token) {
			t.Error("the head of a log that was trimmed to nothing")
		}
	})
}

func TestInboxesAreFound(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		want := map[Inbox]bool{}
		for _, instance := range []string{"a", "b*", "c"} {
			in := Inbox{Instance: instance, Incarnation: ulid.Make().String()}
			want[in] = true
			if err := s.CreateInbox(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		found := must[[]Inbox](t)(s.Inboxes(t.Context()))
		if len(found) != len(want) {
			t.Fatalf("%v", found)
		}
		for _, in := range found {
			if !want[in] {
				t.Errorf("%v", in)
			}
		}
	})
}
