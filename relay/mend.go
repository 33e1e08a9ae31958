package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/replica"
	"holdfast/store"
)

const (
	repairBatch   = 100 // channels in one script
	repairWorkers = 16
)

var errEpoch = errors.New("the epoch of the partition has changed meanwhile")

// lose says that messages of the partition may be missing from now on.
func (p *partition) lose() {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	p.repair()
}

// doubt says that the connection to the store has failed: it may have come back as one that has lost its last
// messages. What comes is held until it is known that the history is the one that this replica has seen.
func (p *partition) doubt() {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if p.at.Epoch != "" {
		p.ask()
	}
}

// lost says that the store does not have what was known here when this mark was the last one.
func (p *partition) lost(seen store.Mark) {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if p.at.Epoch == seen.Epoch { // else that is known by now
		p.rolledBack(seen.Seq)
	}
}

// rolledBack makes the next script begin a new epoch. The caller holds order.
func (p *partition) rolledBack(seen uint64) {
	if !p.broken {
		p.broken = true
		p.c.figures.Losses.With("rolled-back").Inc()
		p.c.log.Warn().Int("partition", p.n).Uint64("seen", seen).
			Msg("the store has lost messages of channels that were here already; the clients that have channels begin anew")
	}
	p.repair()
}

// repair looks for what the inbox did not bring, in the histories of all channels. The caller holds order.
func (p *partition) repair() {
	p.losing = true
	p.ask()
}

func (p *partition) ask() {
	p.again = true
	if p.repairing {
		return
	}
	life := p.life
	if p.c.work.begin(func() { p.runRepair(life) }) {
		p.repairing, p.done = true, make(chan struct{})
	}
}

// runRepair ends when it has succeeded, or with the incarnation, or the relay.
func (p *partition) runRepair(life int) {
	c := p.c
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx := c.r.context() // it may have begun before Run
		c.order.Lock()
		if p.life != life {
			c.order.Unlock()
			return
		}
		losing := p.losing
		p.again, p.losing = false, false
		c.order.Unlock()
		err := p.repairOnce(ctx, life, losing)
		c.order.Lock()
		p.losing = p.losing || losing && err != nil
		if p.life == life && (err == nil && !p.again || ctx.Err() != nil) {
			p.resume()
			c.order.Unlock()
			return
		}
		c.order.Unlock()
		if err == nil {
			continue
		}
		c.log.Debug().Err(err).Int("partition", p.n).Msg("repair of channels")
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// resume hands out what came during a repair. The caller holds order.
func (p *partition) resume() {
	if !p.repairing {
		return
	}
	p.repairing = false
	close(p.done)
	held := p.held
	p.held = nil
	for _, a := range held {
		p.hand(a)
	}
}

// reset forgets everything: the incarnation has ended. The caller holds order.
func (p *partition) reset() {
	p.life++
	p.held = nil
	p.resume()
	p.at, p.inbox, p.top, p.broken = store.Mark{}, 0, store.Mark{}, false
}

// repairOnce makes this replica interested in all that its clients have, and hands out what the histories have
// beyond the mark. Unless something is missing, that is done only if the epoch is another.
func (p *partition) repairOnce(ctx context.Context, life int, losing bool) error {
	c := p.c
	// Before the histories are looked at: they have what comes until then, and the inbox what comes after.
	if err := c.rep.CheckInbox(ctx, p.n); err != nil {
		return err
	}
	got, err := c.ask(ctx, p, store.SubscribeNone, "", nil)
	if err != nil {
		return err
	}
	c.order.Lock()
	same := p.at.Epoch == got.Epoch
	if p.life == life && !same {
		if p.at.Epoch == "" {
			p.at = store.Mark{Epoch: got.Epoch}
		} else {
			p.turn(got.Epoch, got.Base)
		}
	}
	c.order.Unlock()
	if same && !losing {
		return nil
	}
	topics, autos := p.local()
	for batch := range slices.Chunk(topics, repairBatch) {
		again, err := c.ask(ctx, p, store.SubscribeNone, "", batch)
		if err != nil {
			return err
		}
		if again.Epoch != got.Epoch {
			return errEpoch
		}
		got.Mark = again.Mark
	}
	if err := p.remake(ctx, autos, got.Epoch); err != nil {
		return err
	}
	topics, _ = p.local() // also those of which interest began meanwhile, maybe before the mark
	return p.catchUp(ctx, topics, got.Mark, life)
}

// local lists the channels of the partition that clients have here, and the subscriptions whose record is lost.
func (p *partition) local() (topics []*topic, lost []*subscription) {
	c := p.c
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, t := range c.topics {
		if t.part == p {
			topics = append(topics, t)
		}
	}
	for _, sub := range c.subs {
		sub.mu.Lock()
		for _, e := range sub.topics {
			if e.topic.part == p && e.unrecorded {
				lost = append(lost, e)
			}
		}
		sub.mu.Unlock()
	}
	return topics, lost
}

// turn begins a new epoch: what the clients have got says nothing about it. Those with channels of their own, in
// whatever partition, come back for a fresh session, since messages for them may be lost without a trace; the others go
// on, and are given everything that the new epoch has for them. The caller holds order.
func (p *partition) turn(epoch string, base uint64) {
	c := p.c
	c.log.Warn().Int("partition", p.n).Str("former", p.at.Epoch).Str("now", epoch).
		Msg("the store has lost messages of channels: the clients that have channels begin anew")
	c.figures.Losses.With("epoch").Inc()
	p.at = store.Mark{Epoch: epoch, Seq: base}
	p.inbox, p.top, p.broken = base, store.Mark{}, false
	c.mu.Lock()
	var lost []*subscriber
	for _, sub := range c.subs {
		sub.mu.Lock()
		here, own := false, false // it has channels in this partition; some of its own
		for _, e := range sub.topics {
			switch {
			case e.topic.part != p:
				own = own || !e.auto
			case e.since == undecided: // that one sees that the epoch is another
			default:
				here, own = true, own || !e.auto
				e.since, e.unrecorded = base, true
			}
		}
		if here && own && !sub.gone {
			sub.gone, sub.held = true, nil
			lost = append(lost, sub)
		}
		sub.mu.Unlock()
	}
	for _, t := range c.topics {
		if t.part == p {
			t.floor, t.known = base, true
		}
	}
	c.mu.Unlock()
	c.cut(lost)
}

// cut sends clients away whose sessions cannot go on: they come back for fresh ones. With several partitions, what the
// others still have of a session would make it one that goes on with some of its channels: that is removed first.
func (c *Channels) cut(lost []*subscriber) {
	c.figures.lost.Add(uint64(len(lost)))
	away := func() {
		for _, sub := range lost {
			sub.session.Link.Reconnect(replica.WhyLost)
		}
	}
	if len(c.parts) == 1 || len(lost) == 0 {
		away()
		return
	}
	began := c.work.begin(func() {
		defer away()
		for batch := range slices.Chunk(lost, recordBatch) {
			pids := make([]string, len(batch))
			for i, sub := range batch {
				pids[i] = sub.session.PID
			}
			for p := range c.parts {
				if err := c.rep.Store().DropSessions(c.r.context(), p, pids); err != nil {
					c.log.Warn().Err(err).Int("partition", p).Msg("records of lost sessions could not be removed")
				}
			}
		}
	})
	if !began {
		away()
	}
}

// remake writes the records of sessions again that have only what the server gives to each.
func (p *partition) remake(ctx context.Context, lost []*subscription, epoch string) error {
	return each(lost, func(e *subscription) error {
		s := e.sub
		s.mu.Lock()
		skip := s.gone || e.over || !e.auto
		s.mu.Unlock()
		if skip {
			return nil
		}
		got, err := p.c.ask(ctx, p, store.SubscribeBase, s.session.PID, []*topic{e.topic})
		if err == nil && got.Epoch != epoch {
			err = errEpoch
		}
		if err == nil {
			s.mu.Lock()
			e.unrecorded = false
			s.mu.Unlock()
		}
		return err
	})
}

// each calls f for all of the list, some at a time, and returns an error if there was one.
func each[T any](list []T, f func(T) error) error {
	slots := make(chan struct{}, repairWorkers)
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, v := range list {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := f(v); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return failed
}

// catchUp hands out what the histories have of the topics after the partition's mark and up to another one.
func (p *partition) catchUp(ctx context.Context, topics []*topic, to store.Mark, life int) error {
	c := p.c
	c.order.Lock()
	from := p.at
	c.order.Unlock()
	if from.Epoch != to.Epoch {
		return errEpoch
	}
	var mu sync.Mutex
	var found []recorded
	var holes []*topic
	err := each(topics, func(t *topic) error {
		c.mu.RLock()
		after := max(from.Seq, t.floor)
		c.mu.RUnlock()
		page, err := c.read(ctx, t.name, p, after)
		if errors.Is(err, store.ErrTooMuch) {
			page, err = &past{Past: store.Past{Mark: to, Trimmed: to.Seq}}, nil
		}
		if err != nil {
			return err
		}
		if page.Epoch != to.Epoch && page.Epoch != "" {
			return errEpoch
		}
		mu.Lock()
		defer mu.Unlock()
		if page.Trimmed > after {
			holes = append(holes, t)
			return nil
		}
		for _, m := range page.messages {
			if m.seq > after && m.seq <= to.Seq {
				found = append(found, m)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b recorded) int { return cmp.Compare(a.seq, b.seq) })

	c.order.Lock()
	defer c.order.Unlock()
	if p.life != life || p.at.Epoch != to.Epoch {
		return errEpoch
	}
	c.dropHoles(holes)
	for _, m := range found {
		p.hand(arrival{Mark: store.Mark{Epoch: to.Epoch, Seq: m.seq, Token: m.token}, message: m.message, known: m.known})
	}
	p.at = later(p.at, to)
	if len(found) > 0 {
		c.figures.Count.With("repaired").Add(uint64(len(found)))
		c.log.Warn().Int("messages", len(found)).Int("partition", p.n).Msg("messages that the inbox did not bring were found in the histories")
	}
	return nil
}

// dropHoles sends the clients away for whom a history does not have everything any more.
func (c *Channels) dropHoles(holes []*topic) {
	var lost []*subscriber
	c.mu.RLock()
	for _, t := range holes {
		c.figures.Losses.With("history-exceeded").Inc()
		for _, e := range t.subs {
			e.sub.mu.Lock()
			if !e.over && !e.sub.gone {
				e.sub.gone, e.sub.held = true, nil
				lost = append(lost, e.sub)
			}
			e.sub.mu.Unlock()
		}
	}
	c.mu.RUnlock()
	c.cut(lost)
}
