package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var write = flag.Bool("write-stored", false, "store the examples of event types that have none yet")

// examples has one of each type with every field set, so that a field which is lost on the way is noticed.
var examples = []Event{
	ReplicaStarted{Instance: "r1", Incarnation: "01J9ZZZZZZZZZZZZZZZZZZZZZA", URL: "http://r1:8080", Slot: 7, Understands: 1},
	ReplicaStopped{Instance: "r1", Incarnation: "01J9ZZZZZZZZZZZZZZZZZZZZZA"},
	ReplicaLost{Instance: "r1", Incarnation: "01J9ZZZZZZZZZZZZZZZZZZZZZA", SilentMs: 4000, Reason: "lease"},
	PeerConnected{User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Instance: "r1", Session: "sid", Recovery: "pid", Recovered: true, Anonymous: true},
	PeerDisconnected{User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Reason: "transport-close", SessionEnded: true},
	PeerGone{User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC"},
	PeerForgotten{User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Methods: []string{"a", "b"}},
	MethodRegistered{User: "u/1", Method: "m", Peer: "p", Session: "sid", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Delivery: DeliverAgain},
	MethodUnregistered{User: "u/1", Method: "m", Peer: "p", Session: "sid", Reason: "grace"},
	RegistrationsLapsed{User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC"},
	ReplicaDraining{Instance: "r1", Incarnation: "01J9ZZZZZZZZZZZZZZZZZZZZZA"},
	RoomOpened{Room: "room/1", Instance: "r1"},
	joinedExample,
	RoomMoved{RoomJoined: joinedExample, From: "room/0", FromRole: Guest},
	RoomLeft{Room: "room/1", User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Role: Host, Reason: "timeout"},
	RoomSettingsChanged{Room: "room/1", User: "u/1", Peer: "p", Patch: json.RawMessage(`{"a":{"b":null}}`)},
	RoomGuestChanged{Room: "room/1", User: "u/1", Peer: "p", Patch: json.RawMessage(`{"muted":true}`)},
	RoomClosed{Room: "room/1", User: "u/1", Peer: "p", Reason: "closed"},
	SettingChanged{Key: "k", Value: json.RawMessage(`[1,"x"]`), User: "u/1", Peer: "p"},
}

var joinedExample = RoomJoined{
	Room: "room/1", User: "u/1", Peer: "p", Connection: "01J9ZZZZZZZZZZZZZZZZZZZZZC", Session: "sid", Role: Host, Was: Guest,
	Name: "N", Meta: json.RawMessage(`{"x":1}`), Unwatched: []string{"w"},
}

// older are examples of forms that are written for older generations only, as their readers see them.
var older = map[string]int{"method-registered": 1}

func TestOlderFormsAreStillWrittenAsTheyWere(t *testing.T) {
	for _, e := range examples {
		schema, ok := older[Name(e)]
		if !ok {
			continue
		}
		enc, err := EncodeFor(e, 1)
		if err != nil || enc.Schema != schema {
			t.Fatalf("%s for generation 1 has schema %d, %v; want %d", Name(e), enc.Schema, err, schema)
		}
		stored, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("%s.%d.json", enc.Type, enc.Schema)))
		if err != nil {
			t.Fatal(err)
		}
		var compact bytes.Buffer
		_ = json.Compact(&compact, stored)
		if compact.String() != string(enc.Data) {
			t.Errorf("stored  %s\nwritten %s", compact.String(), enc.Data)
		}
	}
	for _, k := range kinds {
		if len(k.older) > 0 && older[k.name] == 0 {
			t.Errorf("%s has older forms and no test of them", k.name)
		}
	}
}

func TestNeeds(t *testing.T) {
	for generation, want := range map[int]int{1: 1, 2: 2, 9: 2} {
		if got, err := Needs(MethodRegistered{}, generation); got != want || err != nil {
			t.Errorf("written for generation %d it needs %d, %v; want %d", generation, got, err, want)
		}
	}
	if got, err := Needs(PeerGone{}, 2); got != 1 || err != nil {
		t.Errorf("an event with one form needs %d, %v", got, err)
	}
	if _, err := Needs(MethodRegistered{}, 0); !errors.Is(err, ErrTooNew) {
		t.Errorf("no form at all: %v", err)
	}
	newest := 0
	for _, k := range kinds {
		newest = max(newest, k.generation)
	}
	if newest != Generation {
		t.Errorf("the newest form is of generation %d, Generation is %d", newest, Generation)
	}
}

// Every stored form that was ever written must be read for ever: testdata has one of each type and schema.
func TestStoredEventsAreReadForEver(t *testing.T) {
	found := map[string]bool{}
	for _, e := range examples {
		enc, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		found[enc.Type] = true
		file := filepath.Join("testdata", fmt.Sprintf("%s.%d.json", enc.Type, enc.Schema))
		if *write {
			if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
				var b bytes.Buffer
				_ = json.Indent(&b, enc.Data, "", "  ")
				b.WriteByte('\n')
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		stored, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%v (a new event type or schema: go test ./events -write-stored)", err)
			continue
		}
		var compact bytes.Buffer
		_ = json.Compact(&compact, stored)
		got, err := Decode(Encoded{Type: enc.Type, Schema: enc.Schema, Data: compact.Bytes()})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Errorf("%s is read as something else (-want +got):\n%s", file, diff)
		}
		if compact.String() != string(enc.Data) {
			t.Errorf("%s: the stored form has changed without a new schema number:\nstored  %s\nwritten %s", file, compact.String(), enc.Data)
		}
		assertNoZeroField(t, e)
	}
	for _, name := range Names() {
		if !found[name] {
			t.Errorf("event type %s has no example", name)
		}
	}
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		if !found[name] {
			t.Errorf("%s: its event type is gone, but logs still hold it", file)
		}
	}
}

func assertNoZeroField(t *testing.T, e Event) {
	t.Helper()
	v := reflect.ValueOf(e)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the example of %T leaves %s at its zero value", e, v.Type().Field(i).Name)
		}
	}
}

func TestUnknownTypesAndSchemasAreErrors(t *testing.T) {
	for _, enc := range []Encoded{
		{Type: "never-heard-of", Schema: 1, Data: []byte("{}")},
		{Type: "peer-gone", Schema: 99, Data: []byte("{}")},
	} {
		if _, err := Decode(enc); !errors.Is(err, ErrUnknown) {
			t.Errorf("Decode(%v) = %v, want ErrUnknown", enc, err)
		}
	}
	if _, err := Decode(Encoded{Type: "peer-gone", Schema: 1, Data: []byte("[")}); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("damaged data: %v, want an error that is not ErrUnknown", err)
	}
}

func TestAggregatesOfDifferentThingsDiffer(t *testing.T) {
	if a, b := PeerKey("a/b", "c"), PeerKey("a", "b/c"); a == b {
		t.Errorf("two peers share the aggregate %s", a)
	}
	if a, b := PeerKey("a%2Fb", "c"), PeerKey("a/b", "c"); a == b {
		t.Errorf("two peers share the aggregate %s", a)
	}
}

func TestAggregatesAreTakenApart(t *testing.T) {
	for _, names := range [][2]string{{"u", "p"}, {"a/b", "c%2Fd"}, {"%", "/"}, {"%252F", "x y:z"}} {
		kind, got := PeerKey(names[0], names[1]).Parts()
		if kind != "peer" || len(got) != 2 || got[0] != names[0] || got[1] != names[1] {
			t.Errorf("%s is taken apart as %s %q", PeerKey(names[0], names[1]), kind, got)
		}
	}
	if kind, names := ReplicasKey().Parts(); kind != "replicas" || names != nil {
		t.Errorf("%s is taken apart as %s %q", ReplicasKey(), kind, names)
	}
}

func TestPositions(t *testing.T) {
	p, err := ParsePosition("1700000000000-3")
	if err != nil || p != (Position{Ms: 1700000000000, Seq: 3}) {
		t.Fatalf("ParsePosition = %v, %v", p, err)
	}
	for _, bad := range []string{"", "5", "-", "1-", "-1", "1-x", "a-1", "1-1-1", "99999999999999999999-0"} {
		if _, err := ParsePosition(bad); err == nil {
			t.Errorf("ParsePosition(%q) succeeded", bad)
		}
	}
	if !(Position{Ms: 1, Seq: 9}).Before(Position{Ms: 2}) || (Position{Ms: 2}).Before(Position{Ms: 1, Seq: 9}) || p.Before(p) {
		t.Error("positions are out of order")
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range examples {
		enc, _ := Encode(e)
		f.Add(enc.Type, enc.Data)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		e, err := Decode(Encoded{Type: name, Schema: byName[name].schema, Data: data})
		if err != nil {
			return
		}
		e.Writes()
		e.Ends()
		enc, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(enc); err != nil {
			t.Fatalf("what was decoded and encoded is not readable: %v", err)
		}
	})
}
