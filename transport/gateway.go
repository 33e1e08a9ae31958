package transport

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/relay"
	"holdfast/replica"
	"holdfast/transport/socketio"
)

// maxControl bounds the changes that one client may have waiting for the log; more are RATE_LIMITED.
const maxControl = 1024

// Gateway is the App that clients meet: it admits them, and turns their events into commands of the replica
// and calls of the relay.
type Gateway struct {
	rep      *replica.Replica
	relay    *relay.Relay
	audience *relay.Audience
	rooms    Rooms
	auth     Authenticator
	log      zerolog.Logger
	draining atomic.Bool
	// returning has a place for each session that is being recovered. When it is full the others wait for one, in their
	// goroutines of admission and within its time; what their clients send meanwhile has the transport's bounds.
	returning chan struct{}
	mu        sync.Mutex
	members   map[*member]struct{}
}

// maxReturning bounds the sessions that are recovered at a time, so that a replica that gets those of a lost one goes on
// serving its own.
const maxReturning = 32

// NewGateway makes the App of one replica.
func NewGateway(rep *replica.Replica, rel *relay.Relay, audience *relay.Audience, auth Authenticator, rooms Rooms, log zerolog.Logger) *Gateway {
	g := &Gateway{rep: rep, relay: rel, audience: audience, rooms: rooms, auth: auth, log: log,
		members: map[*member]struct{}{}, returning: make(chan struct{}, maxReturning)}
	audience.OnLeft(g.onLeft)
	rel.Channels().SetFor(audience.In)
	return g
}

// member is one admitted client. It is the replica's Link to it.
type member struct {
	*Socket
	session *replica.Session
	fate    atomic.Pointer[Reason] // why the server ended it; nil if it did not

	publishing atomic.Int32 // publications under way

	mu      sync.Mutex
	control []func() // changes that wait for the one before them
	busy    bool
}

// Connect admits a client: who it is, and whether its session goes on.
func (g *Gateway) Connect(ctx context.Context, s *Socket, auth json.RawMessage) (Admission, error) {
	cred, err := parseCredentials(auth)
	if err != nil {
		return Admission{}, err
	}
	id, err := g.auth.identify(cred)
	if err != nil {
		return Admission{}, err
	}
	if g.draining.Load() {
		return Admission{}, ErrComeBack
	}
	select {
	case <-g.rep.Ready():
	case <-ctx.Done():
		return Admission{}, ctx.Err()
	}
	m := &member{Socket: s, session: &replica.Session{
		User: id.user, Peer: id.peer, Claims: id.claims, Connection: g.rep.NewConnection(), SID: newSID(), PID: newSID(),
	}}
	m.session.Link = m
	s.SetData(m)
	if cred.PID != "" {
		select {
		case g.returning <- struct{}{}:
			defer func() { <-g.returning }()
		case <-ctx.Done():
			return Admission{}, ctx.Err()
		}
	}
	plan, err := g.prepare(ctx, cred)
	if err != nil {
		return Admission{}, err
	}
	if plan == nil {
		cred.PID = "" // what it missed cannot be given to it: it begins anew
	}
	if err := g.rep.Connect(ctx, m.session, cred.PID, ulid.Make().String()); err != nil {
		return Admission{}, g.refusal(err)
	}
	if err := g.open(ctx, m, plan); err != nil {
		g.log.Debug().Err(err).Str("user", id.user).Msg("a client could not be given its channels: it has to come back")
		g.rep.Disconnect(m.session, "no-channels", false)
		return Admission{}, ErrComeBack
	}
	g.mu.Lock()
	g.members[m] = struct{}{}
	g.mu.Unlock()
	return Admission{SID: m.session.SID, PID: m.session.PID}, nil
}

// prepare looks what a client missed that shows the pid of a session. A nil plan: its session cannot go on.
func (g *Gateway) prepare(ctx context.Context, cred credentials) (*relay.Plan, error) {
	if cred.PID == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.rep.Patience())
	defer cancel()
	plan, err := g.relay.Channels().Prepare(ctx, cred.PID, cred.Offset)
	if err != nil {
		g.log.Debug().Err(err).Msg("what a client missed could not be looked up: it has to come back")
		return nil, ErrComeBack
	}
	return plan, nil
}

// open gives the client its channels, and what it missed if its session goes on.
func (g *Gateway) open(ctx context.Context, m *member, plan *relay.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, g.rep.Patience())
	defer cancel()
	if !m.session.Recovered {
		plan = nil
	}
	err := g.relay.Channels().Open(ctx, m.session, plan, func(channel string) bool {
		if room, ok := strings.CutPrefix(channel, relay.RoomChannel); ok {
			return g.audience.In(m.session, room, "")
		}
		name, ok := strings.CutPrefix(channel, relay.ClientChannel)
		return ok && m.session.Claims.MaySubscribe(m.session.User, name)
	})
	// A new session has the rooms that its peer was in before.
	for _, room := range g.audience.RoomsOf(m.session) {
		if err == nil {
			err = g.relay.Channels().Subscribe(ctx, m.session, relay.RoomChannel+room)
		}
	}
	return err
}

// refusal says which admissions failed for good. What may succeed in a moment, here or elsewhere, closes the
// transport instead: a stock client comes back from that, but not from a CONNECT_ERROR.
func (g *Gateway) refusal(err error) error {
	var r *commands.Refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.Code {
	case commands.CodeStoreUnavailable, commands.CodeConflict, commands.CodeReplaced:
		return ErrComeBack
	}
	return &ConnectError{Message: r.Text, Code: r.Code}
}

// Disconnected ends what the client had here.
func (g *Gateway) Disconnected(s *Socket, reason Reason) {
	m := s.Data().(*member)
	g.mu.Lock()
	delete(g.members, m)
	g.mu.Unlock()
	if fate := m.fate.Load(); fate != nil {
		reason = *fate
	}
	g.relay.Gone(m.session)
	g.audience.Unwatch(m.session)
	g.relay.Channels().Close(m.session)
	g.rep.Disconnect(m.session, string(reason), reason == ReasonClient || reason == ReasonReplaced)
}

// Ack takes a client's answer to its call.
func (g *Gateway) Ack(s *Socket, id uint64, args []json.RawMessage, attachments [][]byte) {
	var result replica.Payload
	if len(args) > 0 {
		result = payload(args[0], attachments)
	}
	g.relay.Answer(s.Data().(*member).session, id, result)
}

// payload is a part of what a client sent, with the attachments that belong to it.
func payload(part json.RawMessage, attachments [][]byte) replica.Payload {
	if len(attachments) == 0 {
		return replica.Payload{JSON: part}
	}
	text, used, _ := socketio.Extract(part, attachments) // the placeholders have been checked
	return replica.Payload{JSON: text, Attachments: used}
}

// Request sends a call to the client. It is part of replica.Link.
func (m *member) Request(name string, id uint32, dropped func(), arg replica.Payload) bool {
	return m.Socket.Request(name, id, dropped, arg.JSON, arg.Attachments)
}

// handlers are the events that clients may send.
var handlers = map[string]func(*Gateway, *member, []json.RawMessage, Ack){
	"rpc-register":        (*Gateway).rpcRegister,
	"rpc-unregister":      (*Gateway).rpcUnregister,
	"machine-alive":       (*Gateway).keepAlive,
	"session-alive":       (*Gateway).keepAlive,
	"presence-get":        (*Gateway).presenceGet,
	"room-join":           (*Gateway).roomJoin,
	"room-leave":          (*Gateway).roomLeave,
	"room-get":            (*Gateway).roomGet,
	"room-update":         (*Gateway).roomUpdate,
	"guest-update":        (*Gateway).guestUpdate,
	"room-close":          (*Gateway).roomClose,
	"rooms-watch":         (*Gateway).roomsWatch,
	"rooms-unwatch":       (*Gateway).roomsUnwatch,
	"settings-get":        (*Gateway).settingsGet,
	"settings-set":        (*Gateway).settingsSet,
	"channel-subscribe":   (*Gateway).channelSubscribe,
	"channel-unsubscribe": (*Gateway).channelUnsubscribe,
}

// binaryHandlers are those of the events whose arguments may hold attachments.
var binaryHandlers = map[string]func(*Gateway, *member, []json.RawMessage, [][]byte, Ack){
	"rpc-call":        (*Gateway).rpcCall,
	"room-emit":       (*Gateway).roomEmit,
	"channel-publish": (*Gateway).channelPublish,
}

// Event handles what a client sends.
func (g *Gateway) Event(s *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack) {
	if handle, ok := binaryHandlers[name]; ok {
		handle(g, s.Data().(*member), args, attachments, ack)
		return
	}
	handle, ok := handlers[name]
	switch {
	case !ok:
		fail(ack, "UNKNOWN_EVENT", "The server knows no such event")
	case len(attachments) > 0:
		fail(ack, "BAD_REQUEST", "This event takes no binary")
	default:
		handle(g, s.Data().(*member), args, ack)
	}
}

// keepAlive accepts what older clients send: nothing here expires while its connection lives.
func (g *Gateway) keepAlive(_ *member, _ []json.RawMessage, ack Ack) { ack.Reply(okAck) }

// change runs f, which waits for the log, after the client's earlier changes, without holding up what else the
// client sends.
func (m *member) change(ack Ack, f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.control) >= maxControl {
		fail(ack, "RATE_LIMITED", "Too many changes are waiting")
		return
	}
	m.enqueue(f)
}

// later runs f after the changes that the client has asked for so far.
func (m *member) later(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enqueue(f)
}

// enqueue is for who holds mu.
func (m *member) enqueue(f func()) {
	m.control = append(m.control, f)
	if !m.busy {
		m.busy = true
		go m.runChanges()
	}
}

func (m *member) runChanges() {
	for {
		m.mu.Lock()
		if len(m.control) == 0 {
			m.busy = false
			m.control = nil
			m.mu.Unlock()
			return
		}
		f := m.control[0]
		m.control = m.control[1:]
		m.mu.Unlock()
		f()
	}
}

// Replaced ends the connection for a newer one of the same peer.
func (m *member) Replaced(recovered bool) {
	reason := ReasonReplaced
	m.fate.CompareAndSwap(nil, &reason)
	if recovered { // the same client, over a new transport: nobody is behind this one
		m.CloseTransport(ReasonReplaced)
		return
	}
	m.Emit("peer-replaced", []byte("{}"))
	m.Disconnect(ReasonReplaced)
}

// Reconnect makes the client come back by itself.
func (m *member) Reconnect(why replica.Why) {
	m.CloseTransport(Reason(why))
}

// Drain asks every client to reconnect elsewhere within the time, and admits no new ones.
func (g *Gateway) Drain(within time.Duration) {
	g.draining.Store(true)
	notice, _ := json.Marshal(map[string]int64{"reconnectWithinMs": within.Milliseconds()})
	packet := EncodeEvent("server-draining", notice)
	g.mu.Lock()
	defer g.mu.Unlock()
	for m := range g.members {
		m.SendRaw(packet)
	}
}

var okAck = []byte(`{"ok":true}`)

// fail answers with a failure.
func fail(ack Ack, code, text string) {
	if !ack.Wanted() {
		return
	}
	b, _ := json.Marshal(struct {
		OK    bool   `json:"ok"`
		Error string `json:"error"`
		Code  string `json:"code"`
	}{Error: text, Code: code})
	ack.Reply(b)
}

// failWith answers with the error of a command, and returns its text.
func failWith(ack Ack, err error) string {
	var r *commands.Refusal
	if !errors.As(err, &r) {
		r = &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: err.Error()}
	}
	if len(r.Now) == 0 {
		fail(ack, r.Code, r.Text)
		return r.Text
	}
	answer := map[string]any{"ok": false, "error": r.Text, "code": r.Code}
	maps.Copy(answer, r.Now)
	b, _ := json.Marshal(answer)
	ack.Reply(b)
	return r.Text
}

// argument reads the event's one argument, an object.
func argument(args []json.RawMessage, into any) error {
	if len(args) == 0 || len(args[0]) == 0 || args[0][0] != '{' {
		return errors.New("an object is required")
	}
	err := json.Unmarshal(args[0], into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return errors.New(wrong.Field + " has the wrong type")
	}
	return err
}
