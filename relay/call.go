package relay

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// Codes of failed calls, as clients get them.
const (
	CodeNotAvailable     = "RPC_NOT_AVAILABLE"
	CodeTargetLost       = "RPC_TARGET_LOST"
	CodeTimeout          = "RPC_TIMEOUT"
	CodeSameSocket       = "RPC_SAME_SOCKET"
	CodeBadRequest       = commands.CodeBadRequest
	CodeRateLimited      = "RATE_LIMITED"
	CodeStoreUnavailable = commands.CodeStoreUnavailable
)

// Request is what a client asks for.
type Request struct {
	Method  string
	Params  json.RawMessage // nil when left out
	Timeout time.Duration   // DefaultTimeout when zero
	ID      string          // makes the call repeatable; may be empty
}

// Outcome is how a call ended.
type Outcome struct {
	Code string // empty: it succeeded
	// Ack is the answer to the caller: {"ok":true,"result":…} or {"ok":false,"error":…,"code":…}.
	Ack []byte
}

func success(result json.RawMessage) Outcome {
	ack := make([]byte, 0, len(result)+24)
	ack = append(ack, `{"ok":true,"result":`...)
	ack = append(ack, result...)
	return Outcome{Ack: append(ack, '}')}
}

func failure(code, text string) Outcome {
	ack := make([]byte, 0, 64)
	ack = append(ack, `{"ok":false,"error":`...)
	ack = strconv.AppendQuote(ack, text) // texts are plain ASCII of ours
	ack = append(ack, `,"code":"`...)
	ack = append(ack, code...)
	return Outcome{Code: code, Ack: append(ack, `"}`...)}
}

type phase int

const (
	resolving phase = iota // nothing was sent; the log's head or the call's record is being looked at
	held                   // nothing is on its way; waits for the method to become available
	sent                   // on its way, or delivered
	joining                // another replica, or another call here, runs it
)

// call is one call under way. Its fields are guarded by Relay.mu.
type call struct {
	number  uint64
	started time.Time
	caller  *replica.Session // nil once it is gone
	done    func(Outcome)
	method  projections.MethodID
	id      string // the request id that the handler gets
	body    []byte // the request
	timeout *time.Timer
	key     *store.CallKey // its record, if it is repeatable
	owner   store.Inbox    // joining: who runs it

	phase      phase
	attempt    int // counts what was sent, so that late news of an earlier attempt is recognised
	handed     bool
	replaySafe bool
	target     projections.PeerID
	session    string
	connection string
	instance   string
	refused    string // connection that certainly did not get it: not tried again
	ack        uint32
	acks       []ackKey
	firstAck   [1]ackKey   // mostly there are no more
	wait       *time.Timer // late ack or grace
	waitFor    string      // connection that wait began for; "" while it counts the grace
}

type ackKey struct {
	peer projections.PeerID
	id   uint32
}

// An ack id is a replica's slot, a number that this replica counts for each peer, and a bit that says whether
// the call has a record. So it tells whoever gets the ack where to take it, and it comes again only after 8
// million requests of one replica to one peer: later than any call lasts.
const (
	countBits = 23
	slotShift = countBits + 1
)

func slotOf(id uint32) int { return int(id >> slotShift) }

func hasRecord(id uint32) bool { return id&1 == 1 }

func ackID(slot int, count uint32, record bool) uint32 {
	id := uint32(slot)<<slotShift | count<<1
	if record {
		id |= 1
	}
	return id
}

// Call runs a call and tells done its outcome, once; done must not block. When the caller's connection ends
// before, done is not told.
func (r *Relay) Call(s *replica.Session, req Request, done func(Outcome)) {
	c := &call{
		started: time.Now(), caller: s, done: done, id: req.ID,
		method: projections.MethodID{User: s.User, Method: req.Method},
	}
	if c.id == "" {
		c.id = newID()
	}
	c.acks = c.firstAck[:0]
	c.body = requestBody(req.Method, req.Params, c.id)
	timeout := req.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byCaller[s.Connection]) >= MaxRunning {
		r.observe(CodeRateLimited, 0)
		done(failure(CodeRateLimited, "Too many calls of this connection are under way"))
		return
	}
	r.next++
	c.number = r.next
	r.calls[c.number] = c
	set := r.byCaller[s.Connection]
	if set == nil {
		set, _ = emptied.Get().(map[*call]struct{})
		if set == nil {
			set = map[*call]struct{}{}
		}
		r.byCaller[s.Connection] = set
	}
	set[c] = struct{}{}
	c.timeout = time.AfterFunc(timeout, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cancel(c)
		r.end(c, failure(CodeTimeout, "operation has timed out"), true)
	})
	if req.ID != "" {
		r.begin(c)
		return
	}
	r.dispatch(c)
}

// Gone ends what a connection has under way: its calls are cancelled, but for those with an id, whose outcome
// a repeat may ask for.
func (r *Relay) Gone(s *replica.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.byCaller[s.Connection] {
		c.caller = nil
		if c.key != nil && c.phase != joining {
			continue
		}
		r.cancel(c)
		r.end(c, failure("CALLER_GONE", "The caller is gone"), false)
	}
	delete(r.byCaller, s.Connection)
}

// advance lets a call react to a change of the projection.
func (r *Relay) advance(c *call) {
	switch c.phase {
	case held:
		r.dispatch(c)
	case sent:
		r.follow(c)
	case joining:
		r.followOwner(c)
	}
}

// dispatch sends a call to whoever answers its method now, or holds it, or fails it. Nothing of it is on its
// way, unless it may be sent twice.
func (r *Relay) dispatch(c *call) {
	r.stopWait(c)
	var reg projections.Registration
	var peer projections.Peer
	var state projections.Availability
	r.rep.View(func(s *projections.State) { reg, peer, state = s.Resolve(c.method) })
	switch {
	case state == projections.NotAvailable:
		r.confirmAbsence(c)
	case state == projections.Away || peer.Connection == c.refused:
		r.hold(c, peer.PeerID)
	case c.caller != nil && peer.Connection == c.caller.Connection:
		r.end(c, failure(CodeSameSocket, "Cannot call RPC on the same socket"), false)
	default:
		r.transmit(c, reg, peer)
	}
}

// hold keeps the call until its method or the method's holder changes.
func (r *Relay) hold(c *call, holder projections.PeerID) {
	c.phase = held
	index(r.byMethod, c.method, c)
	r.aim(c, holder)
}

// confirmAbsence fails a call whose method is not there, once the log's head says so too.
func (r *Relay) confirmAbsence(c *call) {
	c.phase = resolving
	ctx := r.ctx
	go func() {
		err := r.rep.CatchUp(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		if c.phase != resolving || r.calls[c.number] != c {
			return
		}
		var state projections.Availability
		r.rep.View(func(s *projections.State) { _, _, state = s.Resolve(c.method) })
		switch {
		case state != projections.NotAvailable:
			r.dispatch(c)
		case err != nil:
			r.end(c, failure(CodeStoreUnavailable, "The log cannot be reached"), c.handed)
		case c.handed && r.mayReturn(c):
		case c.handed:
			r.end(c, failure(CodeTargetLost, "RPC target disconnected"), true)
		default:
			r.end(c, failure(CodeNotAvailable, "RPC method not available"), false)
		}
	}()
}

// mayReturn holds a call that may be sent twice, and that a peer may have got which is away, until the grace
// has passed: with its return the registration may be back, and its answer may come at any time.
func (r *Relay) mayReturn(c *call) bool {
	var p projections.Peer
	r.rep.View(func(s *projections.State) { p, _ = s.Peer(c.target) })
	left := p.Changed.Add(r.rep.Graces().RPC).Sub(r.rep.Now())
	if p.Connected || left <= 0 {
		return false
	}
	r.hold(c, c.target)
	r.startWait(c, "", left)
	return true
}

// aim files the call under the peer that it is for or waits for.
func (r *Relay) aim(c *call, peer projections.PeerID) {
	if c.target != peer {
		unindex(r.byTarget, c.target, c)
		c.target, c.ack = peer, 0
	}
	index(r.byTarget, peer, c)
}

// transmit sends the request to the peer's connection.
func (r *Relay) transmit(c *call, reg projections.Registration, peer projections.Peer) {
	unindex(r.byMethod, c.method, c)
	r.aim(c, peer.PeerID)
	r.stopWait(c)
	c.session, c.connection, c.instance = peer.Session, peer.Connection, peer.Instance
	c.replaySafe = reg.ReplaySafe
	c.attempt++
	if c.ack == 0 && !r.number(c) {
		r.end(c, failure(CodeStoreUnavailable, "This replica is starting"), false)
		return
	}
	attempt := c.attempt
	if peer.Instance == r.rep.Instance() {
		r.transmitHere(c, attempt)
		return
	}
	if c.key != nil {
		r.recordSent(c, func() { r.transmitThere(c, attempt) })
		return
	}
	r.transmitThere(c, attempt)
}

func (r *Relay) transmitHere(c *call, attempt int) {
	s := r.rep.Session(c.connection)
	if s == nil {
		r.notDelivered(c, attempt)
		return
	}
	c.phase, c.handed = sent, true
	if c.key != nil {
		// The handler's connection ends with this replica: the record is for an answer that comes elsewhere.
		r.recordSent(c, nil)
	}
	ack := c.ack
	s.Handed.Add(ack)
	dropped := func() {
		s.Handed.Remove(ack)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.notDelivered(c, attempt)
	}
	if !s.Link.Request("rpc-request", ack, dropped, c.body) {
		s.Handed.Remove(ack)
		r.notDelivered(c, attempt)
	}
}

func (r *Relay) transmitThere(c *call, attempt int) {
	in, _, _ := r.rep.Self()
	e := envelope{
		Kind: kindRequest, Number: uint64(c.ack), User: c.target.User, Peer: c.target.Peer,
		Connection: c.connection, From: in.Instance, Body: c.body,
	}
	c.phase, c.handed = sent, true
	if !r.send(c.instance, e, false, func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.notSent(c, attempt, err)
	}) {
		r.notDelivered(c, attempt)
	}
}

// number gives the call an ack id for its target.
func (r *Relay) number(c *call) bool {
	_, slot, ok := r.rep.Self()
	if !ok {
		return false
	}
	for {
		n := (r.ackIDs[c.target] + 1) & (1<<countBits - 1)
		r.ackIDs[c.target] = n
		key := ackKey{peer: c.target, id: ackID(slot, n, c.key != nil)}
		if key.id == 0 || r.acks[key] != nil {
			continue
		}
		c.ack = key.id
		c.acks = append(c.acks, key)
		r.acks[key] = c
		return true
	}
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

// answer completes the call that a peer has acknowledged.
func (r *Relay) answer(peer projections.PeerID, id uint32, result []byte) {
	r.mu.Lock()
	c := r.acks[ackKey{peer: peer, id: id}]
	if c != nil {
		r.end(c, success(result), true)
	}
	r.mu.Unlock()
	if c == nil && hasRecord(id) {
		r.recordAnswer(peer, id, result)
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

// cancel tells the handler that nobody waits for its answer any more.
func (r *Relay) cancel(c *call) {
	if r.calls[c.number] != c || c.phase != sent {
		return
	}
	var p projections.Peer
	r.rep.View(func(s *projections.State) { p, _ = s.Peer(c.target) })
	switch {
	case !p.Connected || p.Session != c.session:
	case p.Instance == r.rep.Instance():
		if s := r.rep.Session(p.Connection); s != nil {
			s.Handed.Remove(c.ack)
			s.Link.Emit("rpc-cancel", cancelBody(c.id))
		}
	default:
		r.send(p.Instance, envelope{
			Kind: kindCancel, Number: uint64(c.ack), User: p.User, Peer: p.PeerID.Peer, Connection: p.Connection, ID: c.id,
		}, false, nil)
	}
}

// end gives the call its one outcome. ran says that the handler may have run: then a repeat gets this outcome.
func (r *Relay) end(c *call, o Outcome, ran bool) {
	if r.calls[c.number] != c {
		return
	}
	delete(r.calls, c.number)
	c.timeout.Stop()
	r.stopWait(c)
	for _, key := range c.acks {
		delete(r.acks, key)
	}
	unindex(r.byTarget, c.target, c)
	unindex(r.byMethod, c.method, c)
	if c.caller != nil {
		set := r.byCaller[c.caller.Connection]
		if delete(set, c); set != nil && len(set) == 0 {
			delete(r.byCaller, c.caller.Connection)
			emptied.Put(set)
		}
	}
	if c.key != nil && c.phase != joining {
		if r.owned[*c.key] == c {
			delete(r.owned, *c.key)
		}
		r.recordEnd(c, o, ran)
	}
	r.observe(o.Code, time.Since(c.started))
	if c.caller != nil {
		c.done(o)
	}
}

func (r *Relay) observe(code string, took time.Duration) {
	if code == "" {
		code = "OK"
	}
	if r.cfg.Done != nil {
		r.cfg.Done(code, took)
	}
}

// newID makes the id of a call whose caller gave none.
func newID() string {
	var id ulid.ULID
	if err := id.SetTime(ulid.Now()); err != nil {
		panic(err) // in the year 10889
	}
	binary.BigEndian.PutUint16(id[6:], uint16(rand.Uint32()))
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return id.String()
}

// emptied are sets of calls to be used again: that of a caller's connection comes and goes with nearly every
// call.
var emptied sync.Pool

func requestBody(method string, params json.RawMessage, id string) []byte {
	b := make([]byte, 0, len(method)+len(params)+len(id)+32)
	b = append(b, `{"method":`...)
	b = appendString(b, method)
	if params != nil {
		b = append(b, `,"params":`...)
		b = append(b, params...)
	}
	b = append(b, `,"id":`...)
	b = appendString(b, id)
	return append(b, '}')
}

func cancelBody(id string) []byte {
	return append(appendString([]byte(`{"id":`), id), '}')
}

// appendString appends s as JSON.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s)
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func index[K comparable](m map[K]map[*call]struct{}, key K, c *call) {
	set := m[key]
	if set == nil {
		set = map[*call]struct{}{}
		m[key] = set
	}
	set[c] = struct{}{}
}

func unindex[K comparable](m map[K]map[*call]struct{}, key K, c *call) {
	set := m[key]
	delete(set, c)
	if set != nil && len(set) == 0 {
		delete(m, key)
	}
}
