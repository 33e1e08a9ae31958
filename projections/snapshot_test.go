package projections

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

func someState() *State {
	s := New()
	var token ulid.ULID
	for i, e := range []events.Event{
		events.ReplicaStarted{Instance: "r1", Incarnation: "I1", URL: "http://r1", Slot: 0, Understands: 1},
		events.ReplicaStarted{Instance: "r2", Incarnation: "I2", Slot: 1, Understands: 1},
		events.PeerConnected{User: "u", Peer: "p", Connection: "C1", Instance: "r1", Session: "s1", Recovery: "pid1"},
		events.MethodRegistered{User: "u", Method: "m", Peer: "p", Session: "s1", Connection: "C1", Delivery: events.DeliverAgain},
		events.PeerConnected{User: "u", Peer: "q", Connection: "C2", Instance: "r2", Session: "s2", Recovery: "pid2", Anonymous: true},
		events.MethodRegistered{User: "u", Method: "n", Peer: "q", Session: "s2", Connection: "C2"},
		events.PeerConnected{User: "u", Peer: "q", Connection: "C3", Instance: "r2", Session: "s3", Recovery: "pid3"},
		events.RoomSettingsChanged{Room: "A", Patch: json.RawMessage(`{"k":1.0}`)},
		events.RoomOpened{Room: "A", Instance: "r1"},
		events.RoomJoined{Room: "A", User: "u", Peer: "q", Connection: "C3", Session: "s3", Role: events.Host, Name: "N", Meta: json.RawMessage(`{"x":"<"}`)},
		events.RoomGuestChanged{Room: "A", Patch: json.RawMessage(`{"muted":true}`)},
		events.RoomOpened{Room: "B", Instance: "r2"},
		events.RoomJoined{Room: "B", User: "u", Peer: "p", Connection: "C1", Session: "s1", Role: events.Monitor},
		events.RoomSettingsChanged{Room: "early", Patch: json.RawMessage(`{"k":{"l":null,"m":2}}`)},
		events.SettingChanged{Key: "noise", Value: json.RawMessage(`true`)},
		events.ReplicaDraining{Instance: "r2", Incarnation: "I2"},
		events.PeerDisconnected{User: "u", Peer: "p", Connection: "C1", SessionEnded: true},
		events.ReplicaStopped{Instance: "r1", Incarnation: "I1"},
	} {
		next := ulid.ULID{15: byte(i + 1)}
		s.Apply(events.Record{Position: events.Position{Ms: uint64(1000 + i), Seq: uint64(i)}, Token: next, Previous: token, Event: e})
		token = next
	}
	return s
}

func TestSnapshotIsTheState(t *testing.T) {
	s := someState()
	got, err := Decode(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, got) {
		t.Errorf("got\n%+v\nwant\n%+v", got, s)
	}
	if got.Digest() != s.Digest() {
		t.Error("the digest of equal states differs")
	}
	got.Apply(events.Record{Position: events.Position{Ms: 5000}, Event: events.PeerGone{User: "u", Peer: "p", Connection: "C1"}})
	if got.Digest() == s.Digest() {
		t.Error("the digest of different states is the same")
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	whole := someState().Encode()
	for n := range len(whole) {
		if _, err := Decode(whole[:n]); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
	}
	if _, err := Decode(append(bytes.Clone(whole), 0)); !errors.Is(err, ErrSnapshot) {
		t.Errorf("with a byte more: %v", err)
	}
	other := bytes.Clone(whole)
	other[0]++
	if _, err := Decode(other); !errors.Is(err, ErrSnapshot) {
		t.Errorf("of another schema: %v", err)
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(someState().Encode())
	f.Add(New().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(s.Encode())
		if err != nil || again.Digest() != s.Digest() {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
