package relay

import (
	"strconv"
	"sync"
	"time"

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
	Params  replica.Payload // its JSON is nil when left out
	Timeout time.Duration   // DefaultTimeout when zero
	ID      string          // makes the call repeatable; may be empty
}

// Outcome is how a call ended.
type Outcome struct {
	Code string // empty: it succeeded
	// Ack is the answer to the caller: {"ok":true,"result":…} or {"ok":false,"error":…,"code":…}.
	Ack replica.Payload
	// Alone: the caller has no other call under way, so that it waits for this one, and nothing is likely to follow that
	// could be sent along with it.
	Alone bool
}

// success is the outcome of a call that was answered with a packed result.
func success(result []byte) Outcome {
	p, err := replica.Unpack(result)
	if err != nil {
		return failure(CodeBadRequest, "The answer cannot be read")
	}
	ack := make([]byte, 0, len(p.JSON)+24)
	ack = append(ack, `{"ok":true,"result":`...)
	ack = append(ack, p.JSON...)
	return Outcome{Ack: replica.Payload{JSON: append(ack, '}'), Attachments: p.Attachments}}
}

func failure(code, text string) Outcome {
	ack := make([]byte, 0, 64)
	ack = append(ack, `{"ok":false,"error":`...)
	ack = strconv.AppendQuote(ack, text) // texts are plain ASCII of ours
	ack = append(ack, `,"code":"`...)
	ack = append(ack, code...)
	return Outcome{Code: code, Ack: replica.Payload{JSON: append(ack, `"}`...)}}
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
	body    []byte // the request, packed
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
	if len(req.Params.Attachments) > replica.MaxAttachments {
		r.observe(commands.CodeTooLarge, 0)
		done(failure(commands.CodeTooLarge, tooManyAttachments))
		return
	}
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
	body, _ := replica.Unpack(c.body) // packed here
	if !s.Link.Request("rpc-request", ack, dropped, body) {
		s.Handed.Remove(ack)
		r.notDelivered(c, attempt)
	}
}

func (r *Relay) transmitThere(c *call, attempt int) {
	if replica.Packed(c.body) && !r.takesBinary(c.instance) {
		r.end(c, failure(CodeStoreUnavailable, mixedVersions), false)
		return
	}
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

// answer completes the call that a peer has acknowledged.
func (r *Relay) answer(peer projections.PeerID, id uint32, result []byte) {
	o := success(result)
	var done func(Outcome)
	r.mu.Lock()
	c := r.acks[ackKey{peer: peer, id: id}]
	if c != nil {
		done = r.conclude(c, &o, true)
	}
	r.mu.Unlock()
	switch {
	case done != nil:
		done(o) // it may write to the network
	case c == nil && hasRecord(id):
		r.recordAnswer(peer, id, result)
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
	if done := r.conclude(c, &o, ran); done != nil {
		done(o)
	}
}

// conclude is end, but that whoever has to be told of the outcome, if anybody, is returned.
func (r *Relay) conclude(c *call, o *Outcome, ran bool) (done func(Outcome)) {
	if r.calls[c.number] != c {
		return nil
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
			o.Alone = true
		}
	}
	if c.key != nil && c.phase != joining {
		r.recordEnd(c, *o, ran)
	}
	r.observe(o.Code, time.Since(c.started))
	if c.caller == nil {
		return nil
	}
	return c.done
}

func (r *Relay) observe(code string, took time.Duration) {
	if code == "" {
		code = "OK"
	}
	if r.cfg.Done != nil {
		r.cfg.Done(code, took)
	}
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

// emptied are sets of calls to be used again: that of a caller's connection comes and goes with nearly every
// call.
var emptied sync.Pool
