package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What replicas say to each other through their inboxes. An entry of an inbox is one or more envelopes, one after
// the other. An envelope is one byte of kind, one uvarint Number, and five strings and the body, each with its
// length as a uvarint before it. Kinds of a newer build are skipped by older ones.
type envelope struct {
	Kind       kind
	Number     uint64 // the ack id, or the number of a joined call
	User, Peer string // whose request or answer it is: the peer of the handler
	Connection string // of the handler, as the sender knew it
	From       string // instance of the sender, where an answer is wanted
	ID         string // request id, for a cancel
	Body       []byte // request or answer, a packed replica.Payload
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

// size is at least what append appends.
func (e *envelope) size() int {
	return 1 + 6*binary.MaxVarintLen32 + binary.MaxVarintLen64 +
		len(e.User) + len(e.Peer) + len(e.Connection) + len(e.From) + len(e.ID) + len(e.Body)
}

func (e *envelope) append(b []byte) []byte {
	b = append(b, byte(e.Kind))
	b = binary.AppendUvarint(b, e.Number)
	for _, s := range [...]string{e.User, e.Peer, e.Connection, e.From, e.ID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Body)))
	return append(b, e.Body...)
}

// decodeEnvelope reads the first envelope of b and returns what comes after it. Body aliases b.
func decodeEnvelope(b []byte) (e envelope, rest []byte, err error) {
	if len(b) == 0 {
		return envelope{}, nil, fmt.Errorf("%w: empty", errEnvelope)
	}
	number, used := binary.Uvarint(b[1:])
	if used <= 0 {
		return envelope{}, nil, fmt.Errorf("%w: number", errEnvelope)
	}
	e.Kind, e.Number = kind(b[0]), number
	strings := b[1+used:]
	rest = strings
	var ends, sizes [5]int
	for i := range ends {
		var part []byte
		if part, rest, err = cut(rest); err != nil {
			return envelope{}, nil, err
		}
		ends[i], sizes[i] = len(strings)-len(rest), len(part)
	}
	body, rest, err := cut(rest)
	if err != nil {
		return envelope{}, nil, err
	}
	if len(body) > 0 {
		e.Body = body
	}
	all := string(strings[:ends[4]]) // one for all five
	for i, field := range [...]*string{&e.User, &e.Peer, &e.Connection, &e.From, &e.ID} {
		*field = all[ends[i]-sizes[i] : ends[i]]
	}
	return e, rest, nil
}

func cut(b []byte) (part, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, fmt.Errorf("%w: cut short", errEnvelope)
	}
	return b[used : used+int(n)], b[used+int(n):], nil
}
