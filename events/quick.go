package events

import (
	"strings"
	"unsafe"
)

// encoding/json takes most of the time of a fold of a long log. What Encode writes is simpler than JSON may be: one
// object, no spaces, names that are known, strings without escapes. quick reads that form and no other: of
// everything else it says so, and encoding/json has the word. A fuzz test holds the two to the same answers.

// value is one member of the object.
type value struct {
	text string // of a string; it is the data itself, to be cloned
	list []string
	kind byte // 's' string, 'b' true, 'l' list of one string at least
}

// quickly is an event type that takes its members one by one; false for a member that it does not take.
type quickly interface {
	take(name string, v value) bool
}

func quick(data []byte, into quickly) bool {
	if len(data) < 2 || data[0] != '{' {
		return false
	}
	s := unsafe.String(unsafe.SliceData(data), len(data)) // only looked at while data is the caller's
	if s == "{}" {
		return true
	}
	for i := 1; ; i++ {
		name, at, ok := quickString(s, i)
		if !ok || at >= len(s) || s[at] != ':' {
			return false
		}
		var v value
		if v, i, ok = quickValue(s, at+1); !ok || !into.take(name, v) || i >= len(s) {
			return false
		}
		switch s[i] {
		case ',':
		case '}':
			return i == len(s)-1
		default:
			return false
		}
	}
}

// quickString reads a string at i, and gives where it goes on behind it.
func quickString(s string, i int) (text string, after int, ok bool) {
	if i >= len(s) || s[i] != '"' {
		return "", 0, false
	}
	begin := i + 1
	for i = begin; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[begin:i], i + 1, true
		case c == '\\' || c < 0x20 || c >= 0x80: // an escape, or what may not be UTF-8
			return "", 0, false
		}
	}
	return "", 0, false
}

func quickValue(s string, i int) (v value, after int, ok bool) {
	if i >= len(s) {
		return v, 0, false
	}
	switch c := s[i]; {
	case c == '"':
		v.kind = 's'
		v.text, after, ok = quickString(s, i)
		return v, after, ok
	case c == 't' && len(s) >= i+4 && s[i:i+4] == "true":
		v.kind = 'b'
		return v, i + 4, true
	case c == '[':
		v.kind = 'l'
		v.list = []string{}
		for i++; ; i++ {
			text, at, ok := quickString(s, i)
			if !ok || at >= len(s) || s[at] != ',' && s[at] != ']' {
				return v, 0, false
			}
			v.list = append(v.list, strings.Clone(text))
			if i = at; s[i] == ']' {
				return v, i + 1, true
			}
		}
	}
	return v, 0, false
}

func (v value) str(into *string) bool {
	if v.kind != 's' {
		return false
	}
	*into = strings.Clone(v.text)
	return true
}

// role takes one of the known ones without an allocation.
func (v value) role(into *Role) bool {
	for _, known := range [...]Role{Member, Monitor, Host, Guest} {
		if v.kind == 's' && v.text == string(known) {
			*into = known
			return true
		}
	}
	return v.str((*string)(into))
}

func (v value) yes(into *bool) bool {
	if v.kind != 'b' {
		return false
	}
	*into = true
	return true
}

// The events that make up a log by number. The others are few.

func (e *PeerConnected) take(name string, v value) bool {
	switch name {
	case "user":
		return v.str(&e.User)
	case "peer":
		return v.str(&e.Peer)
	case "connection":
		return v.str(&e.Connection)
	case "instance":
		return v.str(&e.Instance)
	case "session":
		return v.str(&e.Session)
	case "recovery":
		return v.str(&e.Recovery)
	case "recovered":
		return v.yes(&e.Recovered)
	case "anonymous":
		return v.yes(&e.Anonymous)
	}
	return false
}

func (e *PeerDisconnected) take(name string, v value) bool {
	switch name {
	case "user":
		return v.str(&e.User)
	case "peer":
		return v.str(&e.Peer)
	case "connection":
		return v.str(&e.Connection)
	case "reason":
		return v.str(&e.Reason)
	case "sessionEnded":
		return v.yes(&e.SessionEnded)
	}
	return false
}

func (e *PeerGone) take(name string, v value) bool {
	return takePeer(name, v, &e.User, &e.Peer, &e.Connection)
}

func (e *RegistrationsLapsed) take(name string, v value) bool {
	return takePeer(name, v, &e.User, &e.Peer, &e.Connection)
}

func (e *PeerForgotten) take(name string, v value) bool {
	if name == "methods" && v.kind == 'l' {
		e.Methods = v.list
		return true
	}
	return takePeer(name, v, &e.User, &e.Peer, &e.Connection)
}

func takePeer(name string, v value, user, peer, connection *string) bool {
	switch name {
	case "user":
		return v.str(user)
	case "peer":
		return v.str(peer)
	case "connection":
		return v.str(connection)
	}
	return false
}

func (e *MethodRegistered) take(name string, v value) bool {
	switch name {
	case "user":
		return v.str(&e.User)
	case "method":
		return v.str(&e.Method)
	case "peer":
		return v.str(&e.Peer)
	case "session":
		return v.str(&e.Session)
	case "connection":
		return v.str(&e.Connection)
	case "delivery":
		return v.str((*string)(&e.Delivery))
	}
	return false
}

func (e *MethodUnregistered) take(name string, v value) bool {
	switch name {
	case "user":
		return v.str(&e.User)
	case "method":
		return v.str(&e.Method)
	case "peer":
		return v.str(&e.Peer)
	case "session":
		return v.str(&e.Session)
	case "reason":
		return v.str(&e.Reason)
	}
	return false
}

func (e *RoomJoined) take(name string, v value) bool {
	switch name {
	case "room":
		return v.str(&e.Room)
	case "session":
		return v.str(&e.Session)
	case "role":
		return v.role(&e.Role)
	case "was":
		return v.role(&e.Was)
	case "name":
		return v.str(&e.Name)
	case "unwatched":
		e.Unwatched = v.list
		return v.kind == 'l'
	}
	return takePeer(name, v, &e.User, &e.Peer, &e.Connection) // meta is for encoding/json
}

func (e *RoomMoved) take(name string, v value) bool {
	switch name {
	case "from":
		return v.str(&e.From)
	case "fromRole":
		return v.role(&e.FromRole)
	}
	return e.RoomJoined.take(name, v)
}

func (e *RoomLeft) take(name string, v value) bool {
	switch name {
	case "room":
		return v.str(&e.Room)
	case "role":
		return v.role(&e.Role)
	case "reason":
		return v.str(&e.Reason)
	}
	return takePeer(name, v, &e.User, &e.Peer, &e.Connection)
}

func (e *RoomOpened) take(name string, v value) bool {
	switch name {
	case "room":
		return v.str(&e.Room)
	case "instance":
		return v.str(&e.Instance)
	}
	return false
}
