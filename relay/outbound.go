package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast/store"
)

const (
	sendBatch = 256
	// maxOutbound bounds the messages that wait for the store. When it is full, a request fails at once with
	// STORE_UNAVAILABLE, an answer is dropped with a log line: its call ends by its timeout.
	maxOutbound = 100_000
	// answerPatience is how long an answer waits for the store to come back: no call lasts longer.
	answerPatience = MaxTimeout
	downPause      = 100 * time.Millisecond
)

// outbound carries messages to other replicas' inboxes: one goroutine, many messages in one round trip.
// Requests are written at most once. Answers, which may be written twice without harm, are written until it
// succeeds. While the store is down everything waits: requests as long as the patience allows.
type outbound struct {
	r    *Relay
	mu   sync.Mutex
	wait []outgoing
	wake chan struct{}
}

type outgoing struct {
	to      store.Inbox
	body    []byte
	expires time.Time
	again   bool // may be written twice
	// failed is told, without locks held, why it was not written, or maybe not; nil when nobody cares.
	failed func(error)
}

// errNotSent: it certainly was not written.
var errNotSent = errors.New("not sent: the store cannot be reached")

func (o *outbound) push(m outgoing) bool {
	o.mu.Lock()
	if len(o.wait) >= maxOutbound {
		o.mu.Unlock()
		return false
	}
	o.wait = append(o.wait, m)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

func (o *outbound) take(most int) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(most, len(o.wait))
	if n == 0 {
		return nil
	}
	batch := make([]outgoing, n)
	copy(batch, o.wait)
	rest := copy(o.wait, o.wait[n:])
	clear(o.wait[rest:])
	o.wait = o.wait[:rest]
	return batch
}

func (o *outbound) putBack(batch []outgoing) {
	if len(batch) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait = append(batch[:len(batch):len(batch)], o.wait...)
}

// run carries messages until ctx ends; then it tells the rest that they were not sent.
func (o *outbound) run(ctx context.Context) {
	defer func() {
		for _, m := range o.take(maxOutbound) {
			if m.failed != nil {
				m.failed(errNotSent)
			}
		}
	}()
	for {
		batch := o.take(sendBatch)
		if batch == nil {
			select {
			case <-o.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		err := o.send(ctx, batch)
		if err == nil {
			continue
		}
		o.r.storeDown(err)
		if !o.outage(ctx) {
			return
		}
		o.r.storeUp()
	}
}

// send writes the batch. The error is the store's when it did not answer or takes no writes.
func (o *outbound) send(ctx context.Context, batch []outgoing) error {
	out := make([]store.Outgoing, len(batch))
	for i, m := range batch {
		out[i] = store.Outgoing{To: m.to, Body: m.body}
	}
	var down error
	var again []outgoing
	for i, err := range o.r.rep.Send(ctx, out) {
		m := batch[i]
		if errors.Is(err, store.ErrUnavailable) {
			down = err
			if m.again {
				again = append(again, m)
				continue
			}
		}
		if err != nil && m.failed != nil {
			m.failed(err)
		}
	}
	o.putBack(again)
	return down
}

// outage waits until the store answers again, and lets go what has waited too long. false: ctx has ended.
func (o *outbound) outage(ctx context.Context) bool {
	tick := time.NewTicker(downPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		o.expire(time.Now())
		probe, cancel := context.WithTimeout(ctx, time.Second)
		_, err := o.r.rep.Store().Head(probe)
		cancel()
		if err == nil {
			return true
		}
	}
}

func (o *outbound) expire(now time.Time) {
	o.mu.Lock()
	var old []outgoing
	kept := o.wait[:0]
	for _, m := range o.wait {
		if now.After(m.expires) {
			old = append(old, m)
		} else {
			kept = append(kept, m)
		}
	}
	clear(o.wait[len(kept):])
	o.wait = kept
	o.mu.Unlock()
	for _, m := range old {
		if m.failed != nil {
			m.failed(errNotSent)
		}
	}
}
