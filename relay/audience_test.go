package relay

import "testing"

// A client that names no peer gets its name with its admission, and its events may come before that has returned.
func TestPeersWithoutNamesHearOfEachOther(t *testing.T) {
	w := newWorld(t, 1)
	clients := make([]*testClient, 20)
	for i := range clients {
		clients[i] = w.nodes[0].connect("", "")
	}
	w.settle()
	for i, c := range clients {
		w.eventually("each peer hears of those that came after it, once", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.presence == len(clients)-1-i
		})
	}
}
