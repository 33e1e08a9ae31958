package projections

import (
	"bytes"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// mirrored reverses names, so that renaming twice gives the first names again.
type mirrored struct{}

func (mirrored) Name(_, name string) string {
	b := []byte(name)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}

func (mirrored) JSON(raw string) string { return raw }

func (mirrored) Token(t ulid.ULID) ulid.ULID {
	for i, j := 0, len(t)-1; i < j; i, j = i+1, j-1 {
		t[i], t[j] = t[j], t[i]
	}
	return t
}

func (m mirrored) Aggregate(a events.Aggregate) events.Aggregate {
	kind, names := a.Parts()
	switch kind {
	case "peer":
		return events.PeerKey(m.Name("user", names[0]), m.Name("peer", names[1]))
	case "method":
		return events.MethodKey(m.Name("user", names[0]), m.Name("method", names[1]))
	case "incarnation":
		return events.IncarnationKey(m.Name("instance", names[0]))
	}
	return a
}

func TestRenamedTwiceIsTheSame(t *testing.T) {
	s := someState()
	once := s.Renamed(mirrored{})
	if once.Digest() == s.Digest() {
		t.Error("renaming changed nothing")
	}
	for _, name := range []string{"r1", "I2", "http://", "C3", "s3", "pid3"} {
		if strings.Contains(string(once.Encode()), name) {
			t.Errorf("%s has kept its name", name)
		}
	}
	if twice := once.Renamed(mirrored{}); !bytes.Equal(s.Encode(), twice.Encode()) {
		t.Errorf("got\n%q\nwant\n%q", twice.Encode(), s.Encode())
	}
}
