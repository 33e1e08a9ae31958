package relay

import (
	"fmt"
	"slices"
	"testing"

	"holdfast/store"
)

// Messages for one inbox share entries, in order; none is larger than the bound.
func TestPack(t *testing.T) {
	a, b := store.Inbox{Instance: "a", Incarnation: "1"}, store.Inbox{Instance: "b", Incarnation: "1"}
	large := make([]byte, entryBytes*2/3)
	var batch []outgoing
	want := map[store.Inbox][]uint64{}
	for i := range uint64(20) {
		m := outgoing{to: a, what: envelope{Kind: kindAnswer, Number: i, User: fmt.Sprint(i)}}
		if i%3 == 0 {
			m.to = b
		}
		if i >= 15 {
			m.what.Body = large
		}
		batch = append(batch, m)
		want[m.to] = append(want[m.to], i)
	}
	entries, of := pack(batch)
	got := map[store.Inbox][]uint64{}
	holds := make([][]uint64, len(entries))
	for at, entry := range entries {
		if len(entry.Body) > entryBytes {
			t.Errorf("entry %d has %d bytes", at, len(entry.Body))
		}
		for rest := entry.Body; len(rest) > 0; {
			var e envelope
			var err error
			if e, rest, err = decodeEnvelope(rest); err != nil {
				t.Fatal(err)
			}
			got[entry.To] = append(got[entry.To], e.Number)
			holds[at] = append(holds[at], e.Number)
		}
	}
	for to, numbers := range want {
		if !slices.Equal(got[to], numbers) {
			t.Errorf("%s gets %v, want %v", to.Instance, got[to], numbers)
		}
	}
	for i := range batch {
		if !slices.Contains(holds[of[i]], uint64(i)) {
			t.Errorf("message %d is not in entry %d", i, of[i])
		}
	}
	if len(entries) != 5 {
		t.Errorf("%d entries, want 5: a large one fits beside the small ones, two do not", len(entries))
	}
}
