package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// Generation is the newest generation of stored forms that this build reads and writes. It grows by one with
// every release that adds a type or a schema; a replica announces it at its start.
const (
	Generation = 3
	First      = 1 // every replica that was ever released understands it
)

var (
	// ErrUnknown is returned by Decode for a type or a schema that this build does not know.
	ErrUnknown = errors.New("unknown event")
	// ErrTooNew is returned for an event that has no form in an older generation.
	ErrTooNew = errors.New("not understood by every replica yet")
)

// Encoded is the stored form of an event.
type Encoded struct {
	Type   string
	Schema int
	Data   []byte // JSON
}

type kind struct {
	name   string // stored; never changes
	form          // the newest; Decode reads older ones through migrations
	older  []form // newest first: written while a replica lives that does not understand the newest
	decode func([]byte) (Event, error)
}

// form is one way in which events of a type are stored.
type form struct {
	schema     int
	generation int // the first that understands it
	encode     func(Event) ([]byte, error)
}

func kindOf[E Event](name string, generation int, older ...form) kind {
	return kind{
		name: name, older: older,
		form: form{schema: len(older) + 1, generation: generation, encode: func(e Event) ([]byte, error) { return json.Marshal(e) }},
		decode: func(b []byte) (Event, error) {
			var e E
			if q, ok := any(&e).(quickly); ok && quick(b, q) {
				return e, nil
			}
			var slow E
			err := json.Unmarshal(b, &slow)
			return slow, err
		},
	}
}

// formFor is the newest form that the generation understands.
func (k kind) formFor(generation int) (form, error) {
	if k.generation <= generation {
		return k.form, nil
	}
	for _, f := range k.older {
		if f.generation <= generation {
			return f, nil
		}
	}
	return form{}, fmt.Errorf("events: %s in generation %d: %w", k.name, generation, ErrTooNew)
}

var kinds = map[reflect.Type]kind{
	reflect.TypeFor[ReplicaStarted]():      kindOf[ReplicaStarted]("replica-started", 1),
	reflect.TypeFor[ReplicaStopped]():      kindOf[ReplicaStopped]("replica-stopped", 1),
	reflect.TypeFor[ReplicaLost]():         kindOf[ReplicaLost]("replica-lost", 1),
	reflect.TypeFor[PeerConnected]():       kindOf[PeerConnected]("peer-connected", 1),
	reflect.TypeFor[PeerDisconnected]():    kindOf[PeerDisconnected]("peer-disconnected", 1),
	reflect.TypeFor[PeerGone]():            kindOf[PeerGone]("peer-gone", 1),
	reflect.TypeFor[PeerForgotten]():       kindOf[PeerForgotten]("peer-forgotten", 1),
	reflect.TypeFor[MethodRegistered]():    kindOf[MethodRegistered]("method-registered", 2, methodRegistered1),
	reflect.TypeFor[RegistrationsLapsed](): kindOf[RegistrationsLapsed]("registrations-lapsed", 1),
	reflect.TypeFor[MethodUnregistered]():  kindOf[MethodUnregistered]("method-unregistered", 1),
	reflect.TypeFor[ReplicaDraining]():     kindOf[ReplicaDraining]("replica-draining", 3),
	reflect.TypeFor[RoomOpened]():          kindOf[RoomOpened]("room-opened", 3),
	reflect.TypeFor[RoomJoined]():          kindOf[RoomJoined]("room-joined", 3),
	reflect.TypeFor[RoomMoved]():           kindOf[RoomMoved]("room-moved", 3),
	reflect.TypeFor[RoomLeft]():            kindOf[RoomLeft]("room-left", 3),
	reflect.TypeFor[RoomSettingsChanged](): kindOf[RoomSettingsChanged]("room-settings-changed", 3),
	reflect.TypeFor[RoomGuestChanged]():    kindOf[RoomGuestChanged]("room-guest-changed", 3),
	reflect.TypeFor[RoomClosed]():          kindOf[RoomClosed]("room-closed", 3),
	reflect.TypeFor[SettingChanged]():      kindOf[SettingChanged]("setting-changed", 3),
}

var byName = func() map[string]kind {
	m := make(map[string]kind, len(kinds))
	for _, k := range kinds {
		m[k.name] = k
	}
	return m
}()

// Name is the stored name of the event's type, such as "peer-connected".
func Name(e Event) string { return kinds[reflect.TypeOf(e)].name }

// Names lists the stored names of all event types, in no order.
func Names() []string {
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	return names
}

// Schema is the newest schema of a type; 0 for one that this build does not know.
func Schema(name string) int { return byName[name].schema }

// Encode gives the stored form of e, the newest.
func Encode(e Event) (Encoded, error) { return EncodeFor(e, Generation) }

// EncodeFor gives the newest stored form of e that replicas of a generation understand. It is ErrTooNew when
// there is none.
func EncodeFor(e Event, generation int) (Encoded, error) {
	k, ok := kinds[reflect.TypeOf(e)]
	if !ok {
		return Encoded{}, fmt.Errorf("events: encode %T: %w", e, ErrUnknown)
	}
	f, err := k.formFor(generation)
	if err != nil {
		return Encoded{}, err
	}
	data, err := f.encode(e)
	if err != nil {
		return Encoded{}, fmt.Errorf("events: encode %s: %w", k.name, err)
	}
	return Encoded{Type: k.name, Schema: f.schema, Data: data}, nil
}

// Needs is the generation that a reader of e must have when e is written for a generation: that of the form
// which EncodeFor chooses. It is ErrTooNew when there is none.
func Needs(e Event, generation int) (int, error) {
	f, err := kinds[reflect.TypeOf(e)].formFor(generation)
	return f.generation, err
}

// Decode reads the stored form. An unknown type or schema is ErrUnknown: the reader must not go past it.
func Decode(enc Encoded) (Event, error) {
	k, ok := byName[enc.Type]
	if !ok || enc.Schema != k.schema {
		return nil, fmt.Errorf("events: decode %s schema %d: %w", enc.Type, enc.Schema, ErrUnknown)
	}
	e, err := k.decode(enc.Data)
	if err != nil {
		return nil, fmt.Errorf("events: decode %s: %w", enc.Type, err)
	}
	return e, nil
}

func parseUint(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }
