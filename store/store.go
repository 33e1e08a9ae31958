// Package store is where Holdfast's state lasts: the log, the leases, the inboxes and the records of
// repeatable calls, in Redis (or in the embedded one, which is the same code against miniredis).
//
// It promises that an append is checked and written in one atomic step, and that every answer it gives is
// what Redis said: it never retries a write, never guesses, and never decides. An error that is not one of
// its sentinels leaves a write ambiguous.
package store

import (
	"errors"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// ErrUnavailable wraps every error of the connection to Redis. A write that ended with it may or may not
// have been carried out.
var ErrUnavailable = errors.New("store unavailable")

// ErrRefused wraps, beside ErrUnavailable, what Redis refused because of its own state (full, read-only, loading):
// such a write was certainly not carried out.
var ErrRefused = errors.New("refused by the store")

// ErrLeaseHeld is returned by AcquireLease while another incarnation of the instance holds the lease.
var ErrLeaseHeld = errors.New("lease is held by another incarnation")

// ErrLeaseLost is returned by Beat when the lease belongs to another incarnation.
var ErrLeaseLost = errors.New("lease was taken by another incarnation")

// ErrNoGroup is returned by ReadGroup when the log or the consumer group is not there (any more).
var ErrNoGroup = errors.New("consumer group does not exist")

// ErrNoInbox is returned by Send when the target's inbox does not exist: the message certainly did not leave.
var ErrNoInbox = errors.New("inbox does not exist")

// ErrNotOwner is returned by SentCall when the call is not running or another replica runs it.
var ErrNotOwner = errors.New("call is not the replica's own")

// ErrNotKeeper is returned by WriteSnapshot when another replica is the keeper, or none.
var ErrNotKeeper = errors.New("another replica keeps the log")

// ErrDamaged is returned for a stored entry that lacks a part or has one that cannot be read.
var ErrDamaged = errors.New("damaged entry")

// Check is one element of a read set: the aggregate must still be at Version. The zero Version means that it
// must not exist.
type Check struct {
	Aggregate events.Aggregate
	Version   events.Position
}

// Append is one command's decision: written as a whole, or not at all.
type Append struct {
	Command ulid.ULID
	Checks  []Check
	Events  []events.Event
	// Generation is that of the oldest replica that will read the events; zero for this build's own.
	Generation int
}

// Fence names the appending replica and the position of its ReplicaStarted. An append is refused as Fenced
// when IncarnationKey(Instance) is not at that position. The zero Position skips the check: only the append
// that starts an incarnation may do so.
type Fence struct {
	Instance string
	Started  events.Position
}

// Verdict is the fate of one Append of a group. Exactly one of the three holds: Positions is set (written),
// Conflict is set (refused by a check), or Fenced is true (refused, as will be all later ones).
type Verdict struct {
	Positions []events.Position // one for each event
	Conflict  *Conflict
	Fenced    bool
}

// Conflict says which check failed and where that aggregate stands now (zero: it does not exist).
type Conflict struct {
	Check
	Actual events.Position
}

// Head is the end of the log: the last entry's position and token, zero for an empty log.
type Head struct {
	Position events.Position
	Token    ulid.ULID
}

// Inbox names the stream through which one incarnation of a replica gets messages. Epoch is the ms part of
// all its ids; their sequence parts are dense.
type Inbox struct {
	Instance    string
	Incarnation string // ULID
	Partition   int    // an incarnation has one in each; calls go through that of partition 0
}

// Message is one entry of an inbox. Seq counts from the inbox's creation without holes; a hole is a loss.
type Message struct {
	Seq  uint64
	Body []byte
}

// Beat is what one heartbeat learned.
type Beat struct {
	Now    time.Time                // Redis's clock
	Left   map[string]time.Duration // of each instance asked for that has a lease: how long that lasts
	Head   Head                     // end of the log
	Lag    int64                    // entries in the own inbox
	Healed bool                     // the own lease or inbox was missing and has been made again
	Secret string                   // as Store.Secret has it; empty: there is none
}

// CallKey names a repeatable call: the id that its caller made, within the user.
type CallKey struct {
	User string
	ID   string
}

// AckKey names a request that went out to a peer: the ack that the peer sends back carries the id.
type AckKey struct {
	User, Peer string
	ID         uint32
}

// CallRecord is the shared record of a repeatable call.
type CallRecord struct {
	Owner  Inbox  // the replica that runs it
	Method string // a repeated call must name the same
	Target string // opaque to the store: where the request was sent; empty before it was
	Done   bool
	Result []byte // when Done
}
