package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"holdfast/events"
)

// What is in this file only reads, for people who look into a log: it makes no group and moves none.

// Last is after every position.
var Last = events.Position{Ms: 1<<64 - 1, Seq: 1<<64 - 1}

// Entries reads up to limit entries from one position to another, both included. Entries that this build does not
// understand, and damaged ones, are among them.
func (s *Store) Entries(ctx context.Context, from, to events.Position, limit int) ([]Entry, error) {
	return s.entries(ctx, "entries",
		s.client.B().Xrange().Key(s.keys.log).Start(from.String()).End(to.String()).Count(int64(limit)).Build())
}

// EntriesBack is Entries in the opposite order: the latest of the range first.
func (s *Store) EntriesBack(ctx context.Context, from, to events.Position, limit int) ([]Entry, error) {
	return s.entries(ctx, "entries back",
		s.client.B().Xrevrange().Key(s.keys.log).End(to.String()).Start(from.String()).Count(int64(limit)).Build())
}

func (s *Store) entries(ctx context.Context, op string, cmd rueidis.Completed) ([]Entry, error) {
	res := s.do(ctx, cmd)
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	messages, err := res.ToArray()
	if err != nil {
		return nil, malformed(op, err)
	}
	return parseEntries(messages), nil
}

// AwaitEntries reads up to limit entries after a position and waits for the first one as long as block says. It
// returns none if none comes.
func (s *Store) AwaitEntries(ctx context.Context, after events.Position, limit int, block time.Duration) ([]Entry, error) {
	const op = "await entries"
	res, err := s.wait(ctx, op, block, s.client.B().Xread().Count(int64(limit)).Block(blockMillis(block)).
		Streams().Key(s.keys.log).Id(after.String()).Build())
	if err != nil {
		return nil, err
	}
	messages, err := streamEntries(res, s.keys.log)
	if err != nil {
		return nil, malformed(op, err)
	}
	return parseEntries(messages), nil
}

func parseEntries(messages []rueidis.RedisMessage) []Entry {
	entries := make([]Entry, len(messages))
	for i := range messages {
		entries[i] = parseEntry(&messages[i])
	}
	return entries
}

// Now is Redis's clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	const op = "now"
	res := s.do(ctx, s.client.B().Time().Build())
	if err := s.check(ctx, op, res); err != nil {
		return time.Time{}, err
	}
	parts, err := res.AsIntSlice()
	if err != nil {
		return time.Time{}, malformed(op, err)
	}
	if len(parts) != 2 {
		return time.Time{}, malformed(op, errors.New("a clock of other than two parts"))
	}
	return time.Unix(parts[0], parts[1]*1000).UTC(), nil
}

// Group is a consumer group of the log: how far one instance has come.
type Group struct {
	Name     string
	Instance string          // empty for a group that is not a replica's
	Position events.Position // last delivered
	Pending  int64           // delivered and not acknowledged
	// Lag is how many entries were not delivered yet; -1 if Redis cannot tell.
	Lag int64
}

// Size is how large the log is.
type Size struct {
	Entries int64
	Bytes   int64 // of Redis's memory; 0 if Redis does not tell
}

// LogSize says how large the log is.
func (s *Store) LogSize(ctx context.Context) (Size, error) {
	const op = "log size"
	res := s.do(ctx, s.client.B().Xlen().Key(s.keys.log).Build())
	if err := s.check(ctx, op, res); err != nil {
		return Size{}, err
	}
	var size Size
	var err error
	if size.Entries, err = res.AsInt64(); err != nil {
		return Size{}, malformed(op, err)
	}
	res = s.do(ctx, s.client.B().MemoryUsage().Key(s.keys.log).Build())
	if _, refused := rueidis.IsRedisErr(res.Error()); refused {
		return size, nil // an embedded one, or a user who may not ask: the length is worth telling all the same
	}
	if err := s.check(ctx, op, res); err != nil {
		return Size{}, err
	}
	size.Bytes, _ = res.AsInt64()
	return size, nil
}

// Groups are the consumer groups of the log, in the order of their names.
func (s *Store) Groups(ctx context.Context) ([]Group, error) {
	const op = "groups"
	res := s.do(ctx, s.client.B().XinfoGroups().Key(s.keys.log).Build())
	if isAnswer(res, "no such key") || isAnswer(res, "ERR no such key") {
		return nil, nil
	}
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	answers, err := res.ToArray()
	if err != nil {
		return nil, malformed(op, err)
	}
	groups := make([]Group, 0, len(answers))
	for i := range answers {
		group, err := parseGroup(&answers[i])
		if err != nil {
			return nil, malformed(op, err)
		}
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return groups, nil
}

func parseGroup(answer *rueidis.RedisMessage) (Group, error) {
	fields, err := answer.AsMap()
	if err != nil {
		return Group{}, err
	}
	text := func(field string) string {
		m := fields[field]
		s, e := m.ToString()
		if e != nil && err == nil {
			err = e
		}
		return s
	}
	number := func(field string) int64 {
		m, ok := fields[field]
		if !ok || m.IsNil() {
			return -1
		}
		n, e := m.AsInt64()
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	group := Group{Name: text("name"), Pending: number("pending"), Lag: number("lag")}
	group.Instance = instanceOf(group.Name)
	at := text("last-delivered-id")
	if err != nil {
		return Group{}, err
	}
	group.Position, err = events.ParsePosition(at)
	return group, err
}
