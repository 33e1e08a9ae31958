package migrations

import (
	"errors"
	"testing"

	"holdfast/events"
)

func TestUpcastGoesThroughAllSteps(t *testing.T) {
	upcasts["test-happened"] = []upcast{
		func(b []byte) ([]byte, error) { return append(b, '2'), nil },
		func(b []byte) ([]byte, error) { return append(b, '3'), nil },
	}
	defer delete(upcasts, "test-happened")
	for schema, want := range map[int]string{1: "d23", 2: "d3", 3: "d", 4: "d"} {
		got, err := Upcast(events.Encoded{Type: "test-happened", Schema: schema, Data: []byte("d")})
		if err != nil || string(got.Data) != want || got.Schema != max(schema, 3) {
			t.Errorf("schema %d: %s schema %d, %v; want %s", schema, got.Data, got.Schema, err, want)
		}
	}
	bad := errors.New("bad")
	upcasts["test-happened"][0] = func([]byte) ([]byte, error) { return nil, bad }
	if _, err := Upcast(events.Encoded{Type: "test-happened", Schema: 1}); !errors.Is(err, bad) {
		t.Errorf("error of a step: %v", err)
	}
}
