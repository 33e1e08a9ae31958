package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// InboxCap is about how many messages an inbox holds. When its owner lags by more, the oldest are removed, and
// the owner notices the hole in Seq.
const InboxCap = 100_000

var inboxCap = strconv.Itoa(InboxCap)

// CreateInbox makes the inbox of an incarnation. It begins with Seq 0, which is never read: the first message has
// Seq 1. An inbox that exists is left as it is.
func (s *Store) CreateInbox(ctx context.Context, in Inbox) error {
	const op = "create inbox"
	epoch, err := in.epoch()
	if err != nil {
		return fmt.Errorf("store: %s: %w", op, err)
	}
	res := s.do(ctx, s.client.B().Xadd().Key(s.keys.inboxOf(in)).Id(epoch+"-0").FieldValue().FieldValue("m", "").Build())
	if isAnswer(res, "The ID specified in XADD is equal or smaller") {
		return nil
	}
	return s.check(ctx, op, res)
}

// DropInbox removes the inbox of an incarnation that has ended. From then on Send to it is ErrNoInbox.
func (s *Store) DropInbox(ctx context.Context, in Inbox) error {
	return s.check(ctx, "drop inbox", s.do(ctx, s.client.B().Unlink().Key(s.keys.inboxOf(in)).Build()))
}

// Send puts a message into an inbox; ErrNoInbox when that does not exist. Messages of one goroutine arrive in
// the order of its calls. The body must not be empty. It is not copied, and must not be changed after the call,
// even when that fails.
func (s *Store) Send(ctx context.Context, to Inbox, body []byte) error {
	return s.SendMany(ctx, []Outgoing{{To: to, Body: body}})[0]
}

// ReadInbox reads up to count messages that come after a Seq. It waits for the first one as long as block says (at
// least 1 ms), and returns nothing if none comes; an inbox that does not exist is one to which nothing comes. A
// message with a nil Body only fills its number. Bodies must not be changed.
func (s *Store) ReadInbox(ctx context.Context, in Inbox, after uint64, count int, block time.Duration) ([]Message, error) {
	const op = "read inbox"
	epoch, err := in.epoch()
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", op, err)
	}
	key := s.keys.inboxOf(in)
	res, err := s.wait(ctx, op, block, s.client.B().Xread().Count(int64(count)).Block(blockMillis(block)).
		Streams().Key(key).Id(epoch+"-"+strconv.FormatUint(after, 10)).Build())
	if err != nil {
		return nil, err
	}
	entries, err := streamEntries(res, key)
	if err != nil {
		return nil, malformed(op, err)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	messages := make([]Message, len(entries))
	for i := range entries {
		if messages[i], err = decodeMessage(&entries[i]); err != nil {
			return nil, fmt.Errorf("store: %s: %w", op, err)
		}
	}
	return messages, nil
}

func decodeMessage(entry *rueidis.RedisMessage) (Message, error) {
	id, fields, err := splitEntry(entry)
	if err != nil {
		return Message{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	_, number, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	if len(fields) != 2 {
		return Message{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, errors.New("not one field"))
	}
	body, err := fields[1].AsBytes()
	if err != nil {
		return Message{}, fmt.Errorf("%w: message %s: %w", ErrDamaged, id, err)
	}
	if len(body) == 0 {
		body = nil
	}
	return Message{Seq: seq, Body: body}, nil
}
