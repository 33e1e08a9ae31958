package projections

import (
	"cmp"
	"maps"
	"slices"
)

// Diff is what differs between two states of one log, the later of which was not reached record by record, as far as
// clients have to be told. Rooms and seats that are missing in it are no changes: who is in them comes back.
func Diff(before, after *State) (changes []Change) {
	rooms := slices.SortedFunc(maps.Values(after.rooms), func(a, b *Room) int { return cmp.Compare(a.ID, b.ID) })
	for _, room := range rooms {
		former, ok := before.rooms[room.ID]
		if !ok {
			continue
		}
		note := func(c Change) {
			c.At, c.Room, c.Previous = room.Version, room.ID, former.Version
			changes = append(changes, c)
		}
		if room.Settings != former.Settings {
			note(Change{Kind: RoomChangedSettings, Value: room.Settings, Patch: room.Settings})
		}
		if room.GuestState != former.GuestState {
			note(Change{Kind: RoomChangedGuest, Value: room.GuestState, Patch: room.GuestState})
		}
		if room.Open && former.Open && (room.Owner != former.Owner || room.Pinned != former.Pinned) {
			note(Change{Kind: RoomChangedPin, Owner: room.Owner, Former: former.Owner, Pinned: room.Pinned, Unpinned: former.Pinned})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after.settings)) {
		if former, ok := before.settings[key]; ok && former != after.settings[key] {
			changes = append(changes, Change{Kind: SettingsChanged, At: after.Position, Key: key, Value: after.settings[key]})
		}
	}
	return changes
}
