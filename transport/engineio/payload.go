package engineio

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
)

// Separator stands between the packets of a payload. It cannot occur inside one: JSON escapes it,
// and base64 has no such byte.
const Separator = '\x1e'

// ErrTooMany is returned by DecodePayload for a payload of more packets than allowed.
var ErrTooMany = errors.New("engine.io: too many packets in one payload")

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

// DecodePayload splits a body of HTTP long-polling into at most limit packets. The data of text
// packets aliases body; that of binary ones is decoded and its own.
func DecodePayload(body []byte, limit int) ([]Packet, error) {
	n := bytes.Count(body, []byte{Separator}) + 1
	if n > limit {
		return nil, ErrTooMany
	}
	packets := make([]Packet, 0, n)
	for {
		part, rest, more := bytes.Cut(body, []byte{Separator})
		p, err := decodePart(part)
		if err != nil {
			return nil, err
		}
		packets = append(packets, p)
		if !more {
			return packets, nil
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
