package relay

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"

	"github.com/oklog/ulid/v2"

	"holdfast/replica"
)

// newID makes the id of a call whose caller gave none.
func newID() string {
	var id ulid.ULID
	if err := id.SetTime(ulid.Now()); err != nil {
		panic(err) // in the year 10889
	}
	binary.BigEndian.PutUint16(id[6:], uint16(rand.Uint32()))
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return id.String()
}

// requestBody is the request as its handler gets it, packed. Numbers of attachments stay what they are.
func requestBody(method string, params replica.Payload, id string) []byte {
	text := requestText(method, params.JSON, id)
	if len(params.Attachments) == 0 {
		return text
	}
	return replica.Payload{JSON: text, Attachments: params.Attachments}.Pack()
}

func requestText(method string, params []byte, id string) []byte {
	b := make([]byte, 0, len(method)+len(params)+len(id)+32)
	b = append(b, `{"method":`...)
	b = appendString(b, method)
	if params != nil {
		b = append(b, `,"params":`...)
		b = append(b, params...)
	}
	b = append(b, `,"id":`...)
	b = appendString(b, id)
	return append(b, '}')
}

func cancelBody(id string) []byte {
	return append(appendString([]byte(`{"id":`), id), '}')
}

// appendString appends s as JSON.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s)
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
