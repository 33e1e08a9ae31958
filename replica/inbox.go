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
func (r *Replica) readInbox(ctx context.Context, l *life, partition int) error {
	in := l.inbox
	in.Partition = partition
	pause := time.Duration(0)
	failed := false // the last look at the store was an error
	for ctx.Err() == nil {
		after := l.consumed[partition].Load()
		var messages []store.Message
		var err error
		if failed {
			err = r.lookAfterFailure(ctx, l, in)
		}
		if err == nil {
			messages, err = r.st.ReadInbox(ctx, in, after, inboxBatch, inboxBlock)
		}
		if failed = err != nil; failed {
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
			r.log.Warn().Uint64("after", after).Uint64("last", last).Int("read", len(messages)).Int("partition", partition).
				Msg("messages are missing in this replica's inbox")
			r.metrics.Anomalies.With("inbox-hole").Inc()
		}
		for _, li := range r.listeners {
			li.Receive(partition, messages, lost)
		}
		l.consumed[partition].Store(last)
		runtime.Gosched() // what this has set going comes first, and more will have arrived
	}
	return nil
}

// lookAfterFailure finds out whether the inbox is still the one that was read before the connection to the store failed.
func (r *Replica) lookAfterFailure(ctx context.Context, l *life, in store.Inbox) error {
	_, _, healed, err := r.st.BeatInbox(ctx, in, l.consumed[in.Partition].Load())
	if err != nil {
		return err
	}
	for _, li := range r.listeners {
		if d, ok := li.(Doubter); ok {
			d.Doubted(in.Partition)
		}
		if healed {
			li.Receive(in.Partition, nil, true)
		}
	}
	return nil
}

// beatPartitions looks after the inboxes when there are several partitions, beside what Beat does.
func (r *Replica) beatPartitions(ctx context.Context, l *life) {
	if r.cfg.Partitions == 1 {
		return
	}
	for p := range r.cfg.Partitions {
		in := l.inbox
		in.Partition = p
		at, depth, healed, err := r.st.BeatInbox(ctx, in, l.consumed[p].Load())
		if err != nil {
			r.log.Debug().Err(err).Int("partition", p).Msg("beat inbox")
			continue
		}
		for _, li := range r.listeners {
			if healed {
				li.Receive(p, nil, true)
			} else if m, ok := li.(Marker); ok && depth == 0 {
				m.Reached(p, at)
			}
		}
	}
}

// Send puts messages into other replicas' inboxes in one round trip; one error each.
func (r *Replica) Send(ctx context.Context, out []store.Outgoing) []error {
	return r.st.SendMany(ctx, out)
}

// Store is where this replica's data lasts.
func (r *Replica) Store() *store.Store { return r.st }
