package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCallFromBeginToEnd(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		key, owner := CallKey{User: "u:1", ID: "call:1"}, incarnation()
		begin := func(method, joiner string) (CallRecord, bool) {
			t.Helper()
			rec, started, err := s.BeginCall(t.Context(), key, incarnation(), method, joiner, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return rec, started
		}
		running := CallRecord{Owner: owner, Method: "m"}
		rec, started, err := s.BeginCall(t.Context(), key, owner, "m", "a 1", time.Minute)
		if err != nil || !started || !cmp.Equal(rec, running) {
			t.Fatalf("%+v, %v, %v", rec, started, err)
		}
		if rec, started := begin("m", "b 1"); started || !cmp.Equal(rec, running) {
			t.Fatalf("%+v, %v", rec, started)
		}
		if rec, _ := begin("m", "c 7"); !cmp.Equal(rec, running) {
			t.Fatalf("%+v", rec)
		}
		begin("m", "c 7")
		if rec, started := begin("other", "d 1"); started || rec.Method != "m" {
			t.Fatalf("%+v, %v", rec, started)
		}

		ack := AckKey{User: "u:1", Peer: "p:1", ID: 1<<32 - 1}
		if err := s.SentCall(t.Context(), key, owner, "target 1", ack, time.Minute); err != nil {
			t.Fatal(err)
		}
		running.Target = "target 1"
		found, rec, ok, err := s.FindAck(t.Context(), ack)
		if err != nil || !ok || found != key || !cmp.Equal(rec, running) {
			t.Fatalf("%+v, %+v, %v, %v", found, rec, ok, err)
		}

		stranger := incarnation()
		if _, ok, err := s.FinishCall(t.Context(), key, stranger, []byte("no"), time.Minute); ok || err != nil {
			t.Fatalf("finished by a stranger: %v, %v", ok, err)
		}
		result := []byte("\x00result")
		joiners, ok, err := s.FinishCall(t.Context(), key, owner, result, time.Minute)
		if err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
		slices.Sort(joiners)
		if want := []string{"b 1", "c 7"}; !slices.Equal(joiners, want) {
			t.Fatalf("joiners %q, want %q", joiners, want)
		}
		if _, ok, err := s.FinishCall(t.Context(), key, Inbox{}, []byte("again"), time.Minute); ok || err != nil {
			t.Fatalf("finished twice: %v, %v", ok, err)
		}
		done := running
		done.Done, done.Result = true, result
		if rec, started := begin("m", "e 1"); started || !cmp.Equal(rec, done) {
			t.Fatalf("%+v, %v", rec, started)
		}
		if joiners, err := s.DropCall(t.Context(), key, owner); len(joiners) != 0 || err != nil {
			t.Fatalf("%v, %v", joiners, err)
		}
		if rec, started := begin("m", "e 1"); started || !rec.Done {
			t.Fatal("a call that is done was dropped")
		}
		if err := s.SentCall(t.Context(), key, owner, "x", ack, time.Minute); !errors.Is(err, ErrNotOwner) {
			t.Fatalf("%v", err)
		}
	})
}

func TestCallIsFinishedByWhoever(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		key := CallKey{User: "u", ID: "1"}
		if _, ok, err := s.FinishCall(t.Context(), key, Inbox{}, nil, time.Minute); ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		beginCall(t, s, key, incarnation(), time.Minute)
		joiners, ok, err := s.FinishCall(t.Context(), key, Inbox{}, nil, time.Minute)
		if !ok || err != nil || len(joiners) != 0 {
			t.Fatalf("%v, %v, %v", joiners, ok, err)
		}
		// Not kept: a repeat starts anew.
		other := CallKey{User: "u", ID: "2"}
		beginCall(t, s, other, incarnation(), time.Minute)
		if _, ok, err := s.FinishCall(t.Context(), other, Inbox{}, []byte("r"), 0); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		beginCall(t, s, other, incarnation(), time.Minute)
	})
}

func beginCall(t testing.TB, s *Store, key CallKey, owner Inbox, ttl time.Duration) {
	t.Helper()
	if _, started, err := s.BeginCall(t.Context(), key, owner, "m", "j", ttl); !started || err != nil {
		t.Fatalf("%v, %v", started, err)
	}
}

func TestCallIsAdopted(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		key := CallKey{User: "u", ID: "1"}
		dead, heir, late := incarnation(), incarnation(), incarnation()
		adopt := func(from, to Inbox) (CallRecord, bool) {
			t.Helper()
			rec, ok, err := s.AdoptCall(t.Context(), key, from, to, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return rec, ok
		}
		if rec, ok := adopt(dead, heir); ok || !cmp.Equal(rec, CallRecord{}) {
			t.Fatalf("%+v, %v", rec, ok)
		}
		beginCall(t, s, key, dead, time.Minute)
		if _, _, err := s.BeginCall(t.Context(), key, late, "m", "late 1", time.Minute); err != nil {
			t.Fatal(err)
		}
		ack := AckKey{User: "u", Peer: "p", ID: 1}
		if err := s.SentCall(t.Context(), key, dead, "t", ack, time.Minute); err != nil {
			t.Fatal(err)
		}
		want := CallRecord{Owner: heir, Method: "m", Target: "t"}
		if rec, ok := adopt(dead, heir); !ok || !cmp.Equal(rec, want) {
			t.Fatalf("%+v, %v", rec, ok)
		}
		if rec, ok := adopt(dead, late); ok || !cmp.Equal(rec, want) {
			t.Fatalf("%+v, %v", rec, ok)
		}
		if err := s.SentCall(t.Context(), key, dead, "x", ack, time.Minute); !errors.Is(err, ErrNotOwner) {
			t.Fatalf("%v", err)
		}
		if _, ok, err := s.FinishCall(t.Context(), key, dead, nil, time.Minute); ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		joiners, ok, err := s.FinishCall(t.Context(), key, heir, nil, time.Minute)
		if !ok || err != nil || !slices.Equal(joiners, []string{"late 1"}) {
			t.Fatalf("%q, %v, %v", joiners, ok, err)
		}
		if rec, ok := adopt(heir, late); ok || !rec.Done {
			t.Fatalf("%+v, %v", rec, ok)
		}
	})
}

func TestCallIsDropped(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		key, owner := CallKey{User: "u", ID: "1"}, incarnation()
		ack := AckKey{User: "u", Peer: "p", ID: 1}
		beginCall(t, s, key, owner, time.Minute)
		if _, _, err := s.BeginCall(t.Context(), key, incarnation(), "m", "b 1", time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := s.SentCall(t.Context(), key, owner, "t", ack, time.Minute); err != nil {
			t.Fatal(err)
		}
		if joiners, err := s.DropCall(t.Context(), key, incarnation()); joiners != nil || err != nil {
			t.Fatalf("%v, %v", joiners, err)
		}
		joiners, err := s.DropCall(t.Context(), key, owner)
		if err != nil || !slices.Equal(joiners, []string{"b 1"}) {
			t.Fatalf("%q, %v", joiners, err)
		}
		if _, _, ok, err := s.FindAck(t.Context(), ack); ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		beginCall(t, s, key, incarnation(), time.Minute)
	})
}

func TestCallExpires(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		key, owner := CallKey{User: "u", ID: "1"}, incarnation()
		ack := AckKey{User: "u", Peer: "p", ID: 1}
		beginCall(t, s, key, owner, time.Minute)
		if err := s.SentCall(t.Context(), key, owner, "t", ack, 30*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the ack's pointer runs out", func() bool {
			_, _, ok, err := s.FindAck(t.Context(), ack)
			return err == nil && !ok
		})
		beginCall(t, s, key, owner, time.Minute)
		if _, ok, err := s.FinishCall(t.Context(), key, owner, []byte("r"), 30*time.Millisecond); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		eventually(t, "the result runs out", func() bool {
			_, started, err := s.BeginCall(t.Context(), key, owner, "m", "j", time.Minute)
			return err == nil && started
		})
	})
}

func TestKeysAreApart(t *testing.T) {
	k := newKeys("n")
	if a, b := k.callOf(CallKey{"u:1", "2"}), k.callOf(CallKey{"u", "1:2"}); a == b {
		t.Errorf("two calls share %s", a)
	}
	if a, b := k.callOf(CallKey{"u%3A1", "2"}), k.callOf(CallKey{"u:1", "2"}); a == b {
		t.Errorf("two calls share %s", a)
	}
	if a, b := k.ackOf(AckKey{"u:1", "p", 1}), k.ackOf(AckKey{"u", "1:p", 1}); a == b {
		t.Errorf("two acks share %s", a)
	}
	for _, key := range []CallKey{{}, {"u", "i"}, {"1:u", ":i"}, {"ü", ""}} {
		if got, err := parseCallPointer(formatCallPointer(key)); got != key || err != nil {
			t.Errorf("%+v became %+v, %v", key, got, err)
		}
	}
	for _, bad := range []string{"", "x", "9:u", "-1:u"} {
		if _, err := parseCallPointer(bad); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
