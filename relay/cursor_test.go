package relay

import (
	"encoding/base64"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"holdfast/replica"
	"holdfast/store"
)

// testSigner has a secret as a replica makes it.
func testSigner() *signer { return newSigner(replica.New(replica.Config{}, nil).Secret()) }

func TestCursorsComeBackAsTheyWere(t *testing.T) {
	s, other := testSigner(), testSigner()
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
		text := s.offset(c)
		back, ours, _ := s.parse(text, len(c))
		if !ours || !slices.Equal(back, c) || len(text) > maxOffset || s.offset(c) != text {
			t.Fatalf("%v became %v (%v) by %s", c, back, ours, text)
		}
		if _, ours, _ := s.parse(text, len(c)+1); ours {
			t.Fatal("a cursor of another number of partitions is taken")
		}
		if _, ours, alike := other.parse(text, len(c)); ours || !alike {
			t.Fatal("a cursor of another secret is taken, or not known for one")
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		changed := []byte(text)
		changed[at] = rapid.SampledFrom([]byte("abcXYZ019-_\n")).Draw(t, "by")
		if _, ours, _ := s.parse(string(changed), len(c)); ours && string(changed) != text {
			t.Fatalf("%s is taken for %s", changed, text)
		}
	})
}

// The form is public: a client can make up everything but the signature, which depends on all the rest.
func TestOffsetsCannotBeMadeUp(t *testing.T) {
	s := testSigner()
	from := cursor{{Epoch: "0badcafe", Seq: 7, Token: 9}}
	raw, err := base64.RawURLEncoding.DecodeString(s.offset(from)[len(cursorPrefix):])
	if err != nil || len(raw) != 1+4+4+1+signatureLength {
		t.Fatal(len(raw), err)
	}
	for i := range raw {
		for bit := range 8 {
			forged := slices.Clone(raw)
			forged[i] ^= 1 << bit
			if _, ours, _ := s.parse(cursorPrefix+base64.RawURLEncoding.EncodeToString(forged), 1); ours {
				t.Fatalf("bit %d of byte %d may be changed", bit, i)
			}
		}
	}
	short := cursorPrefix + base64.RawURLEncoding.EncodeToString(raw[:len(raw)-signatureLength])
	if _, ours, _ := s.parse(short, 1); ours {
		t.Fatal("an offset without a signature is taken")
	}
}

func FuzzParseCursor(f *testing.F) {
	s := testSigner()
	f.Add("hf", 1)
	f.Add("", 1)
	f.Add(s.offset(cursor{{Epoch: "0badcafe", Seq: 1}}), 1)
	f.Add(s.offset(cursor{{Epoch: "0badcafe", Seq: math.MaxUint64}, {}}), 2)
	f.Fuzz(func(t *testing.T, text string, partitions int) {
		partitions = 1 + (partitions&math.MaxInt)%store.MaxPartitions
		c, ours, alike := s.parse(text, partitions)
		if ours && (s.offset(c) != text || len(c) != partitions || !alike) {
			t.Fatalf("%q is read as %v", text, c)
		}
	})
}

// Every message costs one of these where it is handed out, and one where it was published.
func BenchmarkOffset(b *testing.B) {
	for name, c := range map[string]cursor{"partitions=1": make(cursor, 1), "partitions=8": make(cursor, 8)} {
		for i := range c {
			c[i] = store.Mark{Epoch: "0badcafe", Seq: 1 << 30, Token: 1 << 31}
		}
		b.Run(name, func(b *testing.B) {
			s := testSigner()
			b.ReportAllocs()
			for b.Loop() {
				_ = s.offset(c)
			}
		})
	}
}
