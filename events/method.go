package events

import "encoding/json"

// Delivery says how often a handler may be given the same request. A word that a reader does not know would be
// folded as "once": a new one is a new schema.
type Delivery string

const (
	DeliverOnce  Delivery = "once"  // at most once
	DeliverAgain Delivery = "again" // the handler asked for it: it may get the same request twice
)

// MethodRegistered makes the peer's session the one holder of (User, Method). A former holder is replaced at
// this position, so there is no moment without one.
type MethodRegistered struct {
	User       string   `json:"user"`
	Method     string   `json:"method"`
	Peer       string   `json:"peer"`
	Session    string   `json:"session"`
	Connection string   `json:"connection"`
	Delivery   Delivery `json:"delivery"`
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

// methodRegistered1 is the first schema, which had a flag in place of Delivery.
var methodRegistered1 = form{schema: 1, generation: 1, encode: func(e Event) ([]byte, error) {
	now := e.(MethodRegistered)
	return json.Marshal(struct {
		User       string `json:"user"`
		Method     string `json:"method"`
		Peer       string `json:"peer"`
		Session    string `json:"session"`
		Connection string `json:"connection"`
		ReplaySafe bool   `json:"replaySafe,omitempty"`
	}{now.User, now.Method, now.Peer, now.Session, now.Connection, now.Delivery == DeliverAgain})
}}
