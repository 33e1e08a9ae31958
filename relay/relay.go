// Package relay is what moves: calls from the moment a client makes them until exactly one outcome, across
// connections, replicas and outages.
//
// It promises that every call ends, by its timeout at the latest; that a handler gets a request at most once
// unless it said that twice is fine; and that an answer completes its own call only. It follows the
// projection and polls nothing. It never writes to the log.
package relay

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// Limits of a call, from the protocol.
const (
	DefaultTimeout = 30 * time.Second
	MaxTimeout     = 300 * time.Second
	// KeepResult is how long the outcome of a call with an id is kept for a repeat.
	KeepResult = 2 * time.Minute
	MaxIDBytes = 256 // of a call's id
	// MaxRunning bounds the calls that one connection may have under way; more fail with RATE_LIMITED.
	MaxRunning = 10_000
)

// Config is what the relay needs to know.
type Config struct {
	// LateAck is how long after a daemon's return its answer to an earlier request is waited for. Default 10 s.
	LateAck time.Duration
	Log     zerolog.Logger
	// Done is told of every call's end: "OK" or its code, and how long it took. May be nil.
	Done     func(outcome string, took time.Duration)
	Channels ChannelConfig
}

// Relay carries the calls of one replica. It implements replica.Listener.
type Relay struct {
	rep *replica.Replica
	cfg Config
	log zerolog.Logger
	out outbound

	channels *Channels

	mu       sync.Mutex // guards what follows, and the fields of every call; taken before the replica's
	calls    map[uint64]*call
	next     uint64
	acks     map[ackKey]*call
	ackIDs   map[projections.PeerID]uint32 // last ack id given out for a peer
	byTarget map[projections.PeerID]map[*call]struct{}
	byMethod map[projections.MethodID]map[*call]struct{}
	byCaller map[string]map[*call]struct{} // by connection
	owned    map[store.CallKey]*call       // repeatable calls that this replica runs
	rebuilt  time.Time                     // when the log was last found to have lost entries, by the store's clock
	lookups  chan struct{}                 // bounds the look-ups of acks that belong to no call here
	ctx      context.Context               // of Run; look-ups and records end with it
	saidDown time.Time                     // of the outbound goroutine
}

// New makes a relay and makes it a listener of the replica. Only before the replica runs.
func New(rep *replica.Replica, cfg Config) *Relay {
	if cfg.LateAck == 0 {
		cfg.LateAck = 10 * time.Second
	}
	r := &Relay{
		rep: rep, cfg: cfg, log: cfg.Log,
		calls: map[uint64]*call{}, acks: map[ackKey]*call{}, ackIDs: map[projections.PeerID]uint32{},
		byTarget: map[projections.PeerID]map[*call]struct{}{}, byMethod: map[projections.MethodID]map[*call]struct{}{},
		byCaller: map[string]map[*call]struct{}{}, owned: map[store.CallKey]*call{}, lookups: make(chan struct{}, 64), ctx: context.Background(),
	}
	r.out.r = r
	r.channels = newChannels(r, cfg.Channels)
	r.out.wake = make(chan struct{}, 1)
	rep.Listen(r)
	return r
}

// Run carries messages to other replicas until ctx ends. Calls may be made before it runs; they wait.
func (r *Relay) Run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	var channels sync.WaitGroup
	channels.Go(func() { r.channels.run(ctx) })
	defer channels.Wait()
	r.out.run(ctx)
}

// Channels are those of this replica.
func (r *Relay) Channels() *Channels { return r.channels }

// context is that of Run.
func (r *Relay) context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// Running is how many calls are under way from here.
func (r *Relay) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// Applied lets the calls react that the records touch.
func (r *Relay) Applied(records []events.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range records {
		switch e := rec.Event.(type) {
		case events.PeerConnected:
			id := projections.PeerID{User: e.User, Peer: e.Peer}
			for c := range r.byTarget[id] {
				if c.refused == e.Connection {
					c.refused = "" // recorded again: it lives after all
				}
			}
			r.peerChanged(id)
		case events.PeerDisconnected:
			r.peerChanged(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.RegistrationsLapsed:
			r.peerChanged(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.PeerForgotten:
			id := projections.PeerID{User: e.User, Peer: e.Peer}
			r.peerChanged(id)
			delete(r.ackIDs, id) // nobody is left who could acknowledge its requests
		case events.MethodRegistered:
			r.methodChanged(projections.MethodID{User: e.User, Method: e.Method})
		case events.MethodUnregistered:
			r.methodChanged(projections.MethodID{User: e.User, Method: e.Method})
			r.peerChanged(projections.PeerID{User: e.User, Peer: e.Peer})
		case events.ReplicaLost:
			r.advanceAll()
		case events.ReplicaStopped:
			r.advanceAll()
		}
	}
}

// Changed is of no concern to calls.
func (r *Relay) Changed([]projections.Change) {}

// Rebuilt lets every call look at the new state, and asks after the requests that are with other replicas.
func (r *Relay) Rebuilt() {
	for _, p := range r.channels.parts {
		p.lose() // what emptied the log may have emptied more
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rebuilt = r.rep.Now()
	for _, c := range r.calls {
		c.refused = ""
	}
	r.advanceAll()
	r.audit()
}

// Fenced ends every call: the replica that owned them is no more.
func (r *Relay) Fenced() {
	r.channels.fenced()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		r.end(c, failure(CodeStoreUnavailable, "This replica was declared lost; call again"), false)
	}
}

// storeDown and storeUp come from the outbound goroutine around an outage. A store that answers and takes
// nothing goes down and up with every message: that is said now and then.
func (r *Relay) storeDown(err error) {
	if time.Since(r.saidDown) > 5*time.Second {
		r.log.Warn().Err(err).Msg("messages to other replicas wait: the store takes none")
		r.saidDown = time.Now()
	}
}

func (r *Relay) storeUp() {
	r.log.Debug().Msg("messages to other replicas flow again")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.audit()
}

func (r *Relay) peerChanged(id projections.PeerID) {
	for c := range r.byTarget[id] {
		r.advance(c)
	}
}

func (r *Relay) methodChanged(id projections.MethodID) {
	for c := range r.byMethod[id] {
		r.advance(c)
	}
}

func (r *Relay) advanceAll() {
	for _, c := range r.calls {
		r.advance(c)
	}
}

// Receive handles what other replicas sent.
func (r *Relay) Receive(partition int, messages []store.Message, lost bool) {
	part := r.channels.parts[partition]
	if lost {
		part.lose() // before what comes after the hole is handed out
	}
	for _, m := range messages {
		for rest := m.Body; len(rest) > 0; {
			var e envelope
			var err error
			if rest[0] == store.ChannelByte {
				var a arrival
				if a, rest, err = decodeArrival(rest); err != nil {
					r.log.Error().Err(err).Uint64("seq", m.Seq).Msg("a channel's message in the inbox cannot be read; it is skipped")
					break
				}
				a.alone = len(messages) == 1 && len(rest) == 0
				part.receive(a)
				continue
			}
			if e, rest, err = decodeEnvelope(rest); err != nil {
				r.log.Warn().Err(err).Uint64("seq", m.Seq).Msg("a message in the inbox cannot be read; it is skipped")
				break
			}
			r.receive(e)
		}
	}
	if lost && partition == 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.audit()
	}
}

// Doubted is as in replica.Doubter.
func (r *Relay) Doubted(partition int) { r.channels.parts[partition].doubt() }

// Seen is as in replica.Marker.
func (r *Relay) Seen(partition int) store.Mark { return r.channels.parts[partition].seen() }

// Lost is as in replica.Marker.
func (r *Relay) Lost(partition int, seen store.Mark) { r.channels.parts[partition].lost(seen) }

// Reached is as in replica.Marker.
func (r *Relay) Reached(partition int, at store.Mark) { r.channels.parts[partition].reached(at) }

func (r *Relay) receive(e envelope) {
	if replica.Packed(e.Body) {
		e.Body = bytes.Clone(e.Body) // its attachments may wait for long, and the entry is large
	}
	switch e.Kind {
	case kindRequest:
		r.deliver(e)
	case kindAnswer:
		r.answer(projections.PeerID{User: e.User, Peer: e.Peer}, uint32(e.Number), e.Body)
	case kindUndelivered:
		r.undelivered(e)
	case kindCancel:
		if s := r.rep.Session(e.Connection); s != nil {
			s.Handed.Remove(uint32(e.Number))
			s.Link.Emit("rpc-cancel", cancelBody(e.ID))
		}
	case kindJoined:
		r.joined(e)
	case kindQuery:
		r.query(e)
	case kindUnknown:
		r.unknown(e)
	}
}

// deliver hands a request from another replica to its client, or says that it could not.
func (r *Relay) deliver(e envelope) {
	// Not e itself: its Body is a part of a large entry, and the request may wait for long.
	from := e.From
	word := envelope{Kind: kindUndelivered, Number: e.Number, User: e.User, Peer: e.Peer, Connection: e.Connection}
	undelivered := func() { r.send(from, word, true, nil) }
	s := r.rep.Session(e.Connection)
	if s == nil {
		undelivered()
		return
	}
	id := uint32(e.Number)
	body, err := replica.Unpack(e.Body)
	if err != nil {
		r.log.Warn().Err(err).Str("from", from).Msg("a request in the inbox cannot be read; it is skipped")
		return
	}
	s.Handed.Add(id)
	if !s.Link.Request("rpc-request", id, func() { s.Handed.Remove(id); undelivered() }, body) {
		s.Handed.Remove(id)
		undelivered()
	}
}

// query answers whether a request is with a client of this replica.
func (r *Relay) query(e envelope) {
	if s := r.rep.Session(e.Connection); s != nil && s.Handed.Has(uint32(e.Number)) {
		return
	}
	e.Kind, e.Body = kindUnknown, nil
	to := e.From
	e.From = ""
	r.send(to, e, true, nil)
}

// Answer takes a client's ack, of whatever connection it was asked on, to the call that it belongs to: the ack
// id names the replica that owns the call.
func (r *Relay) Answer(s *replica.Session, id uint64, answer replica.Payload) {
	if id >= 1<<31 {
		return // never given out
	}
	number := uint32(id)
	s.Handed.Remove(number)
	switch {
	case len(answer.Attachments) > replica.MaxAttachments:
		answer = failure(commands.CodeTooLarge, tooManyAttachments).Ack
	case answer.JSON == nil:
		answer.JSON = []byte("null")
	}
	result := answer.Pack()
	slot := slotOf(number)
	if _, own, ok := r.rep.Self(); ok && slot == own {
		r.answer(s.ID(), number, result)
		return
	}
	var owner projections.Slot
	r.rep.View(func(st *projections.State) { owner = st.Slot(slot) })
	if owner.Live {
		r.send(owner.Instance, envelope{
			Kind: kindAnswer, Number: uint64(number), User: s.User, Peer: s.Peer, Body: r.readable(owner.Instance, result),
		}, true, nil)
	}
	if hasRecord(number) { // the owner may be dead, whether or not it is known to be
		r.recordAnswer(s.ID(), number, result)
	}
}

// send puts an envelope on its way to a replica; false if that does not live.
func (r *Relay) send(instance string, e envelope, again bool, failed func(error)) bool {
	in, ok := r.inboxOf(instance)
	if !ok {
		return false
	}
	patience := r.rep.Patience()
	if again {
		patience = answerPatience
	}
	m := outgoing{to: in, what: e, again: again, failed: failed, expires: time.Now().Add(patience)}
	if !r.out.push(m) {
		if failed != nil {
			go failed(errNotSent)
		} else {
			r.log.Error().Uint8("kind", uint8(e.Kind)).Msg("too many messages wait for the store: one is dropped")
		}
	}
	return true
}

// lives reports whether the incarnation that an inbox belongs to lives.
func (r *Relay) lives(in store.Inbox) bool {
	live, ok := r.inboxOf(in.Instance)
	return ok && live == in
}

func (r *Relay) inboxOf(instance string) (store.Inbox, bool) {
	var in store.Inbox
	var ok bool
	r.rep.View(func(st *projections.State) {
		var live projections.Replica
		live, ok = st.Replica(instance)
		in = store.Inbox{Instance: live.Instance, Incarnation: live.Incarnation}
	})
	return in, ok
}
