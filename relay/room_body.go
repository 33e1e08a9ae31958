package relay

import (
	"strconv"

	"holdfast/events"
	"holdfast/projections"
)

// summaryPeers is how many peers a room's summary names; the count counts all of them.
const summaryPeers = 100

func appendText(b []byte, name, value string) []byte {
	b = append(b, name...)
	return appendString(b, value)
}

func appendPosition(b []byte, name string, at events.Position) []byte {
	b = append(b, name...)
	b = append(b, '"')
	b = strconv.AppendUint(b, at.Ms, 10)
	b = append(b, '-')
	b = strconv.AppendUint(b, at.Seq, 10)
	return append(b, '"')
}

func appendObject(b []byte, name, object string) []byte {
	b = append(b, name...)
	if object == "" {
		object = "{}"
	}
	return append(b, object...)
}

// appendCard appends what is shown of a peer, without braces.
func appendCard(b []byte, c *projections.Card, withMeta bool) []byte {
	b = appendText(b, `"peer":`, c.Peer)
	b = appendText(b, `,"user":`, c.User)
	b = appendText(b, `,"role":`, string(c.Role))
	if c.Name != "" {
		b = appendText(b, `,"name":`, c.Name)
	}
	if withMeta && c.Meta != "" {
		b = append(b, `,"meta":`...)
		b = append(b, c.Meta...)
	}
	b = append(b, `,"connected":`...)
	b = strconv.AppendBool(b, c.Connected)
	return appendText(b, `,"instance":`, c.Instance)
}

func appendOwner(b []byte, instance, url string) []byte {
	b = appendText(b, `"owner":{"instance":`, instance)
	b = appendText(b, `,"url":`, url)
	return append(b, '}')
}

// appendRoom appends a room: all of it or, for a summary, without settings, guest state and meta and with some of its
// peers only.
func appendRoom(b []byte, s *projections.State, room *projections.Room, summary bool) []byte {
	b = appendText(b, `{"id":`, room.ID)
	b = appendPosition(b, `,"version":`, room.Version)
	b = append(b, `,"open":`...)
	b = strconv.AppendBool(b, room.Open)
	if room.Open { // nobody owns what nobody has joined yet
		b = append(b, ',')
		live, _ := s.Replica(room.Owner)
		b = appendOwner(b, room.Owner, live.URL)
	}
	seats := room.Seats()
	if summary {
		b = append(b, `,"peerCount":`...)
		b = strconv.AppendInt(b, int64(len(seats)), 10)
		seats = seats[:min(len(seats), summaryPeers)]
	}
	b = append(b, `,"peers":[`...)
	for i, seat := range seats {
		if i > 0 {
			b = append(b, ',')
		}
		card := s.Card(seat)
		b = append(b, '{')
		b = appendCard(b, &card, !summary)
		b = append(b, '}')
	}
	b = append(b, ']')
	if !summary {
		b = appendObject(b, `,"settings":`, room.Settings)
		b = appendObject(b, `,"guestState":`, room.GuestState)
	}
	return append(b, '}')
}

// closedSummary is what watchers get of a room that is no more. Like one that is not open yet, it has no owner.
func closedSummary(c *projections.Change) []byte {
	b := appendText(nil, `{"id":`, c.Room)
	b = appendPosition(b, `,"version":`, c.At)
	return append(b, `,"open":false,"peerCount":0,"peers":[]}`...)
}

// notice is what a room is told of a change, url being where a new owner can be reached; the name is empty when it is
// told nothing.
func notice(c *projections.Change, url string) (name string, body []byte) {
	b := make([]byte, 0, 256)
	b = appendText(b, `{"room":`, c.Room)
	b = appendPosition(b, `,"version":`, c.At)
	b = appendPosition(b, `,"previous":`, c.Previous)
	b = append(b, ',')
	switch c.Kind {
	case projections.RoomChangedJoined:
		name, b = "peer-joined", appendCard(b, &c.Peer, true)
	case projections.RoomChangedAway:
		name, b = "peer-away", appendCard(b, &c.Peer, true)
	case projections.RoomChangedBack:
		name, b = "peer-back", appendCard(b, &c.Peer, true)
	case projections.RoomChangedLeft:
		name, b = "peer-left", appendCard(b, &c.Peer, true)
	case projections.RoomChangedSettings:
		name, b = "room-settings", appendObject(b, `"settings":`, c.Value)
		b = appendObject(b, `,"changed":`, c.Patch)
	case projections.RoomChangedGuest:
		name, b = "guest-state", appendObject(b, `"guestState":`, c.Value)
		b = appendObject(b, `,"changed":`, c.Patch)
	case projections.RoomChangedPin:
		if c.Former == "" {
			return "", nil // just opened: nobody is in it yet
		}
		name, b = "room-owner", appendOwner(b, c.Owner, url)
	case projections.RoomChangedClosed:
		return "room-closed", append(appendText(b, `"reason":`, c.Reason), '}')
	default:
		return "", nil
	}
	if c.Reason != "" {
		b = appendText(b, `,"reason":`, c.Reason)
	}
	return name, append(b, '}')
}

// presenceNotice is what a user's other connections are told of a peer that came or is gone.
func presenceNotice(c *projections.Change) []byte {
	b := appendText(nil, `{"peer":`, c.Peer.Peer)
	b = append(b, `,"connected":`...)
	b = strconv.AppendBool(b, c.Peer.Connected)
	b = append(b, `,"at":`...)
	b = strconv.AppendInt(b, c.Peer.Since.UnixMilli(), 10)
	if c.Reason != "" {
		b = appendText(b, `,"reason":`, c.Reason)
	}
	return append(appendPosition(b, `,"version":`, c.At), '}')
}

// settingNotice is what everybody who may read the settings is told of a change.
func settingNotice(c *projections.Change) []byte {
	b := appendPosition(nil, `{"version":`, c.At)
	b = appendText(b, `,"key":`, c.Key)
	value := c.Value
	if value == "" {
		value = "null"
	}
	b = append(b, `,"value":`...)
	return append(append(b, value...), '}')
}
