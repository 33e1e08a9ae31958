package store

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

//go:embed trim.lua
var trimSource string

var trimScript = rueidis.NewLuaScript(trimSource)

// Retention says what of the log may go.
type Retention struct {
	Keep   time.Duration // entries younger than this stay, unless Memory is exceeded
	Memory int64         // bytes that the log may take; 0 for any
	Forget time.Duration // how long after its last sign of life the group of a replica that is gone stays
	Live   []string      // instances that are known to live, besides those that have a lease
	Schema int           // the newest of the snapshots that count
}

// Trimmed is what Trim has done.
type Trimmed struct {
	Removed   int64    // entries
	Forgotten []string // instances whose groups were destroyed
	Memory    int64    // bytes that the log takes now; 0 when the server does not say
	Shortened bool     // entries younger than Keep went, for the sake of Memory
	Exceeded  bool     // the log takes more than Memory, and nothing of it may go
	More      bool     // there is more to be done: call again
}

// Trim removes from the log what nobody needs any more, in one atomic step of bounded length. Never removed are the
// entries from the older of the KeptSnapshots on, while there are not so many of a readable schema whose place is in the
// log nothing at all; nor what the group of a living replica has not been given or has not acknowledged. Groups of
// others hold the log too, until they are forgotten, but not against Memory.
func (s *Store) Trim(ctx context.Context, r Retention) (Trimmed, error) {
	const op = "trim"
	args := []string{
		strconv.FormatInt(r.Keep.Milliseconds(), 10), strconv.FormatInt(r.Memory, 10),
		strconv.FormatInt(r.Forget.Milliseconds(), 10), strconv.Itoa(r.Schema), strconv.Itoa(KeptSnapshots),
		s.keys.lease,
	}
	res := s.run(ctx, trimScript, []string{s.keys.log, s.keys.snapshots}, append(args, r.Live...))
	if err := s.check(ctx, op, res); err != nil {
		return Trimmed{}, err
	}
	parts, err := res.ToArray()
	if err != nil {
		return Trimmed{}, malformed(op, err)
	}
	if len(parts) < 5 {
		return Trimmed{}, malformed(op, fmt.Errorf("%d parts", len(parts)))
	}
	var n [5]int64
	for i := range n {
		if n[i], err = parts[i].AsInt64(); err != nil {
			return Trimmed{}, malformed(op, err)
		}
	}
	t := Trimmed{Removed: n[0], Memory: n[1], Shortened: n[2] == 1, Exceeded: n[3] == 1, More: n[4] == 1}
	for i := range parts[5:] {
		name, err := parts[5+i].ToString()
		if err != nil {
			return Trimmed{}, malformed(op, err)
		}
		t.Forgotten = append(t.Forgotten, name)
	}
	return t, nil
}
