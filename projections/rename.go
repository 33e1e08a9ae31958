package projections

import (
	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// Names gives other names to the things of a state. Its functions must give one name for one, and different ones
// for different ones.
type Names interface {
	// Name is the new name of a thing; kind is the name of the field that holds it in an event, such as "user".
	Name(kind, name string) string
	// JSON is the new form of a client's own JSON; empty for an empty one. Its objects are renamed member by member.
	JSON(raw string) string
	// Token is the new token of a log entry.
	Token(ulid.ULID) ulid.ULID
	// Aggregate is the new name of an aggregate, made of the new names of what it consists of.
	Aggregate(events.Aggregate) events.Aggregate
}

// Renamed is the state as it would be had everything in it had other names. It shares nothing with s.
func (s *State) Renamed(names Names) *State {
	to := New()
	to.Position, to.Token = s.Position, names.Token(s.Token)
	for a, at := range s.versions {
		to.versions[names.Aggregate(a)] = at
	}
	for _, r := range s.replicas {
		renamed := *r
		renamed.Instance = names.Name("instance", r.Instance)
		renamed.Incarnation = names.Name("incarnation", r.Incarnation)
		renamed.URL = names.Name("url", r.URL)
		to.replicas[renamed.Instance] = &renamed
	}
	for i, slot := range s.slots {
		slot.Instance = names.Name("instance", slot.Instance)
		slot.Incarnation = names.Name("incarnation", slot.Incarnation)
		to.slots[i] = slot
	}
	peer := func(id PeerID) PeerID {
		return PeerID{User: names.Name("user", id.User), Peer: names.Name("peer", id.Peer)}
	}
	for _, p := range s.peers {
		renamed := *p
		renamed.PeerID = peer(p.PeerID)
		renamed.Connection = names.Name("connection", p.Connection)
		renamed.Instance = names.Name("instance", p.Instance)
		renamed.Session = names.Name("session", p.Session)
		renamed.Recovery = names.Name("recovery", p.Recovery)
		to.addPeer(&renamed)
		to.sessions[renamed.Recovery] = renamed.PeerID
		if renamed.Connected {
			to.attach(&renamed)
		}
	}
	for _, r := range s.methods {
		renamed := *r
		renamed.MethodID = MethodID{User: names.Name("user", r.User), Method: names.Name("method", r.Method)}
		renamed.Holder = peer(r.Holder)
		renamed.Session = names.Name("session", r.Session)
		to.methods[renamed.MethodID] = &renamed
		to.hold(&renamed)
	}
	for _, r := range s.rooms {
		renamed := &Room{
			ID: names.Name("room", r.ID), Version: r.Version, Open: r.Open, Owner: names.Name("instance", r.Owner), Pinned: r.Pinned,
			Settings: names.JSON(r.Settings), GuestState: names.JSON(r.GuestState), Unheld: r.Unheld, Held: r.Held, held: r.held,
		}
		to.rooms[renamed.ID] = renamed
		if renamed.Open {
			to.addPin(renamed)
		}
		for _, seat := range r.seats {
			one := *seat
			one.PeerID = peer(seat.PeerID)
			one.Name, one.Meta = names.Name("name", seat.Name), names.JSON(seat.Meta)
			one.Session = names.Name("session", seat.Session)
			to.sit(renamed, &one)
		}
	}
	for key, value := range s.settings {
		to.settings[names.Name("key", key)] = names.JSON(value)
	}
	return to
}
