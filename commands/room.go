package commands

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// Role is what a peer is in a room.
type Role = events.Role

// The roles.
const (
	Host    = events.Host
	Guest   = events.Guest
	Monitor = events.Monitor
	Member  = events.Member
)

// Codes of refusals that concern rooms.
const (
	CodeSeatTaken = "SEAT_TAKEN"
)

// RoomLimits bound what rooms may hold. The zero value stands for the defaults.
type RoomLimits struct {
	PeersPerRoom int // default 10,000
	RoomsPerPeer int // default 100
	Settings     int // bytes of a room's settings, and of its guest state, each; default 64 KiB
	Meta         int // bytes of a peer's meta; default 16 KiB
}

// Defaults of RoomLimits. They are about what one client can make every replica keep in memory.
const (
	DefaultPeersPerRoom = 10_000
	DefaultRoomsPerPeer = 100
	DefaultSettingsSize = 64 << 10
	DefaultMetaSize     = 16 << 10
)

func (l RoomLimits) orDefault() RoomLimits {
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	set(&l.PeersPerRoom, DefaultPeersPerRoom)
	set(&l.RoomsPerPeer, DefaultRoomsPerPeer)
	set(&l.Settings, DefaultSettingsSize)
	set(&l.Meta, DefaultMetaSize)
	return l
}

// narrow is how near to its limit a room decides every join on all its changes, so that racing ones do not pass the
// limit together.
const narrow = 256

// JoinRoom gives a peer its place in a room, or changes it. The first join opens the room and pins it to the replica
// that asks. As host or guest a peer is in one room: it leaves the other one in the same step.
type JoinRoom struct {
	User       string
	Peer       string
	Connection string
	Instance   string
	Room       string
	Role       Role
	Name       string
	Meta       json.RawMessage
	Claims     Claims
	Limits     RoomLimits
	// Remains is set by a replica that restores what the log has lost: what it knows of the room, should that be
	// gone altogether. Then rights are not asked for again, and a seat that another has taken stays his.
	Remains *Remains
}

// Remains are what is left of a room that the log has lost, and the versions at which it was found missing: at others
// nothing is restored.
type Remains struct {
	Settings    string
	GuestState  string
	PeerVersion events.Position
	OpenVersion events.Position
}

// outdated says whether something has happened since the loss was found.
func (c JoinRoom) outdated(s *projections.State) bool {
	return c.Remains != nil && (s.Version(events.PeerKey(c.User, c.Peer)) != c.Remains.PeerVersion ||
		s.Version(events.RoomOpenKey(c.Room)) != c.Remains.OpenVersion)
}

func (c JoinRoom) Decide(s *projections.State) (Decision, error) {
	limits := c.Limits.orDefault()
	if bad := c.check(limits); bad != nil {
		return Decision{}, bad
	}
	if c.Remains == nil && !c.Claims.MayJoin(c.Room, c.Role) {
		return Decision{}, refuse(CodeForbidden, "not allowed to join this room as %s", c.Role)
	}
	id := projections.PeerID{User: c.User, Peer: c.Peer}
	p, err := currentPeer(s, id, c.Connection)
	if err != nil {
		return Decision{}, err
	}
	if c.outdated(s) {
		return Decision{}, nil
	}
	e := events.RoomJoined{
		Room: c.Room, User: c.User, Peer: c.Peer, Connection: c.Connection, Session: p.Session,
		Role: c.Role, Name: c.Name, Meta: plainMeta(c.Meta),
	}
	d := Decision{Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer), events.RoomOpenKey(c.Room)}}
	room := s.Room(c.Room)
	open := room != nil && room.Open
	if open {
		if mine := room.Seat(id); mine != nil {
			e.Was = mine.Role
			if c.Remains != nil || same(mine, e) {
				return Decision{}, nil
			}
			if e.Was.Seated() {
				d.Reads = append(d.Reads, events.RoomSeatKey(c.Room, e.Was))
			}
		}
		if other := room.Holder(c.Role); c.Role.Seated() && other != nil && other.PeerID != id {
			if c.Remains != nil {
				return Decision{}, nil
			}
			return Decision{}, doubt(refuse(CodeSeatTaken, "another peer is %s of this room", c.Role))
		}
		if size := len(room.Seats()); e.Was == "" && size >= limits.PeersPerRoom {
			return Decision{}, doubt(refuse(CodeTooMany, "a room can have %d peers at most", limits.PeersPerRoom))
		} else if size >= limits.PeersPerRoom-narrow {
			d.Reads = append(d.Reads, events.RoomKey(c.Room))
		}
	} else {
		d.Events = append(d.Events, events.RoomOpened{Room: c.Room, Instance: c.Instance})
		if c.Remains != nil {
			d.Reads = append(d.Reads, events.RoomKey(c.Room)) // what others set meanwhile stays
			if room == nil {
				d.Events = append(d.Events, c.Remains.events(c.Room, c.User, c.Peer)...)
			}
		}
	}
	if c.Role.Seated() && e.Was != c.Role {
		d.Reads = append(d.Reads, events.RoomSeatKey(c.Room, c.Role))
	}
	from, kept := c.leaving(s, id, p.Session, &e)
	if e.Was == "" && kept >= limits.RoomsPerPeer {
		return Decision{}, doubt(refuse(CodeTooMany, "a peer can be in %d rooms at most", limits.RoomsPerPeer))
	}
	for _, watched := range e.Unwatched {
		d.Reads = append(d.Reads, events.RoomOpenKey(watched))
	}
	if from == nil {
		d.Events = append(d.Events, e)
		return d, nil
	}
	role := from.Seat(id).Role
	d.Reads = append(d.Reads, events.RoomOpenKey(from.ID), events.RoomSeatKey(from.ID, role))
	d.Events = append(d.Events, events.RoomMoved{RoomJoined: e, From: from.ID, FromRole: role})
	return d, nil
}

// leaving finds out what the join ends: the place as host or guest elsewhere, which is returned, and the monitoring
// of the peer's former sessions, which goes into the event. kept is how many other rooms the peer stays in.
func (c JoinRoom) leaving(s *projections.State, id projections.PeerID, session string, e *events.RoomJoined) (from *projections.Room, kept int) {
	for _, other := range s.RoomsOf(id) {
		seat := other.Seat(id)
		switch {
		case other.ID == c.Room:
		case seat.Role.Seated() && c.Role.Seated():
			from = other
		case seat.Role == Monitor && seat.Session != session && c.Remains == nil:
			e.Unwatched = append(e.Unwatched, other.ID)
		default:
			kept++
		}
	}
	return from, kept
}

func (c JoinRoom) check(limits RoomLimits) *Refusal {
	if bad := checkName("room", c.Room); bad != nil {
		return bad
	}
	if !slices.Contains([]Role{Host, Guest, Member, Monitor}, c.Role) {
		return refuse(CodeBadRequest, "role must be host, guest, member or monitor")
	}
	if c.Name != "" {
		if bad := checkName("name", c.Name); bad != nil {
			return bad
		}
	}
	if len(c.Meta) > limits.Meta {
		return refuse(CodeTooLarge, "meta is larger than %d bytes", limits.Meta)
	}
	return nil
}

// events are those that make the room as it was known.
func (m *Remains) events(room, user, peer string) (made []events.Event) {
	if m.Settings != "" {
		made = append(made, events.RoomSettingsChanged{Room: room, User: user, Peer: peer, Patch: json.RawMessage(m.Settings)})
	}
	if m.GuestState != "" {
		made = append(made, events.RoomGuestChanged{Room: room, User: user, Peer: peer, Patch: json.RawMessage(m.GuestState)})
	}
	return made
}

// plainMeta is meta without spaces; nil for none.
func plainMeta(meta json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if len(meta) == 0 || json.Compact(&b, meta) != nil || b.String() == "null" {
		return nil
	}
	return b.Bytes()
}

func same(seat *projections.Seat, e events.RoomJoined) bool {
	return seat.Role == e.Role && seat.Name == e.Name && seat.Meta == string(e.Meta) && seat.Session == e.Session
}

// LeaveRoom ends the peer's place in a room. Not in it, nothing changes.
type LeaveRoom struct {
	User       string
	Peer       string
	Connection string
	Room       string
}

func (c LeaveRoom) Decide(s *projections.State) (Decision, error) {
	if bad := checkName("room", c.Room); bad != nil {
		return Decision{}, bad
	}
	id := projections.PeerID{User: c.User, Peer: c.Peer}
	if _, err := currentPeer(s, id, c.Connection); err != nil {
		return Decision{}, err
	}
	var d Decision
	d.leave(s, id, c.Connection, c.Room, "left")
	return d, nil
}

// leave adds that a peer leaves a room, if it is in it.
func (d *Decision) leave(s *projections.State, id projections.PeerID, connection, room, reason string) {
	r := s.Room(room)
	if r == nil {
		return
	}
	seat := r.Seat(id)
	if seat == nil {
		return
	}
	d.Reads = append(d.Reads, events.PeerKey(id.User, id.Peer), events.RoomOpenKey(room))
	if seat.Role.Seated() {
		d.Reads = append(d.Reads, events.RoomSeatKey(room, seat.Role))
	}
	d.Events = append(d.Events, events.RoomLeft{
		Room: room, User: id.User, Peer: id.Peer, Connection: connection, Role: seat.Role, Reason: reason,
	})
}

// CloseRoom ends a room for everybody. Only its present host may.
type CloseRoom struct {
	User       string
	Peer       string
	Connection string
	Room       string
}

func (c CloseRoom) Decide(s *projections.State) (Decision, error) {
	room, d, err := actor{c.User, c.Peer, c.Connection}.in(s, c.Room, Host)
	if err != nil {
		return Decision{}, err
	}
	d.Reads = append(d.Reads, events.RoomOpenKey(room.ID))
	d.Events = []events.Event{events.RoomClosed{Room: room.ID, User: c.User, Peer: c.Peer, Reason: "closed"}}
	return d, nil
}

// ExpireRoom closes a room that nobody has held open for its grace, or that nobody has joined for long. Held again,
// nothing changes.
type ExpireRoom struct {
	Room   string
	Now    time.Time
	Graces Graces
}

func (c ExpireRoom) Decide(s *projections.State) (Decision, error) {
	room := s.Room(c.Room)
	due := RoomDue(room, c.Graces)
	if due.IsZero() || c.Now.Before(due) {
		return Decision{}, nil
	}
	e := events.RoomClosed{Room: c.Room, Reason: "empty"}
	if !room.Held {
		e.Reason = "unused"
	}
	return Decision{Reads: e.Ends(), Events: []events.Event{e}}, nil
}

// RestoreRoom records the settings of a room again that the log has lost as a whole. A room that is there stays as it is.
type RestoreRoom struct {
	Room    string
	Remains Remains
}

func (c RestoreRoom) Decide(s *projections.State) (Decision, error) {
	made := c.Remains.events(c.Room, "", "")
	if s.Room(c.Room) != nil || len(made) == 0 {
		return Decision{}, nil
	}
	return Decision{Reads: []events.Aggregate{events.RoomKey(c.Room)}, Events: made}, nil
}

// RoomDue is when ExpireRoom may have something to do for the room; zero for never. A room that only monitors have joined
// waits for those who hold it; left by them too, it is one that nobody has joined.
func RoomDue(room *projections.Room, g Graces) time.Time {
	switch {
	case room == nil || room.Unheld.IsZero():
		return time.Time{}
	case room.Held:
		return room.Unheld.Add(g.Room)
	case len(room.Seats()) > 0:
		return time.Time{}
	case room.Settings == "" || room.Settings == "{}":
		return room.Unheld.Add(g.Room)
	}
	return room.Unheld.Add(g.Unused)
}

// actor is who does something in a room.
type actor struct{ user, peer, connection string }

// in finds the room that the actor is in, in one of the roles, and what that was read from.
func (a actor) in(s *projections.State, id string, roles ...Role) (*projections.Room, Decision, error) {
	if bad := checkName("room", id); bad != nil {
		return nil, Decision{}, bad
	}
	peer := projections.PeerID{User: a.user, Peer: a.peer}
	if _, err := currentPeer(s, peer, a.connection); err != nil {
		return nil, Decision{}, err
	}
	room := s.Room(id)
	var seat *projections.Seat
	if room != nil {
		seat = room.Seat(peer)
	}
	if seat == nil {
		return nil, Decision{}, doubt(refuse(CodeForbidden, "not in this room"))
	}
	if !slices.Contains(roles, seat.Role) {
		return nil, Decision{}, doubt(refuse(CodeForbidden, "a %s may not do this", seat.Role))
	}
	d := Decision{Reads: []events.Aggregate{events.PeerKey(a.user, a.peer)}}
	if seat.Role.Seated() {
		d.Reads = append(d.Reads, events.RoomSeatKey(id, seat.Role))
	}
	return room, d, nil
}
