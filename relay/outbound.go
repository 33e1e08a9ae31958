package relay

import (
	"context"
	"errors"
	"runtime"
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
	// entryBytes is about how large an inbox's entry becomes by joining messages; one alone may be larger.
	entryBytes = 64 << 10
)

// outbound carries messages to other replicas' inboxes: one goroutine, many messages in one round trip, and those
// that wait for the same inbox in one entry of it: an entry costs the store and both replicas several times what
// a message in it does.
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
	what    envelope // its Body must not change
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

// take takes the oldest messages, in the place of spare.
func (o *outbound) take(most int, spare []outgoing) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wait) <= most {
		batch := o.wait
		o.wait = spare[:0]
		return batch
	}
	batch := spare[:0]
	batch = append(batch, o.wait[:most]...)
	rest := copy(o.wait, o.wait[most:])
	clear(o.wait[rest:])
	o.wait = o.wait[:rest]
	return batch
}

// later tries a message again whose inbox a living replica is about to make anew.
func (o *outbound) later(m outgoing) {
	if time.Now().Before(m.expires) {
		time.AfterFunc(inboxHeals, func() { o.push(m) })
	}
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
		for _, m := range o.take(maxOutbound, nil) {
			if m.failed != nil {
				m.failed(errNotSent)
			}
		}
	}()
	var spare []outgoing
	for {
		runtime.Gosched() // who is about to push comes first, and its message goes along
		batch := o.take(sendBatch, spare)
		if len(batch) == 0 {
			spare = batch
			select {
			case <-o.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		err := o.send(ctx, batch)
		clear(batch)
		if spare = batch; cap(spare) > 2*sendBatch {
			spare = nil
		}
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
	entries, of := pack(batch)
	errs := o.r.rep.Send(ctx, entries)
	var down error
	var again []outgoing
	for i, m := range batch {
		err := errs[of[i]]
		if errors.Is(err, store.ErrUnavailable) {
			down = err
			if m.again {
				again = append(again, m)
				continue
			}
		}
		if errors.Is(err, store.ErrNoInbox) && m.again && o.r.lives(m.to) {
			o.later(m)
			continue
		}
		if err != nil && m.failed != nil {
			m.failed(err)
		}
	}
	o.putBack(again)
	return down
}

// pack joins the messages for each inbox, in order, and tells which entry has which message.
func pack(batch []outgoing) (entries []store.Outgoing, of []int) {
	of = make([]int, len(batch))
	var sizes []int
	open := make(map[store.Inbox]int, 4) // the last entry for each
	for i := range batch {
		m := &batch[i]
		size := m.what.size()
		at, ok := open[m.to]
		if !ok || sizes[at]+size > entryBytes {
			at = len(entries)
			open[m.to] = at
			entries = append(entries, store.Outgoing{To: m.to})
			sizes = append(sizes, 0)
		}
		of[i] = at
		sizes[at] += size
	}
	for i := range batch {
		at := of[i]
		if entries[at].Body == nil {
			entries[at].Body = make([]byte, 0, sizes[at])
		}
		entries[at].Body = batch[i].what.append(entries[at].Body)
	}
	return entries, of
}

// outage waits until the store answers again, and lets go what has waited too long. false: ctx has ended.
func (o *outbound) outage(ctx context.Context) bool {
	return outage(ctx, o.expire, func(ctx context.Context) error {
		_, err := o.r.rep.Store().Head(ctx)
		return err
	})
}

// outage probes the store until it answers, and has expire let go what has waited too long. false: ctx has ended.
func outage(ctx context.Context, expire func(now time.Time), probe func(context.Context) error) bool {
	tick := time.NewTicker(downPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		expire(time.Now())
		soon, cancel := context.WithTimeout(ctx, time.Second)
		err := probe(soon)
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
