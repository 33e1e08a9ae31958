package store

import (
	"fmt"
	"testing"
)

func TestLookTellsWhetherAPartitionHasWhatWasSeen(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		look := func(seen ...Mark) bool {
			t.Helper()
			_, lost, err := s.Look(t.Context(), 0, seen...)
			if err != nil {
				t.Fatal(err)
			}
			return lost
		}
		if at, lost, err := s.Look(t.Context(), 0); err != nil || lost || at != (Mark{}) {
			t.Fatalf("an empty partition: %+v %v %v", at, lost, err)
		}
		first := publish(t, s, Known{}, "c:x", "1", "2", "3")
		second := publish(t, s, Known{Mark: first}, "c:y", "4", "5")
		if at, lost, err := s.Look(t.Context(), 0, second, first); err != nil || lost || at != second {
			t.Fatalf("%+v %v %v", at, lost, err)
		}
		if look() || look(Mark{first.Epoch, 2, first.Token}) || look(Mark{Epoch: first.Epoch, Seq: 4}) {
			t.Fatal("what it has is denied")
		}
		for name, seen := range map[string]Mark{
			"ahead":           {first.Epoch, second.Seq + 1, second.Token},
			"another message": {first.Epoch, 2, second.Token},
			"another last":    {first.Epoch, second.Seq, first.Token},
			"another epoch":   {"0badcafe", 1, first.Token},
		} {
			if !look(seen) || !look(second, seen) || !look(seen, second) {
				t.Errorf("%s is not noticed", name)
			}
		}
		raw(t, s, "XTRIM", s.keys.partition(0)+"trail", "MINID", fmt.Sprint(second.Seq))
		if look(Mark{first.Epoch, 2, second.Token}) {
			t.Fatal("what is not remembered is denied")
		}
		raw(t, s, "DEL", s.keys.partition(0)+"meta")
		if !look(first) {
			t.Fatal("an emptied partition is not noticed")
		}
	})
}

func TestBeatTellsTheSecret(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if beat := must[Beat](t)(s.Beat(t.Context(), in, 60e9, 0, nil)); beat.Secret != "" {
			t.Fatalf("%q", beat.Secret)
		}
		must[string](t)(s.Secret(t.Context(), "first"))
		if beat := must[Beat](t)(s.Beat(t.Context(), in, 60e9, 0, []string{"b"})); beat.Secret != "first" || len(beat.Left) != 0 {
			t.Fatalf("%+v", beat)
		}
		raw(t, s, "SET", s.keys.secret, "")
		if got, err := s.Secret(t.Context(), "second"); err == nil {
			t.Fatalf("an empty secret is taken: %q", got)
		}
	})
}
