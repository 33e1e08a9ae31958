package hammer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"holdfast/transport/socketio"
)

// harbour is the least that a server of channels with recovery has to do: all
// replicas in one. A session is named by its pid, an offset is how many messages
// of its channel it has got.
type harbour struct {
	mu       sync.Mutex
	sessions map[string]*moored
	byName   map[string][]*moored // by channel, in the order of their coming
	next     int

	slow    time.Duration // before each message is handed out
	forgets bool          // no session is recovered
	loses   bool          // nothing that was missed is sent
	doubles bool          // what a client has is sent again
}

type moored struct {
	pid      string
	messages []string
	peer     *peer // nil while it is away
}

func newHarbour() *harbour {
	return &harbour{sessions: make(map[string]*moored), byName: make(map[string][]*moored)}
}

func (h *harbour) handle(p *peer) {
	p.greet("25000", "20000")
	s := h.admit(p)
	p.each(func(packet socketio.Packet) {
		if packet.Type != socketio.Event {
			return
		}
		name, args, _ := socketio.SplitEvent(packet.Data)
		var a struct {
			Channel, Room, Event string
			Data                 json.RawMessage
		}
		_ = json.Unmarshal(args[0], &a)
		h.mu.Lock()
		switch name {
		case "channel-subscribe", "room-join":
			h.byName[a.Channel+a.Room] = append(h.byName[a.Channel+a.Room], s)
		case "channel-publish", "room-emit":
			time.Sleep(h.slow)
			for _, to := range h.byName[a.Channel+a.Room] {
				to.messages = append(to.messages, fmt.Sprintf(`["%s",%s`, a.Event, a.Data))
				if to.peer != nil {
					to.deliver(to.peer, len(to.messages)-1)
				}
			}
		}
		h.mu.Unlock()
		p.send(fmt.Sprintf(`43%d[{"ok":true}]`, packet.ID))
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.peer == p {
		s.peer = nil
	}
}

func (h *harbour) admit(p *peer) *moored {
	var auth struct{ PID, Offset string }
	_ = json.Unmarshal(p.auth, &auth)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[auth.PID]
	if s == nil || h.forgets {
		h.next++
		s = &moored{pid: strconv.Itoa(h.next)}
		h.sessions[s.pid] = s
	} else {
		has, _ := strconv.Atoi(auth.Offset)
		if h.doubles {
			has = 0
		}
		for i := has; i < len(s.messages) && !h.loses; i++ {
			s.deliver(p, i)
		}
	}
	s.peer = p
	p.send(fmt.Sprintf(`40{"sid":"s","pid":%q}`, s.pid))
	return s
}

func (s *moored) deliver(p *peer, i int) {
	p.send(fmt.Sprintf(`42%s,"%d"]`, s.messages[i], i+1))
}

// sink breaks the connections to one server.
func (h *harbour) sink(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		if s.peer != nil && s.peer.request.Host == host {
			s.peer.ws.Close()
		}
	}
}
