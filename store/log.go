package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"holdfast/events"
)

// Head is the end of the log; the zero Head when nothing has been appended.
func (s *Store) Head(ctx context.Context) (Head, error) {
	const op = "head"
	res := s.do(ctx, s.client.B().Hget().Key(s.keys.versions).Field(headField).Build())
	if err := s.check(ctx, op, res); err != nil {
		return Head{}, err
	}
	text, err := res.ToString()
	if rueidis.IsRedisNil(err) {
		return Head{}, nil
	}
	if err != nil {
		return Head{}, malformed(op, err)
	}
	head, err := parseHead(text)
	if err != nil {
		return Head{}, fmt.Errorf("store: %s: %w", op, err)
	}
	return head, nil
}

func parseHead(s string) (Head, error) {
	position, token, _ := strings.Cut(s, " ")
	var head Head
	var err error
	if head.Position, err = events.ParsePosition(position); err != nil {
		return Head{}, fmt.Errorf("%w: head: %w", ErrDamaged, err)
	}
	if head.Token, err = ulid.ParseStrict(token); err != nil {
		return Head{}, fmt.Errorf("%w: head: %w", ErrDamaged, err)
	}
	return head, nil
}

// Range reads up to limit entries that come after a position. At an entry that cannot be read it stops: it returns
// the records before it, and an error that wraps events.ErrUnknown (type or schema of a newer build) or ErrDamaged.
func (s *Store) Range(ctx context.Context, after events.Position, limit int) ([]events.Record, error) {
	const op = "range"
	if limit <= 0 {
		return nil, nil
	}
	res := s.do(ctx, s.client.B().Xrange().Key(s.keys.log).Start(after.Next().String()).End("+").Count(int64(limit)).Build())
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	entries, err := res.ToArray()
	if err != nil {
		return nil, malformed(op, err)
	}
	records, err := decodeRecords(entries)
	if err != nil {
		err = fmt.Errorf("store: %s: %w", op, err)
	}
	return records, err
}

// decodeRecords reads entries up to the first that cannot be read.
func decodeRecords(entries []rueidis.RedisMessage) ([]events.Record, error) {
	records := make([]events.Record, 0, len(entries))
	for i := range entries {
		record, err := decodeRecord(&entries[i])
		if err != nil {
			return records, err
		}
		records = append(records, record)
	}
	return records, nil
}

func decodeRecord(message *rueidis.RedisMessage) (events.Record, error) {
	entry := parseEntry(message)
	return entry.Record()
}

// splitEntry takes a stream entry apart: its id, and its fields and values in turn.
func splitEntry(entry *rueidis.RedisMessage) (id string, fields []rueidis.RedisMessage, err error) {
	parts, err := entry.ToArray()
	if err != nil {
		return "", nil, err
	}
	if len(parts) != 2 {
		return "", nil, fmt.Errorf("an entry of %d parts", len(parts))
	}
	if id, err = parts[0].ToString(); err != nil {
		return "", nil, err
	}
	fields, err = parts[1].ToArray()
	return id, fields, err
}

// streamEntries finds the entries in the answer to a read of one stream; nil when there are none.
func streamEntries(res rueidis.RedisResult, key string) ([]rueidis.RedisMessage, error) {
	answer, err := res.ToMessage()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if answer.IsMap() {
		streams, err := answer.AsMap()
		if err != nil {
			return nil, err
		}
		entries := streams[key]
		return entries.ToArray()
	}
	streams, err := answer.ToArray()
	if err != nil || len(streams) == 0 {
		return nil, err
	}
	pair, err := streams[0].ToArray()
	if err != nil {
		return nil, err
	}
	if len(pair) != 2 {
		return nil, fmt.Errorf("a stream of %d parts", len(pair))
	}
	return pair[1].ToArray()
}
