package hammer

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/transport/socketio"
)

// lobby is the least that a server of rooms has to do: all replicas in one.
type lobby struct {
	mu    sync.Mutex
	rooms map[string][]*peer
	users map[string]int
	roles map[string]int
	deny  bool
}

func newLobby() *lobby {
	return &lobby{rooms: map[string][]*peer{}, users: map[string]int{}, roles: map[string]int{}}
}

func (l *lobby) handle(p *peer) {
	p.open()
	l.mu.Lock()
	l.users[string(p.auth)]++
	l.mu.Unlock()
	p.each(func(packet socketio.Packet) {
		if packet.Type != socketio.Event {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		name, args, _ := socketio.SplitEvent(packet.Data)
		var a struct{ Room, Role string }
		_ = json.Unmarshal(args[0], &a)
		switch {
		case name == "room-get":
			p.send(fmt.Sprintf(`43%d[{"ok":true,"room":{"peers":[%s]}}]`, packet.ID,
				strings.TrimSuffix(strings.Repeat("{},", len(l.rooms[a.Room])), ",")))
		case l.deny:
			p.send(fmt.Sprintf(`43%d[{"ok":false,"error":"no","code":"FORBIDDEN"}]`, packet.ID))
		default:
			l.roles[a.Role]++
			l.rooms[a.Room] = append(l.rooms[a.Room], p)
			for _, other := range l.rooms[a.Room] {
				other.send(`42["peer-joined",{}]`)
			}
			p.send(fmt.Sprintf(`43%d[{"ok":true,"here":true,"room":{}}]`, packet.ID))
		}
	})
}

// fail ends the first peer of each room and tells the others, the given number of times, of another owner.
func (l *lobby) fail(times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, peers := range l.rooms {
		peers[0].ws.Close()
		for _, p := range peers[1:] {
			for range times {
				p.send(`42["room-owner",{}]`)
			}
		}
	}
}

func roomsOptions(urls ...string) RoomsOptions {
	return RoomsOptions{URLs: urls, User: "u", Rooms: 3, Peers: 4, Parallel: 2, Timeout: 5 * time.Second, Settle: 5 * time.Second}
}

func TestRoomsBench(t *testing.T) {
	l := newLobby()
	o := roomsOptions(serve(t, l.handle), serve(t, l.handle))
	o.Rate = 500
	r, err := RunRooms(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Joins.Calls != 12 || r.Seen != 12 || r.Notices.Received != 30 || r.Lost != 0 || r.Moves != nil {
		t.Errorf("got %+v, want 12 joins, seen by all", r)
	}
	if len(l.users) != 3 || l.roles["host"] != 3 || l.roles["guest"] != 3 || l.roles["member"] != 6 || len(l.rooms) != 3 {
		t.Errorf("users %v, roles %v, %d rooms, want one user for each of 3 rooms", l.users, l.roles, len(l.rooms))
	}
}

func TestRoomsBenchOfOneRoom(t *testing.T) {
	l := newLobby()
	o := roomsOptions(serve(t, l.handle))
	o.Rooms, o.Peers, o.Role, o.Room = 1, 20, "monitor", "one"
	r, err := RunRooms(t.Context(), o)
	if err != nil || r.Failed() || r.Notices.Received != 210 {
		t.Errorf("got %+v, %v", r, err)
	}
	if len(l.users) != 20 || l.roles["monitor"] != 20 || len(l.rooms["one"]) != 20 {
		t.Errorf("users %v, roles %v, want each a user of its own, in room one", l.users, l.roles)
	}
}

func TestRoomsBenchCountsWhatWentWrong(t *testing.T) {
	l := newLobby()
	l.deny = true
	r, err := RunRooms(t.Context(), roomsOptions(serve(t, l.handle)))
	if err != nil || !r.Failed() || r.Joins.ErrorsByCode["FORBIDDEN"] != 12 || r.Seen != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestRoomsBenchTellsWhenOwnersMoved(t *testing.T) {
	for times, once := range map[int]int{1: 3, 2: 0} {
		l := newLobby()
		o := roomsOptions(serve(t, l.handle))
		o.Hold, o.Joined = 500*time.Millisecond, func() { l.fail(times) }
		r, err := RunRooms(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Lost != 3 || r.Moves == nil || r.Moves.Rooms != 3 || r.Moves.Once != once {
			t.Errorf("told %d times: %d lost, moves %+v, want 3 rooms, %d told once", times, r.Lost, r.Moves, once)
		}
	}
}

func TestServerFigures(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "# HELP a text\n# TYPE a counter\na 3\nb 1.5e+06\nc{x=\"1\"} 7\n")
	}))
	defer s.Close()
	f, err := serverFigures(t.Context(), s.URL+"/")
	if err != nil || len(f) != 2 || f["a"] != 3 || f["b"] != 1_500_000 {
		t.Errorf("got %v, %v", f, err)
	}
	if _, err := serverFigures(t.Context(), s.URL+"/nothing"); err == nil {
		t.Error("a server without figures must be an error")
	}
}
