package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
)

// Why a local connection is ended by the replica.
type Why string

const (
	WhyReplaced Why = "replaced" // a newer connection of the same peer is current
	WhyFenced   Why = "fenced"   // this replica was declared lost
	WhyLost     Why = "lost"     // messages for it are lost: its session cannot go on
	WhyOverflow Why = "overflow" // more came than can be kept until it may be given them
)

// Link is the client's connection behind a Session, as the transport gives it. No method blocks.
type Link interface {
	// Emit sends an event with raw JSON arguments. false: the connection is over.
	Emit(name string, args ...[]byte) bool
	// Broadcast sends an event that others get too. false: the connection is over.
	Broadcast(b *Broadcast) bool
	// Allow lets so much wait for the client, beyond the usual bounds, until it has been sent: what it has missed.
	Allow(packets, bytes int)
	// Request sends an event that wants an ack with the given id. onDropped is called, at most once and from
	// any goroutine, when the packet certainly never left. false: not sent, and onDropped will not be called.
	Request(name string, id uint32, onDropped func(), arg Payload) bool
	// Replaced tells the client that a newer connection has its place, and ends the connection. A client that
	// came back itself by recovery (recovered) is not told.
	Replaced(recovered bool)
	// Reconnect closes the transport, so that the client comes back by itself.
	Reconnect(why Why)
}

// Session is one client that is connected to this replica. Peer, Anonymous, SID, PID and Recovered are those that hold
// only once Connect has returned. Whoever follows the log can find the session before that, and must not look at them.
type Session struct {
	User       string
	Peer       string
	Anonymous  bool
	Connection string // ULID
	SID        string
	PID        string
	Recovered  bool
	Link       Link
	Claims     commands.Claims
	Handed     AckSet // requests it has been given and has not acknowledged

	replaced atomic.Bool      // a newer connection has its place: it is not to be recorded again
	rooms    map[string]place // that it is in; guarded by sessions.mu
}

// AckSet is a set of ack ids. The zero value is empty and ready.
type AckSet struct {
	mu  sync.Mutex
	ids map[uint32]struct{}
}

// Add puts an id in.
func (a *AckSet) Add(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[uint32]struct{}{}
	}
	a.ids[id] = struct{}{}
}

// Remove takes an id out.
func (a *AckSet) Remove(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ids, id)
}

// Has reports whether the id is in.
func (a *AckSet) Has(id uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.ids[id]
	return ok
}

// ID is the peer that the session speaks for.
func (s *Session) ID() projections.PeerID { return projections.PeerID{User: s.User, Peer: s.Peer} }

// sessions are the local ones. They are in byConnection from before they are in the log until their client is
// gone; in byPeer once they were admitted.
type sessions struct {
	mu           sync.RWMutex // guards what follows; taken before Replica.mu
	byConnection map[string]*Session
	byPeer       map[projections.PeerID][]*Session
	wants        map[projections.MethodID]want
	inRoom       map[string]map[projections.PeerID]*Session
	followed     events.Position // of the last record that these are in step with

	wake chan struct{} // asks for a reconcile pass
}

// want is a registration that a local session has asked for and has not lost to another.
type want struct {
	session    *Session
	replaySafe bool
}

func newSessions() *sessions {
	ss := &sessions{wake: make(chan struct{}, 1)}
	ss.reset()
	return ss
}

// reset forgets all sessions and returns them.
func (ss *sessions) reset() []*Session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := make([]*Session, 0, len(ss.byConnection))
	for _, s := range ss.byConnection {
		all = append(all, s)
	}
	ss.byConnection = map[string]*Session{}
	ss.byPeer = map[projections.PeerID][]*Session{}
	ss.wants = map[projections.MethodID]want{}
	ss.inRoom = map[string]map[projections.PeerID]*Session{}
	return all
}

// nudge asks for a reconcile pass soon.
func (ss *sessions) nudge() {
	select {
	case ss.wake <- struct{}{}:
	default:
	}
}

func (ss *sessions) get(connection string) *Session {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return ss.byConnection[connection]
}

func (ss *sessions) add(s *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.byConnection[s.Connection] = s
}

// admit puts the session into the peer's list.
func (ss *sessions) admit(s *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.byPeer[s.ID()] = append(ss.byPeer[s.ID()], s)
}

func (ss *sessions) remove(s *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.byConnection, s.Connection)
	list := slices.DeleteFunc(ss.byPeer[s.ID()], func(o *Session) bool { return o == s })
	if len(list) == 0 {
		delete(ss.byPeer, s.ID())
	} else {
		ss.byPeer[s.ID()] = list
	}
	for id, w := range ss.wants {
		if w.session == s {
			delete(ss.wants, id)
		}
	}
	ss.unwantRooms(s)
}

func (ss *sessions) want(id projections.MethodID, w want) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.wants[id] = w
}

func (ss *sessions) unwant(id projections.MethodID, s *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.wants[id].session == s {
		delete(ss.wants, id)
	}
}

// follow keeps the local sessions in step with the log: one that was replaced is told and ended; one whose
// method another session took no longer wants it.
func (ss *sessions) follow(records []events.Record) {
	for _, rec := range records {
		switch e := rec.Event.(type) {
		case events.PeerConnected:
			ss.mu.RLock()
			list := slices.Clone(ss.byPeer[projections.PeerID{User: e.User, Peer: e.Peer}])
			ss.mu.RUnlock()
			for _, s := range list {
				if s.Connection != e.Connection {
					s.replaced.Store(true)
					s.Link.Replaced(s.SID == e.Session)
				}
			}
		case events.MethodRegistered:
			id := projections.MethodID{User: e.User, Method: e.Method}
			ss.mu.Lock()
			if w, ok := ss.wants[id]; ok && w.session.SID != e.Session {
				delete(ss.wants, id)
			}
			ss.mu.Unlock()
		case events.RoomJoined, events.RoomMoved, events.RoomLeft, events.RoomClosed:
			ss.mu.Lock()
			ss.followRoom(e)
			ss.mu.Unlock()
		}
	}
	ss.followTo(records[len(records)-1].Position)
}

// followTo says that the local sessions are in step with a state that did not come record by record.
func (ss *sessions) followTo(at events.Position) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.followed = at
}

// Session finds a local session by its connection; nil when it is not here (any more).
func (r *Replica) Session(connection string) *Session { return r.sessions.get(connection) }

// SessionCount is how many clients are connected here.
func (r *Replica) SessionCount() int {
	r.sessions.mu.RLock()
	defer r.sessions.mu.RUnlock()
	return len(r.sessions.byConnection)
}

var errReplaced = &commands.Refusal{Code: commands.CodeReplaced, Text: "a newer connection of this peer is current"}

// Connect makes the session its peer's current one. s carries what the client asked for (User, and Peer or
// nothing), the new connection's id and the ids for a new session; on success they are those that hold. The
// session can be reached by its connection from before its event is applied.
func (r *Replica) Connect(ctx context.Context, s *Session, recovery, newPeer string) error {
	ask := commands.ConnectPeer{
		User: s.User, Peer: s.Peer, NewPeer: newPeer, Connection: s.Connection, Instance: r.cfg.Instance,
		Recovery: recovery, NewSession: s.SID, NewPid: s.PID, Now: r.Now(), Graces: r.cfg.Graces,
	}
	r.sessions.add(s)
	former := r.pidOf(s.ID())
	res, err := r.Execute(ctx, ask)
	if err != nil {
		r.sessions.remove(s)
		return err
	}
	e := res.Decision.Events[0].(events.PeerConnected)
	s.Peer, s.Anonymous, s.SID, s.PID, s.Recovered = e.Peer, e.Anonymous, e.Session, e.Recovery, e.Recovered
	r.sessions.admit(s)
	if former != "" && former != s.PID {
		r.sessionEnded(former)
	}
	// From here on the feed tells the session of its end; what came before is seen here.
	current := r.adopt(s)
	if !current {
		r.sessions.remove(s)
		return errReplaced
	}
	return nil
}

// adopt gives a session what its peer has: a recovered one wants what it holds, though this replica never heard it ask,
// and a peer that is back has the places that it left. false: another connection is current by now.
func (r *Replica) adopt(s *Session) (current bool) {
	r.sessions.mu.Lock() // first, so that no record is followed between the look and the list
	defer r.sessions.mu.Unlock()
	r.View(func(st *projections.State) {
		p, ok := st.Peer(s.ID())
		current = ok && p.Connection == s.Connection
		for reg := range st.Held(s.ID()) {
			if reg.Session == s.SID {
				r.sessions.wants[reg.MethodID] = want{session: s, replaySafe: reg.ReplaySafe}
			}
		}
		for _, room := range st.RoomsOf(s.ID()) {
			seat := room.Seat(s.ID())
			r.sessions.wantRoom(s, room.ID, place{role: seat.Role, name: seat.Name, meta: seat.Meta})
		}
	})
	return current
}

// Disconnect ends the session. A failure to record it is put right by reconcile.
func (r *Replica) Disconnect(s *Session, reason string, sessionEnded bool) {
	r.sessions.remove(s)
	if r.life.Load() == nil {
		return // fenced or stopped: the incarnation's end has ended all its connections
	}
	res, err := r.Execute(context.Background(), commands.DisconnectPeer{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Reason: reason, SessionEnded: sessionEnded,
	})
	if err == nil && sessionEnded && len(res.Decision.Events) > 0 {
		r.sessionEnded(s.PID)
	}
	if err != nil {
		r.log.Debug().Err(err).Str("user", s.User).Str("peer", s.Peer).Msg("a disconnect could not be recorded yet")
		r.sessions.nudge()
	}
}

// Register makes the session the holder of a method.
func (r *Replica) Register(ctx context.Context, s *Session, method string, replaySafe bool) (events.Position, error) {
	id := projections.MethodID{User: s.User, Method: method}
	res, err := r.Execute(ctx, commands.RegisterMethod{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Method: method, ReplaySafe: replaySafe,
	})
	var refusal *commands.Refusal
	if err != nil && (!errors.As(err, &refusal) || refusal.Code != commands.CodeStoreUnavailable) {
		return events.Position{}, err
	}
	// Also when the log was out of reach: the client wants it, and reconcile records it once it can.
	r.sessions.want(id, want{session: s, replaySafe: replaySafe})
	if err != nil {
		return events.Position{}, err
	}
	var version events.Position
	r.View(func(st *projections.State) {
		if reg, ok := st.Registration(id); ok && reg.Session == s.SID {
			version = reg.Version
		}
	})
	if version.IsZero() { // taken over already
		r.sessions.unwant(id, s)
		version = res.Position
	}
	return version, nil
}

// Unregister ends the session's registration of a method.
func (r *Replica) Unregister(ctx context.Context, s *Session, method string) error {
	r.sessions.unwant(projections.MethodID{User: s.User, Method: method}, s)
	_, err := r.Execute(ctx, commands.UnregisterMethod{User: s.User, Peer: s.Peer, Connection: s.Connection, Method: method})
	return err
}

// OnSessionEnd has f told, at one replica at least if it lives on, of each session that can never be recovered any
// more, by its pid. Only before Run. f must not block.
func (r *Replica) OnSessionEnd(f func(pid string)) { r.onSessionEnd = f }

func (r *Replica) sessionEnded(pid string) {
	if r.onSessionEnd != nil {
		r.onSessionEnd(pid)
	}
}

// pidOf is the pid of the peer's session; empty when it has none.
func (r *Replica) pidOf(id projections.PeerID) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p, _ := r.state.Peer(id)
	return p.Recovery
}
