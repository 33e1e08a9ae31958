package commands

import (
	"slices"
	"strings"
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// ConnectPeer makes a connection the peer's current one. When Recovery names a session that can still be
// recovered, that session goes on; else a new one begins with the ids given.
type ConnectPeer struct {
	User       string
	Peer       string // empty: the peer of the recovered session, else NewPeer
	NewPeer    string // the id of an anonymous peer, should it be needed
	Connection string
	Instance   string
	Recovery   string // pid shown by the client, or empty
	NewSession string // sid, should a new session begin
	NewPid     string // pid, likewise
	Now        time.Time
	Graces     Graces
}

// Graces are how long the things of an away peer are kept. Zero means not at all.
type Graces struct {
	Peer     time.Duration // presence and seats
	RPC      time.Duration // registrations stay callable (calls wait)
	Recovery time.Duration // the session can be recovered
	Room     time.Duration // a room that nobody holds stays open
	Unused   time.Duration // settings of a room that nobody joins are kept
}

func (c ConnectPeer) Decide(s *projections.State) (Decision, error) {
	if bad := checkName("user", c.User); bad != nil {
		return Decision{}, bad
	}
	if c.Peer != "" {
		if bad := checkName("peer", c.Peer); bad != nil {
			return Decision{}, bad
		}
	}
	e := events.PeerConnected{
		User: c.User, Peer: c.Peer, Connection: c.Connection, Instance: c.Instance,
		Session: c.NewSession, Recovery: c.NewPid,
	}
	lost := false // a session was asked for and not found
	if c.Recovery != "" {
		p, ok := s.PeerByRecovery(c.Recovery)
		lost = !ok
		if ok && p.User == c.User && (c.Peer == "" || c.Peer == p.Peer) && recoverable(p, c.Now, c.Graces.Recovery) {
			e.Peer, e.Session, e.Recovery = p.Peer, p.Session, p.Recovery
			e.Recovered, e.Anonymous = true, p.Anonymous
		}
	}
	if e.Peer == "" {
		e.Peer, e.Anonymous = c.NewPeer, true
	}
	if p, ok := s.Peer(projections.PeerID{User: e.User, Peer: e.Peer}); ok && p.Connection == c.Connection && p.Connected {
		return Decision{}, nil
	}
	return Decision{
		Reads:  []events.Aggregate{events.PeerKey(e.User, e.Peer)},
		Events: []events.Event{e},
		Doubt:  lost,
	}, nil
}

// recoverable says whether the peer's session can be carried on by a new connection.
func recoverable(p projections.Peer, now time.Time, window time.Duration) bool {
	return !p.SessionEnded && (p.Connected || now.Sub(p.Changed) <= window)
}

// ReassertPeer records again what a replica knows of its own living connection, after the log has lost it or
// the replica was held for dead. If a newer connection is current, that one stays.
type ReassertPeer struct {
	User       string
	Peer       string
	Anonymous  bool
	Connection string // ULID: later connections have greater ids
	Instance   string
	Session    string
	Recovery   string
}

func (c ReassertPeer) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer)}}
	p, known := s.Peer(projections.PeerID{User: c.User, Peer: c.Peer})
	if known && p.Connection == c.Connection && p.Connected {
		return d, nil
	}
	if known && p.Connection != c.Connection && p.Connection > c.Connection {
		return d, refuse(CodeReplaced, "a newer connection of this peer is current")
	}
	d.Events = []events.Event{events.PeerConnected{
		User: c.User, Peer: c.Peer, Anonymous: c.Anonymous, Connection: c.Connection, Instance: c.Instance,
		Session: c.Session, Recovery: c.Recovery, Recovered: true,
	}}
	return d, nil
}

// DisconnectPeer ends a connection. If a newer one is current, or it has ended already, nothing changes.
type DisconnectPeer struct {
	User         string
	Peer         string
	Connection   string
	Reason       string
	SessionEnded bool
}

func (c DisconnectPeer) Decide(s *projections.State) (Decision, error) {
	d := Decision{Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer)}}
	p, ok := s.Peer(projections.PeerID{User: c.User, Peer: c.Peer})
	if ok && p.Connection == c.Connection && p.Connected {
		d.Events = []events.Event{events.PeerDisconnected{
			User: c.User, Peer: c.Peer, Connection: c.Connection, Reason: c.Reason, SessionEnded: c.SessionEnded,
		}}
	}
	return d, nil
}

// ExpirePeer does whatever has become due for a peer that is away, or whose former session left
// registrations behind. Nothing due, or the peer back: nothing changes.
type ExpirePeer struct {
	User   string
	Peer   string
	Now    time.Time
	Graces Graces
}

func (c ExpirePeer) Decide(s *projections.State) (Decision, error) {
	id := projections.PeerID{User: c.User, Peer: c.Peer}
	d := Decision{Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer)}}
	p, ok := s.Peer(id)
	if !ok {
		return d, nil
	}
	end := func(r projections.Registration) {
		d.Reads = append(d.Reads, events.MethodKey(r.User, r.Method))
		d.Events = append(d.Events, events.MethodUnregistered{
			User: r.User, Method: r.Method, Peer: c.Peer, Session: r.Session, Reason: "grace",
		})
	}
	due := dueOf(p, c.Graces)
	lapse, waiting := false, []string(nil) // methods that lapsed and wait for a recovery
	held := slices.SortedFunc(s.Held(id), func(a, b projections.Registration) int { return strings.Compare(a.Method, b.Method) })
	for _, r := range held {
		switch at, dying := registrationDue(r, p, c.Graces); {
		case !r.Orphaned.IsZero() || p.SessionEnded && !p.Connected:
			if dying && !c.Now.Before(at) {
				end(r)
			}
		case p.Connected:
		case r.Lapsed:
			waiting = append(waiting, r.Method)
		case dying && !c.Now.Before(at):
			lapse = true
			waiting = append(waiting, r.Method)
		}
	}
	if p.Connected {
		return d, nil
	}
	gone := p.Gone
	if !gone && !c.Now.Before(due.gone) {
		gone = true
		d.Events = append(d.Events, events.PeerGone{User: c.User, Peer: c.Peer, Connection: p.Connection})
		for _, room := range s.RoomsOf(id) {
			d.leave(s, id, p.Connection, room.ID, "timeout")
		}
	}
	if gone && !c.Now.Before(due.forget) {
		for _, method := range waiting {
			d.Reads = append(d.Reads, events.MethodKey(c.User, method))
		}
		d.Events = append(d.Events, events.PeerForgotten{
			User: c.User, Peer: c.Peer, Connection: p.Connection, Methods: waiting,
		})
	} else if lapse {
		d.Events = append(d.Events, events.RegistrationsLapsed{User: c.User, Peer: c.Peer, Connection: p.Connection})
	}
	return d, nil
}

// NextDue is when ExpirePeer may next have something to do for the peer; zero for never.
func NextDue(s *projections.State, id projections.PeerID, g Graces) time.Time {
	p, ok := s.Peer(id)
	if !ok {
		return time.Time{}
	}
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for r := range s.Held(id) {
		if at, dying := registrationDue(r, p, g); dying {
			sooner(at)
		}
	}
	if !p.Connected {
		due := dueOf(p, g)
		if !p.Gone {
			sooner(due.gone)
		} else {
			sooner(due.forget)
		}
	}
	return next
}

type peerDue struct {
	gone   time.Time
	forget time.Time
}

// dueOf is when an away peer is gone and when it may be forgotten: not before its registrations have ended.
func dueOf(p projections.Peer, g Graces) peerDue {
	forget := max(g.Peer, g.RPC)
	if !p.SessionEnded {
		forget = max(forget, g.Recovery)
	}
	return peerDue{gone: p.Changed.Add(g.Peer), forget: p.Changed.Add(forget)}
}

// registrationDue is when a registration stops being callable for want of its holder, if it is on the way.
func registrationDue(r projections.Registration, p projections.Peer, g Graces) (time.Time, bool) {
	switch {
	case !r.Orphaned.IsZero():
		return r.Orphaned.Add(g.RPC), true
	case p.Connected || r.Lapsed && !p.SessionEnded:
		return time.Time{}, false
	}
	return p.Changed.Add(g.RPC), true
}
