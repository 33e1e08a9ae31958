package transport

import (
	"encoding/json"
	"reflect"
	"testing"

	"holdfast/transport/socketio"
)

var callSeeds = []string{
	`{"method":"m","params":{"a":[1,"x"]},"timeout":30000,"id":"i"}`,
	`{ "timeout" : 1 , "method" : "é" }`,
	`{"method":"m","params":null}`,
	`{"method":"m","Method":"n"}`,
	`{"method":"m","method":"n"}`,
	`{"method":"m\u0061","timeout":1e3}`,
	`{"method":"","timeout":0,"id":""}`,
	`{"method":1}`,
	`{"method":"m","timeout":null,"id":null}`,
	`{"method":"m","timeout":-1}`,
	`{"method":"m","timeout":007}`,
	`{"method":"m","other":{"method":"n"}}`,
	`{}`, `[]`, `"method"`, `{"method":"m"`,
}

// What the quick reading of a call takes, it reads as encoding/json does.
func FuzzPlainCall(f *testing.F) {
	for _, s := range callSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, arg []byte) {
		_, ok := plainCall([]json.RawMessage{arg}) // must not panic, whatever it gets
		event := append(append([]byte(`2["rpc-call",`), arg...), ']')
		p, err := socketio.DecodeFromClient(event)
		if !ok || err != nil {
			return
		}
		_, args, err := socketio.SplitEvent(p.Data)
		if err != nil {
			t.Fatal(err)
		}
		plain, ok := plainCall(args)
		if !ok {
			return
		}
		if full, problem := anyCall(args); problem != "" || !reflect.DeepEqual(plain, full) {
			t.Fatalf("%s: got %+v, want %+v %s", args[0], plain, full, problem)
		}
	})
}

func TestPlainCall(t *testing.T) {
	taken := 0
	for _, s := range callSeeds {
		if _, ok := plainCall([]json.RawMessage{json.RawMessage(s)}); ok {
			taken++
		}
	}
	if taken < 3 {
		t.Errorf("only %d are read quickly", taken)
	}
}
