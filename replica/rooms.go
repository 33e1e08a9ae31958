package replica

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/projections"
)

// Ask decides a command that changes nothing: whether something may be done. A refusal is trusted only on the newest
// state, as Execute does.
func (r *Replica) Ask(ctx context.Context, c commands.Command) error {
	for caughtUp := false; ; caughtUp = true {
		r.mu.RLock()
		_, err := c.Decide(r.state)
		r.mu.RUnlock()
		var refusal *commands.Refusal
		if err == nil || caughtUp || !errors.As(err, &refusal) || !refusal.Doubt {
			return err
		}
		if r.life.Load() == nil {
			return &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "this replica is starting"}
		}
		if r.CatchUp(ctx) != nil {
			return &commands.Refusal{Code: commands.CodeStoreUnavailable, Text: "The log cannot be reached"}
		}
	}
}

// place is what a local session wants of a room that it is in.
type place struct {
	role events.Role
	name string
	meta string
}

// Allows decides a command that changes nothing on the state as it is here; a no may be out of date.
func (r *Replica) Allows(c commands.Command) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, err := c.Decide(r.state)
	return err == nil
}

// followRoom keeps what local sessions want of rooms in step with the log: what they have is what they want, until an event
// takes it from them. The caller holds ss.mu.
func (ss *sessions) followRoom(e events.Event) {
	switch e := e.(type) {
	case events.RoomJoined:
		ss.joined(e)
	case events.RoomMoved:
		ss.left(projections.PeerID{User: e.User, Peer: e.Peer}, e.From)
		ss.joined(e.RoomJoined)
	case events.RoomLeft:
		ss.left(projections.PeerID{User: e.User, Peer: e.Peer}, e.Room)
	case events.RoomClosed:
		for id := range ss.inRoom[e.Room] {
			ss.left(id, e.Room)
		}
	}
}

func (ss *sessions) joined(e events.RoomJoined) {
	id := projections.PeerID{User: e.User, Peer: e.Peer}
	for _, room := range e.Unwatched {
		ss.left(id, room)
	}
	if s := ss.byConnection[e.Connection]; s != nil {
		ss.wantRoom(s, e.Room, place{role: e.Role, name: e.Name, meta: string(e.Meta)})
	}
}

// wantRoom remembers what a session has in a room. The caller holds ss.mu.
func (ss *sessions) wantRoom(s *Session, room string, p place) {
	id := s.ID()
	if s.rooms == nil {
		s.rooms = map[string]place{}
	}
	s.rooms[room] = p
	in := ss.inRoom[room]
	if in == nil {
		in = map[projections.PeerID]*Session{}
		ss.inRoom[room] = in
	}
	in[id] = s
}

// left forgets what a peer's session had in a room. The caller holds ss.mu.
func (ss *sessions) left(id projections.PeerID, room string) {
	in := ss.inRoom[room]
	if s := in[id]; s != nil {
		delete(s.rooms, room)
		delete(in, id)
		if len(in) == 0 {
			delete(ss.inRoom, room)
		}
	}
}

// unwantRooms forgets what a session has in rooms. The caller holds ss.mu.
func (ss *sessions) unwantRooms(s *Session) {
	id := s.ID()
	for room := range s.rooms {
		if ss.inRoom[room][id] == s {
			ss.left(id, room)
		}
	}
}

// formerRooms are what a state knew that was rebuilt: the log may have lost it, and then it is recorded again.
type formerRooms struct {
	until    time.Time
	rooms    map[string]commands.Remains
	settings map[string]string
	settled  *sync.Map // names of rooms that were recorded again, or found to be there
}

// remainsKept is how long after a rebuild what the former state knew may be recorded again. By then every replica has
// found out what its clients lack.
const remainsKept = 30 * time.Second

// rememberRooms keeps what is known of rooms and settings before the state is replaced. The caller holds mu.
func (r *Replica) rememberRooms() {
	now := time.Now()
	if now.After(r.formerRooms.until) {
		r.formerRooms = formerRooms{rooms: map[string]commands.Remains{}, settings: map[string]string{}, settled: &sync.Map{}}
	}
	r.formerRooms.until = now.Add(remainsKept)
	for room := range r.state.Rooms() {
		r.formerRooms.settled.Delete(room.ID)
		r.formerRooms.rooms[room.ID] = commands.Remains{Settings: room.Settings, GuestState: room.GuestState}
	}
	for key, value := range r.state.Settings() {
		r.formerRooms.settings[key] = value
	}
}

// missingPlaces lists the rooms that a session is in and the log does not know that it is, after a rebuild. The caller
// holds mu and the sessions' lock, both for reading at least.
func (r *Replica) missingPlaces(s *Session) (lost []string) {
	if time.Now().After(r.formerRooms.until) {
		return nil
	}
	for id := range s.rooms {
		if room := r.state.Room(id); room == nil || room.Seat(s.ID()) == nil {
			lost = append(lost, id)
		}
	}
	return lost
}

// restorePlace records a place in a room again that the session has and the log has lost. What the session has is known
// as of the last record that its sessions have followed, and the command holds only while nothing has happened since:
// else a place that was just given up could come back.
func (r *Replica) restorePlace(ctx context.Context, s *Session, id string) error {
	var ask *commands.JoinRoom
	err := r.awaitStateAnd(ctx, r.sessions.mu.RLocker(), func(st *projections.State, _ uint64) bool {
		if r.sessions.followed != st.Position {
			return false
		}
		p, has := s.rooms[id]
		room := st.Room(id)
		if !has || room != nil && room.Seat(s.ID()) != nil {
			return true
		}
		remains := r.formerRooms.rooms[id]
		remains.PeerVersion = st.Version(events.PeerKey(s.User, s.Peer))
		remains.OpenVersion = st.Version(events.RoomOpenKey(id))
		ask = &commands.JoinRoom{
			User: s.User, Peer: s.Peer, Connection: s.Connection, Instance: r.cfg.Instance,
			Room: id, Role: p.role, Name: p.name, Meta: json.RawMessage(p.meta), Remains: &remains,
		}
		return true
	})
	if err == nil && ask != nil {
		_, err = r.Execute(ctx, *ask)
	}
	return err
}

// missingRooms lists the rooms that the log has lost with their settings, each once. The caller holds mu.
func (r *Replica) missingRooms() (lost []commands.RestoreRoom) {
	if time.Now().After(r.formerRooms.until) {
		return nil
	}
	for id, remains := range r.formerRooms.rooms {
		if remains.Settings == "" && remains.GuestState == "" {
			continue
		}
		if r.state.Room(id) != nil { // should it end from now on, it ends
			r.formerRooms.settled.Store(id, true)
		} else if _, settled := r.formerRooms.settled.Load(id); !settled {
			lost = append(lost, commands.RestoreRoom{Room: id, Remains: remains})
		}
	}
	return lost
}

// restoreRoom records a room's settings again. Once that has been decided it is not tried again: it may have ended since.
func (r *Replica) restoreRoom(ctx context.Context, c commands.RestoreRoom) {
	if _, err := r.Execute(ctx, c); err != nil {
		r.log.Debug().Err(err).Str("room", c.Room).Msg("restore settings of a room")
		return
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.formerRooms.settled.Store(c.Room, true)
}

// missingSettings lists the cluster-wide settings that the log has lost. The caller holds mu, for reading at least.
func (r *Replica) missingSettings() (lost []commands.SetSetting) {
	if time.Now().After(r.formerRooms.until) || !r.state.Version(events.SettingsKey()).IsZero() {
		return nil // what is there was set after the loss, or was not lost
	}
	for key, value := range r.formerRooms.settings {
		lost = append(lost, commands.SetSetting{Key: key, Value: json.RawMessage(value), Restore: true})
	}
	return lost
}

// Drain gives the replica's rooms to others: it is about to stop.
func (r *Replica) Drain(ctx context.Context) error {
	l := r.life.Load()
	if l == nil {
		return nil
	}
	_, err := r.Execute(ctx, commands.DrainReplica{Instance: r.cfg.Instance, Incarnation: l.inbox.Incarnation})
	return err
}
