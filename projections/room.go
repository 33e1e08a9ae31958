package projections

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"holdfast/events"
)

// Room is the present state of a room. What State gives out is only to be read, and only while the state is
// guarded.
type Room struct {
	ID      string
	Version events.Position // of the last change of anything that the room shows
	// Open is false while nobody has joined: then it has settings at most, and no owner.
	Open       bool
	Owner      string          // instance that it is pinned to
	Pinned     events.Position // since when: the fencing token of this ownership
	Settings   string          // JSON object, or empty
	GuestState string          // JSON object, or empty
	// Unheld is since when no host, guest or member is in it; zero while one is.
	Unheld time.Time
	// Held: a host, guest or member has been in it since it was opened.
	Held bool

	seats  []*Seat // in the order of joining
	bySeat map[PeerID]*Seat
	held   int             // hosts, guests and members
	before events.Position // the version before the record that Version is of; of a state that is observed
}

// Seat is the place of a peer in a room.
type Seat struct {
	PeerID
	Role    events.Role
	Name    string
	Meta    string // JSON, or empty
	Session string // that has joined
	Joined  events.Position
}

// indexedSeats is from how many seats on a room has an index of them.
const indexedSeats = 16

// Room finds a room, open or not; nil when there is none.
func (s *State) Room(id string) *Room { return s.rooms[id] }

// Rooms are all rooms, in no order.
func (s *State) Rooms() iter.Seq[*Room] { return maps.Values(s.rooms) }

// RoomCount is how many rooms there are, those included that only have settings.
func (s *State) RoomCount() int { return len(s.rooms) }

// RoomsOf are the rooms that a peer is in, in the order of their names.
func (s *State) RoomsOf(id PeerID) []*Room { return s.roomsOf[id] }

// RoomsOn are the rooms pinned to an instance, in no order.
func (s *State) RoomsOn(instance string) iter.Seq[*Room] { return maps.Values(s.pins[instance]) }

// RoomCountOn is how many rooms are pinned to an instance.
func (s *State) RoomCountOn(instance string) int { return len(s.pins[instance]) }

// Seats are the peers of the room in the order of joining.
func (r *Room) Seats() []*Seat { return r.seats }

// Seat finds the place of a peer; nil when it is not in the room.
func (r *Room) Seat(id PeerID) *Seat {
	if r.bySeat != nil {
		return r.bySeat[id]
	}
	for _, seat := range r.seats {
		if seat.PeerID == id {
			return seat
		}
	}
	return nil
}

// Holder is who has the seat of a role that one peer can have; nil when it is free.
func (r *Room) Holder(role events.Role) *Seat {
	for _, seat := range r.seats {
		if seat.Role == role {
			return seat
		}
	}
	return nil
}

// Card is what a room shows of the peer in a seat.
func (s *State) Card(seat *Seat) Card { return s.cardOf(seat) }

func (s *State) room(id string) *Room {
	room, ok := s.rooms[id]
	if !ok {
		room = &Room{ID: id}
		s.rooms[id] = room
	}
	return room
}

func (s *State) roomOpened(r events.Record, e events.RoomOpened) {
	room := s.room(e.Room)
	room.Open = true
	room.Unheld = r.Time()
	owner := e.Instance
	if here, ok := s.replicas[owner]; ok && here.Draining {
		if to := s.homeOf(room, map[string]int{}); to != "" {
			owner = to
		}
	}
	s.pin(room, owner, r.Position)
}

// pin gives the room its owner.
func (s *State) pin(room *Room, instance string, at events.Position) {
	former, since := room.Owner, room.Pinned
	s.unpin(room)
	room.Owner, room.Pinned = instance, at
	s.addPin(room)
	s.noteRoom(room, at, Change{Kind: RoomChangedPin, Owner: instance, Former: former, Pinned: at, Unpinned: since})
}

func (s *State) addPin(room *Room) {
	put(s.pins, room.Owner, room.ID, room)
}

func (s *State) unpin(room *Room) {
	drop(s.pins, room.Owner, room.ID)
}

func (s *State) roomJoined(r events.Record, e events.RoomJoined) {
	room, ok := s.rooms[e.Room]
	if !ok {
		return
	}
	id := PeerID{User: e.User, Peer: e.Peer}
	for _, watched := range e.Unwatched {
		s.leave(r, watched, id, "rejoined")
	}
	seat := room.Seat(id)
	if seat == nil {
		seat = &Seat{PeerID: id, Joined: r.Position}
		s.sit(room, seat)
	} else {
		s.weigh(room, seat, -1, r.Time())
	}
	seat.Role, seat.Name, seat.Meta, seat.Session = e.Role, e.Name, string(e.Meta), e.Session
	s.weigh(room, seat, 1, r.Time())
	s.noteRoom(room, r.Position, Change{Kind: RoomChangedJoined, Peer: s.cardOf(seat)})
}

// weigh counts a seat in or out of those that hold the room open.
func (s *State) weigh(room *Room, seat *Seat, n int, at time.Time) {
	if seat.Role == events.Monitor || seat.Role == "" {
		return
	}
	room.held += n
	if room.held > 0 {
		room.Unheld, room.Held = time.Time{}, true
	} else {
		room.Unheld = at
	}
}

// sit puts a seat into the room and the indexes.
func (s *State) sit(room *Room, seat *Seat) {
	room.seats = append(room.seats, seat)
	switch {
	case room.bySeat != nil:
		room.bySeat[seat.PeerID] = seat
	case len(room.seats) >= indexedSeats:
		room.bySeat = make(map[PeerID]*Seat, 2*indexedSeats)
		for _, one := range room.seats {
			room.bySeat[one.PeerID] = one
		}
	}
	of := s.roomsOf[seat.PeerID]
	at, _ := slices.BinarySearchFunc(of, room.ID, func(o *Room, id string) int { return cmp.Compare(o.ID, id) })
	s.roomsOf[seat.PeerID] = slices.Insert(of, at, room)
}

func (s *State) roomMoved(r events.Record, e events.RoomMoved) {
	s.leave(r, e.From, PeerID{User: e.User, Peer: e.Peer}, "moved")
	s.roomJoined(r, e.RoomJoined)
}

func (s *State) roomLeft(r events.Record, e events.RoomLeft) {
	s.leave(r, e.Room, PeerID{User: e.User, Peer: e.Peer}, e.Reason)
}

func (s *State) leave(r events.Record, id string, peer PeerID, reason string) {
	room, ok := s.rooms[id]
	if !ok {
		return
	}
	seat := room.Seat(peer)
	if seat == nil {
		return
	}
	card := s.cardOf(seat)
	s.stand(room, seat)
	s.weigh(room, seat, -1, r.Time())
	if !room.Held && len(room.seats) == 0 {
		room.Unheld = r.Time() // a monitor was the last one
	}
	s.noteRoom(room, r.Position, Change{Kind: RoomChangedLeft, Peer: card, Reason: reason})
}

// stand takes a seat out of the room and the indexes.
func (s *State) stand(room *Room, seat *Seat) {
	room.seats = slices.DeleteFunc(room.seats, func(o *Seat) bool { return o == seat })
	delete(room.bySeat, seat.PeerID)
	s.forgetRoomOf(seat.PeerID, room)
}

func (s *State) forgetRoomOf(id PeerID, room *Room) {
	rest := slices.DeleteFunc(s.roomsOf[id], func(o *Room) bool { return o == room })
	if len(rest) == 0 {
		delete(s.roomsOf, id)
	} else {
		s.roomsOf[id] = rest
	}
}

func (s *State) roomSettingsChanged(r events.Record, e events.RoomSettingsChanged) {
	room := s.room(e.Room)
	room.Settings = MergePatch(room.Settings, string(e.Patch))
	if !room.Open {
		room.Unheld = r.Time()
	}
	s.noteRoom(room, r.Position, Change{Kind: RoomChangedSettings, Value: room.Settings, Patch: string(e.Patch)})
}

func (s *State) roomGuestChanged(r events.Record, e events.RoomGuestChanged) {
	room := s.room(e.Room)
	room.GuestState = MergePatch(room.GuestState, string(e.Patch))
	s.noteRoom(room, r.Position, Change{Kind: RoomChangedGuest, Value: room.GuestState, Patch: string(e.Patch)})
}

func (s *State) roomClosed(r events.Record, e events.RoomClosed) {
	room, ok := s.rooms[e.Room]
	if !ok {
		return
	}
	for _, seat := range room.seats {
		s.forgetRoomOf(seat.PeerID, room)
	}
	s.unpin(room)
	delete(s.rooms, e.Room)
	s.noteRoom(room, r.Position, Change{Kind: RoomChangedClosed, Reason: e.Reason, Owner: room.Owner, Pinned: room.Pinned})
}

// roomsChanged notes that a peer's coming or going shows in its rooms.
func (s *State) roomsChanged(r events.Record, p *Peer, kind ChangeKind, reason string) {
	for _, room := range s.roomsOf[p.PeerID] {
		s.noteRoom(room, r.Position, Change{Kind: kind, Peer: cardOf(room.Seat(p.PeerID), p), Reason: reason})
	}
}

// connectionChanged notes that the peer's connection is another one, or none.
func (s *State) connectionChanged(r events.Record, p *Peer) {
	if !s.observed {
		return
	}
	c := Change{Kind: ConnectionChanged, At: r.Position, Peer: Card{
		PeerID: p.PeerID, Connected: p.Connected, Instance: p.Instance, Connection: p.Connection, Since: p.Changed,
	}}
	if rooms := s.roomsOf[p.PeerID]; len(rooms) > 0 {
		c.Rooms = make([]string, len(rooms))
		for i, room := range rooms {
			c.Rooms[i] = room.ID
		}
	}
	s.note(c)
}

// rehome moves the pins of instances to others, each once. Where there is none to move to they stay, until one starts.
func (s *State) rehome(r events.Record, from ...string) {
	var pinned []*Room
	for _, instance := range from {
		pinned = slices.AppendSeq(pinned, maps.Values(s.pins[instance]))
	}
	slices.SortFunc(pinned, func(a, b *Room) int { return cmp.Compare(a.ID, b.ID) })
	here := map[string]int{}
	for _, room := range pinned {
		to := s.homeOf(room, here)
		if here, ok := s.replicas[to]; ok && !(here.Draining && to == room.Owner) {
			s.pin(room, to, r.Position)
		}
	}
}

// unhoused are the instances that own rooms and do not live, or drain: there was no other to move them to.
func (s *State) unhoused() (without []string) {
	for instance := range s.pins {
		if owner, ok := s.replicas[instance]; !ok || owner.Draining {
			without = append(without, instance)
		}
	}
	slices.Sort(without)
	return without
}

// homeOf is the live replica that a room moves to: one that does not drain, if there is one; that to which most of the
// room's peers are connected; of several the one with the fewest rooms. Empty: there is none. here is to count in.
func (s *State) homeOf(room *Room, here map[string]int) string {
	clear(here)
	for _, seat := range room.seats {
		if p, ok := s.peers[seat.PeerID]; ok && p.Connected {
			here[p.Instance]++
		}
	}
	best := ""
	for instance, replica := range s.replicas {
		if best == "" || cmp.Or(
			compareFlags(replica.Draining, s.replicas[best].Draining),
			cmp.Compare(here[best], here[instance]),
			cmp.Compare(len(s.pins[instance]), len(s.pins[best])),
			cmp.Compare(instance, best),
		) < 0 {
			best = instance
		}
	}
	return best
}

// compareFlags puts false before true.
func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
