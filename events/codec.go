package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// ErrUnknown is returned by Decode for a type or a schema that this build does not know.
var ErrUnknown = errors.New("unknown event")

// Encoded is the stored form of an event.
type Encoded struct {
	Type   string
	Schema int
	Data   []byte // JSON
}

type kind struct {
	name   string // stored; never changes
	schema int    // the newest; Decode reads older ones through migrations
	decode func([]byte) (Event, error)
}

func kindOf[E Event](name string, schema int) kind {
	return kind{name: name, schema: schema, decode: func(b []byte) (Event, error) {
		var e E
		if q, ok := any(&e).(quickly); ok && quick(b, q) {
			return e, nil
		}
		var slow E
		err := json.Unmarshal(b, &slow)
		return slow, err
	}}
}

var kinds = map[reflect.Type]kind{
	reflect.TypeFor[ReplicaStarted]():      kindOf[ReplicaStarted]("replica-started", 1),
	reflect.TypeFor[ReplicaStopped]():      kindOf[ReplicaStopped]("replica-stopped", 1),
	reflect.TypeFor[ReplicaLost]():         kindOf[ReplicaLost]("replica-lost", 1),
	reflect.TypeFor[PeerConnected]():       kindOf[PeerConnected]("peer-connected", 1),
	reflect.TypeFor[PeerDisconnected]():    kindOf[PeerDisconnected]("peer-disconnected", 1),
	reflect.TypeFor[PeerGone]():            kindOf[PeerGone]("peer-gone", 1),
	reflect.TypeFor[PeerForgotten]():       kindOf[PeerForgotten]("peer-forgotten", 1),
	reflect.TypeFor[MethodRegistered]():    kindOf[MethodRegistered]("method-registered", 1),
	reflect.TypeFor[RegistrationsLapsed](): kindOf[RegistrationsLapsed]("registrations-lapsed", 1),
	reflect.TypeFor[MethodUnregistered]():  kindOf[MethodUnregistered]("method-unregistered", 1),
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

// Encode gives the stored form of e.
func Encode(e Event) (Encoded, error) {
	k, ok := kinds[reflect.TypeOf(e)]
	if !ok {
		return Encoded{}, fmt.Errorf("events: encode %T: %w", e, ErrUnknown)
	}
	data, err := json.Marshal(e)
	if err != nil {
		return Encoded{}, fmt.Errorf("events: encode %s: %w", k.name, err)
	}
	return Encoded{Type: k.name, Schema: k.schema, Data: data}, nil
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
