package commands

import "holdfast/events"

// Role is what a peer is in a room.
type Role = events.Role

// The roles.
const (
	Host    = events.Host
	Guest   = events.Guest
	Monitor = events.Monitor
	Member  = events.Member
)
