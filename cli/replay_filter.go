package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"holdfast/events"
	"holdfast/store"
)

// filter says which entries, and which things of a state, are asked for. Within one list any may match, and all
// lists that are not empty must.
type filter struct {
	Room    []string `env:"-" placeholder:"R" help:"Only what is about this room."`
	Peer    []string `env:"-" placeholder:"[U/]P" help:"Only what is about this peer: its id, or user/id. Repeatable, as all filters; / and % within a name are written %2F and %25."`
	User    []string `env:"-" placeholder:"U" help:"Only what is about this user."`
	Method  []string `env:"-" placeholder:"[U/]M" help:"Only what is about this method: its name, or user/name."`
	Replica []string `env:"-" placeholder:"I" help:"Only what this instance recorded, or what is about it."`
	Type    []string `env:"-" placeholder:"T" help:"Only events of this type, such as peer-connected."`
}

// about is what an entry or a part of a state is about.
type about struct {
	Room      string   `json:"room"`
	User      string   `json:"user"`
	Peer      string   `json:"peer"`
	Method    string   `json:"method"`
	Methods   []string `json:"methods"`
	Instance  string   `json:"instance"`
	From      string   `json:"from"`
	Unwatched []string `json:"unwatched"`
	instances []string
	kind      string
	room      peersView // who is in a room that is looked at
}

// inRoom says whether the room is among those that it is about.
func (a about) inRoom(room string) bool {
	return a.Room == room || a.From == room && room != "" || slices.Contains(a.Unwatched, room)
}

// users and peers that it is about, as a user may ask for any peer of a room.
func (a about) anyPeer(match func(user, peer string) bool) bool {
	return match(a.User, a.Peer) || slices.ContainsFunc(a.room, func(s seatView) bool { return match(s.User, s.Peer) })
}

// aboutEntry needs no knowledge of the type: a name has the same field in all events.
func aboutEntry(e store.Entry) about {
	var a about
	_ = json.Unmarshal(e.Data, &a) // what is not there, or not of this shape, is about nothing
	if a.Method != "" {
		a.Methods = append(a.Methods, a.Method)
	}
	a.instances = []string{a.Instance, e.Replica}
	a.kind = e.Type
	return a
}

func (f filter) isZero() bool {
	return len(f.Room) == 0 && len(f.Peer) == 0 && len(f.User) == 0 && len(f.Method) == 0 && len(f.Replica) == 0 && len(f.Type) == 0
}

func (f filter) matches(a about) bool {
	return matchesAny(f.Room, a.inRoom) &&
		matchesAny(f.User, func(u string) bool { return a.anyPeer(func(user, _ string) bool { return u == user }) }) &&
		matchesAny(f.Peer, func(p string) bool {
			return a.anyPeer(func(user, peer string) bool { return ofUser(p, user, []string{peer}) })
		}) &&
		matchesAny(f.Method, func(m string) bool { return ofUser(m, a.User, a.Methods) }) &&
		matchesAny(f.Replica, func(i string) bool { return slices.Contains(a.instances, i) }) &&
		matchesAny(f.Type, func(t string) bool { return t == a.kind })
}

func matchesAny(wanted []string, match func(string) bool) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, match)
}

// ofUser matches "name" with that name of any user, and "user/name" with that of one.
func ofUser(wanted, user string, names []string) bool {
	_, parts := events.Aggregate("x:" + wanted).Parts()
	switch len(parts) {
	case 1:
		return slices.Contains(names, parts[0])
	case 2:
		return parts[0] == user && slices.Contains(names, parts[1])
	}
	return false
}

// field is one member of a JSON object, in the order in which it is stored.
type field struct {
	name string
	raw  json.RawMessage
}

// fieldsOf takes a JSON object apart; false when it is none.
func fieldsOf(data []byte) ([]field, bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	var fields []field
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, false
		}
		text, ok := name.(string)
		if !ok {
			return nil, false
		}
		f := field{name: text}
		if err := d.Decode(&f.raw); err != nil {
			return nil, false
		}
		fields = append(fields, f)
	}
	return fields, json.Valid(data)
}

// subject is the first aggregate of an entry that has a name; what stands there for people if the entry is not
// understood.
func subject(e store.Entry) string {
	record, err := e.Record()
	if err != nil {
		return e.Touches
	}
	for _, list := range [][]events.Aggregate{record.Event.Writes(), record.Event.Ends()} {
		for _, a := range list {
			if strings.Contains(string(a), ":") {
				return string(a)
			}
		}
	}
	return e.Touches
}
