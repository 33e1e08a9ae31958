package projections

import (
	"iter"
	"slices"
	"time"

	"holdfast/events"
)

// PeerID names a peer within its user.
type PeerID struct {
	User string
	Peer string
}

// Peer is the present state of one peer: its one current session and connection, or its last ones.
type Peer struct {
	PeerID
	Anonymous  bool
	Connection string // ULID of the current or last connection
	Instance   string // the replica of that connection
	Session    string // Socket.IO sid
	Recovery   string // Socket.IO pid
	Connected  bool
	// Changed is when it was last connected or, if not Connected, since when it is away.
	Changed time.Time
	// SessionEnded: ended on purpose, not to be recovered.
	SessionEnded bool
	// Gone: its grace has passed.
	Gone bool
}

// Peer finds a peer.
func (s *State) Peer(id PeerID) (Peer, bool) {
	p, ok := s.peers[id]
	if !ok {
		return Peer{}, false
	}
	return *p, true
}

// PeerByRecovery finds the peer whose current session has the given recovery id (pid).
func (s *State) PeerByRecovery(recovery string) (Peer, bool) {
	id, ok := s.sessions[recovery]
	if !ok {
		return Peer{}, false
	}
	return s.Peer(id)
}

// Peers are all peers, in no order.
func (s *State) Peers() iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, p := range s.peers {
			if !yield(*p) {
				return
			}
		}
	}
}

// PeerCount is how many peers are known, connected or not.
func (s *State) PeerCount() int { return len(s.peers) }

func (s *State) peerConnected(r events.Record, e events.PeerConnected) {
	id := PeerID{User: e.User, Peer: e.Peer}
	p, ok := s.peers[id]
	came, away := !ok || p.Gone, ok && !p.Connected
	if !ok {
		p = &Peer{PeerID: id}
		s.addPeer(p)
	} else {
		s.detach(p)
		if p.Session != e.Session {
			delete(s.sessions, p.Recovery)
			s.orphan(p, r.Time())
		}
	}
	p.Anonymous = e.Anonymous
	p.Connection, p.Instance = e.Connection, e.Instance
	p.Session, p.Recovery = e.Session, e.Recovery
	p.Connected, p.Changed = true, r.Time()
	p.SessionEnded, p.Gone = false, false
	s.sessions[p.Recovery] = id
	s.attach(p)
	if e.Recovered {
		s.revive(p)
	}
	s.connectionChanged(r, p)
	if came {
		s.note(Change{Kind: PresenceChanged, At: r.Position, Peer: presence(p)})
	}
	if away {
		s.roomsChanged(r, p, RoomChangedBack, "")
	}
}

// presence is what the user's other peers are told of a peer.
func presence(p *Peer) Card {
	return Card{PeerID: p.PeerID, Connected: p.Connected, Instance: p.Instance, Connection: p.Connection, Since: p.Changed}
}

// addPeer puts a peer into the indexes.
func (s *State) addPeer(p *Peer) {
	s.peers[p.PeerID] = p
	s.users[p.User] = append(s.users[p.User], p)
}

// PeersOf are the peers of a user, in no order.
func (s *State) PeersOf(user string) iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, p := range s.users[user] {
			if !yield(*p) {
				return
			}
		}
	}
}

func (s *State) peerDisconnected(r events.Record, e events.PeerDisconnected) {
	p, ok := s.peers[PeerID{User: e.User, Peer: e.Peer}]
	if !ok || p.Connection != e.Connection || !p.Connected {
		return
	}
	s.detach(p)
	p.Connected, p.Changed = false, r.Time()
	p.SessionEnded = e.SessionEnded
	s.connectionChanged(r, p)
	s.roomsChanged(r, p, RoomChangedAway, e.Reason)
}

func (s *State) peerGone(r events.Record, e events.PeerGone) {
	if p, ok := s.peers[PeerID{User: e.User, Peer: e.Peer}]; ok && p.Connection == e.Connection {
		p.Gone = true
		s.note(Change{Kind: PresenceChanged, At: r.Position, Peer: presence(p), Reason: "timeout"})
	}
}

func (s *State) peerForgotten(e events.PeerForgotten) {
	id := PeerID{User: e.User, Peer: e.Peer}
	p, ok := s.peers[id]
	if !ok || p.Connection != e.Connection {
		return
	}
	s.detach(p)
	delete(s.sessions, p.Recovery)
	for _, method := range e.Methods {
		s.endMethod(MethodID{User: e.User, Method: method}, id)
	}
	delete(s.peers, id)
	rest := slices.DeleteFunc(s.users[id.User], func(o *Peer) bool { return o == p })
	if len(rest) == 0 {
		delete(s.users, id.User)
	} else {
		s.users[id.User] = rest
	}
}

// attach puts the peer's connection into the index of its replica.
func (s *State) attach(p *Peer) {
	put(s.onto, p.Instance, p.PeerID, p)
}

// detach takes the peer's connection out of the index of its replica.
func (s *State) detach(p *Peer) {
	drop(s.onto, p.Instance, p.PeerID)
}
