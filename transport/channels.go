package transport

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"holdfast/commands"
	"holdfast/relay"
	"holdfast/replica"
)

const (
	// maxPublishing bounds the publications of one client that are under way; more are RATE_LIMITED.
	maxPublishing = 1024
	maxEventBytes = 256 // of an event's name
)

// reserved are the events that clients may not publish: those of Socket.IO itself, and those by which the server
// speaks, which a client could not tell from the server's.
var reserved = map[string]bool{
	"connect": true, "connect_error": true, "disconnect": true, "disconnecting": true, "newListener": true, "removeListener": true,
	"presence": true, "peer-joined": true, "peer-away": true, "peer-back": true, "peer-left": true, "peer-replaced": true,
	"room-settings": true, "guest-state": true, "room-owner": true, "room-closed": true, "rooms-changed": true,
	"settings-changed": true, "server-draining": true,
}

// publishable says what is wrong with the name of an event; empty if nothing is.
func publishable(event string) string {
	switch {
	case event == "":
		return "event is required"
	case len(event) > maxEventBytes:
		return "event is longer than 256 bytes"
	case !utf8.ValidString(event):
		return "event must be UTF-8 text"
	case reserved[event], strings.HasPrefix(event, "rpc-"):
		return "event is a name that only the server uses"
	}
	return ""
}

type channelArgs struct {
	Channel string          `json:"channel"`
	Event   string          `json:"event"`
	Data    json.RawMessage `json:"data"`
}

// channelArg reads the argument of a channel's event, or answers what is wrong with it.
func channelArg(args []json.RawMessage, ack Ack) (a channelArgs, ok bool) {
	if err := argument(args, &a); err != nil {
		fail(ack, commands.CodeBadRequest, "Invalid parameters: "+err.Error())
		return a, false
	}
	if bad := commands.CheckName("channel", a.Channel); bad != nil {
		failWith(ack, bad)
		return a, false
	}
	return a, true
}

func (g *Gateway) channelSubscribe(m *member, args []json.RawMessage, ack Ack) {
	a, ok := channelArg(args, ack)
	if !ok {
		return
	}
	if !m.session.Claims.MaySubscribe(m.session.User, a.Channel) {
		fail(ack, commands.CodeForbidden, "The token does not let you listen to this channel")
		return
	}
	m.change(ack, func() {
		if err := g.relay.Channels().Subscribe(context.Background(), m.session, relay.ClientChannel+a.Channel); err != nil {
			failWith(ack, err)
			return
		}
		ack.Reply(okAck)
	})
}

func (g *Gateway) channelUnsubscribe(m *member, args []json.RawMessage, ack Ack) {
	a, ok := channelArg(args, ack)
	if !ok {
		return
	}
	m.change(ack, func() {
		if err := g.relay.Channels().Unsubscribe(context.Background(), m.session, relay.ClientChannel+a.Channel); err != nil {
			failWith(ack, err)
			return
		}
		ack.Reply(okAck)
	})
}

func (g *Gateway) channelPublish(m *member, args []json.RawMessage, attachments [][]byte, ack Ack) {
	a, ok := channelArg(args, ack)
	if !ok {
		return
	}
	if problem := publishable(a.Event); problem != "" {
		fail(ack, commands.CodeBadRequest, "Invalid parameters: "+problem)
		return
	}
	if !m.session.Claims.MayPublish(a.Channel) {
		fail(ack, commands.CodeForbidden, "The token does not let you publish to this channel")
		return
	}
	m.publish(g.relay.Channels(), relay.Publication{Channel: relay.ClientChannel + a.Channel, Event: a.Event, Data: payload(a.Data, attachments)}, ack)
}

// publish publishes after the client's earlier publications, without waiting for them.
func (m *member) publish(channels *relay.Channels, p relay.Publication, ack Ack) {
	if m.publishing.Add(1) > maxPublishing {
		m.publishing.Add(-1)
		fail(ack, commands.CodeRateLimited, "Too many messages of this connection wait to be published")
		return
	}
	channels.Publish(p, func(offset string, err error) {
		m.publishing.Add(-1)
		if err != nil {
			failWith(ack, err)
			return
		}
		if ack.Wanted() {
			ack.Reply(published(offset))
		}
	})
}

func published(offset string) []byte {
	return append(append([]byte(`{"ok":true,"offset":"`), offset...), `"}`...) // it needs no escapes
}

// Broadcast gives the client what others get too.
func (m *member) Broadcast(b *replica.Broadcast) bool {
	return m.SendRaw(b.Wire(encodeBroadcast), b.Attachments...)
}

// encodeBroadcast puts the offset last, where a stock client looks for it.
func encodeBroadcast(b *replica.Broadcast) []byte {
	args := b.Args
	if b.Offset != "" {
		args = append(append(make([][]byte, 0, len(args)+1), args...), []byte(`"`+b.Offset+`"`))
	}
	return EncodeBinaryEvent(len(b.Attachments), b.Name, args...)
}
