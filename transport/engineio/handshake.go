package engineio

import (
	"encoding/json"
	"fmt"
)

// Handshake is the data of the open packet. The times are in milliseconds, MaxPayload in bytes.
type Handshake struct {
	SID          string   `json:"sid"`
	Upgrades     []string `json:"upgrades"`
	PingInterval int64    `json:"pingInterval"`
	PingTimeout  int64    `json:"pingTimeout"`
	MaxPayload   int      `json:"maxPayload"`
}

// Append adds the open packet to dst.
func (h Handshake) Append(dst []byte) []byte {
	if h.Upgrades == nil {
		h.Upgrades = []string{} // clients read an array, never null
	}
	data, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	return Packet{Type: Open, Data: data}.Append(dst)
}

// DecodeHandshake reads the data of an open packet.
func DecodeHandshake(data []byte) (Handshake, error) {
	var h Handshake
	if err := json.Unmarshal(data, &h); err != nil {
		return Handshake{}, fmt.Errorf("engine.io: decode handshake: %w", err)
	}
	return h, nil
}
