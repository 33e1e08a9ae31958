package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast/commands"
	"holdfast/projections"
)

const (
	reconcileEvery   = 2 * time.Second
	reconcileWorkers = 64
)

// reconcile compares what this replica knows of its own clients with what the projection says, and has
// recorded what is missing. In a healthy cluster it finds nothing to do.
func (r *Replica) reconcile(ctx context.Context, l *life) error {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.sessions.wake:
		case <-ctx.Done():
			return nil
		}
		if err := r.reconcileOnce(ctx, l); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (r *Replica) reconcileOnce(ctx context.Context, l *life) error {
	known := false
	r.View(func(s *projections.State) {
		live, ok := s.Replica(r.cfg.Instance)
		known = ok && live.Incarnation == l.inbox.Incarnation
	})
	if !known {
		select {
		case <-l.fenced:
			return nil
		default:
		}
		r.log.Warn().Msg("the log has lost this replica's start: recording it again")
		if err := r.begin(ctx, l); err != nil {
			return err
		}
	}
	work := r.missing()
	if len(work) == 0 {
		return nil
	}
	r.log.Info().Int("repairs", len(work)).Msg("the log lacks what this replica's clients hold: recording it again")
	r.metrics.Reconciled.Add(uint64(len(work)))
	slots := make(chan struct{}, reconcileWorkers)
	var group sync.WaitGroup
	for _, repair := range work {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			repair(ctx)
		})
	}
	group.Wait()
	return nil
}

// missing lists what has to be recorded. Sessions come with what they want, since a registration needs its
// peer's connection first.
func (r *Replica) missing() []func(context.Context) {
	r.sessions.mu.RLock()
	wants := map[*Session]map[string]bool{}
	for id, w := range r.sessions.wants {
		if wants[w.session] == nil {
			wants[w.session] = map[string]bool{}
		}
		wants[w.session][id.Method] = w.replaySafe
	}
	var admitted []*Session
	for _, list := range r.sessions.byPeer {
		admitted = append(admitted, list...)
	}
	here := make(map[string]bool, len(r.sessions.byConnection))
	for connection := range r.sessions.byConnection {
		here[connection] = true
	}
	r.sessions.mu.RUnlock()

	var work []func(context.Context)
	r.sessions.mu.RLock() // for the sessions' rooms
	defer r.sessions.mu.RUnlock()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, lost := range r.missingSettings() {
		work = append(work, func(ctx context.Context) {
			if _, err := r.Execute(ctx, lost); err != nil {
				r.log.Debug().Err(err).Str("setting", lost.Key).Msg("restore setting")
			}
		})
	}
	for _, lost := range r.missingRooms() {
		work = append(work, func(ctx context.Context) { r.restoreRoom(ctx, lost) })
	}
	for _, s := range admitted {
		if s.replaced.Load() {
			continue
		}
		p, ok := r.state.Peer(s.ID())
		lost := !ok || p.Connection != s.Connection || !p.Connected
		if lost && r.sessions.byConnection[s.Connection] == nil {
			continue // its client left as this pass began
		}
		var methods []commands.RegisterMethod
		for method, safe := range wants[s] {
			reg, ok := r.state.Registration(projections.MethodID{User: s.User, Method: method})
			if !ok || reg.Lapsed || reg.Session == s.SID && reg.ReplaySafe != safe {
				methods = append(methods, commands.RegisterMethod{
					User: s.User, Peer: s.Peer, Connection: s.Connection, Method: method, ReplaySafe: safe, Restore: true,
				})
			}
		}
		places := r.missingPlaces(s)
		if lost || len(methods) > 0 || len(places) > 0 {
			work = append(work, func(ctx context.Context) { r.restore(ctx, s, lost, methods, places) })
		}
	}
	for id := range r.state.PeersOn(r.cfg.Instance) {
		p, _ := r.state.Peer(id)
		if here[p.Connection] {
			continue
		}
		work = append(work, func(ctx context.Context) {
			_, _ = r.Execute(ctx, commands.DisconnectPeer{
				User: p.User, Peer: p.PeerID.Peer, Connection: p.Connection, Reason: "vanished",
			})
		})
	}
	return work
}

// restore records a session's connection, registrations and places in rooms again, unless they have passed to others.
func (r *Replica) restore(ctx context.Context, s *Session, lost bool, methods []commands.RegisterMethod, places []string) {
	if lost {
		_, err := r.Execute(ctx, commands.ReassertPeer{
			User: s.User, Peer: s.Peer, Anonymous: s.Anonymous, Connection: s.Connection,
			Instance: r.cfg.Instance, Session: s.SID, Recovery: s.PID,
		})
		var refusal *commands.Refusal
		if errors.As(err, &refusal) && refusal.Code == commands.CodeReplaced {
			s.Link.Replaced(false)
			return
		}
		if err != nil {
			r.log.Debug().Err(err).Str("user", s.User).Str("peer", s.Peer).Msg("restore session")
			return
		}
		if r.sessions.get(s.Connection) == nil { // its client left meanwhile
			r.Disconnect(s, "vanished", false)
			return
		}
	}
	for _, m := range methods {
		if _, err := r.Execute(ctx, m); err != nil {
			r.log.Debug().Err(err).Str("user", s.User).Str("method", m.Method).Msg("restore registration")
		}
	}
	for _, room := range places {
		if err := r.restorePlace(ctx, s, room); err != nil {
			r.log.Debug().Err(err).Str("user", s.User).Str("room", room).Msg("restore place in a room")
		}
	}
}
