package projections

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// SnapshotSchema is the newest form that Encode writes and Decode reads. It grows with every change of State or of what a fold makes of
// an event: a snapshot of a newer schema is discarded, and the log folded anew.
const SnapshotSchema = 2

// Schema is the first form of snapshots that can hold the state: what has no use for a newer one is written so that
// older replicas can read it too.
func (s *State) Schema() int {
	if len(s.rooms) > 0 || len(s.settings) > 0 {
		return 2
	}
	for _, r := range s.replicas {
		if r.Draining {
			return 2
		}
	}
	return 1
}

// ReadableSchema is the newest form that every replica of a generation of events can read.
func ReadableSchema(generation int) int {
	if generation < 3 {
		return 1
	}
	return SnapshotSchema
}

// ErrSnapshot is wrapped by Decode's error for what is not a snapshot of this schema.
var ErrSnapshot = errors.New("not a usable snapshot")

// Encode writes the whole state. Equal states have equal encodings, whatever order they were reached in.
func (s *State) Encode() []byte {
	e := encoder{b: make([]byte, 0, 1024+160*len(s.versions)+256*len(s.peers))}
	schema := s.Schema()
	e.uint(uint64(schema))
	e.position(s.Position)
	e.b = append(e.b, s.Token[:]...)

	e.uint(uint64(len(s.versions)))
	for _, a := range slices.Sorted(maps.Keys(s.versions)) {
		e.version(a, s.versions[a])
	}
	e.uint(uint64(len(s.replicas)))
	for _, name := range slices.Sorted(maps.Keys(s.replicas)) {
		e.replica(s.replicas[name])
		if schema >= 2 {
			e.flags(s.replicas[name].Draining)
		}
	}
	for _, slot := range s.slots {
		e.slot(slot)
	}
	e.uint(uint64(len(s.peers)))
	for _, id := range slices.SortedFunc(maps.Keys(s.peers), comparePeers) {
		e.peer(s.peers[id])
	}
	e.uint(uint64(len(s.methods)))
	for _, id := range slices.SortedFunc(maps.Keys(s.methods), compareMethods) {
		e.registration(s.methods[id])
	}
	if schema < 2 {
		return e.b
	}
	e.uint(uint64(len(s.rooms)))
	for _, id := range slices.Sorted(maps.Keys(s.rooms)) {
		e.room(s.rooms[id])
	}
	e.uint(uint64(len(s.settings)))
	for _, key := range slices.Sorted(maps.Keys(s.settings)) {
		e.text(key, s.settings[key])
	}
	return e.b
}

func (e *encoder) room(r *Room) {
	e.text(r.ID, r.Owner, r.Settings, r.GuestState)
	e.flags(r.Open, r.Held)
	e.position(r.Version)
	e.position(r.Pinned)
	e.time(r.Unheld)
	e.uint(uint64(len(r.seats)))
	for _, seat := range r.seats {
		e.text(seat.User, seat.Peer, string(seat.Role), seat.Name, seat.Meta, seat.Session)
		e.position(seat.Joined)
	}
}

// room reads a room with its seats.
func (d *decoder) room(s *State) {
	r := &Room{ID: d.text(), Owner: d.text(), Settings: d.text(), GuestState: d.text()}
	d.flags(&r.Open, &r.Held)
	r.Version, r.Pinned, r.Unheld = d.position(), d.position(), d.time()
	s.rooms[r.ID] = r
	if r.Open {
		s.addPin(r)
	}
	for range d.count() {
		seat := &Seat{PeerID: PeerID{User: d.text(), Peer: d.text()}, Role: events.Role(d.text())}
		seat.Name, seat.Meta, seat.Session, seat.Joined = d.text(), d.text(), d.text(), d.position()
		s.sit(r, seat)
		if seat.Role != events.Monitor {
			r.held++
		}
	}
}

func (e *encoder) version(a events.Aggregate, at events.Position) {
	e.text(string(a))
	e.position(at)
}

func (e *encoder) replica(r *Replica) {
	e.text(r.Instance, r.Incarnation, r.URL)
	e.uint(uint64(r.Slot))
	e.position(r.Started)
	e.uint(uint64(r.Understands))
}

func (e *encoder) slot(slot Slot) {
	e.text(slot.Instance, slot.Incarnation)
	e.flags(slot.Live)
	e.position(slot.Freed)
}

func (e *encoder) peer(p *Peer) {
	e.text(p.User, p.PeerID.Peer, p.Connection, p.Instance, p.Session, p.Recovery)
	e.flags(p.Anonymous, p.Connected, p.SessionEnded, p.Gone)
	e.time(p.Changed)
}

func (e *encoder) registration(r *Registration) {
	e.text(r.User, r.Method, r.Holder.Peer, r.Session)
	e.flags(r.ReplaySafe, r.Lapsed)
	e.position(r.Version)
	e.time(r.Orphaned)
}

// Decode reads what Encode wrote. What is cut short, damaged in a way that shows, or of another schema is
// ErrSnapshot; a checksum is the caller's business.
func Decode(b []byte) (*State, error) {
	d := decoder{b: b}
	schema := d.uint()
	if d.err == nil && (schema == 0 || schema > SnapshotSchema) {
		return nil, fmt.Errorf("projections: %w: schema %d, this build reads up to %d", ErrSnapshot, schema, SnapshotSchema)
	}
	s := New()
	s.Position = d.position()
	copy(s.Token[:], d.take(len(ulid.ULID{})))

	for range d.count() {
		a := events.Aggregate(d.text())
		s.versions[a] = d.position()
	}
	for range d.count() {
		r := &Replica{Instance: d.text(), Incarnation: d.text(), URL: d.text()}
		r.Slot = int(min(d.uint(), events.Slots))
		r.Started = d.position()
		r.Understands = int(d.uint())
		if schema >= 2 {
			d.flags(&r.Draining)
		}
		s.replicas[r.Instance] = r
	}
	for i := range s.slots {
		s.slots[i] = Slot{Instance: d.text(), Incarnation: d.text()}
		d.flags(&s.slots[i].Live)
		s.slots[i].Freed = d.position()
	}
	instances := map[string]string{} // one string for all the peers of an instance
	for range d.count() {
		p := &Peer{PeerID: PeerID{User: d.text(), Peer: d.text()}, Connection: d.text(), Instance: d.text()}
		if known, ok := instances[p.Instance]; ok {
			p.Instance = known
		} else {
			instances[p.Instance] = p.Instance
		}
		p.Session, p.Recovery = d.text(), d.text()
		d.flags(&p.Anonymous, &p.Connected, &p.SessionEnded, &p.Gone)
		p.Changed = d.time()
		s.addPeer(p)
		s.sessions[p.Recovery] = p.PeerID
		if p.Connected {
			s.attach(p)
		}
	}
	for range d.count() {
		r := &Registration{MethodID: MethodID{User: d.text(), Method: d.text()}}
		r.Holder = PeerID{User: r.User, Peer: d.text()}
		r.Session = d.text()
		d.flags(&r.ReplaySafe, &r.Lapsed)
		r.Version = d.position()
		r.Orphaned = d.time()
		s.methods[r.MethodID] = r
		s.hold(r)
	}
	if schema >= 2 {
		for range d.count() {
			d.room(s)
		}
		for range d.count() {
			key := d.text()
			s.settings[key] = d.text()
		}
	}
	if d.err == nil && len(d.b) != 0 {
		d.err = fmt.Errorf("%d bytes after its end", len(d.b))
	}
	if d.err != nil {
		return nil, fmt.Errorf("projections: %w: %w", ErrSnapshot, d.err)
	}
	return s, nil
}

func comparePeers(a, b PeerID) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Peer, b.Peer))
}

func compareMethods(a, b MethodID) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Method, b.Method))
}

type encoder struct{ b []byte }

func (e *encoder) uint(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) text(all ...string) {
	for _, s := range all {
		e.uint(uint64(len(s)))
		e.b = append(e.b, s...)
	}
}

func (e *encoder) position(p events.Position) {
	e.uint(p.Ms)
	e.uint(p.Seq)
}

// time is in ms, as positions are; 0 for the zero time.
func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.uint(0)
		return
	}
	e.uint(uint64(t.UnixMilli()))
}

func (e *encoder) flags(all ...bool) {
	var bits byte
	for i, f := range all {
		if f {
			bits |= 1 << i
		}
	}
	e.b = append(e.b, bits)
}

// decoder reads until its first error; what it gives afterwards is zero.
type decoder struct {
	b   []byte
	err error
}

var errShort = errors.New("cut short")

func (d *decoder) uint() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[used:]
	return n
}

// count is how many entries follow; each has at least one byte.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	part := d.b[:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) text() string {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) position() events.Position { return events.Position{Ms: d.uint(), Seq: d.uint()} }

func (d *decoder) time() time.Time {
	ms := d.uint()
	if ms == 0 || ms > math.MaxInt64 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

func (d *decoder) flags(all ...*bool) {
	part := d.take(1)
	if part == nil {
		return
	}
	for i, f := range all {
		*f = part[0]&(1<<i) != 0
	}
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errShort
	}
	d.b = nil
}
