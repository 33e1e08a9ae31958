package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"holdfast/events"
)

var (
	//go:embed hook_take.lua
	hookTakeSource string
	//go:embed hook_put.lua
	hookPutSource string

	hookTakeScript = rueidis.NewLuaScript(hookTakeSource)
	hookPutScript  = rueidis.NewLuaScript(hookPutSource)
)

// ErrFenced is returned by TakeHook for an incarnation that has ended.
var ErrFenced = errors.New("this incarnation has ended")

// TakeHook reads what the hook was told of a room, empty if nothing, and keeps others from it for ttl. While another
// one has it, held says for how long at most, and nothing has been changed.
func (s *Store) TakeHook(ctx context.Context, room string, who Inbox, fence Fence, ttl time.Duration) (record []byte, held time.Duration, err error) {
	const op = "take hook"
	res := s.run(ctx, hookTakeScript, []string{s.keys.hook, s.keys.versions}, []string{
		room, who.holder(), millis(ttl), string(events.IncarnationKey(fence.Instance)), fence.Started.String(),
	})
	if err := s.check(ctx, op, res); err != nil {
		return nil, 0, err
	}
	parts, err := res.ToArray()
	if err != nil {
		return nil, 0, malformed(op, err)
	}
	if len(parts) == 1 {
		return nil, 0, fmt.Errorf("store: %s: %w", op, ErrFenced)
	}
	if len(parts) != 3 {
		return nil, 0, malformed(op, fmt.Errorf("%d parts", len(parts)))
	}
	left, err := parts[1].AsInt64()
	if err != nil {
		return nil, 0, malformed(op, err)
	}
	text, err := parts[2].ToString()
	if err != nil {
		return nil, 0, malformed(op, err)
	}
	return []byte(text), time.Duration(left) * time.Millisecond, nil
}

// PutHook writes what the hook was told of a room, for who has taken it, and keeps others from it for ttl from now on,
// or gives it back when that is zero; given back empty, the record is removed. ok is false, and nothing has been
// changed, when it is not who's any more.
func (s *Store) PutHook(ctx context.Context, room string, who Inbox, record []byte, ttl time.Duration) (ok bool, err error) {
	const op = "put hook"
	keep := "0"
	if ttl > 0 {
		keep = millis(ttl)
	}
	res := s.run(ctx, hookPutScript, []string{s.keys.hook}, []string{room, who.holder(), keep, rueidis.BinaryString(record)})
	if err := s.check(ctx, op, res); err != nil {
		return false, err
	}
	put, err := res.AsInt64()
	if err != nil {
		return false, malformed(op, err)
	}
	return put == 1, nil
}

// HookRecords gives f every room that has a record, and that, a page at a time. What changes meanwhile may come twice
// or not at all.
func (s *Store) HookRecords(ctx context.Context, f func(room string, record []byte)) error {
	const op = "hook records"
	for cursor := uint64(0); ; {
		res := s.do(ctx, s.client.B().Hscan().Key(s.keys.hook).Cursor(cursor).Count(scanPage).Build())
		if err := s.check(ctx, op, res); err != nil {
			return err
		}
		page, err := res.AsScanEntry()
		if err != nil {
			return malformed(op, err)
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			// "until who record": see the scripts.
			parts := strings.SplitN(page.Elements[i+1], " ", 3)
			f(page.Elements[i], []byte(parts[len(parts)-1]))
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}
