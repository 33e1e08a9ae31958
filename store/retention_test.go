package store

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"holdfast/events"
)

// The world of the trims: entries 0 to 9, snapshots where a case puts them.
type trims struct {
	*Store
	t  *testing.T
	at []events.Position
}

func newTrims(t *testing.T, b backend, snapshots ...int) *trims {
	w := &trims{Store: b.open(t), t: t}
	keeper := keeperOf(t, w.Store)
	for i := range 10 {
		w.at = append(w.at, write(t, w.Store, command(nil, connected(strconv.Itoa(i))))[0])
		if slices.Contains(snapshots, i) {
			snapshotAt(t, w.Store, keeper, []byte{byte(i)})
		}
	}
	return w
}

// first is the number of the first entry that is left.
func (w *trims) first() int {
	w.t.Helper()
	records := must[[]events.Record](w.t)(w.Range(w.t.Context(), events.Position{}, 1))
	if len(records) == 0 {
		w.t.Fatal("the log is empty")
	}
	return slices.Index(w.at, records[0].Position)
}

func (w *trims) trim(r Retention) Trimmed {
	w.t.Helper()
	if r.Schema == 0 {
		r.Schema = 1
	}
	if r.Forget == 0 {
		r.Forget = time.Hour
	}
	return must[Trimmed](w.t)(w.Trim(w.t.Context(), r))
}

func (w *trims) group(instance string, at int) {
	w.t.Helper()
	if !must[bool](w.t)(w.EnsureGroup(w.t.Context(), instance, w.at[at])) {
		w.t.Fatal("the group is there")
	}
}

// old makes every entry older than what is kept.
const old = -time.Hour

func TestTrimKeepsWhatSnapshotsNeed(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		for _, c := range []struct {
			snapshots []int
			schema    int
			first     int
		}{
			{nil, 1, 0},
			{[]int{5}, 1, 0},          // one is none: it may be damaged
			{[]int{3, 7}, 1, 3},       // the older one counts
			{[]int{1, 3, 7}, 1, 3},    // of those that are kept
			{[]int{3, 7}, -1, 0},      // of a newer schema
			{[]int{3, 7}, 2, 3},       // of an older one
			{[]int{9}, 1, 0},          // at the head
			{[]int{0, 1, 8, 9}, 1, 8}, // near it
		} {
			w := newTrims(t, b, c.snapshots...)
			got := w.trim(Retention{Keep: old, Schema: c.schema})
			if w.first() != c.first || got.Removed != int64(c.first) {
				t.Errorf("snapshots at %v: begins at %d (removed %d), want %d", c.snapshots, w.first(), got.Removed, c.first)
			}
			if again := w.trim(Retention{Keep: old, Schema: c.schema}); again.Removed != 0 || w.first() != c.first {
				t.Errorf("snapshots at %v: a second pass removed %d", c.snapshots, again.Removed)
			}
			b.flush(t)
		}
	})
}

func TestTrimKeepsWhatIsYoung(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		w := newTrims(t, b, 3, 7)
		if got := w.trim(Retention{Keep: time.Hour}); got.Removed != 0 || w.first() != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A snapshot that the log does not go on from is no reason to remove anything.
func TestTrimDoesNotRelyOnForeignSnapshots(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		w := newTrims(t, b, 3)
		list := must[[]Snapshot](t)(w.Snapshots(t.Context()))
		raw(t, w.Store, "DEL", w.keys.keeper)
		keeper := keeperOf(t, w.Store)
		foreign := list[0]
		foreign.ID, foreign.Position = "foreign", w.at[6] // with the token of another entry
		if _, err := w.WriteSnapshot(t.Context(), keeper, foreign, nil); err != nil {
			t.Fatal(err)
		}
		if got := w.trim(Retention{Keep: old}); got.Removed != 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestTrimNeverPassesWhatIsUnread(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		w := newTrims(t, b, 6, 8)
		w.group("quick", 9)
		w.group("slow", 4)
		w.group("pending", 1)
		if got := must[[]events.Record](t)(w.ReadGroup(t.Context(), "pending", 5, time.Second)); len(got) != 5 {
			t.Fatalf("%d", len(got))
		}
		if err := w.Ack(t.Context(), "pending", []events.Position{w.at[2], w.at[4]}); err != nil {
			t.Fatal(err)
		}
		live := Retention{Keep: old, Live: []string{"quick", "slow", "pending"}}
		w.trim(live)
		if w.first() != 3 { // delivered and not acknowledged
			t.Errorf("begins at %d, the oldest pending is 3", w.first())
		}
		if err := w.Ack(t.Context(), "pending", []events.Position{w.at[3], w.at[5], w.at[6]}); err != nil {
			t.Fatal(err)
		}
		w.trim(live)
		if w.first() != 4 {
			t.Errorf("begins at %d, the slow one is at 4", w.first())
		}
		if got := must[[]events.Record](t)(w.ReadGroup(t.Context(), "slow", 5, time.Second)); got[0].Position != w.at[5] {
			t.Errorf("the slow one reads on at %s", got[0].Position)
		}
		if err := w.Ack(t.Context(), "slow", w.at[5:]); err != nil {
			t.Fatal(err)
		}
		if w.trim(live); w.first() != 6 {
			t.Errorf("begins at %d, the snapshot is at 6", w.first())
		}
	})
}

func TestGroupsOfThoseThatAreGoneAreForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		w := newTrims(t, b, 6, 8)
		for _, instance := range []string{"gone", "leased", "listed"} {
			w.group(instance, 1)
			must[[]events.Record](t)(w.ReadGroup(t.Context(), instance, 1, time.Second))
		}
		if err := w.AcquireLease(t.Context(), Inbox{Instance: "leased", Incarnation: "x"}, time.Minute); err != nil {
			t.Fatal(err)
		}
		r := Retention{Keep: old, Live: []string{"listed"}}
		if got := w.trim(r); len(got.Forgotten) != 0 || w.first() != 1+1 {
			t.Errorf("%+v, begins at %d: it had been gone for less than is allowed", got, w.first())
		}
		r.Forget = -time.Millisecond
		if got := w.trim(r); fmt.Sprint(got.Forgotten) != "[gone]" {
			t.Errorf("%+v", got)
		}
		for instance, want := range map[string]bool{"gone": false, "leased": true, "listed": true} {
			if _, ok, err := w.GroupPosition(t.Context(), instance); ok != want || err != nil {
				t.Errorf("group of %s: %v, %v", instance, ok, err)
			}
		}
	})
}

// A bound in bytes goes before the time, and after what is unread and the snapshots.
func TestTrimByMemory(t *testing.T) {
	server := plain.get(t)
	w := &trims{Store: redisBackend(t, server).open(t), t: t}
	keeper := keeperOf(t, w.Store)
	const n = 20_000
	batch := make([]Append, 0, 100)
	for i := range n {
		batch = append(batch, command(nil, connected(strconv.Itoa(i))))
		if len(batch) < cap(batch) {
			continue
		}
		for _, v := range must[[]Verdict](t)(w.Append(t.Context(), Fence{Instance: "a"}, batch)) {
			w.at = append(w.at, v.Positions...)
		}
		batch = batch[:0]
		if i == n/2-1 || i == n-1 {
			snapshotAt(t, w.Store, keeper, nil)
		}
	}
	r := Retention{Keep: time.Hour, Live: []string{"slow"}}
	whole := w.trim(r)
	if whole.Removed != 0 || whole.Memory < n*100 || whole.Exceeded {
		t.Fatalf("%+v", whole)
	}
	all := func() (sum Trimmed) {
		for {
			got := w.trim(r)
			sum.Removed += got.Removed
			sum.Memory, sum.Exceeded = got.Memory, got.Exceeded
			sum.Shortened = sum.Shortened || got.Shortened
			if !got.More {
				return sum
			}
		}
	}
	r.Memory = whole.Memory * 9 / 10
	got := all()
	if !got.Shortened || got.Exceeded || got.Memory > r.Memory || got.Removed < n/20 || got.Removed > n/5 {
		t.Errorf("%+v", got)
	}
	w.group("slow", n/4)
	w.group("dead", n/8)
	r.Memory = 1000
	if got := all(); !got.Exceeded || w.first() != n/4 {
		t.Errorf("%+v; begins at %d, the slow one is at %d", got, w.first(), n/4)
	}
	if err := w.DestroyGroup(t.Context(), "slow"); err != nil {
		t.Fatal(err)
	}
	if got := all(); !got.Exceeded || w.first() != n/2-1 {
		t.Errorf("%+v; begins at %d, the snapshot is at %d", got, w.first(), n/2-1)
	}
}
