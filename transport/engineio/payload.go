package engineio

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

// Separator stands between the packets of a payload. It cannot occur inside one: JSON escapes it,
// and base64 has no such byte.
const Separator = '\x1e'

// AppendPayload adds the packets, as one body of HTTP long-polling, to dst.
func AppendPayload(dst []byte, packets ...Packet) []byte {
	for i, p := range packets {
		if i > 0 {
			dst = append(dst, Separator)
		}
		dst = p.Append(dst)
	}
	return dst
}

// EachPacket calls f with the packets of a body of HTTP long-polling, one by one, until f returns false. The data
// of text packets aliases body; that of binary ones is decoded and its own. An error ends it at the packet that
// is malformed: f has been called with those before.
func EachPacket(body []byte, f func(Packet) bool) error {
	for {
		part, rest, more := bytes.Cut(body, []byte{Separator})
		p, err := decodePart(part)
		if err != nil {
			return err
		}
		if !f(p) || !more {
			return nil
		}
		body = rest
	}
}

func decodePart(part []byte) (Packet, error) {
	if len(part) == 0 || part[0] != 'b' {
		return Decode(part)
	}
	data, err := base64.StdEncoding.Strict().AppendDecode(nil, part[1:])
	if err != nil {
		return Packet{}, fmt.Errorf("engine.io: decode binary packet: %w", err)
	}
	return Packet{Type: Message, Binary: true, Data: data}, nil
}

func appendBinary(dst, data []byte) []byte {
	dst = append(dst, 'b')
	return base64.StdEncoding.AppendEncode(dst, data)
}
