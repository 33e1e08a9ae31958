package commands

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/events"
	"holdfast/projections"
)

// check looks at the whole state for what must always hold.
func (h *history) check() {
	s := h.state
	slots := map[int]string{}
	for r := range s.Replicas() {
		if other, twice := slots[r.Slot]; twice {
			h.Fatalf("%s and %s share slot %d", r.Instance, other, r.Slot)
		}
		slots[r.Slot] = r.Instance
		if slot := s.Slot(r.Slot); !slot.Live || slot.Instance != r.Instance || slot.Incarnation != r.Incarnation {
			h.Fatalf("slot %d is %+v, its replica %+v", r.Slot, slot, r)
		}
		if s.Version(events.IncarnationKey(r.Instance)) != r.Started {
			h.Fatalf("the fence of %s is not at its start", r.Instance)
		}
	}
	on := map[projections.PeerID]string{}
	held := 0
	for p := range s.Peers() {
		if found, ok := s.PeerByRecovery(p.Recovery); !ok || found.PeerID != p.PeerID {
			h.Fatalf("the pid of %v leads to %v", p.PeerID, found.PeerID)
		}
		if p.Connected {
			on[p.PeerID] = p.Instance
			if _, ok := s.Replica(p.Instance); !ok {
				h.Fatalf("%v is connected to %s, which does not live", p.PeerID, p.Instance)
			}
		}
		for r := range s.Held(p.PeerID) {
			held++
			if full, ok := s.Registration(r.MethodID); !ok || full != r || r.Holder != p.PeerID {
				h.Fatalf("%v is said to hold %+v, which is %+v", p.PeerID, r, full)
			}
		}
		if next := NextDue(s, p.PeerID, historyGraces); !p.Connected && next.IsZero() {
			h.Fatalf("%v is away and nothing is ever due for it", p.PeerID)
		}
	}
	for r := range s.Replicas() {
		for id := range s.PeersOn(r.Instance) {
			if on[id] != r.Instance {
				h.Fatalf("%v stands at %s, and is at %q", id, r.Instance, on[id])
			}
			delete(on, id)
		}
	}
	if len(on) != 0 || held != s.RegistrationCount() {
		h.Fatalf("connected but at no replica: %v; %d registrations, %d with a holder", on, s.RegistrationCount(), held)
	}
	for i := 1; i <= 3; i++ {
		id := projections.MethodID{User: "u", Method: fmt.Sprintf("m%d", i)}
		if _, peer, a := s.Resolve(id); a == projections.Available && !peer.Connected {
			h.Fatalf("%v is available from a peer that is away", id)
		}
	}
	h.checkRooms()
}

// checkRooms compares what the rooms' indexes say with what a scan of all seats finds.
func (h *history) checkRooms() {
	s := h.state
	at := map[projections.PeerID][]string{}  // rooms of each peer
	place := map[projections.PeerID]string{} // where it is host or guest
	on := map[string][]string{}              // rooms of each owner
	exist := map[events.Aggregate]bool{}     // aggregates of rooms that there should be
	free := false                            // a replica lives that can take rooms
	for r := range s.Replicas() {
		free = free || !r.Draining
	}
	for room := range s.Rooms() {
		if s.Room(room.ID) != room {
			h.Fatalf("%s is not found by its name", room.ID)
		}
		exist[events.RoomKey(room.ID)] = true
		exist[events.RoomOpenKey(room.ID)] = room.Open
		exist[events.RoomSettingsKey(room.ID)] = room.Settings != ""
		exist[events.RoomGuestKey(room.ID)] = room.GuestState != ""
		if room.Version.Before(s.Version(events.RoomKey(room.ID))) {
			h.Fatalf("%s shows an older version than it has", room.ID)
		}
		if !room.Open {
			if len(room.Seats()) > 0 || room.Owner != "" || !room.Pinned.IsZero() || room.GuestState != "" || room.Unheld.IsZero() || room.Settings == "" {
				h.Fatalf("%s is not open and is %+v", room.ID, room)
			}
			continue
		}
		owner, lives := s.Replica(room.Owner)
		if room.Owner == "" || room.Pinned.IsZero() || free && (!lives || owner.Draining) {
			h.Fatalf("%s is pinned to %q since %s, which lives: %t, drains: %t", room.ID, room.Owner, room.Pinned, lives, owner.Draining)
		}
		on[room.Owner] = append(on[room.Owner], room.ID)
		held := 0
		seats := map[projections.PeerID]bool{}
		holders := map[Role]projections.PeerID{}
		for _, seat := range room.Seats() {
			if seats[seat.PeerID] || room.Seat(seat.PeerID) != seat {
				h.Fatalf("%s has %v twice, or not in its index", room.ID, seat.PeerID)
			}
			seats[seat.PeerID] = true
			p, known := s.Peer(seat.PeerID)
			if !known || p.Gone {
				h.Fatalf("%s has %v, which is gone", room.ID, seat.PeerID)
			}
			at[seat.PeerID] = append(at[seat.PeerID], room.ID)
			if seat.Role != Monitor {
				held++
			}
			if !seat.Role.Seated() {
				continue
			}
			if other, twice := holders[seat.Role]; twice {
				h.Fatalf("%v and %v are both %s of %s", other, seat.PeerID, seat.Role, room.ID)
			}
			holders[seat.Role] = seat.PeerID
			exist[events.RoomSeatKey(room.ID, seat.Role)] = true
			if holder := room.Holder(seat.Role); holder != seat {
				h.Fatalf("the %s of %s is %v, and found is %v", seat.Role, room.ID, seat, holder)
			}
			if other, twice := place[seat.PeerID]; twice {
				h.Fatalf("%v is host or guest of %s and of %s", seat.PeerID, other, room.ID)
			}
			place[seat.PeerID] = room.ID
		}
		if room.Seat(projections.PeerID{User: "u", Peer: "nobody"}) != nil {
			h.Fatalf("nobody is in %s", room.ID)
		}
		waits := held > 0 || !room.Held && len(room.Seats()) > 0 // monitors wait for those who will hold it
		if (held == 0) == room.Unheld.IsZero() || waits != RoomDue(room, historyGraces).IsZero() || held > 0 && !room.Held {
			h.Fatalf("%s is held by %d, and not since %s", room.ID, held, room.Unheld)
		}
		if len(room.Seats()) > h.limits.orDefault().PeersPerRoom {
			h.Fatalf("%s has %d peers", room.ID, len(room.Seats()))
		}
	}
	for p := range s.Peers() {
		var found []string
		for _, room := range s.RoomsOf(p.PeerID) {
			found = append(found, room.ID)
		}
		slices.Sort(at[p.PeerID])
		if !slices.Equal(found, at[p.PeerID]) {
			h.Fatalf("%v is in %v, and found in %v", p.PeerID, at[p.PeerID], found)
		}
		if len(found) > h.limits.orDefault().RoomsPerPeer {
			h.Fatalf("%v is in %v", p.PeerID, found)
		}
		if of := slices.Collect(s.PeersOf(p.User)); !slices.ContainsFunc(of, func(o projections.Peer) bool { return o == p }) || len(of) != s.PeerCount() {
			h.Fatalf("%v is not among the peers of its user: %v", p.PeerID, of)
		}
		delete(at, p.PeerID)
	}
	if len(at) > 0 {
		h.Fatalf("peers that do not exist are in rooms: %v", at)
	}
	for i := range 3 {
		instance := fmt.Sprintf("r%d", i+1)
		var found []string
		for room := range s.RoomsOn(instance) {
			found = append(found, room.ID)
		}
		slices.Sort(found)
		slices.Sort(on[instance])
		if !slices.Equal(found, on[instance]) || s.RoomCountOn(instance) != len(found) {
			h.Fatalf("%v are pinned to %s, and found are %v", on[instance], instance, found)
		}
	}
	for a := range s.Versions() {
		if strings.HasPrefix(string(a), "room") && !exist[a] {
			h.Fatalf("%s has a version and does not exist", a)
		}
		delete(exist, a)
	}
	for a, yes := range exist {
		if yes {
			h.Fatalf("%s exists and has no version", a)
		}
	}
}

// view is what clients can see of a state.
type view struct {
	rooms    map[string]projections.Room
	seats    map[string]map[projections.PeerID]seen
	peers    map[projections.PeerID]projections.Peer
	settings map[string]string
	replicas map[string]projections.Replica
}

type seen struct {
	projections.Card
	session string
}

func viewOf(s *projections.State) view {
	v := view{
		rooms: map[string]projections.Room{}, seats: map[string]map[projections.PeerID]seen{},
		peers: map[projections.PeerID]projections.Peer{}, settings: maps.Clone(s.Settings()), replicas: map[string]projections.Replica{},
	}
	for room := range s.Rooms() {
		v.rooms[room.ID] = *room
		seats := map[projections.PeerID]seen{}
		for _, seat := range room.Seats() {
			seats[seat.PeerID] = seen{s.Card(seat), seat.Session}
		}
		v.seats[room.ID] = seats
	}
	for p := range s.Peers() {
		v.peers[p.PeerID] = p
	}
	for r := range s.Replicas() {
		v.replicas[r.Instance] = r
	}
	return v
}

// compare finds out what a record has changed by comparing what could be seen before and after it, and requires that
// the changes told are these. It returns them as text.
func (h *history) compare(r events.Record, before, after view, told []projections.Change) []string {
	var want []projections.Change
	add := func(c projections.Change) {
		c.At = r.Position
		want = append(want, c)
	}
	for id, p := range after.peers {
		was, known := before.peers[id]
		if !known || was.Connection != p.Connection || was.Connected != p.Connected {
			var rooms []string
			for room, seats := range after.seats {
				if _, ok := seats[id]; ok {
					rooms = append(rooms, room)
				}
			}
			slices.Sort(rooms)
			add(projections.Change{Kind: projections.ConnectionChanged, Peer: presenceOf(p), Rooms: rooms})
		}
		if (!known || was.Gone) != p.Gone {
			add(projections.Change{Kind: projections.PresenceChanged, Peer: presenceOf(p)})
		}
	}
	for key := range union(before.settings, after.settings) {
		if before.settings[key] != after.settings[key] {
			add(projections.Change{Kind: projections.SettingsChanged, Key: key, Value: after.settings[key]})
		}
	}
	for id := range union(before.rooms, after.rooms) {
		was := before.rooms[id]
		room, stays := after.rooms[id]
		n := len(want)
		note := func(kind projections.ChangeKind, c projections.Change) {
			c.Kind, c.Room, c.Previous = kind, id, was.Version
			add(c)
		}
		if !stays {
			note(projections.RoomChangedClosed, projections.Change{Owner: was.Owner, Pinned: was.Pinned})
			continue
		}
		if was.Owner != room.Owner || was.Pinned != room.Pinned {
			h.mayMove(r, id, was, room, before, after)
			note(projections.RoomChangedPin, projections.Change{Owner: room.Owner, Former: was.Owner, Pinned: room.Pinned, Unpinned: was.Pinned})
		}
		if was.Settings != room.Settings {
			note(projections.RoomChangedSettings, projections.Change{Value: room.Settings})
		}
		if was.GuestState != room.GuestState {
			note(projections.RoomChangedGuest, projections.Change{Value: room.GuestState})
		}
		for peer, seat := range after.seats[id] {
			old, sat := before.seats[id][peer]
			switch {
			case !sat, old.Role != seat.Role, old.Name != seat.Name, old.Meta != seat.Meta, old.session != seat.session:
				note(projections.RoomChangedJoined, projections.Change{Peer: seat.Card})
			case old.Connected && !seat.Connected:
				note(projections.RoomChangedAway, projections.Change{Peer: seat.Card})
			case !old.Connected && seat.Connected:
				note(projections.RoomChangedBack, projections.Change{Peer: seat.Card})
			}
		}
		for peer, seat := range before.seats[id] {
			if _, sits := after.seats[id][peer]; !sits {
				note(projections.RoomChangedLeft, projections.Change{Peer: seat.Card})
			}
		}
		if changed := len(want) > n; changed != (room.Version == r.Position) || !changed && room.Version != was.Version {
			h.Fatalf("%T: %s has changed: %t, and its version is %s after %s", r.Event, id, changed, room.Version, was.Version)
		}
	}
	got, expected := texts(told), texts(want)
	if !slices.Equal(got, expected) {
		h.Fatalf("%T %+v: told is\n%s\nand different is\n%s", r.Event, r.Event, strings.Join(got, "\n"), strings.Join(expected, "\n"))
	}
	return got
}

// mayMove requires that a pin moves only where its owner has ended or drains, and to a later token.
func (h *history) mayMove(r events.Record, id string, was, is projections.Room, before, after view) {
	if !was.Pinned.Before(is.Pinned) {
		h.Fatalf("%s is pinned since %s, after %s", id, is.Pinned, was.Pinned)
	}
	former, lived := before.replicas[was.Owner]
	switch r.Event.(type) {
	case events.RoomOpened:
		if was.Open {
			h.Fatalf("%s was open and is opened", id)
		}
	case events.ReplicaLost, events.ReplicaStopped, events.ReplicaDraining, events.ReplicaStarted:
		now, lives := after.replicas[was.Owner]
		if lived && lives && former.Incarnation == now.Incarnation && !now.Draining {
			h.Fatalf("%T moves %s from %s, which lives", r.Event, id, was.Owner)
		}
	default:
		h.Fatalf("%T moves the pin of %s", r.Event, id)
	}
}

func presenceOf(p projections.Peer) projections.Card {
	return projections.Card{PeerID: p.PeerID, Connected: p.Connected, Instance: p.Instance, Connection: p.Connection, Since: p.Changed}
}

// texts are changes as text, sorted: of one record, the order is of no account. Reasons and patches are left out.
func texts(changes []projections.Change) (all []string) {
	for _, c := range changes {
		c.Reason, c.Patch = "", ""
		all = append(all, fmt.Sprintf("%d %+v", c.Kind, c))
	}
	slices.SortFunc(all, cmp.Compare[string])
	return all
}

// union are the keys of both, with any of their values.
func union[K comparable, V any](a, b map[K]V) func(func(K, V) bool) {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return maps.All(both)
}
