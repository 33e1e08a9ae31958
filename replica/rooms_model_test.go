package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"holdfast/commands"
	"holdfast/events"
)

// What the rooms are to clients that see nothing but answers, in one order that fits the times of their calls: the
// model of the linearizability check. Whatever was not answered may have happened, at any time, or not.

// action is one call of a client; outcome its answer.
type action struct {
	kind             string // connect, join, leave, update, close, read
	peer, connection string
	room             string
	role             commands.Role
	value            int
	expected         events.Position // of an update; zero for any
	lost             bool            // the connection was ended by the loss of its replica, not by a newer one
}

type outcome struct {
	unknown bool
	code    string // of a refusal
	at      events.Position
	read    seen
}

// seen is what a read shows of a room.
type seen struct {
	host, guest string
	members     string
	value       int
	version     events.Position
}

func (a action) String() string {
	return fmt.Sprintf("%s %s/%s %s %s %d at %v lost=%t", a.kind, a.peer, a.connection, a.room, a.role, a.value, a.expected, a.lost)
}

func (o outcome) String() string {
	switch {
	case o.unknown:
		return "?"
	case o.code != "":
		return o.code
	}
	return fmt.Sprintf("ok %v %+v", o.at, o.read)
}

// model is the state: one room in a partition is not enough, since a peer moves between them. It is a value; its maps
// are cloned before they change.
type model struct {
	at    events.Position            // of the last change whose position is known
	peers map[string]string          // current connection
	rooms map[string]map[string]role // by room and peer
	value map[string]int             // the settings of a room
	since map[string]events.Position // of the last change of a room; zero when that is not known
}

type role = commands.Role

func newModel() model {
	return model{peers: map[string]string{}, rooms: map[string]map[string]role{}, value: map[string]int{}, since: map[string]events.Position{}}
}

func (m model) clone() model {
	m.peers, m.value, m.since = maps.Clone(m.peers), maps.Clone(m.value), maps.Clone(m.since)
	rooms := map[string]map[string]role{}
	for id, room := range m.rooms {
		rooms[id] = maps.Clone(room)
	}
	m.rooms = rooms
	return m
}

func (m model) holder(room string, r role) string {
	for peer, has := range m.rooms[room] {
		if has == r {
			return peer
		}
	}
	return ""
}

func (m model) shows(room string) seen {
	var members []string
	for peer, r := range m.rooms[room] {
		if r == commands.Member {
			members = append(members, peer)
		}
	}
	slices.Sort(members)
	return seen{host: m.holder(room, commands.Host), guest: m.holder(room, commands.Guest), members: strings.Join(members, " "), value: m.value[room]}
}

// key tells states apart.
func (m model) key() string {
	var b strings.Builder
	fmt.Fprint(&b, m.at, m.peers, m.value, m.since)
	for _, id := range slices.Sorted(maps.Keys(m.rooms)) {
		fmt.Fprint(&b, id, m.rooms[id])
	}
	return b.String()
}

// refusal is how an action must be refused in this state; empty if it must not be.
func (m model) refusal(a action) string {
	if a.kind == "connect" || a.kind == "read" {
		return ""
	}
	if m.peers[a.peer] != a.connection {
		return commands.CodeReplaced
	}
	mine := m.rooms[a.room][a.peer]
	switch a.kind {
	case "join":
		if holder := m.holder(a.room, a.role); a.role.Seated() && holder != "" && holder != a.peer {
			return commands.CodeSeatTaken
		}
	case "update", "close":
		if mine != commands.Host {
			return commands.CodeForbidden
		}
	}
	return ""
}

// apply carries an action out that is not refused. at is the position of its change, zero if that is not known.
func (m model) apply(a action, at events.Position) model {
	n := m.clone()
	touch := func(room string) { n.since[room] = at }
	switch a.kind {
	case "connect":
		n.peers[a.peer] = a.connection
		return n
	case "join":
		if a.role.Seated() {
			for id, room := range n.rooms {
				if id != a.room && room[a.peer].Seated() {
					delete(room, a.peer)
					touch(id)
				}
			}
		}
		if n.rooms[a.room] == nil {
			n.rooms[a.room] = map[string]role{}
		}
		n.rooms[a.room][a.peer] = a.role
	case "leave":
		if _, in := n.rooms[a.room][a.peer]; !in {
			return n
		}
		delete(n.rooms[a.room], a.peer)
	case "update":
		n.value[a.room] = a.value
	case "close":
		delete(n.rooms, a.room)
		delete(n.value, a.room)
	}
	touch(a.room)
	return n
}

// step says whether an action can have had an outcome in this state, and what the state is then.
func (m model) step(a action, o outcome) (bool, model) {
	must := m.refusal(a)
	switch {
	case o.unknown && must != "":
		return true, m
	case o.unknown:
		return true, m.apply(a, events.Position{})
	case o.code == commands.CodeReplaced && a.lost: // or the cluster has ended the connection
		return true, m
	case o.code == commands.CodeConflict && a.kind == "update" && !a.expected.IsZero(): // who is away is not modelled
		return must == "", m
	case o.code != must:
		return false, m
	case o.code != "":
		return true, m
	case a.kind == "read":
		since := m.since[a.room]
		shown := o.read
		version := shown.version
		shown.version = events.Position{}
		return shown == m.shows(a.room) && (version.IsZero() || !version.Before(since)), m
	case a.kind == "update" && !a.expected.IsZero() && a.expected.Before(m.since[a.room]):
		return false, m // somebody's change is lost
	case o.at.IsZero(): // it was so already
		n := m.apply(a, m.since[a.room])
		return a.kind == "connect" || n.shows(a.room) == m.shows(a.room), n
	case !m.at.Before(o.at):
		return false, m // versions go up
	}
	n := m.apply(a, o.at)
	n.at = o.at
	return true, n
}

var roomsModel = porcupine.Model{
	Init: func() any { return newModel() },
	Step: func(state, input, output any) (bool, any) {
		return state.(model).step(input.(action), output.(outcome))
	},
	Equal:             func(a, b any) bool { return a.(model).key() == b.(model).key() },
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, " -> ", output) },
	DescribeState:     func(state any) string { return state.(model).key() },
}
