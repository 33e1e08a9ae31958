package replica

import (
	"context"
	"runtime"
	"time"

	"holdfast/store"
)

const (
	inboxBatch = 512
	inboxBlock = 2 * time.Second
)

// readInbox hands the messages of the inbox to the listeners, in order, and notices those that are missing.
func (r *Replica) readInbox(ctx context.Context, l *life) error {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		after := l.consumed.Load()
		messages, err := r.st.ReadInbox(ctx, l.inbox, after, inboxBatch, inboxBlock)
		if err != nil {
			if ctx.Err() == nil {
				r.log.Debug().Err(err).Msg("read inbox")
			}
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		if len(messages) == 0 {
			continue
		}
		last := messages[len(messages)-1].Seq
		lost := last-after != uint64(len(messages))
		if lost {
			r.log.Warn().Uint64("after", after).Uint64("last", last).Int("read", len(messages)).
				Msg("messages are missing in this replica's inbox")
			r.metrics.Anomalies.With("inbox-hole").Inc()
		}
		for _, li := range r.listeners {
			li.Receive(messages, lost)
		}
		l.consumed.Store(last)
		runtime.Gosched() // what this has set going comes first, and more will have arrived
	}
	return nil
}

// Send puts messages into other replicas' inboxes in one round trip; one error each.
func (r *Replica) Send(ctx context.Context, out []store.Outgoing) []error {
	return r.st.SendMany(ctx, out)
}

// Store is where this replica's data lasts.
func (r *Replica) Store() *store.Store { return r.st }
