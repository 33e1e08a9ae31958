// Package transport carries Socket.IO connections: an Engine.IO session over a WebSocket, and the
// Socket.IO connection on it. It keeps the protocols' rules, bounds what waits for a client, and
// tells an App the life of each connection. It never drops a message silently, never blocks a
// sender on a slow client, and knows nothing of what events mean.
package transport

import (
	"context"
	"encoding/json"
	"errors"
)

// App is told the life of each Socket.IO connection. All calls about one Socket come one at a
// time and in order, except Connect, which runs in a goroutine of its own so that it may block;
// what the client sends meanwhile is kept and delivered after it. A panic in a call is logged and
// ends that one connection.
type App interface {
	// Connect admits the client or refuses it, with a *ConnectError where the client is to know
	// why. What it emits goes out before the answer to the client. The context ends when the
	// connection does. A nil auth means that the client sent none.
	Connect(ctx context.Context, s *Socket, auth json.RawMessage) (Admission, error)

	// Event must not block for long: it holds up all that this client sends. The args alias a
	// buffer that is the callee's from then on, as the attachments are. Placeholders in the args stand for
	// the attachments, and there is none without one; socketio.Extract takes them apart.
	Event(s *Socket, name string, args []json.RawMessage, attachments [][]byte, ack Ack)

	// Ack is the client's answer to the request id, or to one of an earlier connection.
	Ack(s *Socket, id uint64, args []json.RawMessage, attachments [][]byte)

	// Disconnected comes exactly once for every Socket whose Connect returned success, after its
	// last Event and Ack.
	Disconnected(s *Socket, reason Reason)
}

// Greeter is an App that has something to say to whom it has admitted.
type Greeter interface {
	// Connected comes once the answer to the client is on its way, before its first Event and Ack.
	Connected(s *Socket)
}

// Admission is the identity that a client is answered with.
type Admission struct {
	SID string
	PID string // private, for recovery; left out of the answer when empty
}

// ConnectError refuses a client: CONNECT_ERROR {message, data:{code}}.
type ConnectError struct {
	Message string
	Code    string
}

func (e *ConnectError) Error() string { return e.Message }

// ErrComeBack refuses a client for now, from Connect: the transport is closed without a word, so that a stock
// client tries again by itself, here or elsewhere. After a CONNECT_ERROR it would not.
var ErrComeBack = errors.New("come back")

// Reason says why a connection ended.
type Reason string

// The reasons.
const (
	ReasonClient         Reason = "client"          // the client left the namespace
	ReasonServer         Reason = "server"          // the App ended it, or failed
	ReasonTransportClose Reason = "transport-close" // the client closed the transport
	ReasonTransportError Reason = "transport-error"
	ReasonPingTimeout    Reason = "ping-timeout"
	ReasonConnectTimeout Reason = "connect-timeout" // no namespace was joined in time
	ReasonOutboxFull     Reason = "outbox-full"     // the client reads too slowly
	ReasonProtocolError  Reason = "protocol-error"
	ReasonShutdown       Reason = "shutdown"
	ReasonTooMany        Reason = "too-many-connections"
	ReasonReplaced       Reason = "replaced" // a newer connection of the same peer
)

// closeCode is the WebSocket close code that goes with the reason.
func (r Reason) closeCode() int {
	switch r {
	case ReasonOutboxFull, ReasonTooMany:
		return 1013 // try again later
	case ReasonProtocolError:
		return 1002
	case ReasonShutdown, ReasonPingTimeout:
		return 1001 // going away
	case ReasonTransportError:
		return 1011
	}
	return 1000
}
