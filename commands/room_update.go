package commands

import (
	"bytes"
	"encoding/json"
	"slices"

	"holdfast/events"
	"holdfast/projections"
)

// UpdateRoom changes a room's settings by a merge patch. The present host may, and from outside who may be host there;
// then the room need not be open yet.
type UpdateRoom struct {
	User       string
	Peer       string
	Connection string
	Room       string
	Patch      json.RawMessage
	// Expected is the version of the room at which alone the patch applies; empty for any.
	Expected string
	Claims   Claims
	Limits   RoomLimits
}

func (c UpdateRoom) Decide(s *projections.State) (Decision, error) {
	patch, bad := checkPatch("settings", c.Patch)
	if bad != nil {
		return Decision{}, bad
	}
	room, d, err := c.authorize(s)
	if err != nil {
		return Decision{}, err
	}
	var former string
	if room != nil {
		former = room.Settings
	}
	changed, err := d.patch(s, c.Room, c.Expected, former, patch, "settings", c.Limits)
	if err != nil || !changed {
		return Decision{}, err
	}
	d.Reads = append(d.Reads, events.RoomSettingsKey(c.Room))
	d.Events = []events.Event{events.RoomSettingsChanged{Room: c.Room, User: c.User, Peer: c.Peer, Patch: patch}}
	return d, nil
}

// authorize finds the room, nil for none yet, if the actor may change its settings. In the room, the role decides.
func (c UpdateRoom) authorize(s *projections.State) (*projections.Room, Decision, error) {
	if bad := checkName("room", c.Room); bad != nil {
		return nil, Decision{}, bad
	}
	id := projections.PeerID{User: c.User, Peer: c.Peer}
	if _, err := currentPeer(s, id, c.Connection); err != nil {
		return nil, Decision{}, err
	}
	room := s.Room(c.Room)
	open := room != nil && room.Open
	if open && room.Seat(id) != nil || !c.Claims.MayUpdate(c.Room, open) {
		return actor{c.User, c.Peer, c.Connection}.in(s, c.Room, Host)
	}
	return room, Decision{Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer), events.RoomOpenKey(c.Room)}}, nil
}

// UpdateGuest changes a room's guest state by a merge patch. The guest and the host may.
type UpdateGuest struct {
	User       string
	Peer       string
	Connection string
	Room       string
	Patch      json.RawMessage
	Expected   string
	Limits     RoomLimits
}

func (c UpdateGuest) Decide(s *projections.State) (Decision, error) {
	patch, bad := checkPatch("state", c.Patch)
	if bad != nil {
		return Decision{}, bad
	}
	room, d, err := actor{c.User, c.Peer, c.Connection}.in(s, c.Room, Guest, Host)
	if err != nil {
		return Decision{}, err
	}
	changed, err := d.patch(s, c.Room, c.Expected, room.GuestState, patch, "guestState", c.Limits)
	if err != nil || !changed {
		return Decision{}, err
	}
	d.Reads = append(d.Reads, events.RoomOpenKey(c.Room), events.RoomGuestKey(c.Room))
	d.Events = []events.Event{events.RoomGuestChanged{Room: c.Room, User: c.User, Peer: c.Peer, Patch: patch}}
	return d, nil
}

// patch says whether the patch changes the object, called by its name in answers. With an expected version it reads all
// that the version of a room depends on: the room, who is connected, and who lives.
func (d *Decision) patch(s *projections.State, id, expected, former string, patch []byte, name string, limits RoomLimits) (bool, error) {
	room := s.Room(id)
	var version events.Position
	if room != nil {
		version = room.Version
	}
	if expected != "" && expected != version.String() {
		if former == "" {
			former = "{}"
		}
		r := doubt(refuse(CodeConflict, "the room has changed since version %s", expected))
		r.Now = map[string]any{"version": version, name: json.RawMessage(former)}
		return false, r
	}
	merged := projections.MergePatch(former, string(patch))
	if most := limits.orDefault().Settings; len(merged) > most {
		return false, doubt(refuse(CodeTooLarge, "%s would be larger than %d bytes", name, most))
	}
	if merged == former || former == "" && merged == "{}" {
		return false, nil
	}
	if expected != "" {
		d.Reads = append(d.Reads, events.RoomKey(id), events.ReplicasKey())
		if room != nil {
			for _, seat := range room.Seats() {
				d.Reads = append(d.Reads, events.PeerKey(seat.User, seat.Peer))
			}
		}
	}
	return true, nil
}

// maxDepth bounds how deep a patch may be nested: deeper ones cost more than they are worth.
const maxDepth = 32

// checkPatch takes an object, and gives it without spaces.
func checkPatch(name string, raw json.RawMessage) ([]byte, *Refusal) {
	var b bytes.Buffer
	if len(raw) == 0 || json.Compact(&b, raw) != nil || b.Bytes()[0] != '{' {
		return nil, refuse(CodeBadRequest, "%s must be an object", name)
	}
	depth, deepest, text := 0, 0, false
	for i := 0; i < b.Len(); i++ {
		switch c := b.Bytes()[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	if deepest > maxDepth {
		return nil, refuse(CodeBadRequest, "%s is nested deeper than %d", name, maxDepth)
	}
	return b.Bytes(), nil
}

// Speak is no change: it asks whether a peer may send an event to a room now, or read the room.
type Speak struct {
	User       string
	Peer       string
	Connection string
	Room       string
	Event      string // empty: it only wants to read
	Policy     EmitPolicy
	Claims     Claims
}

func (c Speak) Decide(s *projections.State) (Decision, error) {
	if c.Event == "" {
		if c.Claims.Admin && s.Room(c.Room) != nil {
			return Decision{}, nil
		}
		_, _, err := actor{c.User, c.Peer, c.Connection}.in(s, c.Room, Host, Guest, Member, Monitor)
		return Decision{}, err
	}
	if bad := checkName("event", c.Event); bad != nil {
		return Decision{}, bad
	}
	roles := []Role{Host, Guest, Member}
	if narrowed, ok := c.Policy[c.Event]; ok {
		roles = slices.DeleteFunc(slices.Clone(narrowed), func(r Role) bool { return !slices.Contains(roles, r) })
	}
	_, _, err := actor{c.User, c.Peer, c.Connection}.in(s, c.Room, roles...)
	return Decision{}, err
}
