package events

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// agree compares the quick reading of data, if there is one, with that of encoding/json.
func agree(t *testing.T, example Event, data []byte) (quickOne bool) {
	t.Helper()
	fast, slow := reflect.New(reflect.TypeOf(example)), reflect.New(reflect.TypeOf(example))
	q, ok := fast.Interface().(quickly)
	if !ok || !quick(data, q) {
		return false
	}
	if err := json.Unmarshal(data, slow.Interface()); err != nil {
		t.Fatalf("%T: read %q quickly, encoding/json says %v", example, data, err)
	}
	if !reflect.DeepEqual(fast.Interface(), slow.Interface()) {
		t.Fatalf("%T: %q\nquickly       %+v\nencoding/json %+v", example, data, fast.Elem(), slow.Elem())
	}
	return true
}

func TestQuickReadingAgrees(t *testing.T) {
	plain := joinedExample
	plain.Meta = nil
	for _, e := range append(examples, plain, RoomMoved{RoomJoined: plain, From: "room/0", FromRole: Host}) {
		enc, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		_, may := reflect.New(reflect.TypeOf(e)).Interface().(quickly)
		may = may && !bytes.Contains(enc.Data, []byte(`"meta"`)) // any JSON
		if got := agree(t, e, enc.Data); got != may {
			t.Errorf("%s: read quickly: %v, want %v", enc.Data, got, may)
		}
	}
	for _, data := range []string{
		``, `{`, `{}`, `{}x`, `{"user":"a"}`, `{"user":"a",}`, `{"user":"a"}}`, `{"user":"a" }`, `{"user":"\u0041"}`, `{"user":"ä"}`,
		"{\"user\":\"\xff\"}", `{"User":"a"}`, `{"user":"a","user":"b"}`, `{"user":null}`, `{"user":1}`, `{"other":1}`,
		`{"methods":["a","b"]}`, `{"methods":[]}`, `{"methods":["a",]}`, `{"methods":["a"],"methods":["b","c"]}`, `{"recovered":true}`,
		`{"recovered":false}`, `{"user":tru`, `{"user":"a"`, `[]`, `null`, "{\"user\":\"a\x01\"}",
	} {
		for _, e := range examples {
			agree(t, e, []byte(data))
		}
	}
}

func FuzzQuick(f *testing.F) {
	for _, e := range examples {
		enc, _ := Encode(e)
		f.Add(enc.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, e := range examples {
			agree(t, e, data)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	enc, err := Encode(examples[3])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(enc); err != nil {
			b.Fatal(err)
		}
	}
}
