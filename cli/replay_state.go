package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/events"
	"holdfast/projections"
)

// stateView is a state for people and programs.
type stateView struct {
	Position      events.Position    `json:"position"`
	Time          string             `json:"time"`
	Token         string             `json:"token"`
	Replicas      []replicaView      `json:"replicas"`
	Peers         []peerView         `json:"peers"`
	Registrations []registrationView `json:"registrations"`
	Rooms         []roomView         `json:"rooms"`
	Settings      []settingView      `json:"settings"`
}

type replicaView struct {
	Replica     string `json:"replica"`
	Incarnation string `json:"incarnation"`
	Slot        int    `json:"slot"`
	Since       string `json:"since"`
	URL         string `json:"url"`
	Understands int    `json:"understands"`
	Draining    bool   `json:"draining"`
}

type peerView struct {
	User          string `json:"user"`
	Peer          string `json:"peer"`
	Status        string `json:"status"` // "connected", "away", "gone"
	Since         string `json:"since"`
	Replica       string `json:"replica"`
	Connection    string `json:"connection"`
	Session       string `json:"session"`
	Recovery      string `json:"recovery"`
	SessionEnded  bool   `json:"sessionEnded"`
	Anonymous     bool   `json:"anonymous"`
	Registrations int    `json:"registrations"`
}

type registrationView struct {
	User       string `json:"user"`
	Method     string `json:"method"`
	Status     string `json:"status"` // "available", "away", "lapsed"
	Peer       string `json:"peer"`
	Replica    string `json:"replica"` // of the holder's connection
	Session    string `json:"session"`
	ReplaySafe bool   `json:"replaySafe"`
	Orphaned   string `json:"orphaned,omitempty"`
	Version    string `json:"version"`
}

// thing is a part of a state that has a name.
type thing interface {
	key() string
	about() about
	names() int // how many of its first fields make up the key
}

// The prefix replica: is what people ask for; the aggregate behind it is its incarnation.
const replicaPrefix = "replica:"

func (v replicaView) key() string {
	return strings.Replace(string(events.IncarnationKey(v.Replica)), "incarnation:", replicaPrefix, 1)
}
func (v peerView) key() string         { return string(events.PeerKey(v.User, v.Peer)) }
func (v registrationView) key() string { return string(events.MethodKey(v.User, v.Method)) }

func (replicaView) names() int      { return 1 }
func (peerView) names() int         { return 2 }
func (registrationView) names() int { return 2 }

func (v replicaView) about() about { return about{instances: []string{v.Replica}} }
func (v peerView) about() about {
	return about{User: v.User, Peer: v.Peer, instances: []string{v.Replica}}
}
func (v registrationView) about() about {
	return about{User: v.User, Peer: v.Peer, Methods: []string{v.Method}, instances: []string{v.Replica}}
}

func viewReplica(r projections.Replica) replicaView {
	return replicaView{
		Replica: r.Instance, Incarnation: r.Incarnation, Slot: r.Slot, Since: clock(r.Started.Time()), URL: r.URL,
		Understands: r.Understands, Draining: r.Draining,
	}
}

func viewPeer(s *projections.State, p projections.Peer) peerView {
	v := peerView{
		User: p.User, Peer: p.Peer, Status: "connected", Since: clock(p.Changed), Replica: p.Instance,
		Connection: p.Connection, Session: p.Session, Recovery: p.Recovery, SessionEnded: p.SessionEnded,
		Anonymous: p.Anonymous, Registrations: s.HeldCount(p.PeerID),
	}
	switch {
	case p.Gone:
		v.Status = "gone"
	case !p.Connected:
		v.Status = "away"
	}
	return v
}

func viewRegistration(s *projections.State, r projections.Registration) registrationView {
	v := registrationView{
		User: r.User, Method: r.Method, Status: "lapsed", Peer: r.Holder.Peer, Session: r.Session,
		ReplaySafe: r.ReplaySafe, Version: r.Version.String(),
	}
	if p, ok := s.Peer(r.Holder); ok {
		v.Replica = p.Instance
	}
	switch _, _, available := s.Resolve(r.MethodID); available {
	case projections.Available:
		v.Status = "available"
	case projections.Away:
		v.Status = "away"
	}
	if !r.Orphaned.IsZero() {
		v.Orphaned = clock(r.Orphaned)
	}
	return v
}

// viewState shows what the filter asks for, sorted by name.
func viewState(s *projections.State, f filter) stateView {
	v := stateView{
		Position: s.Position, Time: clock(s.Now()), Token: s.Token.String(),
		Replicas: []replicaView{}, Peers: []peerView{}, Registrations: []registrationView{},
		Rooms: viewRooms(s, f), Settings: viewSettings(s, f),
	}
	for r := range s.Replicas() {
		v.Replicas = appendWanted(v.Replicas, viewReplica(r), f)
	}
	for p := range s.Peers() {
		v.Peers = appendWanted(v.Peers, viewPeer(s, p), f)
	}
	for r := range s.Registrations() {
		v.Registrations = appendWanted(v.Registrations, viewRegistration(s, r), f)
	}
	slices.SortFunc(v.Replicas, func(a, b replicaView) int { return cmp.Compare(a.Replica, b.Replica) })
	slices.SortFunc(v.Peers, func(a, b peerView) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Peer, b.Peer))
	})
	slices.SortFunc(v.Registrations, func(a, b registrationView) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Method, b.Method))
	})
	return v
}

func appendWanted[T thing](list []T, v T, f filter) []T {
	if f.matches(v.about()) {
		list = append(list, v)
	}
	return list
}

// things are all parts of the state in order.
func (v stateView) things() []thing {
	var all []thing
	for _, r := range v.Replicas {
		all = append(all, r)
	}
	for _, p := range v.Peers {
		all = append(all, p)
	}
	for _, r := range v.Registrations {
		all = append(all, r)
	}
	for _, r := range v.Rooms {
		all = append(all, r)
	}
	for _, setting := range v.Settings {
		all = append(all, setting)
	}
	return all
}

func (v stateView) print(w io.Writer, now time.Time) error {
	fmt.Fprintf(w, "state at %s  %s (%s ago): replicas %d, peers %d, registrations %d, rooms %d\n",
		v.Position, v.Time, age(now.Sub(v.Position.Time())), len(v.Replicas), len(v.Peers), len(v.Registrations), len(v.Rooms))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(v.Replicas) > 0 {
		fmt.Fprintln(t, "\nREPLICA\tSLOT\tSINCE\tINCARNATION\tURL")
	}
	for _, r := range v.Replicas {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", plain(r.Replica), r.Slot, r.Since, plain(r.Incarnation), plain(r.URL))
	}
	_ = t.Flush()
	if len(v.Peers) > 0 {
		fmt.Fprintln(t, "\nPEER\tSTATUS\tSINCE\tREPLICA\tCONNECTION\tREGISTRATIONS")
	}
	for _, p := range v.Peers {
		status := p.Status
		if p.SessionEnded {
			status += ", ended"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", plain(p.key()), status, p.Since, plain(p.Replica), plain(p.Connection), p.Registrations)
	}
	_ = t.Flush()
	if len(v.Registrations) > 0 {
		fmt.Fprintln(t, "\nMETHOD\tSTATUS\tHOLDER\tREPLICA\tSESSION\tREPLAY-SAFE")
	}
	for _, r := range v.Registrations {
		status := r.Status
		if r.Orphaned != "" {
			status += ", orphaned"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%t\n", plain(r.key()), status, plain(r.Peer), plain(r.Replica), plain(r.Session), r.ReplaySafe)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printRooms(t, v)
}

// change is one field of a thing that differs between two states. Before is nil when the thing did not exist, After
// when it does no more.
type change struct {
	Field  string  `json:"field"`
	Before *string `json:"before"`
	After  *string `json:"after"`
}

// changes compares a thing with what became of it; either may be nil.
func changes(before, after thing) []change {
	var all []change
	was, is := members(before), members(after)
	named := is
	if is == nil {
		named = was
	}
	for i := range named {
		c := change{Field: named[i].name}
		if was != nil {
			c.Before = &was[i].value
		}
		if is != nil {
			c.After = &is[i].value
		}
		if c.Before == nil || c.After == nil || *c.Before != *c.After {
			all = append(all, c)
		}
	}
	return all
}

type member struct{ name, value string }

// members are the fields of a thing that is there, but for those that make up its name.
func members(v thing) []member {
	if v == nil {
		return nil
	}
	value := reflect.ValueOf(v)
	all := make([]member, 0, value.NumField())
	for i := v.names(); i < value.NumField(); i++ {
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		text := fmt.Sprint(value.Field(i).Interface())
		if raw, ok := value.Field(i).Interface().(json.RawMessage); ok {
			text = string(raw)
		}
		all = append(all, member{name, text})
	}
	return all
}

// difference is what happened to one thing between two states.
type difference struct {
	What    string   `json:"what"` // "added", "removed", "changed"
	Thing   string   `json:"thing"`
	Changes []change `json:"changes"`
}

// diffStates lists what differs, sorted by name within replicas, peers, registrations, rooms and settings.
func diffStates(a, b stateView) []difference {
	was, is := map[string]thing{}, map[string]thing{}
	var order []string
	for _, t := range a.things() {
		was[t.key()] = t
		order = append(order, t.key())
	}
	for _, t := range b.things() {
		is[t.key()] = t
		if _, known := was[t.key()]; !known {
			order = append(order, t.key())
		}
	}
	rank := map[string]int{"replica": 0, "peer": 1, "method": 2, "room": 3, "setting": 4}
	kind := func(key string) int { name, _, _ := strings.Cut(key, ":"); return rank[name] }
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a, b)) })
	all := []difference{}
	for _, key := range order {
		d := difference{What: "changed", Thing: key, Changes: changes(was[key], is[key])}
		switch {
		case was[key] == nil:
			d.What = "added"
		case is[key] == nil:
			d.What = "removed"
		case len(d.Changes) == 0:
			continue
		}
		all = append(all, d)
	}
	return all
}

func (d difference) print(w io.Writer, p paint) {
	sign, colour := "~", yellow
	switch d.What {
	case "added":
		sign, colour = "+", green
	case "removed":
		sign, colour = "-", red
	}
	fmt.Fprintf(w, "%s  %s\n", p.in(colour, sign+" "+plain(d.Thing)), describe(d.Changes))
}

// describe tells changes in one line. Of a thing that came or went it leaves out what is empty.
func describe(all []change) string {
	var parts []string
	add := func(c change, value *string) {
		if *value != "" && *value != "false" {
			parts = append(parts, c.Field+"="+plain(*value))
		}
	}
	for _, c := range all {
		switch {
		case c.Before == nil:
			add(c, c.After)
		case c.After == nil:
			add(c, c.Before)
		default:
			parts = append(parts, fmt.Sprintf("%s: %s → %s", c.Field, plain(*c.Before), plain(*c.After)))
		}
	}
	return strings.Join(parts, "  ")
}
