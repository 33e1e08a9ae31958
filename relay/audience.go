package relay

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// Audience tells the local clients what the log changes: rooms, presence and settings. Everything it says comes from
// applying events, in the log's order, once. It implements replica.Listener.
type Audience struct {
	rep *replica.Replica

	mu       sync.Mutex // guards what follows; nothing that blocks is done while it is held
	rooms    map[string]map[projections.PeerID]*replica.Session
	users    map[string]map[projections.PeerID]*replica.Session
	watchers map[*replica.Session]struct{}

	// left is told of each local session that is no longer in a room. It must not block. May be nil.
	left func(s *replica.Session, room string)

	crowding sync.Mutex // guards crowded
	crowded  encoded
}

// NewAudience makes the audience of a replica's clients and makes it a listener. Only before the replica runs.
func NewAudience(rep *replica.Replica) *Audience {
	a := &Audience{rep: rep}
	a.clear()
	rep.Listen(a)
	return a
}

// OnLeft has f told of each local session that is no longer in a room. f must not block. Only before the replica runs.
func (a *Audience) OnLeft(f func(s *replica.Session, room string)) { a.left = f }

// In reports whether the session's peer is in the room and, with a role or a peer's id, whether that is it. It is the
// filter for the room's messages.
func (a *Audience) In(s *replica.Session, room, to string) (in bool) {
	a.rep.View(func(st *projections.State) {
		if r := st.Room(room); r != nil {
			seat := r.Seat(s.ID())
			in = seat != nil && (to == "" || to == s.Peer || to == string(seat.Role))
		}
	})
	return in
}

// RoomsOf are the rooms that the session's peer is in.
func (a *Audience) RoomsOf(s *replica.Session) (rooms []string) {
	a.rep.View(func(st *projections.State) {
		for _, room := range st.RoomsOf(s.ID()) {
			rooms = append(rooms, room.ID)
		}
	})
	return rooms
}

func (a *Audience) leaving(s *replica.Session, room string) {
	if a.left != nil && s != nil {
		a.left(s, room)
	}
}

func (a *Audience) clear() {
	a.rooms = map[string]map[projections.PeerID]*replica.Session{}
	a.users = map[string]map[projections.PeerID]*replica.Session{}
	a.watchers = map[*replica.Session]struct{}{}
}

// Applied: see Changed.
func (a *Audience) Applied([]events.Record) {}

// Rebuilt looks anew who is where.
func (a *Audience) Rebuilt() {
	a.crowding.Lock()
	a.crowded = encoded{} // else it would keep the former state
	a.crowding.Unlock()
	type place struct {
		peer  projections.Peer
		rooms []string
	}
	var here []place
	a.rep.View(func(s *projections.State) {
		for id := range s.PeersOn(a.rep.Instance()) {
			p, _ := s.Peer(id)
			at := place{peer: p}
			for _, room := range s.RoomsOf(id) {
				at.rooms = append(at.rooms, room.ID)
			}
			here = append(here, at)
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	watchers := a.watchers
	a.clear()
	a.watchers = watchers
	for _, at := range here {
		session := a.rep.Session(at.peer.Connection)
		if session == nil {
			continue
		}
		id := at.peer.PeerID
		a.enter(a.users, id.User, id, session)
		for _, room := range at.rooms {
			a.enter(a.rooms, room, id, session)
		}
	}
}

// Fenced forgets everybody: the connections are closed.
func (a *Audience) Fenced() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clear()
}

// Changed tells everybody concerned.
func (a *Audience) Changed(changes []projections.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	touched := map[string]*projections.Change{} // rooms that watchers are told of: the last change of each
	urls := map[string]string{}                 // of the owners that are told of
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case projections.ConnectionChanged:
			a.connection(c)
			continue
		case projections.PresenceChanged:
			if others := a.users[c.Peer.User]; len(others) > 0 {
				a.tell(others, "presence", presenceNotice(c), c.Peer.PeerID)
			}
			continue
		case projections.SettingsChanged:
			a.setting(c)
			continue
		case projections.RoomChangedJoined:
			if session := a.local(c.Peer); session != nil {
				a.enter(a.rooms, c.Room, c.Peer.PeerID, session)
			}
		case projections.RoomChangedLeft:
			a.leaving(a.rooms[c.Room][c.Peer.PeerID], c.Room)
			a.exit(a.rooms, c.Room, c.Peer.PeerID)
		}
		if len(a.watchers) > 0 {
			touched[c.Room] = c
		}
		if members := a.rooms[c.Room]; len(members) > 0 {
			if name, body := notice(c, a.urlOf(c.Owner, urls)); name != "" {
				a.tell(members, name, body, projections.PeerID{})
			}
		}
		if c.Kind == projections.RoomChangedClosed {
			for _, s := range a.rooms[c.Room] {
				a.leaving(s, c.Room)
			}
			delete(a.rooms, c.Room)
		}
	}
	a.tellWatchers(touched)
}

// urlOf is where an instance that lives can be reached; known are those that were looked up before. The state is not
// looked at for each of thousands of notices: others want it just then, after the loss of a replica.
func (a *Audience) urlOf(instance string, known map[string]string) string {
	if instance == "" {
		return ""
	}
	url, ok := known[instance]
	if !ok {
		a.rep.View(func(s *projections.State) {
			live, _ := s.Replica(instance)
			url = live.URL
		})
		known[instance] = url
	}
	return url
}

// connection takes note of where a peer is connected now.
func (a *Audience) connection(c *projections.Change) {
	session := a.local(c.Peer)
	if session == nil {
		a.exit(a.users, c.Peer.User, c.Peer.PeerID)
		for _, room := range c.Rooms {
			a.exit(a.rooms, room, c.Peer.PeerID)
		}
		return
	}
	a.enter(a.users, c.Peer.User, c.Peer.PeerID, session)
	for _, room := range c.Rooms {
		a.enter(a.rooms, room, c.Peer.PeerID, session)
	}
}

// local is the session of a peer that is connected here; nil for others.
func (a *Audience) local(c projections.Card) *replica.Session {
	if !c.Connected || c.Instance != a.rep.Instance() {
		return nil
	}
	return a.rep.Session(c.Connection)
}

// enter puts a peer's session into a list. The session may not know yet which peer it is: see replica.Session.
func (*Audience) enter(
	lists map[string]map[projections.PeerID]*replica.Session, name string, id projections.PeerID, s *replica.Session,
) {
	list := lists[name]
	if list == nil {
		list = make(map[projections.PeerID]*replica.Session, 1)
		lists[name] = list
	}
	list[id] = s
}

func (*Audience) exit(lists map[string]map[projections.PeerID]*replica.Session, name string, id projections.PeerID) {
	list := lists[name]
	delete(list, id)
	if len(list) == 0 {
		delete(lists, name)
	}
}

// tell sends one event to all of them but one.
func (*Audience) tell(to map[projections.PeerID]*replica.Session, name string, body []byte, but projections.PeerID) {
	b := &replica.Broadcast{Name: name, Args: [][]byte{body}}
	for id, s := range to {
		if id != but {
			s.Link.Broadcast(b)
		}
	}
}

func (a *Audience) setting(c *projections.Change) {
	b := &replica.Broadcast{Name: "settings-changed", Args: [][]byte{settingNotice(c)}}
	for _, sessions := range a.users {
		for _, s := range sessions {
			if s.Claims.MayReadSettings() {
				s.Link.Broadcast(b)
			}
		}
	}
}

// tellWatchers sends the present summary of each room that has changed.
func (a *Audience) tellWatchers(touched map[string]*projections.Change) {
	for id, c := range touched {
		var body []byte
		a.rep.View(func(s *projections.State) {
			body = appendPosition(nil, `{"version":`, s.Position)
			body = append(body, `,"room":`...)
			if room := s.Room(id); room != nil {
				body = appendRoom(body, s, room, true)
			} else {
				body = append(body, closedSummary(c)...)
			}
			body = append(body, '}')
		})
		b := &replica.Broadcast{Name: "rooms-changed", Args: [][]byte{body}}
		for s := range a.watchers {
			if s.Claims.MayWatch(id) {
				s.Link.Broadcast(b)
			}
		}
	}
}

// Watch lets the session hear of every room that it may see, until Unwatch or its end.
func (a *Audience) Watch(s *replica.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchers[s] = struct{}{}
}

// Unwatch ends that.
func (a *Audience) Unwatch(s *replica.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.watchers, s)
}

// Version is how far the log is known here.
func (a *Audience) Version() (at events.Position) {
	a.rep.View(func(s *projections.State) { at = s.Position })
	return at
}

// Summaries are those of the rooms that the session may see, in the order of their names, from the one after the given
// name on, limit of them at most and at least one. next is what to ask with for more; empty at the end.
func (a *Audience) Summaries(session *replica.Session, after string, limit int) (version events.Position, rooms []byte, next string) {
	a.rep.View(func(s *projections.State) {
		version = s.Position
		var names []string
		for room := range s.Rooms() {
			if room.ID > after && session.Claims.MayWatch(room.ID) {
				names = append(names, room.ID)
			}
		}
		slices.Sort(names)
		if len(names) > limit {
			names = names[:limit]
			next = names[limit-1]
		}
		rooms = append(rooms, '[')
		for i, name := range names {
			if i > 0 {
				rooms = append(rooms, ',')
			}
			rooms = appendRoom(rooms, s, s.Room(name), true)
		}
		rooms = append(rooms, ']')
	})
	return version, rooms, next
}

// crowd is from how many peers on a room's encoding is kept for others who ask for it in the same state: when many
// join at a time, each gets an answer that names all.
const crowd = 64

// encoded is a room as it was encoded last, and in which state. The body is not changed.
type encoded struct {
	state *projections.State
	at    events.Position
	room  string
	body  []byte
}

// Room is a room as its peers see it, with whether it is pinned to this replica; false when there is none. The body is
// not to be changed.
func (a *Audience) Room(id string) (body []byte, here, ok bool) {
	a.rep.View(func(s *projections.State) {
		room := s.Room(id)
		if ok = room != nil; ok && len(room.Seats()) < crowd {
			here = a.owns(room)
			body = appendRoom(nil, s, room, false)
		}
	})
	if ok && body == nil {
		return a.crowdedRoom(id)
	}
	return body, here, ok
}

// crowdedRoom is Room of a large one. Those who ask while it is encoded wait for that.
func (a *Audience) crowdedRoom(id string) (body []byte, here, ok bool) {
	a.crowding.Lock()
	defer a.crowding.Unlock()
	a.rep.View(func(s *projections.State) {
		room := s.Room(id)
		if ok = room != nil; !ok {
			return
		}
		here = a.owns(room)
		if k := &a.crowded; k.state != s || k.at != s.Position || k.room != id {
			*k = encoded{state: s, at: s.Position, room: id, body: appendRoom(make([]byte, 0, len(k.body)+len(k.body)/8), s, room, false)}
		}
		body = a.crowded.body
	})
	return body, here, ok
}

func (a *Audience) owns(room *projections.Room) bool {
	return room.Open && room.Owner == a.rep.Instance()
}

// RoomVersion is the version of a room; zero when there is none.
func (a *Audience) RoomVersion(id string) (version events.Position) {
	a.rep.View(func(s *projections.State) {
		if room := s.Room(id); room != nil {
			version = room.Version
		}
	})
	return version
}

// Presence lists the peers of a user: those that are gone but not forgotten are not connected, those within their grace
// are away.
func (a *Audience) Presence(user string) (version events.Position, peers []byte) {
	a.rep.View(func(s *projections.State) {
		version = s.Position
		all := slices.SortedFunc(s.PeersOf(user), func(a, b projections.Peer) int { return cmp.Compare(a.PeerID.Peer, b.PeerID.Peer) })
		peers = append(peers, '[')
		for i, p := range all {
			if i > 0 {
				peers = append(peers, ',')
			}
			peers = appendPresence(peers, s, p)
		}
		peers = append(peers, ']')
	})
	return version, peers
}

func appendPresence(b []byte, s *projections.State, p projections.Peer) []byte {
	b = appendText(b, `{"peer":`, p.PeerID.Peer)
	b = append(b, `,"connected":`...)
	b = strconv.AppendBool(b, !p.Gone)
	if !p.Gone && !p.Connected {
		b = append(b, `,"away":true`...)
	}
	b = append(b, `,"at":`...)
	b = strconv.AppendInt(b, p.Changed.UnixMilli(), 10)
	for _, room := range s.RoomsOf(p.PeerID) {
		if seat := room.Seat(p.PeerID); seat.Name != "" {
			b = appendText(b, `,"name":`, seat.Name)
			break
		}
	}
	b = appendText(b, `,"instance":`, p.Instance)
	b = append(b, `,"methods":[`...)
	var methods []string
	for reg := range s.Held(p.PeerID) {
		if !reg.Lapsed {
			methods = append(methods, reg.Method)
		}
	}
	slices.Sort(methods)
	for i, method := range methods {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, method)
	}
	return append(b, ']', '}')
}

// Settings are the cluster-wide settings, or one of them, with the version of all.
func (a *Audience) Settings(key string) (version events.Position, settings []byte) {
	a.rep.View(func(s *projections.State) {
		version = s.Version(events.SettingsKey())
		var keys []string
		for k := range s.Settings() {
			if key == "" || k == key {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		settings = append(settings, '{')
		for i, k := range keys {
			if i > 0 {
				settings = append(settings, ',')
			}
			value, _ := s.Setting(k)
			settings = append(append(appendString(settings, k), ':'), value...)
		}
		settings = append(settings, '}')
	})
	return version, settings
}

// Receive is of no concern here.
func (a *Audience) Receive(int, []store.Message, bool) {}
