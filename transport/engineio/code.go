package engineio

import (
	"encoding/json"
	"net/http"
)

// Code tells a client why its HTTP request was refused.
type Code int

// The codes of the protocol.
const (
	TransportUnknown Code = iota
	SessionUnknown
	BadHandshakeMethod
	BadRequest
	Forbidden
	UnsupportedVersion
)

var codeMessages = [...]string{
	"Transport unknown",
	"Session ID unknown",
	"Bad handshake method",
	"Bad request",
	"Forbidden",
	"Unsupported protocol version",
}

// String is the message that goes with the code.
func (c Code) String() string {
	if c >= 0 && int(c) < len(codeMessages) {
		return codeMessages[c]
	}
	return "Unknown error"
}

// Status is the HTTP status of the refusal.
func (c Code) Status() int {
	if c == Forbidden {
		return http.StatusForbidden
	}
	return http.StatusBadRequest
}

// Body is the JSON body of the refusal.
func (c Code) Body() []byte {
	b, err := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{int(c), c.String()})
	if err != nil {
		panic(err) // an integer and a string always marshal
	}
	return b
}
