package projections

import (
	"iter"
	"maps"
	"time"

	"holdfast/events"
)

// MethodID names a method within its user.
type MethodID struct {
	User   string
	Method string
}

// Registration says which session holds a method.
type Registration struct {
	MethodID
	Holder     PeerID
	Session    string
	ReplaySafe bool
	Version    events.Position
	// Lapsed: the holder's grace has passed, or its replica was lost; only the recovery of Session revives it.
	Lapsed bool
	// Orphaned is since when Session can no longer be recovered because the peer has another one; zero if not.
	Orphaned time.Time
}

// Registration finds the registration of a method, lapsed or not.
func (s *State) Registration(id MethodID) (Registration, bool) {
	r, ok := s.methods[id]
	if !ok {
		return Registration{}, false
	}
	return *r, true
}

// Registrations are all registrations, lapsed or not, in no order.
func (s *State) Registrations() iter.Seq[Registration] {
	return func(yield func(Registration) bool) {
		for _, r := range s.methods {
			if !yield(*r) {
				return
			}
		}
	}
}

// Held are the registrations of a peer's present and former sessions, in no order.
func (s *State) Held(id PeerID) iter.Seq[Registration] {
	return func(yield func(Registration) bool) {
		for method := range s.held[id] {
			if !yield(*s.methods[MethodID{User: id.User, Method: method}]) {
				return
			}
		}
	}
}

// HeldCount is how many registrations a peer holds.
func (s *State) HeldCount(id PeerID) int { return len(s.held[id]) }

// RegistrationCount is how many registrations there are, lapsed ones included.
func (s *State) RegistrationCount() int { return len(s.methods) }

// Availability says whether a method can be called now.
type Availability int

const (
	NotAvailable Availability = iota // never registered, ended, or lapsed
	Away                             // its holder is away within the grace: a call waits
	Available                        // its holder is connected
)

// Resolve finds who answers a method now. The Peer is set unless NotAvailable.
func (s *State) Resolve(id MethodID) (Registration, Peer, Availability) {
	r, ok := s.methods[id]
	if !ok || r.Lapsed {
		return Registration{}, Peer{}, NotAvailable
	}
	p, ok := s.peers[r.Holder]
	if !ok {
		return Registration{}, Peer{}, NotAvailable
	}
	if !p.Connected || p.Session != r.Session {
		return *r, *p, Away
	}
	return *r, *p, Available
}

func (s *State) methodRegistered(r events.Record, e events.MethodRegistered) {
	id := MethodID{User: e.User, Method: e.Method}
	holder := PeerID{User: e.User, Peer: e.Peer}
	if former, ok := s.methods[id]; ok && former.Holder != holder {
		s.release(former)
	}
	reg := &Registration{
		MethodID: id, Holder: holder, Session: e.Session, ReplaySafe: e.Delivery == events.DeliverAgain, Version: r.Position,
	}
	s.methods[id] = reg
	s.hold(reg)
}

// hold puts a registration into its holder's index.
func (s *State) hold(r *Registration) {
	put(s.held, r.Holder, r.Method, struct{}{})
}

func (s *State) methodUnregistered(e events.MethodUnregistered) {
	id := MethodID{User: e.User, Method: e.Method}
	if r, ok := s.methods[id]; ok && r.Session == e.Session {
		s.endMethod(id, r.Holder)
	}
}

func (s *State) registrationsLapsed(e events.RegistrationsLapsed) {
	if p, ok := s.peers[PeerID{User: e.User, Peer: e.Peer}]; ok && p.Connection == e.Connection {
		s.lapse(p)
	}
}

func (s *State) endMethod(id MethodID, holder PeerID) {
	if r, ok := s.methods[id]; ok && r.Holder == holder {
		s.release(r)
		delete(s.methods, id)
	}
}

// release takes a registration out of its holder's index.
func (s *State) release(r *Registration) {
	drop(s.held, r.Holder, r.Method)
}

// lapse makes what the peer's current session holds uncallable.
func (s *State) lapse(p *Peer) {
	for method := range maps.Keys(s.held[p.PeerID]) {
		if r := s.methods[MethodID{User: p.User, Method: method}]; r.Session == p.Session {
			r.Lapsed = true
		}
	}
}

// revive makes what the peer's recovered session holds callable again.
func (s *State) revive(p *Peer) {
	for method := range maps.Keys(s.held[p.PeerID]) {
		if r := s.methods[MethodID{User: p.User, Method: method}]; r.Session == p.Session {
			r.Lapsed = false
		}
	}
}

// orphan marks what the peer's session holds when another session takes its place at the given time.
func (s *State) orphan(p *Peer, at time.Time) {
	if !p.Connected {
		at = p.Changed
	}
	for method := range maps.Keys(s.held[p.PeerID]) {
		if r := s.methods[MethodID{User: p.User, Method: method}]; r.Session == p.Session {
			r.Orphaned = at
		}
	}
}
