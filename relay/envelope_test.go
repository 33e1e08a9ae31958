package relay

import (
	"bytes"
	"reflect"
	"testing"
)

func TestEnvelopeRoundTrip(t *testing.T) {
	for _, e := range []envelope{
		{Kind: kindCancel},
		{Kind: kindRequest, Number: 1<<31 - 1, User: "u", Peer: "p", Connection: "c", From: "r", ID: "i", Body: []byte(`{"a":1}`)},
		{Kind: kindAnswer, User: "ü\x00", Body: bytes.Repeat([]byte{'x'}, 100_000)},
	} {
		got, err := decodeEnvelope(e.encode())
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("got %+v, %v; want %+v", got, err, e)
		}
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	f.Add(envelope{Kind: kindRequest, Number: 7, User: "u", Peer: "p", Connection: "c", From: "r", ID: "i", Body: []byte("{}")}.encode())
	f.Add([]byte{})
	f.Add([]byte{1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEnvelope(b)
		if err != nil {
			return
		}
		again, err := decodeEnvelope(e.encode())
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("%+v is read as %+v, %v", e, again, err)
		}
	})
}
