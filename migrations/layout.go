package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Layout says in which form the keys of a namespace are stored. The zero Layout is that of a namespace which
// nobody has marked: a new one, or one from before layouts were counted.
type Layout struct {
	Version int // number of the last step taken
	// Oldest is the least version that a program must know to work with these keys. It is behind Version after
	// steps that only add something.
	Oldest int
}

// Step changes the layout from the version before it to Version.
type Step struct {
	Version int
	Title   string // what it does, for people
	// Breaking says that programs which do not know the step cannot work with its result. It is taken only while
	// no replica lives.
	Breaking bool
	// Apply does a part of the work, within 10 s, and says whether all is done. It is called again until then, and
	// from the start if it was interrupted: doing a part twice must do no harm.
	Apply func(ctx context.Context, do Do) (done bool, err error)
}

// Do runs a Lua script on keys of the control plane, which are named without their prefix: "log", "versions". A
// script runs as a whole or not at all; one that writes holds up all of Redis, so it does a bounded part.
type Do func(ctx context.Context, script string, keys, args []string) (any, error)

// steps are all there ever were, in order. A step that was released is never changed.
var steps = []Step{{
	Version: 1,
	Title:   "mark the layout: log, versions, leases, inboxes and calls as they are",
	Apply:   func(context.Context, Do) (bool, error) { return true, nil },
}}

// Known is the newest layout that this build knows.
func Known() int { return len(steps) }

var (
	// ErrNewer: the stored layout needs a newer version of the program.
	ErrNewer = errors.New("the stored layout needs a newer version of this program")
	// ErrAlive: a breaking step is pending while replicas live.
	ErrAlive = errors.New("a step of the layout needs all replicas stopped")
	// ErrLocked: another process is taking the steps.
	ErrLocked = errors.New("another process is changing the layout")
)

// Target is the place whose layout is changed.
type Target interface {
	Layout(ctx context.Context) (Layout, error)
	// LockLayout takes the right to change the layout for a time, or prolongs it. It is ErrLocked while another
	// holder has it.
	LockLayout(ctx context.Context, holder string, ttl time.Duration) error
	UnlockLayout(ctx context.Context, holder string) error
	// AdvanceLayout sets the layout if it is still the former one and the holder has the lock, in one step; else it
	// is ErrLocked.
	AdvanceLayout(ctx context.Context, holder string, from, to Layout) error
	// Alive names the replicas whose leases last.
	Alive(ctx context.Context) ([]string, error)
	Do(ctx context.Context, script string, keys, args []string) (any, error)
}

// Pending are the steps that a layout lacks. It is ErrNewer when this build must not touch it.
func Pending(l Layout) ([]Step, error) { return pending(steps, l) }

func pending(steps []Step, l Layout) ([]Step, error) {
	if l.Oldest > len(steps) {
		return nil, fmt.Errorf("%w: it is for layout %d or newer, this one knows %d", ErrNewer, l.Oldest, len(steps))
	}
	if l.Version >= len(steps) {
		return nil, nil
	}
	return steps[l.Version:], nil
}

const (
	stepTimeout = 10 * time.Second // of one call of Apply
	lockTTL     = 3 * stepTimeout  // outlasts one call and the commands around it
	lockPause   = 100 * time.Millisecond
)

// Up takes the pending steps in order, each by one process only, and returns those that it took itself. While
// another process takes them it waits, until ctx ends. A failed or interrupted step is taken again by the next Up.
func Up(ctx context.Context, t Target, holder string) ([]Step, error) {
	return up(ctx, steps, t, holder)
}

func up(ctx context.Context, steps []Step, t Target, holder string) (taken []Step, err error) {
	locked := false
	defer func() {
		if locked {
			// Also when ctx has ended: the others would wait for the lock to run out.
			free, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			err = errors.Join(err, t.UnlockLayout(free, holder))
		}
	}()
	for {
		at, err := t.Layout(ctx)
		if err != nil {
			return taken, err
		}
		left, err := pending(steps, at)
		if err != nil || len(left) == 0 {
			return taken, err
		}
		err = t.LockLayout(ctx, holder, lockTTL)
		if errors.Is(err, ErrLocked) {
			select {
			case <-time.After(lockPause):
				continue
			case <-ctx.Done():
				return taken, err
			}
		}
		if err != nil {
			return taken, err
		}
		if !locked {
			locked = true
			continue // another one may have taken steps before the lock was ours
		}
		if err := take(ctx, t, holder, at, left[0]); err != nil {
			return taken, fmt.Errorf("migrations: step %d (%s): %w", left[0].Version, left[0].Title, err)
		}
		taken = append(taken, left[0])
	}
}

// take does one step to its end, holding the lock.
func take(ctx context.Context, t Target, holder string, from Layout, s Step) error {
	to := Layout{Version: s.Version, Oldest: from.Oldest}
	if s.Breaking {
		to.Oldest = s.Version
		alive, err := t.Alive(ctx)
		if err != nil {
			return err
		}
		if len(alive) > 0 {
			return fmt.Errorf("%w: stop %v, then run: holdfast migrate up", ErrAlive, alive)
		}
	}
	for done := false; !done; {
		if err := t.LockLayout(ctx, holder, lockTTL); err != nil {
			return err
		}
		part, cancel := context.WithTimeout(ctx, stepTimeout)
		var err error
		done, err = s.Apply(part, t.Do)
		cancel()
		if err != nil {
			return err
		}
	}
	return t.AdvanceLayout(ctx, holder, from, to)
}
