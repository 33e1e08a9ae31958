package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/events"
	"holdfast/migrations"
)

var _ migrations.Target = (*Store)(nil)

func TestLayoutIsChangedByTheHolderOfTheLockOnly(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		ctx := t.Context()
		if at := must[migrations.Layout](t)(s.Layout(ctx)); at != (migrations.Layout{}) {
			t.Fatalf("a new namespace has %+v", at)
		}
		to := migrations.Layout{Version: 1, Oldest: 1}
		if err := s.AdvanceLayout(ctx, "p", migrations.Layout{}, to); !errors.Is(err, migrations.ErrLocked) {
			t.Errorf("without the lock: %v", err)
		}
		if err := s.LockLayout(ctx, "p", time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := s.LockLayout(ctx, "p", time.Minute); err != nil {
			t.Errorf("prolonged: %v", err)
		}
		if err := s.LockLayout(ctx, "q", time.Minute); !errors.Is(err, migrations.ErrLocked) {
			t.Errorf("taken by another: %v", err)
		}
		if err := s.AdvanceLayout(ctx, "p", migrations.Layout{Version: 7}, to); !errors.Is(err, migrations.ErrLocked) {
			t.Errorf("from another version: %v", err)
		}
		if err := s.AdvanceLayout(ctx, "p", migrations.Layout{}, to); err != nil {
			t.Fatal(err)
		}
		if at := must[migrations.Layout](t)(s.Layout(ctx)); at != to {
			t.Errorf("%+v", at)
		}
		if err := s.UnlockLayout(ctx, "q"); err != nil {
			t.Fatal(err)
		}
		if err := s.LockLayout(ctx, "q", time.Minute); !errors.Is(err, migrations.ErrLocked) {
			t.Errorf("another one gave the lock back: %v", err)
		}
		if err := s.UnlockLayout(ctx, "p"); err != nil {
			t.Fatal(err)
		}
		if err := s.LockLayout(ctx, "q", time.Minute); err != nil {
			t.Error(err)
		}
	})
}

func TestMigrationsRunOnceOnTheStore(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		var group sync.WaitGroup
		var mu sync.Mutex
		n := 0
		for i := range 4 {
			s := b.open(t)
			group.Go(func() {
				taken, err := migrations.Up(t.Context(), s, fmt.Sprint("p", i))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				n += len(taken)
			})
		}
		group.Wait()
		if n != migrations.Known() {
			t.Errorf("%d steps were taken, there are %d", n, migrations.Known())
		}
	})
}

func TestScriptsOfStepsReachTheControlPlane(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		write(t, s, command(nil, connected("p")))
		n, err := s.Do(t.Context(), "return redis.call('XLEN', KEYS[1]) + tonumber(ARGV[1])", []string{"log"}, []string{"10"})
		if err != nil || n != int64(11) {
			t.Errorf("%v, %v", n, err)
		}
		if n, err := s.Do(t.Context(), "return false", []string{"log"}, nil); n != nil || err != nil {
			t.Errorf("no answer: %v, %v", n, err)
		}
	})
}

func TestAlive(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		if alive := must[[]string](t)(s.Alive(t.Context())); len(alive) != 0 {
			t.Errorf("%v live in an empty namespace", alive)
		}
		for _, instance := range []string{"a", "b"} {
			if _, err := s.EnsureGroup(t.Context(), instance, events.Position{}); err != nil {
				t.Fatal(err)
			}
		}
		in := incarnation()
		if err := s.AcquireLease(t.Context(), in, time.Minute); err != nil {
			t.Fatal(err)
		}
		if alive := must[[]string](t)(s.Alive(t.Context())); !slices.Equal(alive, []string{"a"}) {
			t.Errorf("%v live, want a", alive)
		}
	})
}

func TestDamagedLayoutIsAnError(t *testing.T) {
	s := redisBackend(t, plain.get(t)).open(t)
	raw(t, s, "HSET", s.keys.layout, "version", "x")
	if _, err := s.Layout(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v, want ErrDamaged", err)
	}
}
