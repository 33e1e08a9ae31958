package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"holdfast/events"
)

const pendingPage = 500

// EnsureGroup makes the consumer group of an instance, to begin after a position. One that exists is left as it
// is, and created is false.
func (s *Store) EnsureGroup(ctx context.Context, instance string, at events.Position) (created bool, err error) {
	res := s.do(ctx, s.client.B().XgroupCreate().Key(s.keys.log).Group(groupOf(instance)).Id(at.String()).Mkstream().Build())
	if rueidis.IsRedisBusyGroup(res.Error()) {
		return false, nil
	}
	if err := s.check(ctx, "ensure group", res); err != nil {
		return false, err
	}
	return true, nil
}

// GroupPosition is the last position that was delivered to the group of an instance; false when there is none.
func (s *Store) GroupPosition(ctx context.Context, instance string) (events.Position, bool, error) {
	const op = "group position"
	res := s.do(ctx, s.client.B().XinfoGroups().Key(s.keys.log).Build())
	if isAnswer(res, "no such key") {
		return events.Position{}, false, nil
	}
	if err := s.check(ctx, op, res); err != nil {
		return events.Position{}, false, err
	}
	groups, err := res.ToArray()
	if err != nil {
		return events.Position{}, false, malformed(op, err)
	}
	for i := range groups {
		group, err := groups[i].AsMap()
		if err != nil {
			return events.Position{}, false, malformed(op, err)
		}
		name := group["name"]
		if text, _ := name.ToString(); text != groupOf(instance) {
			continue
		}
		last := group["last-delivered-id"]
		text, err := last.ToString()
		if err != nil {
			return events.Position{}, false, malformed(op, err)
		}
		position, err := events.ParsePosition(text)
		if err != nil {
			return events.Position{}, false, malformed(op, err)
		}
		return position, true, nil
	}
	return events.Position{}, false, nil
}

// ReadGroup delivers up to count new entries to the group of an instance. It waits for the first one as long as
// block says (at least 1 ms), and returns nothing if none comes. Without log or group the error is ErrNoGroup.
//
// At an entry that cannot be read it stops as Range does; entries after it have been delivered too and are only in
// the group's pending list. So are entries whose answer was lost to an error or to the end of ctx: the next
// call does not bring them, and a reader notices by Record.Previous.
func (s *Store) ReadGroup(ctx context.Context, instance string, count int, block time.Duration) ([]events.Record, error) {
	const op = "read group"
	res, err := s.wait(ctx, op, block, s.client.B().Xreadgroup().Group(groupOf(instance), instance).
		Count(int64(count)).Block(blockMillis(block)).Streams().Key(s.keys.log).Id(">").Build())
	if err != nil {
		if isAnswer(res, "NOGROUP") || isAnswer(res, "UNBLOCKED") {
			return nil, fmt.Errorf("store: %s: %w", op, ErrNoGroup)
		}
		return nil, err
	}
	entries, err := streamEntries(res, s.keys.log)
	if err != nil {
		return nil, malformed(op, err)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	records, err := decodeRecords(entries)
	if err != nil {
		err = fmt.Errorf("store: %s: %w", op, err)
	}
	return records, err
}

// Ack takes positions off the group's pending list. Those that are not on it are passed over.
func (s *Store) Ack(ctx context.Context, instance string, positions []events.Position) error {
	if len(positions) == 0 {
		return nil
	}
	ids := make([]string, len(positions))
	for i, p := range positions {
		ids[i] = p.String()
	}
	return s.check(ctx, "ack", s.ack(ctx, instance, ids))
}

func (s *Store) ack(ctx context.Context, instance string, ids []string) rueidis.RedisResult {
	return s.do(ctx, s.client.B().Xack().Key(s.keys.log).Group(groupOf(instance)).Id(ids...).Build())
}

// AckPending takes everything off the group's pending list and says how much it was. A replica calls it at boot,
// before the first ReadGroup: it reads what its former run left there by position.
func (s *Store) AckPending(ctx context.Context, instance string) (int, error) {
	const op = "ack pending"
	total := 0
	for start := (events.Position{}); ; {
		res := s.do(ctx, s.client.B().Xpending().Key(s.keys.log).Group(groupOf(instance)).
			Start(start.String()).End("+").Count(pendingPage).Build())
		if isAnswer(res, "NOGROUP") {
			return total, fmt.Errorf("store: %s: %w", op, ErrNoGroup)
		}
		if err := s.check(ctx, op, res); err != nil {
			return total, err
		}
		ids, err := pendingIDs(res)
		if err != nil {
			return total, malformed(op, err)
		}
		if len(ids) == 0 {
			return total, nil
		}
		if err := s.check(ctx, op, s.ack(ctx, instance, ids)); err != nil {
			return total, err
		}
		total += len(ids)
		last, err := events.ParsePosition(ids[len(ids)-1])
		if err != nil {
			return total, malformed(op, err)
		}
		start = last.Next()
	}
}

func pendingIDs(res rueidis.RedisResult) ([]string, error) {
	entries, err := res.ToArray()
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(entries))
	for i := range entries {
		parts, err := entries[i].ToArray()
		if err != nil {
			return nil, err
		}
		if len(parts) == 0 {
			return nil, errors.New("an empty pending entry")
		}
		if ids[i], err = parts[0].ToString(); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// DestroyGroup removes the consumer group of an instance, so that it no longer holds the log. One that does not
// exist is no error.
func (s *Store) DestroyGroup(ctx context.Context, instance string) error {
	res := s.do(ctx, s.client.B().XgroupDestroy().Key(s.keys.log).Group(groupOf(instance)).Build())
	if isAnswer(res, "The XGROUP subcommand requires the key to exist") {
		return nil
	}
	return s.check(ctx, "destroy group", res)
}

// isAnswer reports whether Redis answered with an error that begins like this.
func isAnswer(res rueidis.RedisResult, prefix string) bool {
	if res.NonRedisError() != nil {
		return false
	}
	err, ok := rueidis.IsRedisErr(res.Error())
	return ok && strings.HasPrefix(err.Error(), prefix)
}
