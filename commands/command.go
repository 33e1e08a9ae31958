// Package commands is what may happen: imperative requests, and the decision which events they become.
//
// It promises that a decision is a pure function of the command and the state: time, ids and randomness are
// fields of the command. No events means that it is so already; an error means that it was refused and
// nothing is recorded. It never writes anything and never waits.
package commands

import (
	"fmt"

	"holdfast/events"
	"holdfast/projections"
)

// Command is a request to change something.
type Command interface {
	// Decide says what the command becomes in the given state. An error is a *Refusal.
	Decide(*projections.State) (Decision, error)
}

// Decision is the outcome of a command.
type Decision struct {
	// Reads is the read set: the aggregates whose versions must still be those of the state decided on. It
	// includes every aggregate that Events write or end and whose former state mattered.
	Reads []events.Aggregate
	// Events are to be appended together; none means that nothing needs to change.
	Events []events.Event
	// Doubt says that the decision rests on something that was not found, so that a replica which is behind
	// the log would decide wrongly: catch up with the log's head first, then decide again.
	Doubt bool
}

// Codes of refusals, as clients get them.
const (
	CodeBadRequest       = "BAD_REQUEST"
	CodeForbidden        = "FORBIDDEN"
	CodeTooLarge         = "TOO_LARGE"
	CodeTooMany          = "TOO_MANY"
	CodeRateLimited      = "RATE_LIMITED"
	CodeReplaced         = "REPLACED"
	CodeStoreUnavailable = "STORE_UNAVAILABLE"
	CodeConflict         = "CONFLICT"
)

// Refusal is a command's error: a code for programs and a text for people.
type Refusal struct {
	Code string
	Text string
	// Doubt is as in Decision.
	Doubt bool
	// Now is what besides a client gets to know with the code: how things stand instead. May be nil.
	Now map[string]any
}

func (r *Refusal) Error() string { return r.Text }

func refuse(code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Text: fmt.Sprintf(format, args...)}
}

func doubt(r *Refusal) *Refusal {
	r.Doubt = true
	return r
}

// Limits of names and counts. They keep a log entry small and one client's records bounded.
const (
	MaxNameLength     = 256  // bytes of a user, a peer id or a method name
	MaxMethodsPerPeer = 1000 // registrations of one peer
)

// CheckName refuses what cannot be a name or an id.
func CheckName(what, s string) error {
	if bad := checkName(what, s); bad != nil {
		return bad
	}
	return nil
}

// checkName refuses what cannot be an id: empty, too long, or with control characters.
func checkName(what, s string) *Refusal {
	if s == "" {
		return refuse(CodeBadRequest, "%s must not be empty", what)
	}
	if len(s) > MaxNameLength {
		return refuse(CodeBadRequest, "%s is longer than %d bytes", what, MaxNameLength)
	}
	for _, c := range s {
		if c < 0x20 || c == 0x7f || c == '�' {
			return refuse(CodeBadRequest, "%s must be UTF-8 text without control characters", what)
		}
	}
	return nil
}
