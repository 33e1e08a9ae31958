package relay

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast/replica"
)

// work is what is done in the background. None begins once it is being waited for: the replica may still speak then.
type work struct {
	mu    sync.Mutex // guards over, and the group against beginnings while it is waited for
	over  bool
	group sync.WaitGroup
}

// begin runs f in a goroutine; false: it is too late for that.
func (w *work) begin(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.group.Go(f)
	}
	return !w.over
}

// end waits for what has begun.
func (w *work) end() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.group.Wait()
}

// run carries publications, ends interests and renews records until ctx ends.
func (c *Channels) run(ctx context.Context) {
	var group sync.WaitGroup
	defer c.work.end()
	defer group.Wait()
	for _, p := range c.parts {
		group.Go(func() { p.pub.run(ctx, p) })
	}
	sweep, renew := time.NewTicker(sweepEvery), time.NewTicker(sessionSlack/4)
	defer sweep.Stop()
	defer renew.Stop()
	for {
		select {
		case <-sweep.C:
			c.sweep(ctx)
		case <-renew.C:
			c.renew(ctx)
		case pid := <-c.ended:
			pids := []string{pid}
			for len(pids) < recordBatch && len(c.ended) > 0 {
				pids = append(pids, <-c.ended)
			}
			for p := range c.parts {
				if err := c.rep.Store().DropSessions(ctx, p, pids); err != nil {
					c.log.Debug().Err(err).Msg("drop sessions") // they expire
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *Channels) renew(ctx context.Context) {
	c.mu.RLock()
	pids := make([]string, 0, len(c.subs))
	for s := range c.subs {
		pids = append(pids, s.PID)
	}
	c.mu.RUnlock()
	for batch := range slices.Chunk(pids, recordBatch) {
		for p := range c.parts {
			if err := c.rep.Store().RenewSessions(ctx, p, batch, c.keep.Session); err != nil {
				c.log.Warn().Err(err).Msg("records of sessions could not be renewed; tried again in a quarter of an hour")
			}
		}
	}
}

// sweep ends the interest in channels that nobody here has any more.
func (c *Channels) sweep(ctx context.Context) {
	self, _, ok := c.rep.Self()
	if !ok {
		return
	}
	c.mu.RLock()
	idle := make([]*topic, 0, len(c.idle))
	for t := range c.idle {
		idle = append(idle, t)
	}
	c.mu.RUnlock()
	for _, t := range idle {
		t.io.Lock() // who subscribes now waits, and is then interested anew
		if c.unused(t) {
			in := self
			in.Partition = t.part.n
			if err := c.rep.Store().Uninterest(ctx, in, []string{t.name}); err != nil {
				c.log.Debug().Err(err).Msg("uninterest")
			} else {
				c.forget(t)
			}
		}
		t.io.Unlock()
	}
}

// unused reports whether nobody here has the topic; if somebody has, it is idle no more.
func (c *Channels) unused(t *topic) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(t.subs) > t.over {
		delete(c.idle, t)
		return false
	}
	return c.topics[t.name] == t
}

// forget takes note that the interest has ended. Who has attached meanwhile waits for io, and asks for it again.
func (c *Channels) forget(t *topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.known = false
	delete(c.idle, t)
	if len(t.subs) == t.over {
		delete(c.topics, t.name)
	}
}

// fenced forgets everything: the incarnation has ended, and its clients are sent away.
func (c *Channels) fenced() {
	c.order.Lock()
	defer c.order.Unlock()
	c.mu.Lock()
	sessions := make([]*replica.Session, 0, len(c.subs))
	for s := range c.subs {
		sessions = append(sessions, s)
	}
	c.mu.Unlock()
	for _, s := range sessions {
		c.Close(s)
	}
	c.mu.Lock()
	clear(c.topics)
	clear(c.idle)
	c.mu.Unlock()
	for _, p := range c.parts {
		p.reset()
	}
}
