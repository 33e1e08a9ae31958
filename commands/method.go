package commands

import (
	"holdfast/events"
	"holdfast/projections"
)

// RegisterMethod makes the session of a connection the one holder of a method, in place of whoever held it.
type RegisterMethod struct {
	User       string
	Peer       string
	Connection string
	Method     string
	ReplaySafe bool
	// Restore: the replica restores what got lost, so a method that another session holds meanwhile stays there.
	Restore bool
}

func (c RegisterMethod) Decide(s *projections.State) (Decision, error) {
	if bad := checkName("method", c.Method); bad != nil {
		return Decision{}, refuse(CodeBadRequest, "Invalid method name")
	}
	id := projections.PeerID{User: c.User, Peer: c.Peer}
	p, err := currentPeer(s, id, c.Connection)
	if err != nil {
		return Decision{}, err
	}
	method := projections.MethodID{User: c.User, Method: c.Method}
	r, taken := s.Registration(method)
	mine := taken && r.Session == p.Session
	if mine && !r.Lapsed && r.ReplaySafe == c.ReplaySafe {
		return Decision{}, nil
	}
	if c.Restore && taken && !mine && !r.Lapsed {
		return Decision{}, nil
	}
	if !taken && s.HeldCount(id) >= MaxMethodsPerPeer {
		return Decision{}, refuse(CodeTooMany, "a peer can hold %d methods at most", MaxMethodsPerPeer)
	}
	delivery := events.DeliverOnce
	if c.ReplaySafe {
		delivery = events.DeliverAgain
	}
	return Decision{
		Reads: []events.Aggregate{events.PeerKey(c.User, c.Peer), events.MethodKey(c.User, c.Method)},
		Events: []events.Event{events.MethodRegistered{
			User: c.User, Method: c.Method, Peer: c.Peer, Session: p.Session, Connection: c.Connection, Delivery: delivery,
		}},
	}, nil
}

// UnregisterMethod ends a registration that the connection's session holds. Held by another session or by
// none, it stays as it is.
type UnregisterMethod struct {
	User       string
	Peer       string
	Connection string
	Method     string
}

func (c UnregisterMethod) Decide(s *projections.State) (Decision, error) {
	if bad := checkName("method", c.Method); bad != nil {
		return Decision{}, refuse(CodeBadRequest, "Invalid method name")
	}
	p, err := currentPeer(s, projections.PeerID{User: c.User, Peer: c.Peer}, c.Connection)
	if err != nil {
		return Decision{}, err
	}
	r, ok := s.Registration(projections.MethodID{User: c.User, Method: c.Method})
	if !ok || r.Session != p.Session {
		return Decision{Doubt: !ok}, nil
	}
	return Decision{
		Reads: []events.Aggregate{events.MethodKey(c.User, c.Method)},
		Events: []events.Event{events.MethodUnregistered{
			User: c.User, Method: c.Method, Peer: c.Peer, Session: r.Session, Reason: "client",
		}},
	}, nil
}

// currentPeer is the peer if the connection is its current one; else the command comes from the past.
func currentPeer(s *projections.State, id projections.PeerID, connection string) (projections.Peer, error) {
	p, ok := s.Peer(id)
	if !ok || p.Connection != connection || !p.Connected {
		return p, doubt(refuse(CodeReplaced, "this connection is no longer the peer's current one"))
	}
	return p, nil
}
