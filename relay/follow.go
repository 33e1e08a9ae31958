package relay

import (
	"errors"
	"time"

	"holdfast/projections"
	"holdfast/store"
)

// mayReturn holds a call that may be sent twice, and that a peer may have got which is away, until the grace
// has passed: with its return the registration may be back, and its answer may come at any time. A peer that is
// back as a new process has as long to register again.
func (r *Relay) mayReturn(c *call) bool {
	var p projections.Peer
	r.rep.View(func(s *projections.State) { p, _ = s.Peer(c.target) })
	left := p.Changed.Add(r.rep.Graces().RPC).Sub(r.rep.Now())
	if p.Connected && p.Session == c.session || left <= 0 {
		return false
	}
	r.hold(c, c.target)
	r.startWait(c, "", left)
	return true
}

// undelivered is another replica's word that a request certainly did not leave.
func (r *Relay) undelivered(e envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.acks[ackKey{peer: projections.PeerID{User: e.User, Peer: e.Peer}, id: uint32(e.Number)}]
	if c != nil && c.connection == e.Connection {
		r.notDelivered(c, c.attempt)
	}
}

// notDelivered sends a call again, elsewhere, that did not reach the connection.
func (r *Relay) notDelivered(c *call, attempt int) {
	if r.calls[c.number] != c || c.attempt != attempt || c.phase == joining {
		return
	}
	c.refused = c.connection
	if c.attempt == 1 || !c.replaySafe {
		c.handed = false
	}
	r.dispatch(c)
}

// inboxHeals is how long a call waits for the inbox of a living replica: that makes a lost one again at its
// next beat. A dead replica's end comes as an event before.
const inboxHeals = 500 * time.Millisecond

// notSent handles a request that the store did not take, or maybe did.
func (r *Relay) notSent(c *call, attempt int, err error) {
	switch {
	case r.calls[c.number] != c || c.attempt != attempt || c.phase != sent:
	case errors.Is(err, store.ErrNoInbox):
		if c.attempt == 1 || !c.replaySafe {
			c.handed = false
		}
		r.hold(c, c.target)
		r.startWait(c, "", inboxHeals)
	case errors.Is(err, errNotSent), errors.Is(err, store.ErrRefused):
		r.end(c, failure(CodeStoreUnavailable, "The store cannot be reached; the request was not sent"), false)
	case c.replaySafe:
		r.dispatch(c)
	default:
		r.end(c, failure(CodeStoreUnavailable, "The store cannot be reached; the request may have been delivered"), true)
	}
}

// follow lets a call react whose request may be with its target.
func (r *Relay) follow(c *call) {
	var p projections.Peer
	var known bool
	var reg projections.Registration
	r.rep.View(func(s *projections.State) {
		p, known = s.Peer(c.target)
		reg, _ = s.Registration(c.method)
	})
	now := r.rep.Now()
	switch {
	case known && p.Connected && p.Connection == c.connection:
		r.stopWait(c)
	case known && p.Connected && p.Session == c.session:
		// The same process is back. Its answer may come over the new connection.
		if c.replaySafe {
			r.dispatch(c)
			return
		}
		r.startWait(c, p.Connection, r.cfg.LateAck)
	case known && p.Connected: // a new process: the former one's answers cannot come
		r.lost(c)
	default:
		if c.replaySafe {
			r.dispatch(c)
			return
		}
		since := p.Changed
		if !known { // forgotten; or a rebuilt log has lost it, and its replica is about to record it again
			since = r.rebuilt
		}
		over := since.Add(r.rep.Graces().RPC)
		// The end of the registration says that the grace has passed; a registration that is no longer the
		// session's says nothing, nor one whose end is late because the log is.
		holds := known && reg.Session == c.session && !reg.Lapsed
		if !now.Before(over) && (!holds || now.Sub(over) > 5*time.Second) {
			r.lost(c)
			return
		}
		if wait := over.Sub(now); wait > 0 {
			r.startWait(c, "", wait)
		} else {
			r.startWait(c, "", 5*time.Second)
		}
	}
}

// lost ends a call whose answer cannot come any more, or sends it again if that is safe.
func (r *Relay) lost(c *call) {
	if c.replaySafe {
		r.dispatch(c)
		return
	}
	r.end(c, failure(CodeTargetLost, "RPC target disconnected"), true)
}

// startWait bounds how long the call waits in its present situation; while the situation lasts the bound
// stands.
func (r *Relay) startWait(c *call, connection string, d time.Duration) {
	if c.wait != nil && c.waitFor == connection {
		if connection != "" {
			return
		}
		c.wait.Stop()
	}
	r.stopWait(c)
	c.waitFor = connection
	attempt := c.attempt
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls[c.number] != c || c.attempt != attempt || c.wait != timer {
			return
		}
		c.wait = nil
		if connection != "" {
			r.lost(c)
		} else {
			r.advance(c)
		}
	})
	c.wait = timer
}

func (r *Relay) stopWait(c *call) {
	if c.wait != nil {
		c.wait.Stop()
		c.wait = nil
	}
}

// audit asks the replicas that have requests of this one whether they really do, after messages may have been
// lost.
func (r *Relay) audit() {
	for _, c := range r.calls {
		if c.phase == sent && c.instance != r.rep.Instance() && c.wait == nil {
			r.ask(c)
		}
	}
}

func (r *Relay) ask(c *call) {
	in, _, _ := r.rep.Self()
	r.send(c.instance, envelope{
		Kind: kindQuery, Number: uint64(c.ack), User: c.target.User, Peer: c.target.Peer,
		Connection: c.connection, From: in.Instance,
	}, true, nil)
}

// unknown is another replica's word that a request is not, or no longer, with its client.
func (r *Relay) unknown(e envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.acks[ackKey{peer: projections.PeerID{User: e.User, Peer: e.Peer}, id: uint32(e.Number)}]
	if c != nil && c.phase == sent && c.connection == e.Connection && c.wait == nil {
		r.lost(c)
	}
}
