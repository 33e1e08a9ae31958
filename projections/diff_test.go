package projections

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/events"
)

// What a rebuild must tell of: what differs of rooms that both states have, and of settings; not what is missing.
func TestDiff(t *testing.T) {
	stateOf := func(at uint64, all ...events.Event) *State {
		s := New()
		s.Apply(events.Record{Position: events.Position{Ms: at}, Event: events.ReplicaStarted{Instance: "a", Incarnation: "I"}})
		s.Apply(events.Record{Position: events.Position{Ms: at, Seq: 1}, Event: events.ReplicaStarted{Instance: "b", Incarnation: "J", Slot: 1}})
		for i, e := range all {
			s.Apply(events.Record{Position: events.Position{Ms: at, Seq: uint64(i + 2)}, Event: e})
		}
		return s
	}
	open := func(room, at string) events.Event { return events.RoomOpened{Room: room, Instance: at} }
	set := func(room, patch string) events.Event {
		return events.RoomSettingsChanged{Room: room, Patch: json.RawMessage(patch)}
	}
	before := stateOf(1, open("R", "a"), set("R", `{"k":1}`), open("gone", "a"), events.SettingChanged{Key: "s", Value: json.RawMessage("1")},
		events.SettingChanged{Key: "same", Value: json.RawMessage("2")})
	after := stateOf(9, open("R", "b"), set("R", `{"k":2}`), events.RoomGuestChanged{Room: "R", Patch: json.RawMessage(`{"g":1}`)},
		open("new", "a"), events.SettingChanged{Key: "s", Value: json.RawMessage("3")}, events.SettingChanged{Key: "same", Value: json.RawMessage("2")})
	now, then := after.Room("R").Version, before.Room("R").Version
	want := []Change{
		{Kind: RoomChangedSettings, At: now, Room: "R", Previous: then, Value: `{"k":2}`, Patch: `{"k":2}`},
		{Kind: RoomChangedGuest, At: now, Room: "R", Previous: then, Value: `{"g":1}`, Patch: `{"g":1}`},
		{
			Kind: RoomChangedPin, At: now, Room: "R", Previous: then, Owner: "b", Former: "a",
			Pinned: events.Position{Ms: 9, Seq: 2}, Unpinned: events.Position{Ms: 1, Seq: 2},
		},
		{Kind: SettingsChanged, At: after.Position, Key: "s", Value: "3"},
	}
	if diff := cmp.Diff(want, Diff(before, after)); diff != "" {
		t.Error(diff)
	}
	if same := Diff(before, before); len(same) != 0 {
		t.Errorf("a state differs from itself: %+v", same)
	}
}
