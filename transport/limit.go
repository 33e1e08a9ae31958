package transport

import (
	"context"
	"encoding/json"
	"net"
	"time"

	"holdfast/transport/socketio"
)

// maxExcess bounds the sessions that are open only to be told that there are too many.
const maxExcess = 1000

const (
	// maxOpening bounds the sessions that are opened at a time: when thousands come at once, as after the loss of
	// a replica, those that are here already still get their share of the processors. The others wait in line.
	maxOpening = 4
	// openPatience is how long one waits in line, at most; it is then refused, and comes back. About what stock clients
	// wait for their connection.
	openPatience = 20 * time.Second
)

// waitToOpen takes a place; doneOpening gives it back. False: there was none in time, or the client has gone.
func (s *Server) waitToOpen(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	select {
	case s.opening <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) doneOpening() { <-s.opening }

// limit takes a session into account, or finds it to be one too many. The caller holds mu.
func (s *Server) limit(c *conn) {
	most, each := s.opt.MaxConnections, s.opt.MaxPerAddress
	switch {
	case most > 0 && len(s.conns)-s.excess >= most, each > 0 && s.of[address(c)] >= each:
		c.excess = true
		s.excess++
	case each > 0:
		s.of[address(c)]++
	}
}

// unlimit is the inverse of limit. The caller holds mu.
func (s *Server) unlimit(c *conn) {
	switch {
	case c.excess:
		s.excess--
	case s.opt.MaxPerAddress > 0:
		if s.of[address(c)]--; s.of[address(c)] == 0 {
			delete(s.of, address(c))
		}
	}
}

func (s *Server) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.excess >= maxExcess
}

func address(c *conn) string {
	host, _, err := net.SplitHostPort(c.remote)
	if err != nil {
		return c.remote
	}
	return host
}

func tooMany(namespace string) []byte {
	return socketio.Packet{
		Type: socketio.ConnectError, Namespace: namespace,
		Data: json.RawMessage(`{"message":"Too many connections","data":{"code":"TOO_MANY_CONNECTIONS"}}`),
	}.Append([]byte{'4'})
}
