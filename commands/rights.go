package commands

import (
	"slices"

	"github.com/tidwall/match"
)

// Claims are what a client's token grants. The zero Claims grant nothing beyond the user's own scope: methods of
// its own user, and listening on its own channel. Patterns are globs: * is any text, ? any one character.
type Claims struct {
	Rooms    []RoomGrant   `json:"rooms,omitempty"`
	RPC      MethodGrant   `json:"rpc,omitzero"`
	Channels ChannelGrant  `json:"channels,omitzero"`
	Settings SettingsGrant `json:"settings,omitempty"`
	Admin    bool          `json:"admin,omitempty"` // may read everything
	// Untold: there is no token that grants anything; the server trusts everybody. Then a room that is open is
	// changed from within only.
	Untold bool `json:"-"`
}

// RoomGrant says which roles a user may take in the rooms that the pattern names.
type RoomGrant struct {
	Pattern string `json:"pattern"`
	Roles   []Role `json:"roles"`
}

// MethodGrant names methods of other users, as "user/method".
type MethodGrant struct {
	Register []string `json:"register,omitempty"`
	Call     []string `json:"call,omitempty"`
}

// ChannelGrant names channels.
type ChannelGrant struct {
	Subscribe []string `json:"subscribe,omitempty"`
	Publish   []string `json:"publish,omitempty"`
}

// SettingsGrant is the right to the cluster-wide settings.
type SettingsGrant string

// The rights to settings; the empty one is none.
const (
	SettingsRead  SettingsGrant = "read"
	SettingsWrite SettingsGrant = "write" // and read
)

// Everything are the claims of a client whose server trusts everybody (--insecure): all that a token can grant but
// to read rooms without being in them.
func Everything() Claims {
	return Claims{
		Rooms:    []RoomGrant{{Pattern: "*", Roles: []Role{Host, Guest, Monitor, Member}}},
		RPC:      MethodGrant{Register: []string{"*"}, Call: []string{"*"}},
		Channels: ChannelGrant{Subscribe: []string{"*"}, Publish: []string{"*"}},
		Settings: SettingsWrite,
		Untold:   true,
	}
}

// MayJoin reports whether the room may be joined in the role.
func (c Claims) MayJoin(room string, role Role) bool {
	return slices.ContainsFunc(c.Rooms, func(g RoomGrant) bool {
		return slices.Contains(g.Roles, role) && matches(g.Pattern, room)
	})
}

// MayUpdate reports whether the settings of a room, open or not yet, may be changed from outside.
func (c Claims) MayUpdate(room string, open bool) bool {
	return c.MayJoin(room, Host) && !(open && c.Untold)
}

// MayWatch reports whether the room's summary may be seen: by whom any role in it is granted.
func (c Claims) MayWatch(room string) bool {
	return c.Admin || slices.ContainsFunc(c.Rooms, func(g RoomGrant) bool {
		return len(g.Roles) > 0 && matches(g.Pattern, room)
	})
}

// UserChannel is the channel on which a user is reached.
func UserChannel(user string) string { return "user:" + user }

// MaySubscribe reports whether a user may listen on a channel.
func (c Claims) MaySubscribe(user, channel string) bool {
	return channel == UserChannel(user) || matchesAny(c.Channels.Subscribe, channel)
}

// MayPublish reports whether messages may be published to a channel.
func (c Claims) MayPublish(channel string) bool { return matchesAny(c.Channels.Publish, channel) }

// MayReadSettings reports whether the cluster-wide settings may be read.
func (c Claims) MayReadSettings() bool {
	return c.Admin || c.Settings == SettingsRead || c.Settings == SettingsWrite
}

// MayWriteSettings reports whether the cluster-wide settings may be changed.
func (c Claims) MayWriteSettings() bool { return c.Settings == SettingsWrite }

func matchesAny(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, s) })
}

// matchCost bounds what one comparison may take: a pattern of many stars could take for ever.
const matchCost = 10_000

func matches(pattern, s string) bool {
	if pattern == "*" {
		return true
	}
	ok, stopped := match.MatchLimit(s, pattern, matchCost)
	return ok && !stopped
}
