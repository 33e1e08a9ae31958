package events

// MethodRegistered makes the peer's session the one holder of (User, Method). A former holder is replaced at
// this position, so there is no moment without one.
type MethodRegistered struct {
	User       string `json:"user"`
	Method     string `json:"method"`
	Peer       string `json:"peer"`
	Session    string `json:"session"`
	Connection string `json:"connection"`
	// ReplaySafe says that the handler may be given the same request twice.
	ReplaySafe bool `json:"replaySafe,omitempty"`
}

// MethodUnregistered ends the registration that the named session held.
type MethodUnregistered struct {
	User    string `json:"user"`
	Method  string `json:"method"`
	Peer    string `json:"peer"`
	Session string `json:"session"`
	Reason  string `json:"reason"` // "client", "grace"
}

// RegistrationsLapsed says that the registration grace of an away session has passed: what it held can no
// longer be called. Should the session be recovered (PeerConnected.Recovered), it holds them again, but for
// those that another session has taken meanwhile.
type RegistrationsLapsed struct {
	User       string `json:"user"`
	Peer       string `json:"peer"`
	Connection string `json:"connection"`
}

func (MethodRegistered) event()    {}
func (MethodUnregistered) event()  {}
func (RegistrationsLapsed) event() {}

// MethodKey is the aggregate of one method of one user.
func MethodKey(user, method string) Aggregate { return aggregate("method", user, method) }

func (e MethodRegistered) Writes() []Aggregate    { return []Aggregate{MethodKey(e.User, e.Method)} }
func (MethodUnregistered) Writes() []Aggregate    { return nil }
func (e RegistrationsLapsed) Writes() []Aggregate { return []Aggregate{PeerKey(e.User, e.Peer)} }

func (MethodRegistered) Ends() []Aggregate     { return nil }
func (RegistrationsLapsed) Ends() []Aggregate  { return nil }
func (e MethodUnregistered) Ends() []Aggregate { return []Aggregate{MethodKey(e.User, e.Method)} }
