package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What replicas say to each other through their inboxes. An envelope is one byte of kind, one uvarint Number,
// and five strings and the body, each with its length as a uvarint before it. Kinds of a newer build are
// skipped by older ones.
type envelope struct {
	Kind       kind
	Number     uint64 // the ack id, or the number of a joined call
	User, Peer string // whose request or answer it is: the peer of the handler
	Connection string // of the handler, as the sender knew it
	From       string // instance of the sender, where an answer is wanted
	ID         string // request id, for a cancel
	Body       []byte // request or answer, raw JSON
}

type kind byte

const (
	kindRequest     kind = 1 // deliver Body to Connection with ack id Number
	kindAnswer      kind = 2 // the peer has acknowledged Number with Body
	kindUndelivered kind = 3 // the request Number certainly did not leave for Connection
	kindCancel      kind = 4 // tell Connection that the caller of request ID, which has ack id Number, is gone
	kindJoined      kind = 5 // the outcome, Body, of the call that call Number has joined
	kindQuery       kind = 6 // is request Number still with Connection?
	kindUnknown     kind = 7 // answer to kindQuery: it is not
)

var errEnvelope = errors.New("malformed envelope")

func (e envelope) encode() []byte {
	size := 1 + 7*binary.MaxVarintLen32 + binary.MaxVarintLen64 +
		len(e.User) + len(e.Peer) + len(e.Connection) + len(e.From) + len(e.ID) + len(e.Body)
	b := make([]byte, 0, size)
	b = append(b, byte(e.Kind))
	b = binary.AppendUvarint(b, e.Number)
	for _, s := range [...]string{e.User, e.Peer, e.Connection, e.From, e.ID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Body)))
	return append(b, e.Body...)
}

// decodeEnvelope reads an envelope. Its Body aliases b.
func decodeEnvelope(b []byte) (envelope, error) {
	if len(b) == 0 {
		return envelope{}, fmt.Errorf("%w: empty", errEnvelope)
	}
	e := envelope{Kind: kind(b[0])}
	b = b[1:]
	n, used := binary.Uvarint(b)
	if used <= 0 {
		return envelope{}, fmt.Errorf("%w: number", errEnvelope)
	}
	e.Number, b = n, b[used:]
	for _, field := range [...]*string{&e.User, &e.Peer, &e.Connection, &e.From, &e.ID} {
		part, rest, err := cut(b)
		if err != nil {
			return envelope{}, err
		}
		*field, b = string(part), rest
	}
	body, rest, err := cut(b)
	if err != nil {
		return envelope{}, err
	}
	if len(rest) != 0 {
		return envelope{}, fmt.Errorf("%w: %d bytes after its end", errEnvelope, len(rest))
	}
	if len(body) > 0 {
		e.Body = body
	}
	return e, nil
}

func cut(b []byte) (part, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, fmt.Errorf("%w: cut short", errEnvelope)
	}
	return b[used : used+int(n)], b[used+int(n):], nil
}
