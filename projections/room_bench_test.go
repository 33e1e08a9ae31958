package projections

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

// What a room of four peers takes in the projection, its versions included, beside what its peers take.
func BenchmarkMemoryOfRooms(b *testing.B) {
	const rooms, peers = 10_000, 4
	for b.Loop() {
		s := New()
		seq := uint64(0)
		apply := func(e events.Event) { // as it comes from the log, with strings of its own
			seq++
			encoded, err := events.Encode(e)
			if err != nil {
				b.Fatal(err)
			}
			if e, err = events.Decode(encoded); err != nil {
				b.Fatal(err)
			}
			s.Apply(events.Record{Position: events.Position{Ms: 1_796_000_000_000, Seq: seq}, Token: ulid.Make(), Event: e})
		}
		apply(events.ReplicaStarted{Instance: "replica-1", Incarnation: ulid.Make().String(), URL: "http://replica-1:8080"})
		var joins []events.Event
		for room := range rooms {
			for peer := range peers {
				e := events.PeerConnected{
					User: fmt.Sprintf("user-%d", room), Peer: fmt.Sprintf("peer-%d", peer), Connection: ulid.Make().String(),
					Session: fmt.Sprintf("session-%d-%d-abcd", room, peer), Instance: "replica-1",
				}
				apply(e)
				id := fmt.Sprintf("room-%d", room)
				if peer == 0 {
					joins = append(joins, events.RoomOpened{Room: id, Instance: "replica-1"})
				}
				role := []events.Role{events.Host, events.Guest, events.Member, events.Member}[peer]
				joins = append(joins, events.RoomJoined{
					Room: id, User: e.User, Peer: e.Peer, Connection: e.Connection, Session: e.Session, Role: role, Name: "a name",
				})
			}
		}
		connected := heapInUse()
		for _, e := range joins {
			apply(e)
		}
		joined := heapInUse()
		b.ReportMetric(float64(joined-connected)/rooms, "B/room")
		runtime.KeepAlive(s)
		runtime.KeepAlive(joins)
	}
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
