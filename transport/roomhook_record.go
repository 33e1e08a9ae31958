package transport

import (
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// The events that a room hook is told.
const (
	hookOpened    = "opened"
	hookMovedHere = "moved-here"
	hookMovedAway = "moved-away"
	hookClosed    = "closed"
)

// hookCall is one thing that the hook is told about a room: that an ownership has begun, or ended.
type hookCall struct {
	Event    string          `json:"event"`
	Instance string          `json:"instance"` // the owner
	URL      string          `json:"url,omitempty"`
	Token    events.Position `json:"token"` // of the ownership
	Former   string          `json:"former,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	At       time.Time       `json:"at"`
}

// hookRecord is what the hook was told about a room and what it still has to be told, in order. It is all that there is
// to know: whoever has taken it goes on where another one stopped.
//
// What is told is always beginnings and ends in turn, with growing tokens. An ownership that ended before anybody tried
// to tell its beginning is left out, so at most maxHookPending calls wait, however often a room moves.
type hookRecord struct {
	// Open is the beginning of the ownership that has not ended; nil for none.
	Open *hookCall `json:"open,omitempty"`
	// Pending are the calls that have not succeeded, the next one first.
	Pending []hookCall `json:"pending,omitempty"`
	// Tried says that the first of Pending may have arrived.
	Tried bool `json:"tried,omitempty"`
}

// maxHookPending is reached by an end that may have arrived, the next ownership's beginning and end, and the beginning
// of the one after that.
const maxHookPending = 4

func (r *hookRecord) empty() bool { return r.Open == nil && len(r.Pending) == 0 }

// latest is the greatest token that the record knows.
func (r *hookRecord) latest() (at events.Position) {
	if r.Open != nil {
		at = r.Open.Token
	}
	if n := len(r.Pending); n > 0 && at.Before(r.Pending[n-1].Token) {
		at = r.Pending[n-1].Token
	}
	return at
}

// begin has the hook told that an ownership has begun, after the end of the one before. opened is since when the room
// is open: an ownership from before that ended by the room's closing. false: a later one is known.
func (r *hookRecord) begin(c hookCall, opened events.Position, now time.Time) bool {
	if latest := r.latest(); !latest.Before(c.Token) {
		return r.Open != nil && r.Open.Token == c.Token
	}
	if r.Open != nil {
		how := hookMovedAway
		if r.Open.Token.Before(opened) {
			how = hookClosed
		}
		r.end(how, "", now)
	}
	c.Event, c.Former, c.At = hookOpened, "", now
	if n := len(r.Pending); n > 0 && r.Pending[n-1].Event == hookMovedAway {
		c.Event, c.Former = hookMovedHere, r.Pending[n-1].Instance
	}
	r.Open = &c
	r.Pending = append(r.Pending, c)
	return true
}

// close has the hook told that the room has ended, which had this token at the time. false: a later one is known.
func (r *hookRecord) close(token events.Position, reason string, now time.Time) bool {
	if token.Before(r.latest()) {
		return false
	}
	if r.Open != nil {
		if r.Open.Token != token {
			reason = "" // that of an ownership which the hook never heard of
		}
		r.end(hookClosed, reason, now)
	}
	return true
}

// end plans the end of the open ownership, or leaves it out altogether.
func (r *hookRecord) end(how, reason string, now time.Time) {
	open := *r.Open
	r.Open = nil
	last := len(r.Pending) - 1
	if untold := last >= 0 && r.Pending[last].Token == open.Token && (last > 0 || !r.Tried); untold {
		if open.Event == hookOpened {
			r.Pending = r.Pending[:last]
			return
		}
		// The end before it says that the room is going on elsewhere, so something has to follow: where that
		// can still be changed it is.
		if last > 0 && (last > 1 || !r.Tried) {
			r.Pending = r.Pending[:last]
			if before := &r.Pending[last-1]; how == hookClosed {
				before.Event, before.Reason = how, reason
			}
			return
		}
	}
	r.Pending = append(r.Pending, hookCall{
		Event: how, Instance: open.Instance, URL: open.URL, Token: open.Token, Reason: reason, At: now,
	})
}

// done removes the first pending call: it has succeeded.
func (r *hookRecord) done() {
	r.Pending = r.Pending[1:]
	r.Tried = false
}

// hookBeginning is what the state says of a room's present owner; ok is false when the room is not open.
func hookBeginning(s *projections.State, id string) (c hookCall, opened events.Position, ok bool) {
	room := s.Room(id)
	if room == nil || !room.Open {
		return hookCall{}, events.Position{}, false
	}
	owner, _ := s.Replica(room.Owner)
	c = hookCall{Instance: room.Owner, URL: owner.URL, Token: room.Pinned}
	return c, s.Version(events.RoomOpenKey(id)), true
}
