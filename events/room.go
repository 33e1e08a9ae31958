package events

import "encoding/json"

// Role is what a peer is in a room.
type Role string

// The roles. A room has one seat for a host and one for a guest; members and monitors are any number.
const (
	Host    Role = "host"
	Guest   Role = "guest"
	Member  Role = "member"
	Monitor Role = "monitor" // looks on only, and does not hold the room open
)

// Seated reports whether one peer of a room at most can have the role.
func (r Role) Seated() bool { return r == Host || r == Guest }

// RoomOpened opens a room and pins it to the replica of the first join or, while that one drains, to another. The
// position is the pin's fencing token.
type RoomOpened struct {
	Room     string `json:"room"`
	Instance string `json:"instance"`
}

// RoomJoined gives a peer its place in a room, or changes it: role, name and meta are as they are here, also where
// they are empty.
type RoomJoined struct {
	Room       string `json:"room"`
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
	Session    string `json:"session"`
	Role       Role   `json:"role"`
	// Was is the role that the peer had in this room until now, if it was in it.
	Was  Role            `json:"was,omitempty"`
	Name string          `json:"name,omitempty"`
	Meta json.RawMessage `json:"meta,omitempty"`
	// Unwatched are rooms that a former session of the peer monitored; it leaves them.
	Unwatched []string `json:"unwatched,omitempty"`
}

// RoomMoved is a join that ends the place of the peer in another room, where it was host or guest.
type RoomMoved struct {
	RoomJoined
	From     string `json:"from"`
	FromRole Role   `json:"fromRole"`
}

// RoomLeft ends the place of a peer in a room.
type RoomLeft struct {
	Room       string `json:"room"`
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
	Role       Role   `json:"role"`
	Reason     string `json:"reason"` // "left", "timeout"
}

// RoomSettingsChanged applies a merge patch (RFC 7396) to the settings of a room, which may not be open yet.
type RoomSettingsChanged struct {
	Room  string          `json:"room"`
	User  string          `json:"user"`
	Peer  string          `json:"peer"`
	Patch json.RawMessage `json:"patch"`
}

// RoomGuestChanged applies a merge patch to the guest state of a room.
type RoomGuestChanged struct {
	Room  string          `json:"room"`
	User  string          `json:"user"`
	Peer  string          `json:"peer"`
	Patch json.RawMessage `json:"patch"`
}

// RoomClosed ends a room: everybody in it leaves it, and its settings and guest state are no more.
type RoomClosed struct {
	Room   string `json:"room"`
	User   string `json:"user,omitempty"` // who closed it; nobody when its grace has passed
	Peer   string `json:"peer,omitempty"`
	Reason string `json:"reason"` // "closed", "empty", "unused"
}

func (RoomOpened) event()          {}
func (RoomJoined) event()          {}
func (RoomLeft) event()            {}
func (RoomSettingsChanged) event() {}
func (RoomGuestChanged) event()    {}
func (RoomClosed) event()          {}

// A room is several aggregates, so that what commutes does not conflict.

// RoomKey is written by every event of a room. Who reads it loses to any change of the room.
func RoomKey(room string) Aggregate { return aggregate("room", room) }

// RoomOpenKey exists while a room is open. It is read by whatever must not race with its closing.
func RoomOpenKey(room string) Aggregate { return aggregate("room-open", room) }

// RoomSeatKey is the seat of a room's host or guest.
func RoomSeatKey(room string, role Role) Aggregate { return aggregate("room-seat", room, string(role)) }

// RoomSettingsKey is the settings of a room.
func RoomSettingsKey(room string) Aggregate { return aggregate("room-settings", room) }

// RoomGuestKey is the guest state of a room.
func RoomGuestKey(room string) Aggregate { return aggregate("room-guest", room) }

func (e RoomOpened) Writes() []Aggregate {
	return []Aggregate{RoomKey(e.Room), RoomOpenKey(e.Room)}
}

func (e RoomJoined) Writes() []Aggregate {
	writes := append(make([]Aggregate, 0, 4), RoomKey(e.Room), PeerKey(e.User, e.Peer))
	if e.Role.Seated() {
		writes = append(writes, RoomSeatKey(e.Room, e.Role))
	}
	for _, room := range e.Unwatched {
		writes = append(writes, RoomKey(room))
	}
	return writes
}

func (e RoomMoved) Writes() []Aggregate { return append(e.RoomJoined.Writes(), RoomKey(e.From)) }

func (e RoomLeft) Writes() []Aggregate {
	return []Aggregate{RoomKey(e.Room), PeerKey(e.User, e.Peer)}
}

func (e RoomSettingsChanged) Writes() []Aggregate {
	return []Aggregate{RoomKey(e.Room), RoomSettingsKey(e.Room)}
}

func (e RoomGuestChanged) Writes() []Aggregate {
	return []Aggregate{RoomKey(e.Room), RoomGuestKey(e.Room)}
}

func (RoomClosed) Writes() []Aggregate { return nil }

func (RoomOpened) Ends() []Aggregate { return nil }

func (e RoomJoined) Ends() []Aggregate {
	if e.Was.Seated() && e.Was != e.Role {
		return []Aggregate{RoomSeatKey(e.Room, e.Was)}
	}
	return nil
}

func (e RoomMoved) Ends() []Aggregate {
	return append(e.RoomJoined.Ends(), RoomSeatKey(e.From, e.FromRole))
}

func (e RoomLeft) Ends() []Aggregate {
	if e.Role.Seated() {
		return []Aggregate{RoomSeatKey(e.Room, e.Role)}
	}
	return nil
}

func (RoomSettingsChanged) Ends() []Aggregate { return nil }
func (RoomGuestChanged) Ends() []Aggregate    { return nil }

func (e RoomClosed) Ends() []Aggregate {
	return []Aggregate{
		RoomKey(e.Room), RoomOpenKey(e.Room), RoomSeatKey(e.Room, Host), RoomSeatKey(e.Room, Guest),
		RoomSettingsKey(e.Room), RoomGuestKey(e.Room),
	}
}
