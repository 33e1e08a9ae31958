package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

// Past is a part of a channel's history.
type Past struct {
	Mark              // the partition's when the reading began: every message up to it is here
	Trimmed  uint64   // messages up to this one may be missing
	Messages []Stored // in order
}

// Stored is a message in a history.
type Stored struct {
	Seq   uint64
	Token uint32
	Body  []byte // must not be changed
}

// ErrTooMuch is returned by History when more messages are asked for than allowed.
var ErrTooMuch = errors.New("more messages than allowed")

// History reads what a channel has after a sequence, at most so many messages.
func (s *Store) History(ctx context.Context, p int, channel string, after uint64, most int) (Past, error) {
	const op = "history"
	prefix := s.keys.partition(p)
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	// In this order: what is trimmed after the reading does no harm, and what was trimmed before it is seen.
	res := s.client.DoMulti(ctx,
		metaOf(s, prefix),
		s.client.B().Xrange().Key(prefix+"channel:"+channel).Start(strconv.FormatUint(after+1, 10)+"-0").End("+").Count(int64(most)+1).Build(),
		s.client.B().Hget().Key(prefix+"state:"+channel).Field("trimmed").Build())
	for _, r := range res {
		if err := s.check(ctx, op, r); err != nil {
			return Past{}, err
		}
	}
	var past Past
	var err error
	if past.Mark, err = metaMark(res[0]); err != nil {
		return Past{}, malformed(op, err)
	}
	if trimmed, err := res[2].ToString(); err == nil {
		if past.Trimmed, err = strconv.ParseUint(trimmed, 10, 64); err != nil {
			return Past{}, malformed(op, err)
		}
	}
	entries, err := res[1].ToArray()
	if err != nil && !rueidis.IsRedisNil(err) {
		return Past{}, malformed(op, err)
	}
	if len(entries) > most {
		return Past{}, fmt.Errorf("store: %s: %w", op, ErrTooMuch)
	}
	past.Messages = make([]Stored, len(entries))
	for i := range entries {
		if past.Messages[i], err = decodeStored(&entries[i]); err != nil {
			return Past{}, fmt.Errorf("store: %s: %w", op, err)
		}
	}
	return past, nil
}

func decodeStored(entry *rueidis.RedisMessage) (Stored, error) {
	id, fields, err := splitEntry(entry)
	if err == nil && len(fields) != 2 {
		err = errors.New("not one field")
	}
	if err != nil {
		return Stored{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	seq, token, err := parseStreamID(id)
	if err != nil {
		return Stored{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	body, err := fields[1].AsBytes()
	if err != nil {
		return Stored{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	return Stored{Seq: seq, Token: token, Body: body}, nil
}
