package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// asked is the thing whose history is told.
type asked struct {
	kind  string // "peer", "method", "replica", "room"
	names []string
}

func parseAsked(text string) (asked, error) {
	kind, names := events.Aggregate(text).Parts()
	a := asked{kind: kind, names: names}
	if kind == "incarnation" {
		a.kind = "replica"
	}
	if want := map[string]int{"peer": 2, "method": 2, "replica": 1, "room": 1}[a.kind]; want == 0 || want != len(names) || slices.Contains(names, "") {
		return asked{}, fmt.Errorf("%q: want peer:USER/PEER, method:USER/METHOD, room:ROOM or replica:INSTANCE (/ and %% within a name are written %%2F and %%25)", text)
	}
	return a, nil
}

// is says whether the name is the thing's own.
func (a asked) is(name string) bool {
	other, err := parseAsked(name)
	return err == nil && other.kind == a.kind && slices.Equal(other.names, a.names)
}

// in finds the thing in a state; nil when it is not there.
func (a asked) in(s *projections.State) thing {
	switch a.kind {
	case "peer":
		if p, ok := s.Peer(projections.PeerID{User: a.names[0], Peer: a.names[1]}); ok {
			return viewPeer(s, p)
		}
	case "method":
		if r, ok := s.Registration(projections.MethodID{User: a.names[0], Method: a.names[1]}); ok {
			return viewRegistration(s, r)
		}
	case "replica":
		if r, ok := s.Replica(a.names[0]); ok {
			return viewReplica(r)
		}
	case "room":
		if r := s.Room(a.names[0]); r != nil {
			return viewRoom(s, r)
		}
	}
	return nil
}

// namedBy says whether the entry itself is about the thing. A replica is not asked after for all that its clients do.
func (a asked) namedBy(e store.Entry) bool {
	about := aboutEntry(e)
	switch a.kind {
	case "peer":
		return about.User == a.names[0] && about.Peer == a.names[1]
	case "method":
		return about.User == a.names[0] && slices.Contains(about.Methods, a.names[1])
	case "room":
		return about.inRoom(a.names[0])
	}
	return about.Instance == a.names[0] && strings.HasPrefix(e.Type, "replica-")
}

// chapter is one event in the history of a thing.
type chapter struct {
	storedEntry
	AgeMs int64 `json:"ageMs"`
	// Named is false when the event does not name the thing: what it changed of it follows from something else.
	Named   bool     `json:"named"`
	Changes []change `json:"changes"`
}

// tellWhy gives every entry from a position on that is about the thing, or changed it. What the log adds up to is
// compared before and after each entry, so that no consequence is missed.
func tellWhy(ctx context.Context, src source, a asked, from, to events.Position, tell func(store.Entry, chapter) error) error {
	base, err := src.base(ctx, before(from))
	if err != nil {
		return err
	}
	f := folding{state: base}
	before := a.in(f.state)
	return src.each(ctx, base.Position.Next(), to, func(e store.Entry) error {
		count := a.counting(f.state, e)
		if err := f.apply(e); err != nil {
			return err
		}
		after := a.in(f.state)
		c := chapter{Named: a.namedBy(e), Changes: append(changes(before, after), count()...)}
		before = after
		if e.Position.Before(from) || !c.Named && len(c.Changes) == 0 {
			return nil
		}
		c.storedEntry = shown(e)
		c.AgeMs = src.now().Sub(e.Position.Time()).Milliseconds()
		return tell(e, c)
	})
}

// counting notes what hangs on a replica before an entry, and gives what of it has changed after the entry.
func (a asked) counting(s *projections.State, e store.Entry) func() []change {
	if a.kind != "replica" || !a.namedBy(e) {
		return func() []change { return nil }
	}
	peers := slices.Collect(s.PeersOn(a.names[0]))
	count := func() (connected, callable int) {
		for _, id := range peers {
			if p, ok := s.Peer(id); ok && p.Connected {
				connected++
			}
			for r := range s.Held(id) {
				if !r.Lapsed {
					callable++
				}
			}
		}
		return connected, callable
	}
	connected, callable := count()
	return func() []change {
		var all []change
		stillConnected, stillCallable := count()
		for _, c := range []struct {
			name        string
			before, now int
		}{{"peers connected", connected, stillConnected}, {"registrations of theirs", callable, stillCallable}} {
			if before, now := strconv.Itoa(c.before), strconv.Itoa(c.now); c.before != c.now {
				all = append(all, change{Field: c.name, Before: &before, After: &now})
			}
		}
		return all
	}
}

func (c chapter) print(w io.Writer, a asked, e store.Entry, p paint) {
	at := e.Position.Time()
	line := p.in(dim, fmt.Sprintf("%s  %s", clock(at), e.Position)) +
		fmt.Sprintf("  %s ago  ", age(time.Duration(c.AgeMs)*time.Millisecond)) + p.in(colourOf(e.Type), plain(e.Type))
	if about := subject(e); !a.is(about) {
		line += "  " + plain(about)
	}
	fmt.Fprintf(w, "%s  %s\n", line, details(e))
	fmt.Fprintf(w, "    by %s, command %s\n", plain(e.Replica), e.Cause)
	if len(c.Changes) > 0 {
		word := "so"
		if !c.Named {
			word = "hence"
		}
		fmt.Fprintf(w, "    %s  %s\n", word, c.describe())
	}
}

// describe tells what the event did to the thing. What an ended one was is told by the chapters before.
func (c chapter) describe() string {
	ended := slices.IndexFunc(c.Changes, func(c change) bool { return c.After == nil }) >= 0
	if !ended {
		return describe(c.Changes)
	}
	rest := slices.DeleteFunc(slices.Clone(c.Changes), func(c change) bool { return c.After == nil })
	return strings.TrimRight("it is no more  "+describe(rest), " ")
}
