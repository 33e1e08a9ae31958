package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"holdfast/replica"
	"holdfast/store"
)

// message is one message of a channel. In a history and in the inboxes it is
//
//	its length as a uvarint, one byte of form, channel, event and to, each with its length as a uvarint
//	before it, and the data
//
// Data without attachments has form 0 and is JSON as it is; with attachments it has form 1 and is packed. Forms of a
// newer build are passed over by older ones.
type message struct {
	Channel string // with the letter of its kind
	Event   string
	To      string          // of a room: for whom
	Data    replica.Payload // its JSON is the arguments of the event, with commas between; may be empty
}

const (
	plainForm  = 0
	binaryForm = 1
)

var errMessage = errors.New("malformed channel message")

func (m *message) encode() []byte {
	parts := [...]string{m.Channel, m.Event, m.To}
	form, data := byte(plainForm), m.Data.Pack()
	if len(m.Data.Attachments) > 0 {
		form = binaryForm
	}
	size := 1 + len(data)
	for _, s := range parts {
		size += uvarintLen(len(s)) + len(s)
	}
	b := make([]byte, 0, uvarintLen(size)+size)
	b = append(binary.AppendUvarint(b, uint64(size)), form)
	for _, s := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return append(b, data...)
}

func uvarintLen(n int) int {
	l := 1
	for ; n >= 0x80; n >>= 7 {
		l++
	}
	return l
}

// decodeMessage reads what encode made, and returns what comes after it. JSON without attachments aliases b. known is
// false for a form of a newer build.
func decodeMessage(b []byte) (m message, known bool, rest []byte, err error) {
	body, rest, err := cut(b)
	if err != nil || len(body) == 0 {
		return m, false, nil, fmt.Errorf("%w: length", errMessage)
	}
	form := body[0]
	if form > binaryForm {
		return m, false, rest, nil
	}
	body = body[1:]
	for _, into := range []*string{&m.Channel, &m.Event, &m.To} {
		var part []byte
		if part, body, err = cut(body); err != nil {
			return m, false, nil, fmt.Errorf("%w: %w", errMessage, err)
		}
		*into = string(part)
	}
	if form == plainForm {
		m.Data.JSON = body
		return m, true, rest, nil
	}
	// Outboxes keep attachments: they must not keep all that came along with them.
	if m.Data, err = replica.Unpack(bytes.Clone(body)); err != nil {
		return m, false, nil, fmt.Errorf("%w: data: %w", errMessage, err)
	}
	return m, true, rest, nil
}

// arrival is a message as an inbox has it.
type arrival struct {
	store.Mark
	message
	known bool
	alone bool // nothing else came with it: there is no backlog
}

// decodeArrival reads the first channel message of an inbox's entry, which begins with store.ChannelByte.
func decodeArrival(b []byte) (a arrival, rest []byte, err error) {
	const head = 1 + store.EpochLength
	end := -1
	if len(b) > head {
		end = bytes.IndexByte(b[head:], ' ')
	}
	if end < 0 {
		return a, nil, fmt.Errorf("%w: number", errMessage)
	}
	a.Epoch = string(b[1:head])
	number, token, _ := strings.Cut(string(b[head:head+end]), "-")
	if a.Seq, err = strconv.ParseUint(number, 10, 64); err != nil {
		return a, nil, fmt.Errorf("%w: number", errMessage)
	}
	its, err := strconv.ParseUint(token, 10, 32)
	if err != nil {
		return a, nil, fmt.Errorf("%w: token", errMessage)
	}
	a.Token = uint32(its)
	a.message, a.known, rest, err = decodeMessage(b[head+end+1:])
	return a, rest, err
}
