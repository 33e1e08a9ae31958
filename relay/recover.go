package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"holdfast/replica"
	"holdfast/store"
)

// maxReaders bounds the histories that are read at a time; more wait.
const maxReaders = 64

// Plan is what a session that comes back is to be given. It was made by looking only: nothing changes before Open.
type Plan struct {
	pid   string
	parts []planPart
	bare  bool // the store has no record of the session: it has no channels
}

type planPart struct {
	from   cursor // the client's; its mark of this partition counts
	record store.SessionRecord
	missed []recorded // up to the record's mark
}

// recorded is a message of a history.
type recorded struct {
	message
	seq   uint64
	token uint32
	known bool
	// b is the same for all clients, with one partition.
	b *replica.Broadcast
}

// past is a page of a history, which may be shared.
type past struct {
	store.Past
	messages []recorded
}

// Why a session begins anew, as ChannelMetrics.Fresh counts it.
var (
	errNoRecord = errors.New("no-record") // the store does not know its channels
	errLost     = errors.New("lost")      // the store has lost messages since
	errOffset   = errors.New("offset")    // what it has got is not known, and messages came
	errExceeded = errors.New("exceeded")  // a history does not reach back so far, or it is too much
)

// Prepare looks whether a session that comes back, with an offset or none, can be given everything that it missed.
// A nil plan: it cannot, and has to begin anew. The error is the store's; nothing is known then.
func (c *Channels) Prepare(ctx context.Context, pid, offset string) (*Plan, error) {
	plan := &Plan{pid: pid, parts: make([]planPart, len(c.parts))}
	at, ours := make(cursor, len(c.parts)), true
	if offset != "" {
		at, ours = c.place(offset)
	}
	bounds := missedBounds{packets: c.cfg.MaxMissed, bytes: c.cfg.MaxMissedBytes}
	found := false
	for p := range c.parts {
		rec, err := c.rep.Store().Session(ctx, p, pid, at[p])
		if err != nil {
			return nil, err
		}
		part := planPart{from: at, record: rec}
		if rec.Epoch == "" && at[p].Epoch != "" && at[p].Epoch != rec.Mark.Epoch {
			err = errLost // all that was there, and a record of the session may have been
		}
		if rec.Epoch != "" {
			found = true
			switch {
			case rec.Epoch != rec.Mark.Epoch:
				err = errLost
			case rec.Other || at[p].Epoch == rec.Epoch && at[p].Seq > rec.Seq:
				err = errLost // it has seen what the store does not know any more
				c.figures.Losses.With("offset-of-lost").Inc()
				c.parts[p].behind(at[p])
			default:
				part.missed, err = c.missed(ctx, p, rec.Channels, at[p], rec.Mark, &bounds)
				if err == nil && !ours && len(part.missed) > 0 {
					err = errOffset
				}
			}
		}
		if why := freshBecause(err); why != nil {
			return nil, c.fresh(pid, why)
		}
		if err != nil {
			return nil, err
		}
		plan.parts[p] = part
	}
	if !found && !c.cfg.Unrecorded {
		return nil, c.fresh(pid, errNoRecord)
	}
	plan.bare = !found
	return plan, nil
}

// fresh counts why a session begins anew. It returns nil.
func (c *Channels) fresh(pid string, why error) error {
	c.figures.Fresh.With(why.Error()).Inc()
	c.log.Debug().Str("pid", pid[:min(4, len(pid))]+"…").Err(why).Msg("a session cannot be recovered")
	return nil
}

func freshBecause(err error) error {
	for _, why := range []error{errNoRecord, errLost, errOffset, errExceeded} {
		if errors.Is(err, why) {
			return why
		}
	}
	return nil
}

// behind says that a client has seen more of an epoch than the store knows.
func (p *partition) behind(seen store.Mark) {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if p.at.Epoch == "" || p.at.Epoch == seen.Epoch {
		p.at.Epoch = seen.Epoch
		p.broken = true
		p.repair()
	}
}

// after is the place in a partition from which a client lacks a channel that it has since. A cursor of another epoch
// says that it got nothing in this one.
func after(at, now store.Mark, since uint64) uint64 {
	if at.Epoch == now.Epoch {
		return max(at.Seq, since)
	}
	return since
}

type missedBounds struct{ packets, bytes int }

// missed reads what channels of one partition have after the client's place in them and up to a mark, in order.
func (c *Channels) missed(ctx context.Context, p int, channels map[string]uint64, at, to store.Mark, bounds *missedBounds) ([]recorded, error) {
	var mu sync.Mutex
	var found []recorded
	var failed error
	var group sync.WaitGroup
	slots := make(chan struct{}, repairWorkers)
	for name, since := range channels {
		from := after(at, to, since)
		if from >= to.Seq {
			continue
		}
		one := func() {
			page, err := c.read(ctx, name, c.parts[p], from)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, store.ErrTooMuch):
				err = errExceeded
			case err == nil && page.Epoch != to.Epoch:
				err = errLost
			case err == nil && page.Trimmed > from:
				err = errExceeded
			}
			if err != nil {
				failed = cmp.Or(failed, err)
				return
			}
			begin, _ := slices.BinarySearchFunc(page.messages, from+1, func(m recorded, seq uint64) int { return cmp.Compare(m.seq, seq) })
			for _, m := range page.messages[begin:] {
				if m.seq <= to.Seq {
					found = append(found, m)
				}
			}
		}
		if len(channels) == 1 {
			one()
			continue
		}
		slots <- struct{}{}
		group.Go(func() { one(); <-slots })
	}
	group.Wait()
	if failed != nil {
		return nil, failed
	}
	packets, size := sizeOf(found)
	bounds.packets -= packets
	bounds.bytes -= size
	if bounds.packets < 0 || bounds.bytes < 0 {
		return nil, errExceeded
	}
	slices.SortFunc(found, func(a, b recorded) int { return cmp.Compare(a.seq, b.seq) })
	return found, nil
}

// sizeOf is about what the messages take as packets, attachments being packets of their own.
func sizeOf(messages []recorded) (packets, bytes int) {
	packets = len(messages)
	for i := range messages {
		m := &messages[i].message
		packets += len(m.Data.Attachments)
		bytes += m.Data.Size() + len(m.Event) + 2*maxOffset/store.MaxPartitions
	}
	return packets, bytes
}

var errStopping = errors.New("this replica stops")

// errAgain: what was prepared does not hold any more; the client has to come once more.
var errAgain = errors.New("the session's channels have changed while it was recovered")

// resume gives a session its channels and what it missed, then what comes. Until it knows where the one ends and the
// other begins, what comes is held back.
func (c *Channels) resume(ctx context.Context, sub *subscriber, plan *Plan, may func(string) bool) error {
	sub.mu.Lock()
	sub.pending++ // beside those of the subscriptions: nothing goes out before the last missed message
	sub.mu.Unlock()
	floor := make(cursor, len(c.parts))
	replayed := 0
	for p := range plan.parts {
		part := &plan.parts[p]
		if part.record.Epoch == "" {
			floor[p] = part.from[p]
			continue
		}
		n, err := c.resumePart(ctx, sub, plan, p, floor, may)
		if err != nil {
			return err
		}
		replayed += n
	}
	c.order.Lock()
	sub.mu.Lock()
	if len(c.parts) > 1 {
		sub.floor = floor
	}
	sub.release(c)
	sub.mu.Unlock()
	c.order.Unlock()
	c.figures.recovered.Inc()
	c.figures.replayed.Add(uint64(replayed))
	return nil
}

func (c *Channels) resumePart(ctx context.Context, sub *subscriber, plan *Plan, p int, floor cursor, may func(string) bool) (int, error) {
	part := &plan.parts[p]
	channels := part.record.Channels
	entries := map[string]*subscription{}
	var got store.Subscribed
	for {
		var topics []*topic
		for name := range channels {
			e := entries[name]
			if e == nil && (may == nil || may(name)) {
				var err error
				if e, _, err = c.attach(sub.session, name, automatic(sub.session, name)); err != nil {
					return 0, err
				}
				entries[name] = e
			}
			if e != nil {
				topics = append(topics, e.topic)
			}
		}
		var err error
		if got, err = c.askKnowing(ctx, c.parts[p], part.record.Mark, store.SubscribeKeep, plan.pid, topics); err != nil {
			return 0, err
		}
		if !got.Done || got.Epoch != part.record.Mark.Epoch {
			return 0, errAgain
		}
		// The former connection may have got channels until its end was recorded.
		if !added(got.Record, channels) {
			break
		}
		channels = got.Record
	}
	// A little has come since Prepare looked.
	bounds := missedBounds{packets: c.cfg.MaxMissed, bytes: c.cfg.MaxMissedBytes}
	late := store.Mark{Epoch: got.Epoch, Seq: part.record.Seq}
	wanted := map[string]uint64{}
	for name := range entries {
		since, has := got.Record[name]
		if !has {
			continue
		}
		if _, before := part.record.Channels[name]; before {
			since = max(since, late.Seq)
		}
		wanted[name] = since
	}
	more, err := c.missed(ctx, p, wanted, store.Mark{}, got.Mark, &bounds)
	if err != nil {
		if freshBecause(err) != nil {
			err = errAgain
		}
		return 0, err
	}
	n := 0
	all := append(part.missed[:len(part.missed):len(part.missed)], more...)
	sub.session.Link.Allow(sizeOf(all))
	for _, m := range all {
		if entries[m.Channel] == nil || got.Record[m.Channel] >= m.seq || !m.known {
			continue
		}
		if !c.isFor(sub.session, &m.message) {
			continue
		}
		b := m.b
		if b == nil {
			at := slices.Clone(part.from)
			copy(at, floor[:p])
			at[p] = store.Mark{Epoch: got.Epoch, Seq: m.seq, Token: m.token}
			b = c.broadcast(m.message, at)
		}
		sub.session.Link.Broadcast(b)
		n++
	}
	floor[p] = got.Mark
	c.order.Lock()
	defer c.order.Unlock()
	if _, same := c.parts[p].learn(got.Epoch); !same {
		return 0, errAgain
	}
	for name, e := range entries {
		since, has := got.Record[name]
		if !has { // given up meanwhile, through the former connection
			since = undecided
			defer c.detach(e)
		}
		e.settle(c, max(since, got.Seq))
	}
	return n, nil
}

func added(now, before map[string]uint64) bool {
	for name := range now {
		if _, ok := before[name]; !ok {
			return true
		}
	}
	return false
}

// reading is the reading of one channel's history for all that want it. Who comes while one is under way takes part
// in the next: that one has all that was there when he came.
type reading struct {
	running bool
	next    *flight
}

type flight struct {
	from uint64
	done chan struct{}
	page *past
	err  error
}

// read gives a page of a channel's history that has everything after from, and maybe more before it.
func (c *Channels) read(ctx context.Context, name string, p *partition, from uint64) (*past, error) {
	c.mu.Lock()
	r := c.reads[name]
	if r == nil {
		r = &reading{}
		c.reads[name] = r
	}
	if r.next == nil {
		r.next = &flight{from: from, done: make(chan struct{})}
	}
	f := r.next
	f.from = min(f.from, from)
	if !r.running {
		own := strings.Clone(name)
		r.running = c.work.begin(func() { c.runReading(own, p, r) })
	}
	running := r.running
	c.mu.Unlock()
	if !running {
		return nil, errStopping
	}
	select {
	case <-f.done:
		return f.page, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Channels) runReading(name string, p *partition, r *reading) {
	for {
		c.readers <- struct{}{}
		c.mu.Lock()
		f := r.next
		r.next = nil
		if f == nil {
			delete(c.reads, name)
			c.mu.Unlock()
			<-c.readers
			return
		}
		c.mu.Unlock()
		f.page, f.err = c.page(name, p, f.from)
		<-c.readers
		close(f.done)
	}
}

func (c *Channels) page(name string, p *partition, from uint64) (*past, error) {
	got, err := c.rep.Store().History(c.r.context(), p.n, name, from, 2*c.cfg.History)
	if err != nil {
		return nil, err
	}
	c.figures.Count.With("histories-read").Inc()
	page := &past{Past: got, messages: make([]recorded, 0, len(got.Messages))}
	for _, s := range got.Messages {
		m, known, _, err := decodeMessage(s.Body)
		if err != nil {
			return nil, err
		}
		one := recorded{message: m, seq: s.Seq, token: s.Token, known: known}
		if len(c.parts) == 1 {
			one.b = c.broadcast(m, cursor{{Epoch: got.Epoch, Seq: s.Seq, Token: s.Token}})
		}
		page.messages = append(page.messages, one)
	}
	page.Past.Messages = nil
	return page, nil
}
