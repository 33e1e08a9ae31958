package transport

import (
	"context"
	"encoding/json"
	"errors"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/relay"
	"holdfast/replica"
)

// Rooms are the rules of rooms that a server is set to.
type Rooms struct {
	Limits commands.RoomLimits
	Policy commands.EmitPolicy
}

// watchPage is how many summaries one answer to rooms-watch has, and the most that can be asked for.
const watchPage = 500

type joinArgs struct {
	Room string          `json:"room"`
	Role commands.Role   `json:"role"`
	Name string          `json:"name"`
	Meta json.RawMessage `json:"meta"`
}

func (g *Gateway) roomJoin(m *member, args []json.RawMessage, ack Ack) {
	var a joinArgs
	if !read(args, &a, ack) {
		return
	}
	if a.Role == "" {
		a.Role = commands.Member
	}
	m.change(ack, func() {
		if err := g.join(m.session, a); err != nil {
			failWith(ack, err)
			return
		}
		g.replyRoom(ack, a.Room, true)
	})
}

// join gives the session its place in a room. It has the room's messages from before it is in, so that none is missed
// once that is acknowledged; who is not in yet is given none of them.
func (g *Gateway) join(s *replica.Session, a joinArgs) error {
	ctx := context.Background()
	c := commands.JoinRoom{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Instance: g.rep.Instance(),
		Room: a.Room, Role: a.Role, Name: a.Name, Meta: a.Meta, Claims: s.Claims, Limits: g.rooms.Limits,
	}
	if err := g.rep.Ask(ctx, c); err != nil { // before anything is stored for it
		return err
	}
	if err := g.relay.Channels().Subscribe(ctx, s, relay.RoomChannel+a.Room); err != nil {
		return err
	}
	if _, err := g.rep.Execute(ctx, c); err != nil {
		g.leftRoom(s, a.Room)
		return err
	}
	return nil
}

// leftRoom ends the session's messages of a room, unless its peer is in it by now. Failing that, they end with the
// session: it is given none while its peer is not in the room.
func (g *Gateway) leftRoom(s *replica.Session, room string) {
	if g.audience.In(s, room, "") {
		return
	}
	if err := g.relay.Channels().Unsubscribe(context.Background(), s, relay.RoomChannel+room); err != nil {
		g.log.Debug().Err(err).Str("user", s.User).Str("room", room).Msg("messages of a room that was left could not be given up")
	}
}

// onLeft lets a session give up the messages of a room that it is no longer in, after what its client asked for before.
func (g *Gateway) onLeft(s *replica.Session, room string) {
	if m, ok := s.Link.(*member); ok {
		m.later(func() { g.leftRoom(s, room) })
	}
}

// replyRoom answers with the room.
func (g *Gateway) replyRoom(ack Ack, room string, joined bool) {
	if !ack.Wanted() {
		return
	}
	body, here, ok := g.audience.Room(room)
	if !ok {
		fail(ack, commands.CodeConflict, "The room was closed meanwhile")
		return
	}
	b := append(make([]byte, 0, len(body)+40), `{"ok":true,`...)
	if joined {
		b = append(b, `"here":`...)
		if here {
			b = append(b, `true,`...)
		} else {
			b = append(b, `false,`...)
		}
	}
	b = append(b, `"room":`...)
	ack.Reply(append(append(b, body...), '}'))
}

type roomArgs struct {
	Room string `json:"room"`
}

func (g *Gateway) roomLeave(m *member, args []json.RawMessage, ack Ack) {
	var a roomArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	g.execute(m, ack, commands.LeaveRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room}, nil)
}

func (g *Gateway) roomClose(m *member, args []json.RawMessage, ack Ack) {
	var a roomArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	g.execute(m, ack, commands.CloseRoom{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room}, nil)
}

func (g *Gateway) roomGet(m *member, args []json.RawMessage, ack Ack) {
	var a roomArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	m.change(ack, func() {
		ask := commands.Speak{User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room, Claims: s.Claims}
		if err := g.rep.Ask(context.Background(), ask); err != nil {
			failWith(ack, err)
			return
		}
		g.replyRoom(ack, a.Room, false)
	})
}

type updateArgs struct {
	Room     string          `json:"room"`
	Settings json.RawMessage `json:"settings"`
	State    json.RawMessage `json:"state"`
	Expected string          `json:"expectedVersion"`
}

func (g *Gateway) roomUpdate(m *member, args []json.RawMessage, ack Ack) {
	var a updateArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	g.execute(m, ack, commands.UpdateRoom{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room, Patch: a.Settings, Expected: a.Expected,
		Claims: s.Claims, Limits: g.rooms.Limits,
	}, func() events.Position { return g.audience.RoomVersion(a.Room) })
}

func (g *Gateway) guestUpdate(m *member, args []json.RawMessage, ack Ack) {
	var a updateArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	g.execute(m, ack, commands.UpdateGuest{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room, Patch: a.State, Expected: a.Expected,
		Limits: g.rooms.Limits,
	}, func() events.Position { return g.audience.RoomVersion(a.Room) })
}

type emitArgs struct {
	Room  string          `json:"room"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
	To    string          `json:"to"`
}

func (g *Gateway) roomEmit(m *member, args []json.RawMessage, attachments [][]byte, ack Ack) {
	var a emitArgs
	if !read(args, &a, ack) {
		return
	}
	if problem := publishable(a.Event); problem != "" {
		fail(ack, commands.CodeBadRequest, "Invalid parameters: "+problem)
		return
	}
	s := m.session
	ask := commands.Speak{
		User: s.User, Peer: s.Peer, Connection: s.Connection, Room: a.Room, Event: a.Event, Policy: g.rooms.Policy, Claims: s.Claims,
	}
	message := relay.Publication{Channel: relay.RoomChannel + a.Room, Event: a.Event, To: a.To, Data: payload(a.Data, attachments)}
	if g.rep.Allows(ask) { // what is allowed keeps the order in which it was sent, without waiting
		m.publish(g.relay.Channels(), message, ack)
		return
	}
	m.change(ack, func() {
		if err := g.rep.Ask(context.Background(), ask); err != nil {
			g.noteRefusal(s, a.Room, a.Event, err)
			failWith(ack, err)
			return
		}
		m.publish(g.relay.Channels(), message, ack)
	})
}

// execute carries out a change and answers {ok} or, if there is one, with its version: that of the event or, when
// nothing had to change, the one that is.
func (g *Gateway) execute(m *member, ack Ack, c commands.Command, version func() events.Position) {
	m.change(ack, func() {
		res, err := g.rep.Execute(context.Background(), c)
		switch {
		case err != nil:
			failWith(ack, err)
		case version == nil:
			ack.Reply(okAck)
		case res.Position.IsZero():
			replyVersion(ack, version())
		default:
			replyVersion(ack, res.Position)
		}
	})
}

func replyVersion(ack Ack, version events.Position) {
	ack.Reply([]byte(`{"ok":true,"version":"` + version.String() + `"}`))
}

type watchArgs struct {
	After string `json:"after"`
	Limit int    `json:"limit"`
}

// roomsWatch answers with the first summaries, and what to ask with for the next.
func (g *Gateway) roomsWatch(m *member, args []json.RawMessage, ack Ack) {
	var a watchArgs
	if len(args) > 0 && !read(args, &a, ack) {
		return
	}
	if a.Limit < 0 || a.Limit > watchPage {
		fail(ack, commands.CodeBadRequest, "limit must be 1 to 500")
		return
	}
	if a.Limit == 0 {
		a.Limit = watchPage
	}
	m.change(ack, func() {
		g.audience.Watch(m.session)
		version, rooms, next := g.audience.Summaries(m.session, a.After, a.Limit)
		b, _ := json.Marshal(struct {
			OK      bool            `json:"ok"`
			Version events.Position `json:"version"`
			Rooms   json.RawMessage `json:"rooms"`
			Next    string          `json:"next,omitempty"`
		}{true, version, rooms, next})
		ack.Reply(b)
	})
}

func (g *Gateway) roomsUnwatch(m *member, _ []json.RawMessage, ack Ack) {
	m.change(ack, func() {
		g.audience.Unwatch(m.session)
		b, _ := json.Marshal(struct {
			OK      bool            `json:"ok"`
			Version events.Position `json:"version"`
			Rooms   []struct{}      `json:"rooms"`
		}{true, g.audience.Version(), []struct{}{}})
		ack.Reply(b)
	})
}

func (g *Gateway) presenceGet(m *member, _ []json.RawMessage, ack Ack) {
	m.change(ack, func() {
		version, peers := g.audience.Presence(m.session.User)
		b, _ := json.Marshal(struct {
			OK      bool            `json:"ok"`
			Version events.Position `json:"version"`
			Peers   json.RawMessage `json:"peers"`
		}{true, version, peers})
		ack.Reply(b)
	})
}

type settingArgs struct {
	Key      string          `json:"key"`
	Value    json.RawMessage `json:"value"`
	Expected string          `json:"expectedVersion"`
}

func (g *Gateway) settingsGet(m *member, args []json.RawMessage, ack Ack) {
	var a settingArgs
	if len(args) > 0 && !read(args, &a, ack) {
		return
	}
	if !m.session.Claims.MayReadSettings() {
		fail(ack, commands.CodeForbidden, "not allowed to read the settings")
		return
	}
	m.change(ack, func() {
		version, settings := g.audience.Settings(a.Key)
		b, _ := json.Marshal(struct {
			OK       bool            `json:"ok"`
			Version  events.Position `json:"version"`
			Settings json.RawMessage `json:"settings"`
		}{true, version, settings})
		ack.Reply(b)
	})
}

func (g *Gateway) settingsSet(m *member, args []json.RawMessage, ack Ack) {
	var a settingArgs
	if !read(args, &a, ack) {
		return
	}
	s := m.session
	g.execute(m, ack, commands.SetSetting{
		User: s.User, Peer: s.Peer, Key: a.Key, Value: a.Value, Expected: a.Expected, Claims: s.Claims,
	}, func() events.Position { version, _ := g.audience.Settings(a.Key); return version })
}

// read takes the event's one argument, or answers what is wrong with it.
func read(args []json.RawMessage, into any, ack Ack) bool {
	if err := argument(args, into); err != nil {
		fail(ack, commands.CodeBadRequest, "Invalid parameters: "+err.Error())
		return false
	}
	return true
}

// noteRefusal logs a refusal for want of rights: somebody knows a room's id and tries what is not his to do.
func (g *Gateway) noteRefusal(s *replica.Session, room, event string, err error) {
	var r *commands.Refusal
	if errors.As(err, &r) && r.Code == commands.CodeForbidden {
		g.log.Info().Str("user", s.User).Str("peer", s.Peer).Str("room", room).Str("event", event).Str("why", r.Text).
			Msg("an event to a room was refused")
	}
}
