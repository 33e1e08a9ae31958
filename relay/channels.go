package relay

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/replica"
	"holdfast/store"
)

// The kinds of channels. A channel's name begins with the letter of its kind, so that what a client names cannot be
// something else's.
const (
	ClientChannel = "c:" // the rest of the name is the client's
	RoomChannel   = "r:" // the rest is the room; its messages may be for some only
)

const (
	// maxHeld bounds the messages that are held back for one client while it subscribes or recovers. When it is
	// full the client's transport is closed: it comes back and recovers.
	maxHeld = 4096
	// sweepEvery is about how long the interest in a channel outlasts its last local subscriber.
	sweepEvery = 2 * time.Second
	// maxEnded bounds the sessions whose records wait to be removed. When it is full one is left to expire.
	maxEnded = 20_000
	// sessionSlack is how much longer than it can be recovered the record of a session lasts, for replicas that are
	// late. A replica renews those of its clients after a quarter of it.
	sessionSlack = time.Hour
	recordBatch  = 500
)

// ChannelConfig is what the channels need to know.
type ChannelConfig struct {
	// History is how many messages of each channel can be recovered at least; HistoryBytes about how much they may
	// take at most. Default 1000 and 16 MiB.
	History      int
	HistoryBytes int
	// Silence is how long a connection may be dead before its end is noticed, at most. Default 45 s.
	Silence time.Duration
	// MaxMissed and MaxMissedBytes bound what one client may be given at its recovery, in each partition. More is
	// not recovered. They have to be well over what may wait for a client, or one that reads too slowly could not
	// recover. Default 20000 and 16 MiB.
	MaxMissed      int
	MaxMissedBytes int
	// MaxMessage bounds the data of one message, attachments included; more is TOO_LARGE. It has to be well under what
	// may wait for a client, or one message would cut off everybody who gets it. Default 1,000,000.
	MaxMessage int
	// Unrecorded lets sessions go on that the store has no record of, with no channels but their user's: for a log that
	// was loaded without what else the store held.
	Unrecorded bool
	// For says whether a message of a room is for this session; to is empty when it is for all in the room. Nil: for
	// nobody. It must not block, nor call the channels.
	For func(s *replica.Session, room, to string) bool
}

// Channels carries the messages of channels to the clients of one replica. Each message comes to it by the inbox
// only, its own too, so that all replicas see one order.
//
// A client is given a message if its number is greater than that after which the client has the channel, and as
// nothing is given twice or out of order, the number of the last one says all that the client has got.
type Channels struct {
	r    *Relay
	rep  *replica.Replica
	cfg  ChannelConfig
	keep store.Histories
	log  zerolog.Logger

	// order is held while messages are handed out, so that what the marks say was handed out, was. It is taken
	// before mu, that before a subscriber's.
	order sync.Mutex
	parts []*partition // the slice does not change

	signing atomic.Pointer[signer]

	mu      sync.RWMutex // guards what follows
	topics  map[string]*topic
	subs    map[*replica.Session]*subscriber
	idle    map[*topic]struct{} // without subscribers, still of interest
	reads   map[string]*reading
	ended   chan string // pids whose records are to be removed
	readers chan struct{}
	work    work // repairs and readings
	figures ChannelMetrics
}

// ChannelMetrics are the figures of the channels, to be read at any time.
type ChannelMetrics struct {
	Count     replica.Counters // by name: published, delivered, recovered, …
	Fresh     replica.Counters // sessions that could not be recovered, by why
	Losses    replica.Counters // accidents that lost messages or may have, by what
	published *replica.Counter
	delivered *replica.Counter
	recovered *replica.Counter
	replayed  *replica.Counter
	lost      *replica.Counter
}

// topic is a channel that clients of this replica have.
type topic struct {
	name string
	part *partition

	io sync.RWMutex // held, for reading, while interest is asked for; for writing, while it is ended

	// Guarded by Channels.mu.
	subs  []*subscription // what is over is taken out now and then; the array is not written but at its end
	over  int             // how many of them are
	floor uint64          // the partition's sequence when interest began: nothing before it is of concern
	known bool            // floor is set
}

// subscriber is a client with its channels.
type subscriber struct {
	session *replica.Session
	topics  []*subscription // guarded by Channels.mu

	mu      sync.Mutex // guards what follows, and the flags and since of its subscriptions
	pending int        // while it is not 0, messages are held back
	held    []heldMessage
	floor   cursor // beyond what the replica has handed out: the client was recovered up to there; nil if not
	gone    bool
}

type subscription struct {
	sub   *subscriber
	topic *topic
	since uint64
	auto  bool // made by the server for every client
	over  bool
	// unrecorded: the store has lost the session's record with it.
	unrecorded bool
}

type heldMessage struct {
	of *subscription
	m  *delivery
}

// delivery is a message on its way to the clients of this replica.
type delivery struct {
	message
	part int
	at   cursor // with several partitions
	seq  uint64
	b    *replica.Broadcast
}

func newChannels(r *Relay, cfg ChannelConfig) *Channels {
	for _, d := range []struct {
		v *int
		d int
	}{{&cfg.History, 1000}, {&cfg.HistoryBytes, 16 << 20}, {&cfg.MaxMissed, 20_000}, {&cfg.MaxMissedBytes, 16 << 20},
		{&cfg.MaxMessage, 1_000_000}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if cfg.Silence == 0 {
		cfg.Silence = 45 * time.Second
	}
	c := &Channels{
		r: r, rep: r.rep, cfg: cfg, log: r.log, topics: map[string]*topic{}, subs: map[*replica.Session]*subscriber{},
		idle: map[*topic]struct{}{}, reads: map[string]*reading{}, ended: make(chan string, maxEnded),
		readers: make(chan struct{}, maxReaders),
	}
	life := r.rep.Graces().Recovery + cfg.Silence + historySlack
	c.keep = store.Histories{Messages: cfg.History, Bytes: cfg.HistoryBytes, Life: life, Session: life + sessionSlack}
	f := &c.figures
	f.published, f.delivered = f.Count.With("published"), f.Count.With("delivered")
	f.recovered, f.replayed, f.lost = f.Count.With("recovered"), f.Count.With("replayed"), f.Count.With("lost-sessions")
	for p := range r.rep.Partitions() {
		part := &partition{c: c, n: p}
		part.pub.wake = make(chan struct{}, 1)
		c.parts = append(c.parts, part)
	}
	r.rep.OnSessionEnd(func(pid string) {
		select {
		case c.ended <- pid:
		default: // its record expires
		}
	})
	return c
}

// historySlack is how much longer than a session can be recovered a history lasts.
const historySlack = 30 * time.Second

// Metrics are the channels' figures.
func (c *Channels) Metrics() *ChannelMetrics { return &c.figures }

// Len is how many channels clients have here.
func (c *Channels) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.topics)
}

// SetFor sets ChannelConfig.For. Only before the replica runs.
func (c *Channels) SetFor(f func(s *replica.Session, room, to string) bool) { c.cfg.For = f }

var errClosed = &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "this connection has ended"}

// attach gives the session a subscription whose beginning is not known yet: until settle, the client's messages are
// held back. fresh is false when it has it already.
func (c *Channels) attach(s *replica.Session, name string, auto bool) (e *subscription, fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.subs[s]
	if sub == nil {
		return nil, false, errClosed
	}
	for _, have := range sub.topics {
		if have.topic.name == name {
			return have, false, nil
		}
	}
	if most := maxChannels; !auto && strings.HasPrefix(name, ClientChannel) && len(sub.topics) > most {
		return nil, false, &commands.Refusal{Code: commands.CodeTooMany, Text: "One connection may have 1000 channels"}
	}
	t := c.topics[name]
	if t == nil {
		t = &topic{name: strings.Clone(name), part: c.parts[store.PartitionOf(name, len(c.parts))]}
		c.topics[t.name] = t
	}
	delete(c.idle, t)
	e = &subscription{sub: sub, topic: t, since: undecided, auto: auto}
	t.subs = append(t.subs, e)
	sub.topics = append(sub.topics, e)
	sub.mu.Lock()
	sub.pending++
	sub.mu.Unlock()
	return e, true, nil
}

// undecided is since while it is not known.
const undecided = math.MaxUint64

// maxChannels bounds the channels that one connection has by its own wish.
const maxChannels = 1000

// settle says from where on the client gets the channel. The caller holds order.
func (e *subscription) settle(c *Channels, since uint64) {
	s := e.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	e.since = since
	s.release(c)
}

// release lets one reason go for which messages are held back. The caller holds mu.
func (s *subscriber) release(c *Channels) {
	if s.pending--; s.pending > 0 {
		return
	}
	held := s.held
	s.held = nil
	for _, h := range held {
		if !s.gone && !h.of.over && h.m.seq > h.of.since {
			s.send(c, h.m)
		}
	}
}

// detach takes the subscription from the client.
func (c *Channels) detach(e *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.sub.topics = slices.DeleteFunc(e.sub.topics, func(o *subscription) bool { return o == e })
	c.end(e)
}

// end takes the subscription from its topic. The caller holds mu.
func (c *Channels) end(e *subscription) {
	e.sub.mu.Lock()
	was := e.over
	e.over = true
	e.sub.mu.Unlock()
	if was {
		return
	}
	t := e.topic
	if t.over++; t.over == len(t.subs) {
		t.subs, t.over = nil, 0
		if c.topics[t.name] == t {
			c.idle[t] = struct{}{}
		}
	} else if t.over > 8 && t.over > len(t.subs)/2 {
		left := make([]*subscription, 0, len(t.subs)-t.over)
		for _, o := range t.subs {
			o.sub.mu.Lock()
			if !o.over {
				left = append(left, o)
			}
			o.sub.mu.Unlock()
		}
		t.subs, t.over = left, 0
	}
}

// Open gives a session its place here, and to a new one its user's channel. A session that goes on (plan is that of
// Prepare) is given what it missed. After an error the session has no place.
func (c *Channels) Open(ctx context.Context, s *replica.Session, plan *Plan, may func(channel string) bool) error {
	sub := &subscriber{session: s}
	c.mu.Lock()
	c.subs[s] = sub
	c.mu.Unlock()
	var err error
	if plan != nil && !plan.bare {
		err = c.resume(ctx, sub, plan, may)
	} else {
		err = c.subscribe(ctx, s, ClientChannel+commands.UserChannel(s.User), true)
	}
	if err != nil {
		c.Close(s)
	}
	return err
}

// Close ends the session's place here. What it has lasts, until the session can no longer be recovered.
func (c *Channels) Close(s *replica.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.subs[s]
	if sub == nil {
		return
	}
	delete(c.subs, s)
	sub.mu.Lock()
	sub.gone, sub.held = true, nil
	sub.mu.Unlock()
	for _, e := range sub.topics {
		c.end(e)
	}
	sub.topics = nil
}

// Subscribe gives the session a channel. On success every later message will reach it, on whatever replica it is.
func (c *Channels) Subscribe(ctx context.Context, s *replica.Session, name string) error {
	return c.subscribe(ctx, s, name, automatic(s, name))
}

func (c *Channels) subscribe(ctx context.Context, s *replica.Session, name string, auto bool) error {
	e, fresh, err := c.attach(s, name, auto)
	if err != nil || !fresh {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.rep.Patience())
	defer cancel()
	for {
		got, err := c.ask(ctx, e.topic.part, store.SubscribeNew, s.PID, []*topic{e.topic})
		wait, same := (<-chan struct{})(nil), false
		c.order.Lock()
		if err == nil {
			wait, same = e.topic.part.learn(got.Epoch)
		}
		if same {
			e.settle(c, got.Seq)
			c.order.Unlock()
			return nil
		}
		c.order.Unlock()
		if err == nil {
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				err = errEpoch
			}
		}
		c.detach(e)
		c.order.Lock()
		e.settle(c, undecided)
		c.order.Unlock()
		return storeError(err)
	}
}

// ask runs the subscribe script for topics of one partition.
func (c *Channels) ask(ctx context.Context, p *partition, mode store.SubscribeMode, pid string, topics []*topic) (store.Subscribed, error) {
	return c.askKnowing(ctx, p, store.Mark{}, mode, pid, topics)
}

// askKnowing is ask with a mark that the partition has to know, besides those that this replica has seen.
func (c *Channels) askKnowing(ctx context.Context, p *partition, seen store.Mark, mode store.SubscribeMode, pid string, topics []*topic) (store.Subscribed, error) {
	self, _, ok := c.rep.Self()
	if !ok {
		return store.Subscribed{}, errStarting
	}
	self.Partition = p.n
	names := make([]string, len(topics))
	for i, t := range topics {
		t.io.RLock()
		defer t.io.RUnlock()
		names[i] = t.name
	}
	known := p.known()
	if seen.Epoch == known.Epoch {
		known.Mark = later(known.Mark, seen)
	} else if known.Epoch == "" {
		known.Mark = seen
	}
	got, err := c.rep.Store().Subscribe(ctx, self, known, mode, pid, names, c.keep.Session)
	if err != nil {
		return got, err
	}
	c.mu.Lock()
	for _, t := range topics {
		if !t.known {
			t.floor, t.known = got.Seq, true
		}
	}
	c.mu.Unlock()
	return got, nil
}

// Unsubscribe takes a channel from the session.
func (c *Channels) Unsubscribe(ctx context.Context, s *replica.Session, name string) error {
	c.mu.RLock()
	var e *subscription
	if sub := c.subs[s]; sub != nil {
		for _, have := range sub.topics {
			if have.topic.name == name {
				e = have
			}
		}
	}
	c.mu.RUnlock()
	if e == nil {
		return nil
	}
	if err := c.rep.Store().Unsubscribe(ctx, e.topic.part.n, s.PID, name); err != nil {
		return storeError(err)
	}
	c.detach(e)
	return nil
}

// automatic reports whether the session has the channel without having asked for it: its user's, and those of the rooms
// that the log says it is in.
func automatic(s *replica.Session, name string) bool {
	return name == ClientChannel+commands.UserChannel(s.User) || strings.HasPrefix(name, RoomChannel)
}

var errStarting = errors.New("this replica is starting")

// storeError is what a client is told.
func storeError(err error) error {
	var r *commands.Refusal
	if errors.As(err, &r) {
		return err
	}
	return &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "The store cannot be reached: " + err.Error()}
}
