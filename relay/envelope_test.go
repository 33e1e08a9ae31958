package relay

import (
	"bytes"
	"reflect"
	"testing"
)

func TestEnvelopesRoundTrip(t *testing.T) {
	var entry []byte
	var want []envelope
	for _, e := range []envelope{
		{Kind: kindCancel},
		{Kind: kindRequest, Number: 1<<31 - 1, User: "u", Peer: "p", Connection: "c", From: "r", ID: "i", Body: []byte(`{"a":1}`)},
		{Kind: kindAnswer, User: "ü\x00", Body: bytes.Repeat([]byte{'x'}, 100_000)},
	} {
		entry = e.append(entry)
		want = append(want, e)
	}
	var got []envelope
	for rest := entry; len(rest) > 0; {
		var e envelope
		var err error
		if e, rest, err = decodeEnvelope(rest); err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v; want %+v", got, want)
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	request := envelope{Kind: kindRequest, Number: 7, User: "u", Peer: "p", Connection: "c", From: "r", ID: "i", Body: []byte("{}")}
	f.Add(request.append(nil))
	f.Add(request.append(request.append(nil)))
	f.Add([]byte{})
	f.Add([]byte{1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, rest, err := decodeEnvelope(b)
		if err != nil {
			return
		}
		if len(rest) >= len(b) || !bytes.HasSuffix(b, rest) {
			t.Fatalf("%d bytes are left of %d", len(rest), len(b))
		}
		again, end, err := decodeEnvelope(e.append(nil))
		if err != nil || len(end) > 0 || !reflect.DeepEqual(again, e) {
			t.Fatalf("%+v is read as %+v, %v", e, again, err)
		}
		if n := len(e.append(nil)); n > e.size() {
			t.Fatalf("%+v takes %d bytes, not at most %d", e, n, e.size())
		}
	})
}
