package hammer

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// StormReport tells how the clients came back after all connections, or all of one
// server, broke at once.
type StormReport struct {
	Broken       int               `json:"broken"` // clients that lost their connection
	Back         int               `json:"back"`
	Recovered    int               `json:"recovered"`
	Fresh        int               `json:"notRecovered"` // back, with a new session
	Seconds      float64           `json:"seconds"`      // from the storm to the last one's return
	PerSecond    float64           `json:"backPerSecond"`
	Latency      Latency           `json:"backMs"`     // from the storm to a client's return, its own delay too
	Attempts     map[string]uint64 `json:"attempts"`   // failed ones, by code; the clients tried again
	Messages     *StormMessages    `json:"messages"`   // nil: the connections have no channels of their own
	OwnDelay     Latency           `json:"ownDelayMs"` // how late this process was with what was due
	ErrorsByCode map[string]uint64 `json:"errorsByCode"`
}

// StormMessages tells of a message to each channel that was published during the
// storm. Duplicates hold those of the first messages, which may come again as well.
type StormMessages struct {
	Published  int `json:"published"`
	Missing    int `json:"missing"`
	Duplicates int `json:"duplicates"`
}

// storm breaks connections and waits until their clients are back. An error means
// that nothing was broken.
func (b *connectBench) storm(ctx context.Context) (*StormReport, error) {
	o := b.options
	r := &StormReport{Attempts: make(map[string]uint64), ErrorsByCode: make(map[string]uint64)}
	b.mu.Lock()
	b.attempts = r.Attempts
	b.mu.Unlock()
	// In a room only those that are in it may speak, and those are away.
	var publisher *Client
	if o.Channel && o.Mode == "channel" {
		var err error
		auth := map[string]string{"user": o.User + strconv.Itoa(o.Connections)}
		if o.Token != "" {
			auth["token"] = o.Token
		}
		// The last server: it is the first that may be killed.
		publisher, err = Dial(ctx, o.URLs[len(o.URLs)-1], auth, Options{Path: o.Path})
		if err != nil {
			return nil, fmt.Errorf("publisher during the storm: %w", err)
		}
		defer publisher.Close()
	}

	struck := b.prey()
	ending, end := context.WithCancel(ctx)
	var own Histogram
	var aside sync.WaitGroup
	defer aside.Wait()
	defer end()
	aside.Go(func() { ownDelay(ending, &own) })
	start := time.Now()
	if o.KillPID > 0 {
		if err := syscall.Kill(o.KillPID, syscall.SIGKILL); err != nil {
			return nil, fmt.Errorf("kill %d: %w", o.KillPID, err)
		}
	} else {
		for _, d := range struck {
			d.client.Drop()
		}
	}
	if publisher != nil {
		r.Messages = &StormMessages{}
		b.publishAway(ctx, publisher, r)
	}
	b.until(ctx, start, func() bool { return allBack(struck) })
	end()
	aside.Wait()
	r.OwnDelay = latencyOf(&own)
	b.tellReturns(r, start)
	if r.Messages != nil {
		b.until(ctx, time.Now(), func() bool { return b.missing() == 0 })
		r.Messages.Missing, r.Messages.Duplicates = b.missing(), b.duplicates()
	}
	return r, nil
}

// prey are those whose connections are to break: they have kept the first one until now.
func (b *connectBench) prey() []*idler {
	var list []*idler
	for i, d := range b.idlers {
		ofTheKilled := b.options.KillPID == 0 || i%len(b.options.URLs) == 0
		if d.client != nil && d.ends.Load() == 0 && ofTheKilled {
			list = append(list, d)
		}
	}
	return list
}

// publishAway publishes to each channel while clients are away.
func (b *connectBench) publishAway(ctx context.Context, by *Client, r *StormReport) {
	inTurn(ctx, len(b.idlers), b.options.Parallel, 0, func(i int) {
		d := b.idlers[i]
		if !d.subscribed.Load() {
			return
		}
		if code := d.publish(ctx, by, away); code == "" {
			d.published.Store(true)
		} else if ctx.Err() == nil {
			b.count(r.ErrorsByCode, code)
		}
	})
	for _, d := range b.idlers {
		if d.published.Load() {
			r.Messages.Published++
		}
	}
}

// until waits for a state, for StormWait at most.
func (b *connectBench) until(ctx context.Context, start time.Time, done func() bool) {
	for !done() && time.Since(start) < b.options.StormWait && ctx.Err() == nil {
		wait(ctx, 10*time.Millisecond)
	}
}

// allBack is whether each has lost its connection and has another one, or is over.
func allBack(list []*idler) bool {
	for _, d := range list {
		if d.client.Err() == nil && (d.ends.Load() == 0 || !d.here()) {
			return false
		}
	}
	return true
}

// here is whether it has a connection.
func (d *idler) here() bool { return d.returns.Load() >= d.ends.Load() }

func (b *connectBench) tellReturns(r *StormReport, start time.Time) {
	var latencies Histogram
	for _, d := range b.idlers {
		if d.client == nil || d.ends.Load() == 0 {
			continue
		}
		at := time.Unix(0, d.backAt.Load())
		switch {
		case d.here() && at.Before(start):
			continue // lost and back before the storm
		case d.here():
			r.Back++
			latencies.Record(at.Sub(start))
			if d.fresh.Load() {
				r.Fresh++
			} else {
				r.Recovered++
			}
		case d.client.Err() != nil:
			b.count(r.ErrorsByCode, dialCode(d.client.Err()))
		default:
			b.count(r.ErrorsByCode, "NOT_BACK")
		}
		r.Broken++
	}
	r.Latency = latencyOf(&latencies)
	r.Seconds = latencies.Max().Seconds()
	if r.Seconds > 0 {
		r.PerSecond = float64(r.Back) / r.Seconds
	}
}

// missing counts the messages that have not come. One of another session than that
// which subscribed need not: that is told as not recovered.
func (b *connectBench) missing() int {
	n := 0
	for _, d := range b.idlers {
		if d.published.Load() && !d.fresh.Load() && d.seen[away].Load() == 0 {
			n++
		}
	}
	return n
}

func (b *connectBench) duplicates() int {
	n := 0
	for _, d := range b.idlers {
		for which := range d.seen {
			n += max(int(d.seen[which].Load())-1, 0)
		}
	}
	return n
}

// Failed reports whether anybody did not come back with its session and its messages.
func (r *StormReport) Failed() bool {
	return r.Back < r.Broken || r.Fresh > 0 || len(r.ErrorsByCode) > 0 ||
		r.Messages != nil && r.Messages.Missing+r.Messages.Duplicates > 0
}

func (r *StormReport) writeText(w io.Writer) {
	fmt.Fprintf(w, "storm: %d connections broke, %d back in %.2f s, %.0f/s; %d recovered, %d not\n",
		r.Broken, r.Back, r.Seconds, r.PerSecond, r.Recovered, r.Fresh)
	fmt.Fprintf(w, "back after: p50 %.0f ms, p95 %.0f ms, p99 %.0f ms, max %.0f ms\n", r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.Max)
	fmt.Fprintf(w, "this process itself was late by: p50 %.2f ms, p99 %.2f ms, max %.2f ms\n", r.OwnDelay.P50, r.OwnDelay.P99, r.OwnDelay.Max)
	if m := r.Messages; m != nil {
		fmt.Fprintf(w, "%d messages published meanwhile: %d missing, %d duplicates\n", m.Published, m.Missing, m.Duplicates)
	}
	_, _ = io.WriteString(w, failureLines("attempt to come back", r.Attempts)+failureLines("storm", r.ErrorsByCode))
}
