// Package engineio is the codec of Engine.IO v4: packets, the handshake, the errors of a refused
// request and the payloads of HTTP long-polling. It does no I/O and keeps no state.
package engineio

import "errors"

// Version is the value of the EIO query parameter that this package speaks.
const Version = "4"

// Type is what a packet is for; on the wire it is one ASCII digit.
type Type byte

// The packet types, in the order of their digits.
const (
	Open Type = iota
	Close
	Ping
	Pong
	Message
	Upgrade
	Noop
)

var typeNames = [...]string{"open", "close", "ping", "pong", "message", "upgrade", "noop"}

// String is the protocol's name of the type.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "unknown"
}

// Packet is one Engine.IO packet. Binary packets are always messages.
type Packet struct {
	Type   Type
	Binary bool
	Data   []byte
}

// Errors of Decode and EachPacket. Either ends the session.
var (
	ErrEmpty = errors.New("engine.io: empty packet")
	ErrType  = errors.New("engine.io: unknown packet type")
)

// Decode reads the packet of one WebSocket text frame. Data aliases text.
// A binary frame is not decoded: all of it is the data of a message.
func Decode(text []byte) (Packet, error) {
	if len(text) == 0 {
		return Packet{}, ErrEmpty
	}
	t := text[0] - '0'
	if int(t) >= len(typeNames) {
		return Packet{}, ErrType
	}
	return Packet{Type: Type(t), Data: text[1:]}, nil
}

// Append adds the textual form of the packet to dst: a text frame, or one part of a payload.
// For a binary packet that is the polling form, `b` and base64.
func (p Packet) Append(dst []byte) []byte {
	if p.Binary {
		return appendBinary(dst, p.Data)
	}
	dst = append(dst, '0'+byte(p.Type))
	return append(dst, p.Data...)
}
