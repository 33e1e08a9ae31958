package relay

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"holdfast/store"
)

func TestCursorsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mark := rapid.Custom(func(t *rapid.T) store.Mark {
			return store.Mark{
				Epoch: rapid.StringMatching(`[0-9a-f]{7}[1-9a-f]`).Draw(t, "epoch"),
				Seq:   rapid.Uint64().Draw(t, "seq"),
				Token: rapid.Uint32().Draw(t, "token"),
			}
		})
		c := cursor(rapid.SliceOfN(mark, 1, store.MaxPartitions).Draw(t, "cursor"))
		if rapid.Bool().Draw(t, "unknown") {
			c[0] = store.Mark{}
		}
		text := c.String()
		back, ok := parseCursor(text, len(c))
		if !ok || !slices.Equal(back, c) || len(text) > maxOffset {
			t.Fatalf("%v became %v (%v) by %s", c, back, ok, text)
		}
		if _, ok := parseCursor(text, len(c)+1); ok {
			t.Fatal("a cursor of another number of partitions is taken")
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		changed := []byte(text)
		changed[at] = rapid.SampledFrom([]byte("abcXYZ019-_")).Draw(t, "by")
		if _, ok := parseCursor(string(changed), len(c)); ok && string(changed) != text {
			t.Fatalf("%s is taken for %s", changed, text)
		}
	})
}

func FuzzParseCursor(f *testing.F) {
	f.Add("hf", 1)
	f.Add("", 1)
	f.Add(cursor{{Epoch: "0badcafe", Seq: 1}}.String(), 1)
	f.Add(cursor{{Epoch: "0badcafe", Seq: math.MaxUint64}, {}}.String(), 2)
	f.Fuzz(func(t *testing.T, text string, partitions int) {
		partitions = 1 + (partitions&math.MaxInt)%store.MaxPartitions
		c, ok := parseCursor(text, partitions)
		if ok && (c.String() != text || len(c) != partitions) {
			t.Fatalf("%q is read as %v", text, c)
		}
	})
}
