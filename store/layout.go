package store

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"holdfast/migrations"
)

var (
	//go:embed layout.lua
	layoutSource string
	layoutScript = rueidis.NewLuaScript(layoutSource)
)

// Layout is the form in which the namespace's keys are stored; the zero Layout when nobody has marked it.
func (s *Store) Layout(ctx context.Context) (migrations.Layout, error) {
	const op = "layout"
	res := s.do(ctx, s.client.B().Hmget().Key(s.keys.layout).Field("version", "oldest").Build())
	if err := s.check(ctx, op, res); err != nil {
		return migrations.Layout{}, err
	}
	parts, err := res.ToArray()
	if err != nil || len(parts) != 2 {
		return migrations.Layout{}, malformed(op, fmt.Errorf("%d parts: %w", len(parts), err))
	}
	var numbers [2]int
	for i := range parts {
		if parts[i].IsNil() {
			continue
		}
		text, err := parts[i].ToString()
		if err == nil {
			numbers[i], err = strconv.Atoi(text)
		}
		if err != nil {
			return migrations.Layout{}, fmt.Errorf("store: %s: %w: %s: %w", op, ErrDamaged, s.keys.layout, err)
		}
	}
	return migrations.Layout{Version: numbers[0], Oldest: numbers[1]}, nil
}

// LockLayout is as in migrations.Target.
func (s *Store) LockLayout(ctx context.Context, holder string, ttl time.Duration) error {
	const op = "lock layout"
	res := s.run(ctx, leaseAcquireScript, []string{s.keys.layoutLock}, []string{holder, millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return err
	}
	has, err := res.ToString()
	if err != nil {
		return malformed(op, err)
	}
	if has != holder {
		return fmt.Errorf("store: %s: %w: %s", op, migrations.ErrLocked, has)
	}
	return nil
}

// UnlockLayout is as in migrations.Target.
func (s *Store) UnlockLayout(ctx context.Context, holder string) error {
	res := s.run(ctx, leaseReleaseScript, []string{s.keys.layoutLock}, []string{holder})
	return s.check(ctx, "unlock layout", res)
}

// AdvanceLayout is as in migrations.Target.
func (s *Store) AdvanceLayout(ctx context.Context, holder string, from, to migrations.Layout) error {
	const op = "advance layout"
	res := s.run(ctx, layoutScript, []string{s.keys.layout, s.keys.layoutLock}, []string{
		holder, strconv.Itoa(from.Version), strconv.Itoa(to.Version), strconv.Itoa(to.Oldest),
	})
	if err := s.check(ctx, op, res); err != nil {
		return err
	}
	set, err := res.AsInt64()
	if err != nil {
		return malformed(op, err)
	}
	if set != 1 {
		return fmt.Errorf("store: %s: %w, or has changed it", op, migrations.ErrLocked)
	}
	return nil
}

// Alive names the replicas whose leases last. One that has never followed the log is not known here.
func (s *Store) Alive(ctx context.Context) ([]string, error) {
	const op = "alive"
	res := s.do(ctx, s.client.B().XinfoGroups().Key(s.keys.log).Build())
	if isAnswer(res, "no such key") {
		return nil, nil
	}
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	groups, err := res.ToArray()
	if err != nil {
		return nil, malformed(op, err)
	}
	var alive []string
	for i := range groups {
		group, err := groups[i].AsMap()
		if err != nil {
			return nil, malformed(op, err)
		}
		name := group["name"]
		text, _ := name.ToString()
		instance, ok := strings.CutPrefix(text, groupOf(""))
		if !ok {
			continue
		}
		holder, _, err := s.LeaseState(ctx, instance)
		if err != nil {
			return nil, err
		}
		if holder != "" {
			alive = append(alive, instance)
		}
	}
	return alive, nil
}

// Do is as in migrations.Do.
func (s *Store) Do(ctx context.Context, script string, keys, args []string) (any, error) {
	const op = "migrate"
	full := make([]string, len(keys))
	for i, key := range keys {
		full[i] = s.keys.control + key
	}
	res := s.do(ctx, s.client.B().Eval().Script(script).Numkeys(int64(len(full))).Key(full...).Arg(args...).Build())
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	answer, err := res.ToAny()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return answer, err
}
