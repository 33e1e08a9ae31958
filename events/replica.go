package events

// ReplicaStarted opens an incarnation of an instance. Its position is the incarnation's fence: an append of
// this replica is valid only while no later event has ended it.
type ReplicaStarted struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"` // ULID, new at every start
	URL         string `json:"url,omitempty"`
	// Slot is the number, 0 to Slots-1, that makes ack ids of this replica's calls unique in the cluster.
	Slot int `json:"slot"`
	// Understands is the newest schema generation that this replica can fold.
	Understands int `json:"understands"`
}

// ReplicaStopped is a clean end: its connections were closed before it.
type ReplicaStopped struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"`
}

// ReplicaLost ends an incarnation whose lease ran out, or that was replaced by a new start of the same
// instance. In one step, every connection on it is away and the registrations of those connections lapse.
type ReplicaLost struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"`
	// SilentMs is how long, at least, nothing had been heard of it: the graces of its connections count from
	// that much before this event.
	SilentMs int64  `json:"silentMs"`
	Reason   string `json:"reason"` // "lease", "restarted", "emptied"
}

// ReplicaDraining says that a replica is about to stop: its rooms move to others now, and it gets no new ones.
type ReplicaDraining struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"`
}

// Slots is how many replicas of one namespace can live at a time: the slot takes 7 of an ack id's 31 bits.
const Slots = 128

func (ReplicaStarted) event()  {}
func (ReplicaStopped) event()  {}
func (ReplicaLost) event()     {}
func (ReplicaDraining) event() {}

// IncarnationKey is the fence of an instance: it exists exactly while an incarnation of it lives.
func IncarnationKey(instance string) Aggregate { return aggregate("incarnation", instance) }

// ReplicasKey is the roster: who lives and who holds which slot.
func ReplicasKey() Aggregate { return aggregate("replicas") }

func (e ReplicaStarted) Writes() []Aggregate {
	return []Aggregate{IncarnationKey(e.Instance), ReplicasKey()}
}
func (ReplicaStopped) Writes() []Aggregate  { return []Aggregate{ReplicasKey()} }
func (ReplicaLost) Writes() []Aggregate     { return []Aggregate{ReplicasKey()} }
func (ReplicaDraining) Writes() []Aggregate { return []Aggregate{ReplicasKey()} }

func (ReplicaStarted) Ends() []Aggregate   { return nil }
func (ReplicaDraining) Ends() []Aggregate  { return nil }
func (e ReplicaStopped) Ends() []Aggregate { return []Aggregate{IncarnationKey(e.Instance)} }
func (e ReplicaLost) Ends() []Aggregate    { return []Aggregate{IncarnationKey(e.Instance)} }
