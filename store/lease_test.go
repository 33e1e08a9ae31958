package store

import (
	"errors"
	"testing"
	"time"
)

func TestLease(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		mine, theirs := incarnation(), incarnation()
		state := func() (string, time.Duration) {
			t.Helper()
			holder, ttl, err := s.LeaseState(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			return holder, ttl
		}
		if holder, ttl := state(); holder != "" || ttl != 0 {
			t.Fatalf("%s for %v", holder, ttl)
		}
		acquire := func(in Inbox, ttl time.Duration) error { return s.AcquireLease(t.Context(), in, ttl) }
		if err := acquire(mine, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := acquire(mine, time.Minute); err != nil {
			t.Fatalf("once more: %v", err)
		}
		if err := acquire(theirs, time.Minute); !errors.Is(err, ErrLeaseHeld) {
			t.Fatalf("%v", err)
		}
		if holder, ttl := state(); holder != mine.Incarnation || ttl <= 50*time.Second || ttl > time.Minute {
			t.Fatalf("%s for %v", holder, ttl)
		}
		if err := s.ReleaseLease(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		if holder, _ := state(); holder != mine.Incarnation {
			t.Fatal("released by another")
		}
		if err := s.ReleaseLease(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		if err := acquire(theirs, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the lease runs out", func() bool { return acquire(mine, time.Minute) == nil })
		if _, err := s.Beat(t.Context(), theirs, time.Minute, 0, nil); !errors.Is(err, ErrLeaseLost) {
			t.Fatalf("%v", err)
		}
		if holder, _ := state(); holder != mine.Incarnation {
			t.Fatal("a beat took the lease of another")
		}
		if _, err := s.Beat(t.Context(), mine, 2*time.Minute, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, ttl := state(); ttl <= time.Minute {
			t.Fatalf("renewed for %v", ttl)
		}
	})
}

func TestBeatLearns(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in, other := incarnation(), Inbox{Instance: "b", Incarnation: incarnation().Incarnation}
		for _, in := range []Inbox{in, other} {
			if err := s.AcquireLease(t.Context(), in, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		beat := must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 0, []string{"b", "c"}))
		if beat.Healed || len(beat.Left) != 1 || beat.Left["b"] <= 50*time.Second || beat.Left["b"] > time.Minute || beat.Head != (Head{}) {
			t.Fatalf("%+v", beat)
		}
		if d := time.Since(beat.Now); d < -time.Second || d > 10*time.Second {
			t.Fatalf("clock is off by %v", d)
		}
		position := write(t, s, command(nil, connected("p")))[0]
		if err := s.ReleaseLease(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		beat = must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 0, []string{"b"}))
		if len(beat.Left) != 0 || beat.Head.Position != position || beat.Head.Token.IsZero() {
			t.Fatalf("%+v", beat)
		}
	})
}

func TestBeatTrimsTheInbox(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		send(t, s, in, "1", "2", "3", "4", "5")
		must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 0, nil))
		wantMessages(t, s, in, 0, Message{1, []byte("1")}, Message{2, []byte("2")}, Message{3, []byte("3")}, Message{4, []byte("4")}, Message{5, []byte("5")})
		if beat := must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 3, nil)); beat.Lag != 2 {
			t.Fatalf("lag %d", beat.Lag)
		}
		wantMessages(t, s, in, 0, Message{4, []byte("4")}, Message{5, []byte("5")})
		if beat := must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 5, nil)); beat.Lag != 0 || beat.Healed {
			t.Fatalf("%+v", beat)
		}
		// An inbox that was emptied counts on.
		send(t, s, in, "6")
		wantMessages(t, s, in, 5, Message{6, []byte("6")})
	})
}

func TestBeatHeals(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.AcquireLease(t.Context(), in, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		send(t, s, in, "1", "2", "3")
		b.flush(t)
		if err := s.Send(t.Context(), in, []byte("x")); !errors.Is(err, ErrNoInbox) {
			t.Fatalf("%v", err)
		}
		if beat := must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 2, nil)); !beat.Healed {
			t.Fatalf("%+v", beat)
		}
		if holder, _, err := s.LeaseState(t.Context(), "a"); holder != in.Incarnation || err != nil {
			t.Fatalf("%s, %v", holder, err)
		}
		send(t, s, in, "4")
		wantMessages(t, s, in, 2, Message{3, nil}, Message{4, []byte("4")})
		if beat := must[Beat](t)(s.Beat(t.Context(), in, time.Minute, 4, nil)); beat.Healed || beat.Lag != 0 {
			t.Fatalf("%+v", beat)
		}
	})
}
