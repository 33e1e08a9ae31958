package hammer

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func sleepy(d time.Duration) call {
	return func(ctx context.Context, _ int, _ uint64) string {
		select {
		case <-time.After(d):
			return ""
		case <-ctx.Done():
			return "CANCELED"
		}
	}
}

// near allows what the histogram rounds.
func near(got, want float64) bool { return math.Abs(got-want) <= want/100 }

func TestEagerLoadCallsAsFastAsItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := load{Workers: 4, Warmup: time.Second, Duration: 10 * time.Second}.run(t.Context(), sleepy(10*time.Millisecond))
		if !near(f.CallsPerSecond, 400) || !near(f.Latency.P50, 10) || !near(f.Latency.Max, 10) {
			t.Errorf("got %+v, want 400 calls/s of 10 ms", f)
		}
		if f.Seconds != 10 || f.Errors != 0 || f.Unsent != 0 || f.Calls != 4000 {
			t.Errorf("got %+v, want 4000 calls in 10 s", f)
		}
	})
}

func TestPacedLoadKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := load{Workers: 50, Rate: 1000, Warmup: time.Second, Duration: 10 * time.Second}.run(t.Context(), sleepy(10*time.Millisecond))
		if !near(f.CallsPerSecond, 1000) || !near(f.Latency.P99, 10) || !near(f.Latency.Max, 10) || f.Calls != 10_000 || f.Unsent != 0 {
			t.Errorf("got %+v, want 1000 calls/s of 10 ms", f)
		}
	})
}

func TestPacedLoadChargesAStallToAllCallsThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		// One worker, 100 calls/s of 1 ms each; for one second the server answers
		// nobody. A clock that starts with the sending would see one slow call.
		stall := func(ctx context.Context, worker int, n uint64) string {
			if at := time.Since(start); at >= 4*time.Second && at < 5*time.Second {
				time.Sleep(5*time.Second - at)
			}
			return sleepy(time.Millisecond)(ctx, worker, n)
		}
		f := load{Workers: 1, Rate: 100, Duration: 10 * time.Second}.run(t.Context(), stall)
		// About 100 of the 1000 calls fell due in the stall, and 11 more before
		// the backlog was gone.
		if f.Calls != 1000 || f.Latency.P50 > 1.1 || f.Latency.P95 < 500 || f.Latency.P99 < 900 || f.Latency.Max < 1000 {
			t.Errorf("got %+v", f)
		}
	})
}

func TestPacedLoadCountsWhatItCouldNotSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Half of the rate is too much for this server.
		f := load{Workers: 1, Rate: 200, Duration: 10 * time.Second}.run(t.Context(), sleepy(10*time.Millisecond))
		if f.Calls != 1000 || f.Unsent != 1000 || !near(f.CallsPerSecond, 100) {
			t.Errorf("got %+v, want 1000 calls and 1000 unsent", f)
		}
		if f.Latency.P99 < 4900 {
			t.Errorf("p99 %v ms hides the backlog", f.Latency.P99)
		}
	})
}

func TestErrorsAreCountedByCodeAndHaveNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := load{Workers: 2, Duration: time.Second}.run(t.Context(), func(_ context.Context, worker int, n uint64) string {
			time.Sleep(10 * time.Millisecond)
			if worker == 1 {
				time.Sleep(90 * time.Millisecond)
				return "SLOW"
			}
			return ""
		})
		if f.Errors != 10 || f.ErrorsByCode["SLOW"] != 10 || f.Calls != 100 || f.Latency.Max > 11 {
			t.Errorf("got %+v", f)
		}
	})
}

func TestWarmupIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var calls atomic.Int64
		for _, rate := range []float64{0, 10} {
			start = time.Now()
			f := load{Workers: 1, Rate: rate, Warmup: 2 * time.Second, Duration: 3 * time.Second}.run(t.Context(), func(context.Context, int, uint64) string {
				calls.Add(1)
				time.Sleep(100 * time.Millisecond)
				if time.Since(start) <= 2*time.Second {
					return "COLD"
				}
				return ""
			})
			if f.Errors != 0 || f.Calls != 30 {
				t.Errorf("rate %v: got %+v", rate, f)
			}
		}
		if calls.Load() != 100 {
			t.Errorf("%d calls were made, want 100", calls.Load())
		}
	})
}

func TestInterruptedLoadReportsUntilThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 100} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second+5*time.Millisecond)
			f := load{Workers: 1, Rate: rate, Warmup: time.Second, Duration: time.Hour}.run(ctx, sleepy(10*time.Millisecond))
			cancel()
			if !near(f.Seconds, 4) || !near(f.CallsPerSecond, 100) || f.Errors != 0 || f.Unsent != 0 {
				t.Errorf("rate %v: got %+v", rate, f)
			}
		}
	})
}

func TestOnlyTheTimersOwnLatenessIsForgiven(t *testing.T) {
	due := time.Now()
	if late := due.Add(timerSlack - 1); !startOf(due, late).Equal(late) {
		t.Error("a call is charged for the timer")
	}
	if late := due.Add(timerSlack); !startOf(due, late).Equal(due) {
		t.Error("a stall of the machine is forgiven")
	}
}
