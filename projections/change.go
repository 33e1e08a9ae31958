package projections

import (
	"slices"
	"time"

	"holdfast/events"
)

// ChangeKind says what a Change is about.
type ChangeKind uint8

const (
	// PresenceChanged: a peer came, or is gone. Peer, At and Connected are set, Reason for one that is gone.
	PresenceChanged ChangeKind = iota + 1
	// ConnectionChanged: Peer has another connection than before, or none. Nobody is told; who keeps lists does.
	ConnectionChanged
	// RoomChangedPin: the room was opened, or its pin has moved.
	RoomChangedPin
	RoomChangedJoined
	RoomChangedAway
	RoomChangedBack
	RoomChangedLeft
	RoomChangedSettings
	RoomChangedGuest
	RoomChangedClosed
	// SettingsChanged: the cluster-wide setting Key is Value now.
	SettingsChanged
)

// Change is one thing that a record has changed and that clients may be told of, as it was at that record.
type Change struct {
	Kind ChangeKind
	At   events.Position // the record; the version of what has changed
	// Room and Previous are the room and the version that it had before the record.
	Room     string
	Previous events.Position
	Peer     Card
	Reason   string
	Owner    string          // of a pin: instance; also of what has closed
	Former   string          // of a pin that has moved: the instance that had it; empty for a room just opened
	Pinned   events.Position // of a pin: since when Owner has it; of what has closed: since when it had it
	Unpinned events.Position // of a pin that has moved: since when Former had it
	Value    string          // JSON: settings or guest state as a whole; of SettingsChanged the value, empty when removed
	Patch    string          // JSON: what was changed
	Key      string
	Rooms    []string // of ConnectionChanged: where the peer is
}

// Card is what a room shows of a peer.
type Card struct {
	PeerID
	Role       events.Role
	Name       string
	Meta       string // JSON, or empty
	Connected  bool
	Instance   string
	Connection string
	Since      time.Time // when it was last connected or, if it is not, since when it is away
}

// Observe makes Apply keep what changes, for Changes to take. A state that is only folded does not need it.
func (s *State) Observe() { s.observed = true }

// Changes takes what the records applied since the last call have changed, in order.
func (s *State) Changes() []Change {
	taken := s.changes
	s.changes = nil
	return taken
}

func (s *State) note(c Change) {
	if s.observed {
		s.changes = append(s.changes, c)
	}
}

// noteRoom gives the room the version of the record and notes the change.
func (s *State) noteRoom(room *Room, at events.Position, c Change) {
	before := room.Version
	room.Version = at
	if !s.observed {
		return
	}
	if before != at { // else it was changed by the same record before
		room.before = before
	}
	c.At, c.Room, c.Previous = at, room.ID, room.before
	s.note(c)
}

// expect makes place for so many changes: a record that changes thousands of rooms need not move them again and again.
func (s *State) expect(n int) {
	if s.observed {
		s.changes = slices.Grow(s.changes, n)
	}
}

func (s *State) cardOf(seat *Seat) Card { return cardOf(seat, s.peers[seat.PeerID]) }

// cardOf takes together a seat and the peer in it, if that is known.
func cardOf(seat *Seat, p *Peer) Card {
	c := Card{PeerID: seat.PeerID, Role: seat.Role, Name: seat.Name, Meta: seat.Meta}
	if p != nil {
		c.Connected, c.Instance, c.Connection, c.Since = p.Connected, p.Instance, p.Connection, p.Changed
	}
	return c
}
