package transport

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/events"
)

// heard is what a receiver knows of one room, which drops what it has had: see docs/operations.md.
type heard struct {
	token events.Position // the greatest
	open  bool
	ended string // the last end, until the next beginning
	seen  map[string]bool
}

// take says what is wrong with a call, if anything.
func (h *heard) take(c hookCall) error {
	if h.seen == nil {
		h.seen = map[string]bool{}
	}
	id := c.Token.String() + c.Event
	if h.seen[id] {
		return nil
	}
	h.seen[id] = true
	switch begins := c.Event == hookOpened || c.Event == hookMovedHere; {
	case begins && h.open:
		return fmt.Errorf("%s %s begins while %s is open", c.Event, c.Token, h.token)
	case begins && !h.token.Before(c.Token):
		return fmt.Errorf("%s %s comes after %s", c.Event, c.Token, h.token)
	case c.Event == hookOpened && h.ended == hookMovedAway:
		return fmt.Errorf("opened %s after the room had moved away", c.Token)
	case c.Event == hookMovedHere && h.ended != hookMovedAway:
		return fmt.Errorf("moved-here %s after %q", c.Token, h.ended)
	case begins:
		h.open, h.token, h.ended = true, c.Token, ""
	case !h.open || h.token != c.Token:
		return fmt.Errorf("%s %s, but open is %v %s", c.Event, c.Token, h.open, h.token)
	default:
		h.open, h.ended = false, c.Event
	}
	return nil
}

// Whatever happens to a room and to the calls, what arrives is beginnings and ends in turn.
func TestHookRecordTellsInTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r hookRecord
		var receiver heard
		var now uint64
		var token, opened events.Position // of the room's present ownership; zero when it is closed
		deliver := func(arrives, succeeds bool) {
			if len(r.Pending) == 0 {
				return
			}
			r.Tried = true
			if arrives {
				if err := receiver.take(r.Pending[0]); err != nil {
					t.Fatal(err)
				}
				if succeeds {
					r.done()
				}
			}
		}
		plan := func() { // what the owner does when its turn comes
			if !token.IsZero() {
				r.begin(hookCall{Instance: fmt.Sprint("i", token.Ms), Token: token}, opened, time.Time{})
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now++
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0: // opened, or moved
				if token.IsZero() {
					opened = events.Position{Ms: now}
				}
				token = events.Position{Ms: now}
			case 1: // closed, and told so
				if !token.IsZero() {
					r.close(token, "closed", time.Time{})
					token = events.Position{}
				}
			case 2: // closed, and nobody says so
				token = events.Position{}
			case 3:
				plan()
			case 4: // the sweep
				if token.IsZero() && !r.empty() {
					r.close(r.latest(), "", time.Time{})
				}
			default:
				deliver(rapid.Bool().Draw(t, "arrives"), rapid.Bool().Draw(t, "succeeds"))
			}
			if len(r.Pending) > maxHookPending {
				t.Fatalf("%d calls wait, at most %d should", len(r.Pending), maxHookPending)
			}
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			r = hookRecord{}
			if err := json.Unmarshal(b, &r); err != nil {
				t.Fatal(err)
			}
		}
		// In the end all is told, and the receiver knows what is so.
		plan()
		if token.IsZero() && !r.empty() {
			r.close(r.latest(), "", time.Time{})
		}
		for len(r.Pending) > 0 {
			deliver(true, true)
		}
		if receiver.open != !token.IsZero() || receiver.open && receiver.token != token {
			t.Fatalf("the receiver has open %v %s, it is %s", receiver.open, receiver.token, token)
		}
		if !receiver.open && receiver.ended == hookMovedAway {
			t.Fatal("the last that the receiver heard is that the room had moved away")
		}
	})
}

func TestHookRecordRefusesWhatIsOver(t *testing.T) {
	var r hookRecord
	at := func(ms uint64) events.Position { return events.Position{Ms: ms} }
	if !r.begin(hookCall{Token: at(5)}, at(5), time.Time{}) || !r.begin(hookCall{Token: at(5)}, at(5), time.Time{}) {
		t.Error("the present ownership was refused")
	}
	if r.begin(hookCall{Token: at(4)}, at(4), time.Time{}) || r.close(at(4), "closed", time.Time{}) {
		t.Error("a former ownership changed the record")
	}
	if len(r.Pending) != 1 || r.Pending[0].Event != hookOpened {
		t.Errorf("%+v", r.Pending)
	}
}
