package store

import (
	"errors"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

func TestHookRecords(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		ctx := t.Context()
		start := func(instance string) (Inbox, Fence) {
			in := Inbox{Instance: instance, Incarnation: ulid.Make().String()}
			verdicts, err := s.Append(ctx, Fence{Instance: instance}, []Append{{
				Command: ulid.Make(), Events: []events.Event{events.ReplicaStarted{Instance: instance, Incarnation: in.Incarnation}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			return in, Fence{Instance: instance, Started: verdicts[0].Positions[0]}
		}
		a, fa := start("a")
		c, fc := start("c")
		take := func(who Inbox, f Fence, room string, ttl time.Duration) (string, bool) {
			t.Helper()
			record, held, err := s.TakeHook(ctx, room, who, f, ttl)
			if err != nil {
				t.Fatal(err)
			}
			return string(record), held > 0
		}
		put := func(who Inbox, room, record string, ttl time.Duration) bool {
			t.Helper()
			ok, err := s.PutHook(ctx, room, who, []byte(record), ttl)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		list := func() map[string]string {
			t.Helper()
			all := map[string]string{}
			if err := s.HookRecords(ctx, func(room string, record []byte) { all[room] = string(record) }); err != nil {
				t.Fatal(err)
			}
			return all
		}

		const room = "a room\nof two lines"
		if put(a, room, "x", 0) {
			t.Error("it was put without being taken")
		}
		if got, held := take(a, fa, room, time.Minute); got != "" || held {
			t.Errorf("a new room has the record %q, held %v", got, held)
		}
		if _, held := take(c, fc, room, time.Minute); !held {
			t.Error("two have it")
		}
		if put(c, room, "of c", 0) || !put(a, room, "told\nby a", time.Minute) {
			t.Error("not the holder, or not he alone, could put")
		}
		if got, held := take(a, fa, room, time.Minute); got != "told\nby a" || held {
			t.Errorf("%q, held %v: want its own again", got, held)
		}
		if !put(a, room, "told\nby a", 0) {
			t.Error("could not give it back")
		}
		if got, held := take(c, fc, room, 20*time.Millisecond); got != "told\nby a" || held {
			t.Errorf("%q, held %v: want what was given back", got, held)
		}
		end := time.Now().Add(5 * time.Second)
		for { // c's time passes
			if _, held := take(a, fa, room, time.Minute); !held {
				break
			}
			if time.Now().After(end) {
				t.Fatal("it is held beyond its time")
			}
		}
		if put(c, room, "late", 0) {
			t.Error("put after another one had taken it")
		}
		if got := list(); len(got) != 1 || got[room] != "told\nby a" {
			t.Errorf("list: %q", got)
		}
		if !put(a, room, "", 0) || len(list()) != 0 {
			t.Error("it was not removed")
		}
		fa.Started = fc.Started
		if _, _, err := s.TakeHook(ctx, room, a, fa, time.Minute); !errors.Is(err, ErrFenced) {
			t.Errorf("%v, want %v", err, ErrFenced)
		}
	})
}
