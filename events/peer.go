package events

// PeerConnected makes Connection the peer's one current connection; whatever it had before is replaced at
// this position. With Recovered the session (Session, Recovery) is the former one carried on; else it is new.
type PeerConnected struct {
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"` // ULID
	Instance   string `json:"instance"`
	// Session is the Socket.IO sid, Recovery the pid that the client shows to carry the session on.
	Session   string `json:"session"`
	Recovery  string `json:"recovery"`
	Recovered bool   `json:"recovered,omitempty"`
	// Anonymous says that the server made the peer id.
	Anonymous bool `json:"anonymous,omitempty"`
}

// PeerDisconnected ends the named connection. The peer is away, and its graces begin.
type PeerDisconnected struct {
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
	Reason     string `json:"reason"`
	// SessionEnded says that the client or the server closed the session on purpose: it cannot be recovered.
	SessionEnded bool `json:"sessionEnded,omitempty"`
}

// PeerGone says that the peer's grace has passed without its return after the named connection.
type PeerGone struct {
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
}

// PeerForgotten ends the record of a peer that is gone and whose session can no longer be recovered, and the
// lapsed registrations (Methods) that waited for that recovery.
type PeerForgotten struct {
	User       string   `json:"user"`
	Peer       string   `json:"peer"`
	Connection string   `json:"connection"`
	Methods    []string `json:"methods,omitempty"`
}

func (PeerConnected) event()    {}
func (PeerDisconnected) event() {}
func (PeerGone) event()         {}
func (PeerForgotten) event()    {}

// PeerKey is the aggregate of one peer of one user.
func PeerKey(user, peer string) Aggregate { return aggregate("peer", user, peer) }

func (e PeerConnected) Writes() []Aggregate    { return []Aggregate{PeerKey(e.User, e.Peer)} }
func (e PeerDisconnected) Writes() []Aggregate { return []Aggregate{PeerKey(e.User, e.Peer)} }
func (e PeerGone) Writes() []Aggregate         { return []Aggregate{PeerKey(e.User, e.Peer)} }
func (PeerForgotten) Writes() []Aggregate      { return nil }

func (PeerConnected) Ends() []Aggregate    { return nil }
func (PeerDisconnected) Ends() []Aggregate { return nil }
func (PeerGone) Ends() []Aggregate         { return nil }
func (e PeerForgotten) Ends() []Aggregate {
	ends := []Aggregate{PeerKey(e.User, e.Peer)}
	for _, method := range e.Methods {
		ends = append(ends, MethodKey(e.User, method))
	}
	return ends
}
