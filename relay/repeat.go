package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// A call with an id has a record in the store, under (user, id): who runs it, where its request went, who has
// joined, and in the end its outcome, which is kept for KeepResult. Whoever repeats the id finds the record
// and joins the running call or gets the outcome. The record is written before the request may leave, so the
// death of the replica that runs the call lets another one adopt it, and never run the handler again.

// sentTo is the part of a record that says where the request went.
type sentTo struct {
	Peer       string `json:"peer"`
	Session    string `json:"session"`
	Connection string `json:"connection"`
	Instance   string `json:"instance"`
	Ack        uint32 `json:"ack"`
	ReplaySafe bool   `json:"replaySafe,omitempty"`
}

// lifetime of a record that is never finished: as long as a call may last, and then as long as it is kept.
const recordLifetime = MaxTimeout + KeepResult

// begin finds out whether the call runs already. The caller holds mu.
func (r *Relay) begin(c *call) {
	c.phase = resolving
	key := store.CallKey{User: c.method.User, ID: c.id}
	self, _, ok := r.rep.Self()
	if !ok {
		r.end(c, failure(CodeStoreUnavailable, "This replica is starting"), false)
		return
	}
	joiner := fmt.Sprintf("%s %s %d", self.Incarnation, self.Instance, c.number)
	ctx := r.ctx
	go func() {
		ctx, cancel := context.WithTimeout(ctx, r.rep.Patience())
		defer cancel()
		rec, started, err := r.rep.Store().BeginCall(ctx, key, self, c.method.Method, joiner, recordLifetime)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.calls[c.number] != c:
			if started {
				r.forget(key, self)
			}
		case err != nil:
			r.end(c, failure(CodeStoreUnavailable, "The store cannot be reached; the call was not made"), false)
		case started:
			c.key = &key
			r.owned[key] = c
			r.dispatch(c)
		case rec.Method != c.method.Method:
			r.end(c, failure(CodeBadRequest, "This id belongs to a call of another method"), false)
		case rec.Done:
			r.end(c, stored(rec.Result), false)
		case rec.Owner == self && r.owned[key] == nil:
			// Written by an attempt whose answer was lost: the call is this replica's, and nobody runs it.
			c.key = &key
			r.adopt(c, rec)
		default:
			c.key, c.owner, c.phase = &key, rec.Owner, joining
			r.followOwner(c)
		}
	}()
}

// followOwner has a joined call adopted when the replica that runs it is no more.
func (r *Relay) followOwner(c *call) {
	if r.lives(c.owner) {
		return
	}
	self, _, ok := r.rep.Self()
	if !ok {
		return
	}
	key, from := *c.key, c.owner
	ctx := r.ctx
	go func() {
		// The owner may be one whose start this replica has not read yet.
		err := r.rep.CatchUp(ctx)
		if err != nil || r.lives(from) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, r.rep.Patience())
		defer cancel()
		rec, adopted, err := r.rep.Store().AdoptCall(ctx, key, from, self, recordLifetime)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.calls[c.number] != c || c.phase != joining || c.owner != from:
		case err != nil:
			r.log.Debug().Err(err).Str("id", key.ID).Msg("a call of a dead replica could not be adopted")
		case adopted:
			r.adopt(c, rec)
		case rec.Done:
			r.end(c, stored(rec.Result), false)
		case rec.Owner == (store.Inbox{}):
			r.end(c, failure(CodeTargetLost, "RPC target disconnected"), false)
		default:
			c.owner = rec.Owner
			r.followOwner(c)
		}
	}()
}

// adopt carries on a call that a dead replica had begun: the request may be with its handler.
func (r *Relay) adopt(c *call, rec store.CallRecord) {
	c.phase = resolving
	r.owned[*c.key] = c
	if rec.Target == "" { // it never left
		r.dispatch(c)
		return
	}
	var to sentTo
	if err := json.Unmarshal([]byte(rec.Target), &to); err != nil {
		r.log.Error().Err(err).Str("id", c.key.ID).Msg("the record of a call is damaged")
		r.end(c, failure(CodeTargetLost, "RPC target disconnected"), true)
		return
	}
	c.phase, c.handed, c.attempt = sent, true, c.attempt+1
	r.aim(c, projections.PeerID{User: c.method.User, Peer: to.Peer})
	c.session, c.connection, c.instance = to.Session, to.Connection, to.Instance
	c.replaySafe, c.ack = to.ReplaySafe, to.Ack
	key := ackKey{peer: c.target, id: to.Ack}
	c.acks = append(c.acks, key)
	r.acks[key] = c
	r.follow(c)
	if r.calls[c.number] != c || c.phase != sent || c.wait != nil {
		return
	}
	if c.instance != r.rep.Instance() {
		r.ask(c)
	} else if s := r.rep.Session(c.connection); s != nil && !s.Handed.Has(c.ack) {
		r.lost(c)
	}
}

// recordSent notes where the request goes. then is called, with mu held, once it is noted, if the call still
// waits for it; with a nil then nothing waits. The caller holds mu.
func (r *Relay) recordSent(c *call, then func()) {
	self, _, _ := r.rep.Self()
	to, _ := json.Marshal(sentTo{
		Peer: c.target.Peer, Session: c.session, Connection: c.connection, Instance: c.instance,
		Ack: c.ack, ReplaySafe: c.replaySafe,
	})
	key, attempt := *c.key, c.attempt
	ack := store.AckKey{User: c.target.User, Peer: c.target.Peer, ID: c.ack}
	if then != nil {
		c.phase = resolving
	}
	ctx := r.ctx
	go func() {
		ctx, cancel := context.WithTimeout(ctx, r.rep.Patience())
		defer cancel()
		err := r.rep.Store().SentCall(ctx, key, self, string(to), ack, recordLifetime)
		if then == nil {
			if err != nil {
				r.log.Debug().Err(err).Str("id", key.ID).Msg("record call")
			}
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.calls[c.number] != c || c.attempt != attempt || c.phase != resolving:
		case err != nil:
			r.end(c, failure(CodeStoreUnavailable, "The store cannot be reached; the request was not sent"), c.handed)
		default:
			then()
			if r.calls[c.number] == c && c.phase == sent {
				r.follow(c) // the target may have changed meanwhile
			}
		}
	}()
}

// recordEnd stores the outcome for repeats, or removes the record if the handler certainly did not run; either
// way those who joined get the outcome. The caller holds mu.
func (r *Relay) recordEnd(c *call, o Outcome, ran bool) {
	self, _, ok := r.rep.Self()
	if !ok {
		r.disown(c)
		return // fenced: the record stays for whoever adopts it
	}
	key := *c.key
	ack := r.lasting(o.Ack.Pack())
	ctx := r.ctx
	go func() {
		// Until then a repeat that comes here joins, and is told with the others.
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.disown(c)
		}()
		for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			var joiners []string
			var err error
			if ran {
				joiners, _, err = r.rep.Store().FinishCall(ctx, key, self, ack, KeepResult)
			} else {
				joiners, err = r.rep.Store().DropCall(ctx, key, self)
			}
			if err == nil {
				r.tellJoiners(joiners, ack)
				return
			}
			if !errors.Is(err, store.ErrUnavailable) || time.Since(c.started) > recordLifetime {
				r.log.Warn().Err(err).Str("id", key.ID).Msg("the outcome of a call could not be recorded")
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	}()
}

// disown lets go of a call whose outcome is recorded. The caller holds mu.
func (r *Relay) disown(c *call) {
	if r.owned[*c.key] == c {
		delete(r.owned, *c.key)
	}
}

// forget removes the record of a call whose caller left before it began.
func (r *Relay) forget(key store.CallKey, self store.Inbox) {
	ctx := r.ctx
	go func() {
		joiners, err := r.rep.Store().DropCall(ctx, key, self)
		if err != nil {
			r.log.Debug().Err(err).Str("id", key.ID).Msg("drop call")
		}
		r.tellJoiners(joiners, failure(CodeNotAvailable, "RPC method not available").Ack.JSON)
	}()
}

func (r *Relay) tellJoiners(joiners []string, ack []byte) {
	for _, j := range joiners {
		incarnation, rest, _ := strings.Cut(j, " ")
		at := strings.LastIndexByte(rest, ' ')
		if at < 0 {
			continue
		}
		instance := rest[:at]
		number, err := strconv.ParseUint(rest[at+1:], 10, 64)
		if err != nil {
			continue
		}
		e := envelope{Kind: kindJoined, Number: number, ID: incarnation, Body: ack}
		if self, _, ok := r.rep.Self(); ok && self.Instance == instance {
			r.joined(e)
		} else {
			r.send(instance, e, true, nil)
		}
	}
}

// joined ends a call that had joined another one. The outcome may be here before the answer of the store that the call
// has joined: then no other word of it comes, and the call has no key yet.
func (r *Relay) joined(e envelope) {
	self, _, ok := r.rep.Self()
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls[e.Number]
	if ok && self.Incarnation == e.ID && c != nil && (c.phase == joining || c.id != "" && c.key == nil) {
		r.end(c, stored(e.Body), false)
	}
}

// recordAnswer writes an answer into the record of its call, wherever that is run and whether or not its owner
// still lives, and tells those who wait for it: who joined, and who adopted it.
func (r *Relay) recordAnswer(peer projections.PeerID, id uint32, result []byte) {
	select {
	case r.lookups <- struct{}{}:
	default:
		return // so many at a time are left to the owners
	}
	r.mu.Lock()
	ctx := r.ctx
	r.mu.Unlock()
	result = append([]byte(nil), result...)
	go func() {
		defer func() { <-r.lookups }()
		ctx, cancel := context.WithTimeout(ctx, r.rep.Patience())
		defer cancel()
		key, rec, ok, err := r.rep.Store().FindAck(ctx, store.AckKey{User: peer.User, Peer: peer.Peer, ID: id})
		if err != nil || !ok || rec.Done {
			return
		}
		ack := r.lasting(success(result).Ack.Pack())
		joiners, finished, err := r.rep.Store().FinishCall(ctx, key, store.Inbox{}, ack, KeepResult)
		if err != nil || !finished {
			return
		}
		r.tellJoiners(joiners, ack)
		if self, _, ok := r.rep.Self(); ok && rec.Owner == self {
			r.answer(peer, id, result)
			return
		}
		if r.lives(rec.Owner) {
			r.send(rec.Owner.Instance, envelope{
				Kind: kindAnswer, Number: uint64(id), User: peer.User, Peer: peer.Peer, Body: r.readable(rec.Owner.Instance, result),
			}, true, nil)
		}
	}()
}

// stored is an outcome as it was recorded.
func stored(packed []byte) Outcome {
	ack, err := replica.Unpack(packed)
	if err != nil {
		return failure(CodeStoreUnavailable, "The recorded outcome cannot be read")
	}
	var o struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(ack.JSON, &o) // our own JSON; a result without code is a success
	return Outcome{Code: o.Code, Ack: ack}
}
