package cli

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"holdfast/replica"
	"holdfast/transport"
)

const (
	trimLook  = 5 * time.Second
	trimStorm = 1000 // connections opened since the last trim that are worth one
	trimCalm  = 50   // connections opened between two looks: the storm is over
)

// gcRoom is how much garbage a small heap may hold before a collection. Go's default of doubling the live heap
// makes a lightly loaded replica collect tens of times a second at full call rate; with room for 48 MB the
// cost falls by a tenth of all CPU, and a heap that is larger is left to the default.
const gcRoom = 48 << 20

// gcPercent is Go's GOGC for a live heap of this size.
func gcPercent(live uint64) int {
	return int(min(max(100, 100*gcRoom/max(live, 1)), 1000))
}

// liveHeap is what the last collection found in use, in bytes.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return gcRoom
	}
	return sample[0].Value.Uint64()
}

// trimMemory gives the memory back that a storm of connections, or the making of a snapshot, leaves behind. Both
// make much garbage in a short time; when the connections then idle, nothing would start a collection for up to
// two minutes, and the garbage counts as resident as long. It also keeps the collector's pace fitted to the heap.
func trimMemory(ctx context.Context, clients *transport.Server, rep *replica.Replica) {
	tick := time.NewTicker(trimLook)
	defer tick.Stop()
	var trimmed, last, snapshots uint64
	former := debug.SetGCPercent(gcPercent(liveHeap()))
	defer debug.SetGCPercent(former)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		opened, written := clients.Stats().Opened, rep.Metrics().Snapshots.Load()
		if (opened-trimmed >= trimStorm || written != snapshots) && opened-last <= trimCalm {
			debug.FreeOSMemory()
			trimmed, snapshots = opened, written
		}
		last = opened
		debug.SetGCPercent(gcPercent(liveHeap()))
	}
}
