package replica

import (
	"bytes"
	"slices"
	"testing"
)

func TestPayload(t *testing.T) {
	text := []byte(`{"a":"\u0000"}`)
	if got := (Payload{JSON: text}).Pack(); &got[0] != &text[0] || Packed(got) {
		t.Error("text is not packed as it is")
	}
	for _, p := range []Payload{
		{JSON: text},
		{},
		{JSON: []byte(`{"_placeholder":true,"num":0}`), Attachments: [][]byte{{0, 1, 255}}},
		{JSON: []byte("[]"), Attachments: [][]byte{{}, bytes.Repeat([]byte("x"), 1000), {}}},
	} {
		got, err := Unpack(p.Pack())
		if err != nil || !bytes.Equal(got.JSON, p.JSON) || !slices.EqualFunc(got.Attachments, p.Attachments, bytes.Equal) {
			t.Errorf("got %q, %v, want %q", got, err, p)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"more attachments than there may be": Payload{JSON: []byte("[]"), Attachments: make([][]byte, MaxAttachments+1)}.Pack(),
		"no number":                          {0},
		"a number without end":               {0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1},
		"an attachment that is cut off":      {0, 1, 5, 1, 2},
	} {
		if p, err := Unpack(b); err == nil {
			t.Errorf("%s: %q", name, p)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add(Payload{JSON: []byte("[]"), Attachments: [][]byte{{1, 2}, {}}}.Pack())
	f.Add([]byte{0})
	f.Add([]byte{0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Add([]byte{0, 1, 200, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Unpack(b)
		if err != nil || Packed(b) && len(p.Attachments) == 0 {
			return
		}
		again, err := Unpack(p.Pack())
		if err != nil || !bytes.Equal(again.JSON, p.JSON) || !slices.EqualFunc(again.Attachments, p.Attachments, bytes.Equal) {
			t.Fatalf("%q: got %q, %v", b, again, err)
		}
	})
}
