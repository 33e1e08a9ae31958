package store

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// Outgoing is a message on its way to an inbox.
type Outgoing struct {
	To   Inbox
	Body []byte
}

// SendMany is Send for many messages in one round trip, in order. It returns one error for each, nil for those
// that were written.
func (s *Store) SendMany(ctx context.Context, out []Outgoing) []error {
	const op = "send"
	errs := make([]error, len(out))
	cmds := make(rueidis.Commands, 0, len(out))
	at := make([]int, 0, len(out))
	for i, o := range out {
		epoch, err := o.To.epoch()
		if err == nil && len(o.Body) == 0 {
			err = fmt.Errorf("an empty message")
		}
		if err != nil {
			errs[i] = fmt.Errorf("store: %s: %w", op, err)
			continue
		}
		cmds = append(cmds, s.client.B().Xadd().Key(s.keys.inboxOf(o.To)).Nomkstream().Maxlen().Almost().Threshold(inboxCap).
			Id(epoch+"-*").FieldValue().FieldValue("m", rueidis.BinaryString(o.Body)).Build())
		at = append(at, i)
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	for i, res := range s.sender.DoMulti(bounded, cmds...) {
		err := s.check(ctx, op, res)
		if err == nil && rueidis.IsRedisNil(res.Error()) {
			err = fmt.Errorf("store: %s: %w", op, ErrNoInbox)
		}
		errs[at[i]] = err
	}
	return errs
}
