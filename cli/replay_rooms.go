package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"holdfast/events"
	"holdfast/projections"
)

type roomView struct {
	Room       string          `json:"room"`
	Open       bool            `json:"open"`
	Owner      string          `json:"owner"`
	Pinned     string          `json:"pinned"` // since when, as the fencing token
	Peers      peersView       `json:"peers"`
	Settings   json.RawMessage `json:"settings"`
	GuestState json.RawMessage `json:"guestState"`
	Unheld     string          `json:"unheld,omitempty"`
	Version    string          `json:"version"`
}

type settingView struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// peersView are the peers of a room; in text one word for each.
type peersView []seatView

type seatView struct {
	User string          `json:"user"`
	Peer string          `json:"peer"`
	Role events.Role     `json:"role"`
	Name string          `json:"name,omitempty"`
	Meta json.RawMessage `json:"meta,omitempty"`
	Away bool            `json:"away,omitempty"`
	From events.Position `json:"joined"`
}

func (v peersView) String() string {
	words := make([]string, len(v))
	for i, seat := range v {
		words[i] = string(seat.Role) + ":" + strings.TrimPrefix(string(events.PeerKey(seat.User, seat.Peer)), "peer:")
		if seat.Away {
			words[i] += "(away)"
		}
	}
	return strings.Join(words, ",")
}

func (v roomView) key() string    { return string(events.RoomKey(v.Room)) }
func (v settingView) key() string { return "setting:" + v.Key }

func (roomView) names() int    { return 1 }
func (settingView) names() int { return 1 }

func (v roomView) about() about {
	a := about{Room: v.Room, instances: []string{v.Owner}}
	if len(v.Peers) > 0 { // whoever is asked for may be any of them
		a.room = v.Peers
	}
	return a
}

func (settingView) about() about { return about{} }

func viewRoom(s *projections.State, r *projections.Room) roomView {
	v := roomView{
		Room: r.ID, Open: r.Open, Owner: r.Owner, Settings: objectOf(r.Settings), GuestState: objectOf(r.GuestState),
		Version: r.Version.String(), Peers: peersView{},
	}
	if r.Open {
		v.Pinned = r.Pinned.String()
	}
	if !r.Unheld.IsZero() {
		v.Unheld = clock(r.Unheld)
	}
	for _, seat := range r.Seats() {
		card := s.Card(seat)
		v.Peers = append(v.Peers, seatView{
			User: seat.User, Peer: seat.Peer, Role: seat.Role, Name: seat.Name, Meta: json.RawMessage(seat.Meta),
			Away: !card.Connected, From: seat.Joined,
		})
	}
	return v
}

func objectOf(raw string) json.RawMessage {
	if raw == "" {
		return json.RawMessage("{}")
	}
	return json.RawMessage(raw)
}

func viewRooms(s *projections.State, f filter) []roomView {
	rooms := []roomView{}
	for r := range s.Rooms() {
		rooms = appendWanted(rooms, viewRoom(s, r), f)
	}
	slices.SortFunc(rooms, func(a, b roomView) int { return cmp.Compare(a.Room, b.Room) })
	return rooms
}

func viewSettings(s *projections.State, f filter) []settingView {
	settings := []settingView{}
	for _, key := range slices.Sorted(maps.Keys(s.Settings())) {
		value, _ := s.Setting(key)
		settings = appendWanted(settings, settingView{Key: key, Value: json.RawMessage(value)}, f)
	}
	return settings
}

func printRooms(t *tabwriter.Writer, v stateView) error {
	if len(v.Rooms) > 0 {
		fmt.Fprintln(t, "\nROOM\tOWNER\tPINNED\tPEERS\tSETTINGS\tGUEST STATE")
	}
	for _, r := range v.Rooms {
		owner := "(not open)"
		if r.Open {
			owner = plain(r.Owner)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", plain(r.key()), owner, r.Pinned, r.Peers, jsonText(r.Settings), jsonText(r.GuestState))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(v.Settings) > 0 {
		fmt.Fprintln(t, "\nSETTING\tVALUE")
	}
	for _, s := range v.Settings {
		fmt.Fprintf(t, "%s\t%s\n", plain(s.Key), jsonText(s.Value))
	}
	return t.Flush()
}

// jsonText is JSON as it may be written to a terminal.
func jsonText(raw json.RawMessage) string {
	if strings.ContainsFunc(string(raw), func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToASCII(string(raw))
	}
	return string(raw)
}
