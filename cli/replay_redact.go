package cli

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/store"
)

// redactor gives pseudonyms: the same for the same name as long as its salt is the same. Who does not have the salt
// can neither undo nor try them out. Positions, and with them times, stay; so do the times within ULIDs, by which
// connections are ordered.
type redactor struct{ salt []byte }

func (r redactor) sum(s string) []byte {
	h := hmac.New(sha256.New, r.salt)
	h.Write([]byte(s))
	return h.Sum(nil)
}

// Name is the pseudonym of a name, of the same form: a ULID stays one. No name has none.
func (r redactor) Name(kind, name string) string {
	if name == "" {
		return ""
	}
	if id, err := ulid.ParseStrict(name); err == nil {
		return r.Token(id).String()
	}
	return kind + "-" + hex.EncodeToString(r.sum(name)[:8])
}

// JSON is the same JSON with pseudonyms in place of its names and texts, and without its numbers.
func (r redactor) JSON(raw string) string {
	if raw == "" {
		return ""
	}
	return string(r.value("text", json.RawMessage(raw)))
}

// Token is another ULID of the same time.
func (r redactor) Token(id ulid.ULID) ulid.ULID {
	if id.IsZero() {
		return id
	}
	copy(id[6:], r.sum(id.String()))
	return id
}

// Aggregate is the aggregate of the pseudonyms.
func (r redactor) Aggregate(a events.Aggregate) events.Aggregate {
	switch kind, names := a.Parts(); {
	case kind == "peer" && len(names) == 2:
		return events.PeerKey(r.Name("user", names[0]), r.Name("peer", names[1]))
	case kind == "method" && len(names) == 2:
		return events.MethodKey(r.Name("user", names[0]), r.Name("method", names[1]))
	case kind == "incarnation" && len(names) == 1:
		return events.IncarnationKey(r.Name("instance", names[0]))
	case kind == "room-seat" && len(names) == 2:
		return events.RoomSeatKey(r.Name("room", names[0]), events.Role(names[1]))
	case strings.HasPrefix(kind, "room") && len(names) == 1:
		return events.Aggregate(kind) + ":" + events.Aggregate(r.Name("room", names[0])) // without what would be escaped
	case a == events.ReplicasKey(), a == events.SettingsKey():
		return a
	}
	return events.Aggregate(r.Name("aggregate", string(a)))
}

// named are the fields of events that hold a name, with its kind. The fields in kept say nothing about anybody. What
// is in neither may be anything, and is replaced too.
var (
	named = map[string]string{
		"user": "user", "peer": "peer", "method": "method", "methods": "method", "instance": "instance",
		"room": "room", "from": "room", "unwatched": "room", "name": "name", "key": "key",
		"incarnation": "incarnation", "connection": "connection", "session": "session", "recovery": "recovery", "url": "url",
	}
	kept = map[string]bool{
		"slot": true, "understands": true, "silentMs": true, "recovered": true, "anonymous": true,
		"sessionEnded": true, "replaySafe": true, "delivery": true, "reason": true,
		"role": true, "was": true, "fromRole": true,
	}
	// theirs are the clients' own JSON, of which only the shape stays.
	theirs = map[string]bool{"meta": true, "patch": true, "value": true}
)

// entry is the same entry about pseudonyms. Of a damaged one only its place is left.
func (r redactor) entry(e store.Entry) store.Entry {
	_, problem := e.Record()
	e.Token, e.Previous, e.Cause = r.Token(e.Token), r.Token(e.Previous), r.Token(e.Cause)
	e.Replica, e.Touches = r.Name("instance", e.Replica), ""
	switch {
	case problem == nil:
		e.Data = r.data(e.Data, true)
		e.Touches = touchesOf(e)
	case errors.Is(problem, events.ErrUnknown):
		e.Data = r.data(e.Data, false)
	default:
		e.Type, e.Data = "", nil
		e.Damage = fmt.Errorf("%w at %s", store.ErrDamaged, e.Position)
	}
	return e
}

func touchesOf(e store.Entry) string {
	record, err := e.Record()
	if err != nil {
		return ""
	}
	var touches []string
	for _, a := range append(record.Event.Writes(), record.Event.Ends()...) {
		touches = append(touches, string(a))
	}
	return strings.Join(touches, " ")
}

// data replaces the values of an object. In one of a known type, the fields in kept stay.
func (r redactor) data(data []byte, known bool) []byte {
	fields, ok := fieldsOf(data)
	if !ok {
		return []byte("null")
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		value := f.raw
		kind, isName := named[f.name]
		if !isName {
			kind = "text"
		}
		if !known || !kept[f.name] {
			value = r.value(kind, f.raw)
		}
		name, _ := json.Marshal(f.name)
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return []byte(b.String())
}

// value replaces strings by pseudonyms and numbers by 0, at any depth.
func (r redactor) value(kind string, raw json.RawMessage) json.RawMessage {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return json.RawMessage("null")
	}
	var replace func(v any) any
	replace = func(v any) any {
		switch v := v.(type) {
		case string:
			return r.Name(kind, v)
		case float64:
			return 0
		case []any:
			for i := range v {
				v[i] = replace(v[i])
			}
		case map[string]any:
			renamed := make(map[string]any, len(v))
			for name, member := range v {
				renamed[r.Name("name", name)] = replace(member)
			}
			return renamed
		}
		return v
	}
	b, err := json.Marshal(replace(v))
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
