package store

import (
	"errors"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// odd puts an entry of a newer build and a damaged one into the log.
func odd(t testing.TB, s *Store) {
	t.Helper()
	token := ulid.Make().String()
	raw(t, s, "XADD", s.keys.log, "*", "t", "room-praised", "s", "3", "u", token, "p", token, "c", token, "r", "b",
		"k", "room:r", "d", `{"room":"r"}`)
	raw(t, s, "XADD", s.keys.log, "*", "t", "peer-gone", "u", "no token")
}

func TestEntriesShowWhatCannotBeRead(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		first := write(t, s, command(absent(peer("p")), connected("p")))[0]
		odd(t, s)
		entries := must[[]Entry](t)(s.Entries(t.Context(), events.Position{}, Last, 10))
		if len(entries) != 3 {
			t.Fatalf("%d entries", len(entries))
		}
		record, err := entries[0].Record()
		if err != nil || record.Position != first || entries[0].Touches != "peer:u/p" || entries[0].Type != "peer-connected" {
			t.Fatalf("%+v: %v", entries[0], err)
		}
		e := entries[1]
		if e.Type != "room-praised" || e.Schema != 3 || e.Replica != "b" || e.Touches != "room:r" || string(e.Data) != `{"room":"r"}` || e.Damage != nil {
			t.Fatalf("%+v", e)
		}
		if _, err := e.Record(); !errors.Is(err, events.ErrUnknown) {
			t.Fatalf("of a newer build: %v", err)
		}
		if e := entries[2]; e.Type != "peer-gone" || !errors.Is(e.Damage, ErrDamaged) {
			t.Fatalf("%+v", e)
		}
		back := must[[]Entry](t)(s.EntriesBack(t.Context(), entries[1].Position, Last, 1))
		if len(back) != 1 || back[0].Position != entries[2].Position {
			t.Fatalf("the last of them is %+v", back)
		}
		if part := must[[]Entry](t)(s.Entries(t.Context(), entries[1].Position, entries[1].Position, 10)); len(part) != 1 {
			t.Fatalf("%d entries at one position", len(part))
		}
		if groups := must[[]Group](t)(s.Groups(t.Context())); len(groups) != 0 {
			t.Fatalf("reading made %+v", groups)
		}
	})
}

func TestAwaitEntriesWaitsForTheNext(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		if none := must[[]Entry](t)(s.AwaitEntries(t.Context(), events.Position{}, 10, time.Millisecond)); len(none) != 0 {
			t.Fatalf("%+v", none)
		}
		came := make(chan []Entry, 1)
		go func() {
			entries, _ := s.AwaitEntries(t.Context(), events.Position{}, 10, 5*time.Second)
			came <- entries
		}()
		at := write(t, s, command(absent(peer("p")), connected("p")))[0]
		if entries := <-came; len(entries) != 1 || entries[0].Position != at {
			t.Fatalf("%+v", entries)
		}
	})
}

func TestLogSizeAndGroups(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		if size := must[Size](t)(s.LogSize(t.Context())); size != (Size{}) {
			t.Fatalf("an empty log has %+v", size)
		}
		if groups := must[[]Group](t)(s.Groups(t.Context())); len(groups) != 0 {
			t.Fatalf("%+v", groups)
		}
		first := write(t, s, command(absent(peer("p")), connected("p")))[0]
		write(t, s, command(absent(peer("q")), connected("q")))
		must[bool](t)(s.EnsureGroup(t.Context(), "b", first))
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 1, time.Millisecond))
		groups := must[[]Group](t)(s.Groups(t.Context()))
		if len(groups) != 2 || groups[0].Instance != "a" || groups[0].Position != first || groups[0].Pending != 1 {
			t.Fatalf("%+v", groups)
		}
		if groups[1].Instance != "b" || groups[1].Position != first || groups[1].Pending != 0 {
			t.Fatalf("%+v", groups)
		}
		if size := must[Size](t)(s.LogSize(t.Context())); size.Entries != 2 {
			t.Fatalf("%+v", size)
		}
		if now := must[time.Time](t)(s.Now(t.Context())); now.Before(first.Time()) {
			t.Fatalf("now %s is before an entry at %s", now, first)
		}
	})
}

func TestLoadedLogGoesOn(t *testing.T) {
	from := embeddedBackend(t).open(t)
	first := write(t, from, command(absent(peer("p")), connected("p")))[0]
	last := write(t, from, command(absent(peer("q")), connected("q")))[0]
	entries := must[[]Entry](t)(from.Entries(t.Context(), events.Position{}, Last, 10))
	head := must[Head](t)(from.Head(t.Context()))

	e, err := OpenEmbedded("loaded")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Load(entries, map[events.Aggregate]events.Position{peer("p"): first, peer("q"): last}, head); err != nil {
		t.Fatal(err)
	}
	s := must[*Store](t)(e.Open())
	defer s.Close()
	if conflict := refused(t, s, command(absent(peer("p")), connected("p"))); conflict.Actual != first {
		t.Fatalf("%+v", conflict)
	}
	write(t, s, command(at(peer("q"), last), forgotten("q")))
	records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10))
	if len(records) != 3 || records[2].Previous != records[1].Token || records[1].Token != head.Token {
		t.Fatalf("%+v", records)
	}
}
