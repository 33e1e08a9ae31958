// Package projections is what is true now: the state that the log adds up to, and how each event changes it.
//
// It promises that the same records give the same state on every replica: a fold reads no clock, does no I/O
// and cannot fail. It never decides whether something may happen.
package projections

import (
	"iter"
	"maps"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// State is the fold of the log up to Position. It is not safe for concurrent use; its owner guards it.
type State struct {
	Position events.Position
	Token    ulid.ULID // token of the record at Position

	versions map[events.Aggregate]events.Position
	replicas map[string]*Replica // live ones, by instance
	slots    [events.Slots]Slot
	peers    map[PeerID]*Peer
	sessions map[string]PeerID           // recovery id of a peer's current session
	onto     map[string]map[PeerID]*Peer // the connected ones, by instance
	methods  map[MethodID]*Registration
	held     map[PeerID]map[string]struct{} // methods that any session of the peer holds
	users    map[string][]*Peer
	rooms    map[string]*Room
	roomsOf  map[PeerID][]*Room
	pins     map[string]map[string]*Room // by instance and id
	settings map[string]string           // raw JSON

	observed bool // Changes are wanted
	changes  []Change
}

// New is the state before the first event.
func New() *State {
	return &State{
		versions: map[events.Aggregate]events.Position{},
		replicas: map[string]*Replica{},
		peers:    map[PeerID]*Peer{},
		sessions: map[string]PeerID{},
		onto:     map[string]map[PeerID]*Peer{},
		methods:  map[MethodID]*Registration{},
		held:     map[PeerID]map[string]struct{}{},
		users:    map[string][]*Peer{},
		rooms:    map[string]*Room{},
		roomsOf:  map[PeerID][]*Room{},
		pins:     map[string]map[string]*Room{},
		settings: map[string]string{},
	}
}

// Version is the position of the last event that wrote the aggregate; zero when it does not exist.
func (s *State) Version(a events.Aggregate) events.Position { return s.versions[a] }

// Versions are those of all aggregates that exist, in no order.
func (s *State) Versions() iter.Seq2[events.Aggregate, events.Position] { return maps.All(s.versions) }

// Now is the time of the last event, the only clock that a fold has.
func (s *State) Now() time.Time { return s.Position.Time() }

// Apply folds one record. Records must come in the order of the log, each once.
func (s *State) Apply(r events.Record) {
	for _, a := range r.Event.Writes() {
		s.versions[a] = r.Position
	}
	for _, a := range r.Event.Ends() {
		delete(s.versions, a)
	}
	switch e := r.Event.(type) {
	case events.ReplicaStarted:
		s.replicaStarted(r, e)
	case events.ReplicaStopped:
		s.replicaStopped(r, e)
	case events.ReplicaLost:
		s.replicaLost(r, e)
	case events.PeerConnected:
		s.peerConnected(r, e)
	case events.PeerDisconnected:
		s.peerDisconnected(r, e)
	case events.PeerGone:
		s.peerGone(r, e)
	case events.PeerForgotten:
		s.peerForgotten(e)
	case events.MethodRegistered:
		s.methodRegistered(r, e)
	case events.MethodUnregistered:
		s.methodUnregistered(e)
	case events.RegistrationsLapsed:
		s.registrationsLapsed(e)
	case events.ReplicaDraining:
		s.replicaDraining(r, e)
	case events.RoomOpened:
		s.roomOpened(r, e)
	case events.RoomJoined:
		s.roomJoined(r, e)
	case events.RoomMoved:
		s.roomMoved(r, e)
	case events.RoomLeft:
		s.roomLeft(r, e)
	case events.RoomSettingsChanged:
		s.roomSettingsChanged(r, e)
	case events.RoomGuestChanged:
		s.roomGuestChanged(r, e)
	case events.RoomClosed:
		s.roomClosed(r, e)
	case events.SettingChanged:
		s.settingChanged(r, e)
	}
	s.Position, s.Token = r.Position, r.Token
}
