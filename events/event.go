// Package events holds what happened: the past-tense facts of the control plane and their stored form.
//
// It promises that a stored event can be read for ever: names are literal, every type carries a schema
// number, and one stored example of each is kept in testdata. It never decides anything, and it imports
// nothing of ours.
package events

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// Event is one fact about the cluster. The set is closed: only types of this package implement it.
type Event interface {
	// Writes names the aggregates whose version moves to the position of this event.
	Writes() []Aggregate
	// Ends names the aggregates that no longer exist after this event; their versions are removed.
	Ends() []Aggregate

	event()
}

// Record is one entry of the log: an event with its place in the order and its reason.
type Record struct {
	Position Position  // where it stands; unique, ordered, and a time
	Token    ulid.ULID // unique name of the entry
	Previous ulid.ULID // token of the entry before it; zero for the first entry of a log
	Cause    ulid.ULID // the command that was decided
	Replica  string    // instance that appended it
	Event    Event
}

// Time is when Redis accepted the entry, to the millisecond.
func (r Record) Time() time.Time { return r.Position.Time() }

// Aggregate names a thing that has a version: "room:R", "peer:U/P", "method:U/M", "incarnation:I".
type Aggregate string

var aggregateEscape = strings.NewReplacer("%", "%25", "/", "%2F")

func aggregate(kind string, parts ...string) Aggregate {
	size := len(kind) + len(parts)
	for _, p := range parts {
		size += len(p)
	}
	var b strings.Builder
	b.Grow(size) // one allocation: a fold makes a name for each event
	b.WriteString(kind)
	for i, p := range parts {
		if i == 0 {
			b.WriteByte(':')
		} else {
			b.WriteByte('/')
		}
		if strings.ContainsAny(p, "%/") {
			p = aggregateEscape.Replace(p)
		}
		b.WriteString(p)
	}
	return Aggregate(b.String())
}

var aggregateUnescape = strings.NewReplacer("%2F", "/", "%25", "%")

// Parts takes the name of an aggregate apart: "peer:a%2Fb/c" is a peer with the names "a/b" and "c".
func (a Aggregate) Parts() (kind string, names []string) {
	kind, rest, ok := strings.Cut(string(a), ":")
	if !ok {
		return kind, nil
	}
	for name := range strings.SplitSeq(rest, "/") {
		names = append(names, aggregateUnescape.Replace(name))
	}
	return kind, names
}

// Position is the id of a log entry as Redis gives it: milliseconds of Redis's clock and a sequence number.
// The zero Position is before every entry, and as a version it means "does not exist".
type Position struct {
	Ms  uint64
	Seq uint64
}

// ParsePosition reads the form "ms-seq".
func ParsePosition(s string) (Position, error) {
	ms, seq, ok := strings.Cut(s, "-")
	if !ok {
		return Position{}, fmt.Errorf("events: position %q: want ms-seq", s)
	}
	var p Position
	var err error
	if p.Ms, err = parseUint(ms); err != nil {
		return Position{}, fmt.Errorf("events: position %q: %w", s, err)
	}
	if p.Seq, err = parseUint(seq); err != nil {
		return Position{}, fmt.Errorf("events: position %q: %w", s, err)
	}
	return p, nil
}

func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Ms, p.Seq) }

// IsZero reports whether p is before every entry.
func (p Position) IsZero() bool { return p == Position{} }

// Compare is -1, 0 or +1 as p is before, at or after q.
func (p Position) Compare(q Position) int {
	switch {
	case p.Ms < q.Ms, p.Ms == q.Ms && p.Seq < q.Seq:
		return -1
	case p == q:
		return 0
	}
	return 1
}

// Before reports whether p comes earlier in the log than q.
func (p Position) Before(q Position) bool { return p.Compare(q) < 0 }

// Next is the lowest position after p.
func (p Position) Next() Position {
	if p.Seq == math.MaxUint64 {
		return Position{Ms: p.Ms + 1}
	}
	return Position{Ms: p.Ms, Seq: p.Seq + 1}
}

// Time is the time part of the position.
func (p Position) Time() time.Time { return time.UnixMilli(int64(p.Ms)).UTC() }

// MarshalText gives the stored form "ms-seq".
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the stored form "ms-seq".
func (p *Position) UnmarshalText(b []byte) error {
	q, err := ParsePosition(string(b))
	if err == nil {
		*p = q
	}
	return err
}
