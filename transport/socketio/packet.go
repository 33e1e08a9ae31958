// Package socketio is the codec of Socket.IO v5, for both ends of a connection. JSON is checked
// and handed through as it came, never decoded and encoded again, so that strings stay exact.
// The package does no I/O, keeps no state and never panics on input.
package socketio

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"
)

// Type is what a packet is for; on the wire it is one ASCII digit.
type Type byte

// The packet types, in the order of their digits.
const (
	Connect Type = iota
	Disconnect
	Event
	Ack
	ConnectError
	BinaryEvent
	BinaryAck
)

var typeNames = [...]string{
	"connect", "disconnect", "event", "ack", "connect-error", "binary-event", "binary-ack",
}

// String is the name of the type.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "unknown"
}

const (
	// MaxID is the largest ack id: the largest integer that every client counts exactly.
	MaxID = 1 << 53
	// MaxAttachments is how many attachments a packet may have. The stock parser has the same limit, but stock
	// clients send more.
	MaxAttachments = 10
	// MaxAnnounced is how many binary frames may follow a packet. One with more than MaxAttachments is decoded, so
	// that its reader can count them off, refuse it and go on.
	MaxAnnounced = 10_000
)

// Packet is one Socket.IO packet without its attachments.
type Packet struct {
	Type        Type
	Namespace   string // "/" is the default one; empty is taken for it
	ID          uint64 // of the ack that is wanted or given
	HasID       bool
	Data        json.RawMessage // valid JSON of the shape that the type asks for, or nil
	Attachments int             // of the binary types only; at most MaxAnnounced
}

// Errors of Decode and DecodeFromClient. Each ends the connection.
var (
	ErrType        = errors.New("socket.io: unknown packet type")
	ErrUTF8        = errors.New("socket.io: invalid UTF-8")
	ErrAttachments = errors.New("socket.io: illegal number of attachments")
	ErrID          = errors.New("socket.io: illegal ack id")
	ErrJSON        = errors.New("socket.io: invalid JSON")
	ErrPayload     = errors.New("socket.io: payload does not fit the packet type")
	ErrReserved    = errors.New("socket.io: reserved event name")
	ErrDirection   = errors.New("socket.io: packet type is not for clients to send")
)

// Decode reads a packet that may come from either side. Data aliases text.
func Decode(text []byte) (Packet, error) {
	if len(text) == 0 {
		return Packet{}, ErrType
	}
	p := Packet{Type: Type(text[0] - '0'), Namespace: "/"}
	if int(p.Type) >= len(typeNames) {
		return Packet{}, ErrType
	}
	// Text frames reach us unchecked, and bad UTF-8 passed on would break other clients.
	if !utf8.Valid(text) {
		return Packet{}, ErrUTF8
	}
	rest := text[1:]
	var err error
	if p.Type == BinaryEvent || p.Type == BinaryAck {
		if p.Attachments, rest, err = cutAttachments(rest); err != nil {
			return Packet{}, err
		}
	}
	if len(rest) > 0 && rest[0] == '/' {
		var nsp []byte
		nsp, rest, _ = bytes.Cut(rest, []byte{','})
		if len(nsp) > 1 {
			p.Namespace = string(nsp)
		}
	}
	if p.ID, p.HasID, rest, err = cutID(rest); err != nil {
		return Packet{}, err
	}
	if len(rest) > 0 {
		end := scan(rest, 0)
		if end < 0 || skipSpace(rest, end) != len(rest) {
			return Packet{}, ErrJSON
		}
		p.Data = json.RawMessage(rest[:end])
	}
	if err := p.check(); err != nil {
		return Packet{}, err
	}
	return p, nil
}

// DecodeFromClient is Decode for a server: it also refuses what only a server may send, and
// events whose names clients keep for themselves.
func DecodeFromClient(text []byte) (Packet, error) {
	p, err := Decode(text)
	if err != nil {
		return Packet{}, err
	}
	switch p.Type {
	case ConnectError:
		return Packet{}, ErrDirection
	case Event, BinaryEvent:
		name, _, err := cutName(p.Data)
		if err != nil {
			return Packet{}, err
		}
		if reserved(name) {
			return Packet{}, ErrReserved
		}
	}
	return p, nil
}

// check holds the payload and the id against the type.
func (p Packet) check() error {
	first := byte(0)
	if len(p.Data) > 0 {
		first = p.Data[0]
	}
	switch p.Type {
	case Connect:
		if first != 0 && first != '{' {
			return ErrPayload
		}
	case Disconnect:
		if first != 0 {
			return ErrPayload
		}
	case ConnectError:
		if first != '{' && first != '"' {
			return ErrPayload
		}
	case Event, BinaryEvent:
		if first != '[' {
			return ErrPayload
		}
		switch c := p.Data[skipSpace(p.Data, 1)]; {
		case c == '"', c == '-', c >= '0' && c <= '9':
		default:
			return ErrPayload
		}
		return nil
	case Ack, BinaryAck:
		if first != '[' {
			return ErrPayload
		}
		if !p.HasID {
			return ErrID
		}
		return nil
	}
	if p.HasID {
		return ErrID
	}
	return nil
}

// cutAttachments reads `N-`.
func cutAttachments(b []byte) (int, []byte, error) {
	i := digits(b)
	if i == 0 || i > len("10000") || i == len(b) || b[i] != '-' {
		return 0, nil, ErrAttachments
	}
	n, err := strconv.Atoi(string(b[:i]))
	if err != nil || n > MaxAnnounced {
		return 0, nil, ErrAttachments
	}
	return n, b[i+1:], nil
}

// cutID reads the digits in front of the JSON, if any.
func cutID(b []byte) (uint64, bool, []byte, error) {
	i := digits(b)
	if i == 0 {
		return 0, false, b, nil
	}
	if i > 16 { // 2^53 has 16 digits
		return 0, false, nil, ErrID
	}
	var id uint64
	for _, c := range b[:i] {
		id = id*10 + uint64(c-'0')
	}
	if id > MaxID {
		return 0, false, nil, ErrID
	}
	return id, true, b[i:], nil
}

func digits(b []byte) int {
	i := 0
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

// reserved tells the names that the protocol keeps from applications.
func reserved(name []byte) bool {
	switch string(name) {
	case "connect", "connect_error", "disconnect", "disconnecting", "newListener", "removeListener":
		return true
	}
	return false
}
