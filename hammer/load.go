package hammer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// timerSlack is how late a timer of the Go runtime may be on an idle machine, where
// it waits in whole milliseconds, with some room.
const timerSlack = 2 * time.Millisecond

// load runs one kind of call from many workers and measures it.
//
// With Rate 0 each worker starts its next call when the last one has ended. With
// a rate, calls have fixed start times that do not depend on how the server does,
// and a latency counts from that time: a server that stalls is charged for
// the calls that had to wait, not only for those it was holding.
type load struct {
	Workers  int
	Rate     float64 // calls a second over all workers; 0: as fast as possible
	Warmup   time.Duration
	Duration time.Duration
	// Watch, if set, is called once at the start with a function that tells the
	// figures so far, and returns the function that ends the watching.
	Watch func(total time.Duration, now func() (elapsed time.Duration, f Figures)) (stop func())
}

// Figures are what one load measured. The warm-up is in none of them.
type Figures struct {
	Seconds        float64           `json:"seconds"`
	Calls          uint64            `json:"calls"`  // answered without an error
	Errors         uint64            `json:"errors"` // all others that were sent
	Unsent         uint64            `json:"unsent"` // due by the rate, but every worker was busy until the end
	CallsPerSecond float64           `json:"callsPerSecond"`
	Latency        Latency           `json:"latencyMs"`
	ErrorsByCode   map[string]uint64 `json:"errorsByCode"`
}

// Latency is in milliseconds, over the calls that were answered without an error
// and, with the time they had waited at the end, the unsent ones.
type Latency struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// call makes the worker's n-th call and returns "" or the code of the error.
type call func(ctx context.Context, worker int, n uint64) string

// tally collects what the workers see.
type tally struct {
	latencies Histogram
	inTime    atomic.Uint64 // good answers before the end, for the rate
	unsent    atomic.Uint64

	mu     sync.Mutex
	errors map[string]uint64
}

// run returns when the last call has ended. If ctx ends first, the calls in
// flight are not counted and the figures are those of the time until then.
func (l load) run(ctx context.Context, do call) Figures {
	start := time.Now()
	measured := start.Add(l.Warmup)
	end := measured.Add(l.Duration)
	t := &tally{errors: make(map[string]uint64)}
	figures := func() (time.Duration, Figures) {
		now := time.Now()
		return now.Sub(start), t.figures(min(now.Sub(measured), l.Duration))
	}
	if l.Watch != nil {
		stop := l.Watch(l.Warmup+l.Duration, figures)
		defer stop()
	}

	slots := &pacer{start: start, rate: l.Rate}
	var workers sync.WaitGroup
	for w := range l.Workers {
		workers.Go(func() {
			if l.Rate > 0 {
				t.paced(ctx, slots, measured, end, w, do)
			} else {
				t.eager(ctx, measured, end, w, do)
			}
		})
	}
	workers.Wait()
	if l.Rate > 0 && ctx.Err() == nil {
		t.closeBooks(slots, measured, end)
	}
	_, f := figures()
	return f
}

func (t *tally) eager(ctx context.Context, measured, end time.Time, worker int, do call) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		started := time.Now()
		if !started.Before(end) {
			return
		}
		code := do(ctx, worker, n)
		if ctx.Err() == nil && !started.Before(measured) {
			t.record(started, end, code)
		}
	}
}

func (t *tally) paced(ctx context.Context, slots *pacer, measured, end time.Time, worker int, do call) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for n := uint64(0); ; n++ {
		// Past the end no slot is taken: what is due and left over is unsent.
		if !time.Now().Before(end) {
			return
		}
		due := slots.take()
		if !due.Before(end) {
			return
		}
		from := due
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			from = startOf(due, time.Now())
		}
		code := do(ctx, worker, n)
		if ctx.Err() != nil {
			return
		}
		if !due.Before(measured) {
			t.record(from, end, code)
		}
	}
}

// startOf is when a call counts as begun that a free worker meant to begin when it
// was due. What the timer alone was late is not the server's doing; more than that
// may be, since they can share a processor.
func startOf(due, woken time.Time) time.Time {
	if woken.Sub(due) < timerSlack {
		return woken
	}
	return due
}

func (t *tally) record(from, end time.Time, code string) {
	if code != "" {
		t.mu.Lock()
		t.errors[code]++
		t.mu.Unlock()
		return
	}
	now := time.Now()
	t.latencies.Record(now.Sub(from))
	if !now.After(end) {
		t.inTime.Add(1)
	}
}

// closeBooks counts the calls that no worker came to. Their wait so far is the
// least that they would have taken.
func (t *tally) closeBooks(slots *pacer, measured, end time.Time) {
	now := time.Now()
	for due := slots.take(); due.Before(end); due = slots.take() {
		if !due.Before(measured) {
			t.latencies.Record(now.Sub(due))
			t.unsent.Add(1)
		}
	}
}

func (t *tally) figures(elapsed time.Duration) Figures {
	f := Figures{Seconds: max(elapsed, 0).Seconds(), Unsent: t.unsent.Load(), ErrorsByCode: make(map[string]uint64)}
	f.Calls = t.latencies.Count() - f.Unsent
	t.mu.Lock()
	for code, n := range t.errors {
		f.ErrorsByCode[code] = n
		f.Errors += n
	}
	t.mu.Unlock()
	if f.Seconds > 0 {
		f.CallsPerSecond = float64(t.inTime.Load()) / f.Seconds
	}
	f.Latency = latencyOf(&t.latencies)
	return f
}

func latencyOf(h *Histogram) Latency {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return Latency{
		P50: ms(h.Quantile(0.50)),
		P95: ms(h.Quantile(0.95)),
		P99: ms(h.Quantile(0.99)),
		Max: ms(h.Max()),
	}
}

// pacer hands out start times at an even distance, each to one taker.
type pacer struct {
	start time.Time
	rate  float64
	next  atomic.Int64
}

func (p *pacer) take() time.Time {
	k := p.next.Add(1) - 1
	return p.start.Add(time.Duration(float64(k) / p.rate * float64(time.Second)))
}
