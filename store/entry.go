package store

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"holdfast/events"
	"holdfast/migrations"
)

// Entry is one entry of the log as it is stored, whether this build understands it or not.
type Entry struct {
	Position events.Position
	Token    ulid.ULID
	Previous ulid.ULID // zero for the first entry of a log
	Cause    ulid.ULID
	Replica  string
	Touches  string // its aggregates, for people
	Type     string
	Schema   int
	Data     []byte
	// Damage says what of the entry could not be read; it wraps ErrDamaged. What could be is set.
	Damage error
}

// Record is what the entry says. The error wraps events.ErrUnknown (type or schema of a newer build) or ErrDamaged.
func (e Entry) Record() (events.Record, error) {
	if e.Damage != nil {
		return events.Record{}, e.Damage
	}
	record := events.Record{Position: e.Position, Token: e.Token, Previous: e.Previous, Cause: e.Cause, Replica: e.Replica}
	encoded, err := migrations.Upcast(events.Encoded{Type: e.Type, Schema: e.Schema, Data: e.Data})
	if err == nil {
		record.Event, err = events.Decode(encoded)
	}
	switch {
	case errors.Is(err, events.ErrUnknown):
		return events.Record{}, fmt.Errorf("entry %s of type %q schema %d: %w", e.Position, e.Type, e.Schema, err)
	case err != nil:
		return events.Record{}, fmt.Errorf("%w at %s of type %q schema %d: %w", ErrDamaged, e.Position, e.Type, e.Schema, err)
	}
	return record, nil
}

// parseEntry reads as much as can be read.
func parseEntry(message *rueidis.RedisMessage) Entry {
	var entry Entry
	id, fields, err := splitEntry(message)
	damage := func(format string, args ...any) {
		if entry.Damage == nil {
			entry.Damage = fmt.Errorf("%w at %s: %w", ErrDamaged, id, fmt.Errorf(format, args...))
		}
	}
	if err != nil {
		damage("%w", err)
	}
	if entry.Position, err = events.ParsePosition(id); err != nil {
		damage("%w", err)
	}
	const required = 1<<7 - 1
	seen := 0
	token := func(what, value string) ulid.ULID {
		t, err := ulid.ParseStrict(value)
		if err != nil {
			damage("%s: %w", what, err)
		}
		return t
	}
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].ToString()
		value, err := fields[i+1].ToString()
		if err != nil {
			damage("field %s: %w", field, err)
			continue
		}
		switch field {
		case "t":
			entry.Type, seen = value, seen|1
		case "s":
			seen |= 2
			if entry.Schema, err = strconv.Atoi(value); err != nil {
				damage("schema: %w", err)
			}
		case "u":
			entry.Token, seen = token("token", value), seen|4
		case "p":
			seen |= 8
			if value != "" {
				entry.Previous = token("previous token", value)
			}
		case "c":
			entry.Cause, seen = token("cause", value), seen|16
		case "r":
			entry.Replica, seen = value, seen|32
		case "d":
			entry.Data, _ = fields[i+1].AsBytes() // without a copy: nobody writes into it
			seen |= 64
		case "k":
			entry.Touches = value
		}
	}
	if seen != required {
		damage("a field is missing")
	}
	return entry
}

// fields are the entry's fields and values in turn, as the append script writes them.
func (e Entry) fields() []string {
	previous := ""
	if !e.Previous.IsZero() {
		previous = e.Previous.String()
	}
	return []string{
		"t", e.Type, "s", strconv.Itoa(e.Schema), "u", e.Token.String(), "p", previous, "c", e.Cause.String(),
		"r", e.Replica, "k", e.Touches, "d", string(e.Data),
	}
}
