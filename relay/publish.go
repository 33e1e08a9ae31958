package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"holdfast/commands"
	"holdfast/replica"
	"holdfast/store"
)

const (
	// maxPublishing and maxPublishingBytes bound what waits to be published on one partition. When it is full, a
	// publication fails at once with RATE_LIMITED.
	maxPublishing      = 20_000
	maxPublishingBytes = 64 << 20
	// publishBytes is about how much one script call takes: it holds up everything else in Redis.
	publishBytes = 256 << 10
)

// Publication is a message to a channel.
type Publication struct {
	Channel string // with the letter of its kind
	Event   string
	To      string          // of a room: a peer or a role; see ChannelConfig.For
	Data    replica.Payload // of the event's argument; no JSON for none
}

// publisher publishes on one partition: one script call at a time, so that groups grow under load by themselves.
type publisher struct {
	mu    sync.Mutex
	wait  []publishing
	bytes int
	wake  chan struct{}
}

type publishing struct {
	store.Publication
	expires time.Time
	done    func(at store.Mark, err error)
}

// Publish publishes the message, after those of the same channel before it. done is called once, from any goroutine,
// with the place right after the message as an offset, once the message is durable, or with a *commands.Refusal.
// After one with STORE_UNAVAILABLE it may have been published all the same, if the store failed meanwhile.
func (c *Channels) Publish(m Publication, done func(offset string, err error)) {
	if m.Data.Size() > c.cfg.MaxMessage {
		done("", &commands.Refusal{Code: commands.CodeTooLarge, Text: fmt.Sprintf("A message may have %d bytes at most, with its attachments", c.cfg.MaxMessage)})
		return
	}
	if len(m.Data.Attachments) > replica.MaxAttachments {
		done("", &commands.Refusal{Code: commands.CodeTooLarge, Text: tooManyAttachments})
		return
	}
	p := c.parts[store.PartitionOf(m.Channel, len(c.parts))]
	msg := message(m)
	item := publishing{
		Publication: store.Publication{Channel: m.Channel, Body: msg.encode()},
		expires:     time.Now().Add(c.rep.Patience()),
		done: func(at store.Mark, err error) {
			if err != nil {
				done("", err)
				return
			}
			c.figures.published.Inc()
			place := make(cursor, len(c.parts))
			place[p.n] = at
			done(c.offset(place), nil)
		},
	}
	if !p.pub.push(item) {
		done("", &commands.Refusal{Code: commands.CodeRateLimited, Text: "Too many messages wait to be published"})
	}
}

func (q *publisher) push(item publishing) bool {
	q.mu.Lock()
	if len(q.wait) >= maxPublishing || q.bytes+len(item.Body) > maxPublishingBytes {
		q.mu.Unlock()
		return false
	}
	q.wait = append(q.wait, item)
	q.bytes += len(item.Body)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// take takes the oldest that go together.
func (q *publisher) take(most, bytes int) []publishing {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.wait) && n < most && (n == 0 || size+len(q.wait[n].Body) <= bytes) {
		size += len(q.wait[n].Body)
		n++
	}
	batch := append([]publishing(nil), q.wait[:n]...)
	clear(q.wait[:n])
	if q.wait = q.wait[n:]; len(q.wait) == 0 {
		q.wait = nil
	}
	q.bytes -= size
	return batch
}

func (q *publisher) putBack(batch []publishing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range batch {
		q.bytes += len(item.Body)
	}
	q.wait = append(batch, q.wait...)
}

// run publishes until ctx ends; what waits then fails.
func (q *publisher) run(ctx context.Context, p *partition) {
	defer func() {
		for _, item := range q.take(maxPublishing, maxPublishingBytes) {
			item.done(store.Mark{}, storeError(errNotSent))
		}
	}()
	for {
		runtime.Gosched() // who is about to publish comes first, and its message goes along
		batch := q.take(store.MaxPublish, publishBytes)
		if len(batch) == 0 {
			select {
			case <-q.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if err := q.publish(ctx, p, batch); err != nil && !q.outage(ctx, p) {
			return
		}
	}
}

// publish publishes a batch. The error is the store's when it did not answer or takes no writes.
func (q *publisher) publish(ctx context.Context, p *partition, batch []publishing) error {
	c := p.c
	bodies := make([]store.Publication, len(batch))
	for i := range batch {
		bodies[i] = batch[i].Publication
	}
	at, err := c.rep.Store().Publish(ctx, p.n, p.known(), c.keep, bodies)
	if errors.Is(err, store.ErrRefused) { // it certainly was not published
		q.putBack(batch)
		return err
	}
	if err != nil {
		c.log.Warn().Err(err).Int("messages", len(batch)).Msg("messages could not be published, or may not have been")
		for _, item := range batch {
			item.done(store.Mark{}, storeError(err))
		}
		if !errors.Is(err, store.ErrUnavailable) {
			return nil
		}
		return err
	}
	c.order.Lock()
	if _, same := p.learn(at.Epoch); same {
		p.top = at
	}
	c.order.Unlock()
	first := at.Seq - uint64(len(batch)) + 1
	for i, item := range batch {
		item.done(store.Mark{Epoch: at.Epoch, Seq: first + uint64(i), Token: at.Token}, nil)
	}
	return nil
}

// outage waits until the store answers again, and lets go what has waited too long. false: ctx has ended.
func (q *publisher) outage(ctx context.Context, p *partition) bool {
	return outage(ctx, q.expire, func(ctx context.Context) error {
		_, err := p.c.rep.Store().Session(ctx, p.n, "", store.Mark{})
		return err
	})
}

func (q *publisher) expire(now time.Time) {
	q.mu.Lock()
	n := 0
	for n < len(q.wait) && now.After(q.wait[n].expires) {
		q.bytes -= len(q.wait[n].Body)
		n++
	}
	old := append([]publishing(nil), q.wait[:n]...)
	clear(q.wait[:n])
	q.wait = q.wait[n:]
	q.mu.Unlock()
	for _, item := range old {
		item.done(store.Mark{}, storeError(errNotSent))
	}
}
