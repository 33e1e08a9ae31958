package relay

import (
	"runtime"
	"strings"

	"holdfast/replica"
	"holdfast/store"
)

// partition is what this replica has of one partition. Its fields are guarded by Channels.order, but for pub.
type partition struct {
	c   *Channels
	n   int
	at  store.Mark // all that came up to it has been handed out; no epoch: nothing has come yet
	pub publisher

	top       store.Mark // the last message that was published from here, in this epoch
	inbox     uint64     // number of the last message that the inbox gave
	broken    bool       // the numbers went back within the epoch
	repairing bool
	again     bool          // the repair has to begin anew
	losing    bool          // messages may be missing; else the repair only asks whether the history is another
	done      chan struct{} // closed when the repair under way has ended
	life      int           // counts incarnations: a repair for a former one does nothing
	// held are the messages that came while a repair is under way. When it is full, they are dropped and the repair
	// begins anew: it finds them in the histories.
	held []arrival
}

const maxHeldArrivals = 100_000

// known is what scripts are told.
func (p *partition) known() store.Known {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	return store.Known{Mark: later(p.at, p.top), Broken: p.broken}
}

// later is the later of two marks of one epoch, with the token if that is known.
func later(a, b store.Mark) store.Mark {
	if b.Epoch == a.Epoch && (b.Seq > a.Seq || b.Seq == a.Seq && a.Token == 0) {
		return b
	}
	return a
}

// seen is the last message that is known here. While a repair is under way, that asks by itself.
func (p *partition) seen() store.Mark {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if p.repairing {
		return store.Mark{}
	}
	return later(p.at, p.top)
}

// learn takes note of the partition's epoch as a script has told it. It reports whether it is the one that counts
// here; if not, wait is closed when that is known. The caller holds order.
func (p *partition) learn(epoch string) (wait <-chan struct{}, same bool) {
	switch p.at.Epoch {
	case epoch:
		return nil, true
	case "":
		p.at = store.Mark{Epoch: epoch}
		return nil, true
	}
	p.repair() // the answer may be an old one: the repair finds out
	return p.done, false
}

// receive takes what the inbox of a partition brought, which is only what belongs to channels.
func (p *partition) receive(a arrival) {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if p.at.Epoch == "" {
		p.at = store.Mark{Epoch: a.Epoch}
	}
	switch {
	case a.Epoch != p.at.Epoch:
		p.c.figures.Losses.With("epoch-changed").Inc()
		p.repair() // which learns where the new epoch began
	case a.Seq <= p.inbox:
		p.rolledBack(p.inbox)
	default:
		p.inbox = a.Seq
	}
	if p.repairing {
		if len(p.held) >= maxHeldArrivals {
			p.held, p.again = nil, true
		}
		p.held = append(p.held, a)
		return
	}
	p.hand(a)
}

// hand hands one message out. The caller holds order.
func (p *partition) hand(a arrival) {
	if a.Seq <= p.at.Seq || a.Epoch != p.at.Epoch {
		return // handed out already, from a history
	}
	p.at = a.Mark
	if a.known {
		p.c.deliver(p.delivery(a.message, a.Mark), a.alone)
	}
}

func (p *partition) delivery(m message, at store.Mark) *delivery {
	d := &delivery{message: m, part: p.n, seq: at.Seq}
	if len(p.c.parts) == 1 {
		d.b = p.c.broadcast(m, cursor{at})
		return d
	}
	d.at = make(cursor, len(p.c.parts))
	for i, o := range p.c.parts {
		d.at[i] = o.at
	}
	d.b = p.c.broadcast(m, d.at)
	return d
}

// broadcast encodes a message for all that get it with the same offset: its signature is made once for them.
func (c *Channels) broadcast(m message, at cursor) *replica.Broadcast {
	b := &replica.Broadcast{Name: m.Event, Attachments: m.Data.Attachments, Offset: c.offset(at)}
	if len(m.Data.JSON) > 0 {
		b.Args = [][]byte{m.Data.JSON}
	}
	return b
}

const (
	// writeEvery is after how many clients those that have been given a message that came alone are let write it:
	// else the first one's write begins when the last one has been given it.
	writeEvery = 16
	// writeAtMost is to how many clients in all: the order of messages is held up meanwhile. More, like a backlog, is
	// given out at once, and many messages then go in one write.
	writeAtMost = 256
)

// deliver gives a message to all clients here that have its channel. The caller holds order.
func (c *Channels) deliver(d *delivery, alone bool) {
	c.mu.RLock()
	t := c.topics[d.Channel]
	var subs []*subscription
	if t != nil {
		subs = t.subs
	}
	c.mu.RUnlock()
	alone = alone && len(subs) <= writeAtMost
	for i, e := range subs {
		e.give(c, d)
		if alone && i%writeEvery == writeEvery-1 {
			runtime.Gosched()
		}
	}
	c.figures.delivered.Add(uint64(len(subs)))
}

func (e *subscription) give(c *Channels, d *delivery) {
	s := e.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.over || s.gone:
	case s.pending > 0:
		if len(s.held) >= maxHeld {
			s.gone, s.held = true, nil
			s.session.Link.Reconnect(replica.WhyOverflow)
			return
		}
		s.held = append(s.held, heldMessage{e, d})
	case d.seq > e.since:
		s.send(c, d)
	}
}

// send gives a message to the client. The caller holds the subscriber's mu.
func (s *subscriber) send(c *Channels, d *delivery) {
	if !c.isFor(s.session, &d.message) {
		return
	}
	b := d.b
	if s.floor != nil {
		if at := s.floor.beyond(d.at); at != nil {
			b = c.broadcast(d.message, at)
		} else {
			s.floor = nil
		}
	}
	s.session.Link.Broadcast(b)
}

// beyond is the greater of both places in each partition, or nil if that is at itself.
func (c cursor) beyond(at cursor) cursor {
	var more cursor
	for p := range at {
		if c[p].Epoch == at[p].Epoch && c[p].Seq > at[p].Seq || at[p].Epoch == "" && c[p].Epoch != "" {
			if more == nil {
				more = append(cursor(nil), at...)
			}
			more[p] = c[p]
		}
	}
	return more
}

// isFor reports whether a message is for this session: one of a room is for those who are in it.
func (c *Channels) isFor(s *replica.Session, m *message) bool {
	room, ok := strings.CutPrefix(m.Channel, RoomChannel)
	return !ok || c.cfg.For != nil && c.cfg.For(s, room, m.To)
}

// reached moves the mark over what did not concern this replica. See replica.Marker.
func (p *partition) reached(at store.Mark) {
	p.c.order.Lock()
	defer p.c.order.Unlock()
	if !p.repairing && at.Epoch != "" && (p.at.Epoch == at.Epoch || p.at.Epoch == "") && at.Seq > p.at.Seq {
		p.at = at
	}
}
