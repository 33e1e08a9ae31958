package cli

import (
	"context"
	"runtime/debug"
	"time"

	"holdfast/transport"
)

const (
	trimLook  = 5 * time.Second
	trimStorm = 1000 // connections opened since the last trim that are worth one
	trimCalm  = 50   // connections opened between two looks: the storm is over
)

// trimMemory gives the memory back that a storm of connections leaves behind. Handshakes make much garbage in
// a short time; when the connections then idle, nothing would start a collection for up to two minutes, and
// the garbage counts as resident as long.
func trimMemory(ctx context.Context, clients *transport.Server) {
	tick := time.NewTicker(trimLook)
	defer tick.Stop()
	var trimmed, last uint64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		opened := clients.Stats().Opened
		if opened-trimmed >= trimStorm && opened-last <= trimCalm {
			debug.FreeOSMemory()
			trimmed = opened
		}
		last = opened
	}
}
