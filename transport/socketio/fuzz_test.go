package socketio

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"
)

var seeds = []string{
	`0`, `0/custom`, `0/custom,{"a":1}`, `1/a,`, `2["e",1,{"a":[null,true]}]`, `2/a,12["e"]`,
	`31[]`, `4{"message":"m"}`, `51-["e",{"_placeholder":true,"num":0}]`, `62-4[1]`, `512-7["e"]`,
	`2["\u0000\\\"",-1.5E+3]`, "2[\"\xff\"]", `2["e"`, `2[[[[`, `29007199254740993["e"]`,
}

// Whatever is decoded comes back the same after Append.
func FuzzDecode(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Decode(text)
		if err != nil {
			return
		}
		if p.Data != nil && !json.Valid(p.Data) {
			t.Fatalf("invalid JSON taken: %q", p.Data)
		}
		again, err := Decode(p.Append(nil))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%q: got %+v, %v, want %+v", text, again, err, p)
		}
		if _, err := DecodeFromClient(text); err != nil {
			return
		}
		switch p.Type {
		case Event, BinaryEvent:
			name, args, err := SplitEvent(p.Data)
			if err != nil {
				t.Fatal(err)
			}
			elems := elements(t, p.Data)
			if len(args) != len(elems)-1 {
				t.Fatalf("%q: %d args of %d", p.Data, len(args), len(elems))
			}
			var want string
			if json.Unmarshal(elems[0], &want) == nil && want != name {
				t.Fatalf("%q: name %q, want %q", p.Data, name, want)
			}
			same(t, args, elems[1:])
		case Ack, BinaryAck:
			args, err := SplitArgs(p.Data)
			if err != nil {
				t.Fatal(err)
			}
			same(t, args, elements(t, p.Data))
		}
	})
}

// The scanner takes exactly what encoding/json takes.
func FuzzScan(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s)[1:])
	}
	f.Add([]byte(`{"a":{"b":[1,2,{"c":"\ud800"}]},"d":-0.0e-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		end := scan(b, 0)
		got := end >= 0 && skipSpace(b, end) == len(b)
		if want := json.Valid(b); got != want {
			t.Fatalf("%q: got %v, want %v", b, got, want)
		}
		if got && utf8.Valid(b) {
			start := skipSpace(b, 0)
			if e := skipValid(b, start); e != end {
				t.Fatalf("%q: skipped to %d, scanned to %d", b, e, end)
			}
		}
	})
}

// Input that was not validated must not make the splitters panic.
func FuzzSplit(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s)[1:])
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		SplitArgs(b)  // only that it returns
		SplitEvent(b) // only that it returns
	})
}

func elements(t *testing.T, data []byte) []json.RawMessage {
	t.Helper()
	var elems []json.RawMessage
	if err := json.Unmarshal(data, &elems); err != nil {
		t.Fatal(err)
	}
	return elems
}

func same(t *testing.T, got, want []json.RawMessage) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("got %q, want %q", got[i], want[i])
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	text := []byte(`217["rpc-call",{"method":"m","params":{"text":"` + string(bytes.Repeat([]byte("x"), 200)) + `","n":[1,2,3]}}]`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		p, err := DecodeFromClient(text)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := SplitEvent(p.Data); err != nil {
			b.Fatal(err)
		}
	}
}
