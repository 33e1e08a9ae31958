package events

// Role is what a peer is in a room.
type Role string

// The roles. A room has one seat for a host and one for a guest; monitors and members are any number.
const (
	Host    Role = "host"
	Guest   Role = "guest"
	Member  Role = "member"
	Monitor Role = "monitor" // looks on only, and does not hold the room open
)
