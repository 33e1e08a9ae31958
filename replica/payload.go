package replica

import (
	"encoding/binary"
	"errors"
)

// Payload is a value that clients exchange: raw JSON, and the attachments that placeholders in it stand for,
// `{"_placeholder":true,"num":N}` for attachment N. There are none but of binary values.
type Payload struct {
	JSON        []byte
	Attachments [][]byte
}

// Size is how many bytes the values have.
func (p Payload) Size() int {
	n := len(p.JSON)
	for _, a := range p.Attachments {
		n += len(a)
	}
	return n
}

// MaxAttachments is how many a payload may have: stock clients take no more.
const MaxAttachments = 10

// packed begins a packed payload with attachments. No JSON does.
const packed = 0x00

var errPayload = errors.New("malformed payload")

// Pack is the payload as one piece, to be stored and sent between replicas: JSON as it is, or, with attachments, a
// zero byte, their number, each with its length before it, as uvarints, and then the JSON.
func (p Payload) Pack() []byte {
	if len(p.Attachments) == 0 {
		return p.JSON
	}
	n := 2 + len(p.JSON)
	for _, a := range p.Attachments {
		n += binary.MaxVarintLen32 + len(a)
	}
	b := append(make([]byte, 0, n), packed)
	b = binary.AppendUvarint(b, uint64(len(p.Attachments)))
	for _, a := range p.Attachments {
		b = binary.AppendUvarint(b, uint64(len(a)))
		b = append(b, a...)
	}
	return append(b, p.JSON...)
}

// Packed reports whether a packed payload has attachments. Builds before events.Generation 3 know of none.
func Packed(b []byte) bool { return len(b) > 0 && b[0] == packed }

// Unpack is the inverse of Pack. The payload aliases b.
func Unpack(b []byte) (Payload, error) {
	if !Packed(b) {
		return Payload{JSON: b}, nil
	}
	count, used := binary.Uvarint(b[1:])
	if used <= 0 || count > MaxAttachments {
		return Payload{}, errPayload
	}
	rest := b[1+used:]
	p := Payload{Attachments: make([][]byte, 0, count)}
	for range count {
		n, used := binary.Uvarint(rest)
		if used <= 0 || n > uint64(len(rest)-used) {
			return Payload{}, errPayload
		}
		end := used + int(n)
		p.Attachments = append(p.Attachments, rest[used:end:end])
		rest = rest[end:]
	}
	p.JSON = rest
	return p, nil
}
