package migrations

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// Every stored example of an older schema is read as its type of today.
func TestStoredExamplesOfOlderSchemasAreRead(t *testing.T) {
	want := map[string]events.Event{
		"method-registered.1": events.MethodRegistered{
			User: "u/1", Method: "m", Peer: "p", Session: "sid",
			Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Delivery: events.DeliverAgain,
		},
	}
	files, err := filepath.Glob("../events/testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		id := strings.TrimSuffix(filepath.Base(file), ".json")
		name, number, _ := strings.Cut(id, ".")
		schema, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		if schema == events.Schema(name) {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := Upcast(events.Encoded{Type: name, Schema: schema, Data: data})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got, err := events.Decode(encoded)
		if err != nil || got != want[id] {
			t.Errorf("%s is read as %+v, %v; want %+v", file, got, err, want[id])
		}
	}
}

func TestUpcastsReachTheNewestSchema(t *testing.T) {
	for name, steps := range upcasts {
		if got := events.Schema(name); got != len(steps)+1 {
			t.Errorf("%s has %d upcasts and schema %d", name, len(steps), got)
		}
	}
	for _, name := range events.Names() {
		if got := events.Schema(name); got != len(upcasts[name])+1 {
			t.Errorf("%s has schema %d and %d upcasts", name, got, len(upcasts[name]))
		}
	}
	got, err := Upcast(events.Encoded{Type: "method-registered", Schema: 1, Data: []byte(`{"user":"u","method":"m","peer":"p","session":"s","connection":"c"}`)})
	want := `{"user":"u","method":"m","peer":"p","session":"s","connection":"c","delivery":"once"}`
	if err != nil || string(got.Data) != want {
		t.Errorf("without the flag: %s, %v", got.Data, err)
	}
}
