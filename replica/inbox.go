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
	_, healed, err := r.st.BeatInbox(ctx, in, l.consumed[in.Partition].Load())
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

// CheckInbox makes sure that what comes into the inbox of a partition from now on is read: one that has gone back to an
// older state would give numbers again that have been handled. Listeners are told when it had.
func (r *Replica) CheckInbox(ctx context.Context, partition int) error {
	l := r.life.Load()
	if l == nil {
		return nil // a new inbox will be made
	}
	in := l.inbox
	in.Partition = partition
	_, healed, err := r.st.BeatInbox(ctx, in, l.consumed[partition].Load())
	if healed {
		for _, li := range r.listeners {
			li.Receive(partition, nil, true)
		}
	}
	return err
}

// beatPartitions looks whether partitions have lost messages that this replica knows of, as they do without a word when
// Redis goes back to an older state and no connection breaks. Where there are several, it looks after their inboxes,
// beside what Beat does.
func (r *Replica) beatPartitions(ctx context.Context, l *life) {
	for _, li := range r.listeners {
		m, ok := li.(Marker)
		if !ok {
			continue
		}
		for p := range r.cfg.Partitions {
			if err := r.beatPartition(ctx, l, p, m); err != nil {
				r.log.Debug().Err(err).Int("partition", p).Msg("beat of a partition")
			}
		}
	}
}

// beatPartition looks for two marks. The present one may be of what came after a loss; that of the beat before is from
// before it, unless all that was lost had come since.
func (r *Replica) beatPartition(ctx context.Context, l *life, p int, m Marker) error {
	seen := m.Seen(p) // before the look: what comes meanwhile, the store need not have had
	var marks []store.Mark
	if seen.Epoch != "" {
		marks = append(marks, seen)
		if l.looked[p].Epoch == seen.Epoch {
			marks = append(marks, l.looked[p])
		}
	}
	at, lost, err := r.st.Look(ctx, p, marks...)
	if err != nil {
		return err
	}
	if lost {
		l.looked[p] = store.Mark{}
		m.Lost(p, seen)
	} else if seen.Epoch != "" {
		l.looked[p] = seen
	}
	if r.cfg.Partitions == 1 {
		return nil
	}
	in := l.inbox
	in.Partition = p
	depth, healed, err := r.st.BeatInbox(ctx, in, l.consumed[p].Load())
	if err != nil {
		return err
	}
	if healed {
		for _, li := range r.listeners {
			li.Receive(p, nil, true)
		}
	} else if depth == 0 && !lost {
		m.Reached(p, at)
	}
	return nil
}

// Send puts messages into other replicas' inboxes in one round trip; one error each.
func (r *Replica) Send(ctx context.Context, out []store.Outgoing) []error {
	return r.st.SendMany(ctx, out)
}

// Store is where this replica's data lasts.
func (r *Replica) Store() *store.Store { return r.st }
