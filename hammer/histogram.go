package hammer

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// Two values closer than 1/128 of each other may share a bucket, so a
	// percentile is at most 0.8 % above the true one.
	histogramBits = 7
	// Longer waits (71 minutes) are counted in the last bucket; Max stays exact.
	histogramLimit   = 1<<32 - 1
	histogramBuckets = (32-histogramBits)<<histogramBits + 1<<histogramBits
)

// Histogram counts durations in microseconds with a bounded relative error. The
// zero value is ready. It never allocates or blocks, so that any number of
// callers can record into one; a reader running beside them sees a count that is
// at most a few calls behind.
type Histogram struct {
	counts [histogramBuckets]atomic.Uint64
	total  atomic.Uint64
	max    atomic.Int64
}

// Record counts one duration; a negative one counts as zero.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d/time.Microsecond))].Add(1)
	h.total.Add(1)
	for {
		seen := h.max.Load()
		if int64(d) <= seen || h.max.CompareAndSwap(seen, int64(d)) {
			return
		}
	}
}

// add counts what another one has counted.
func (h *Histogram) add(o *Histogram) {
	for i := range o.counts {
		if n := o.counts[i].Load(); n > 0 {
			h.counts[i].Add(n)
		}
	}
	h.total.Add(o.total.Load())
	h.max.Store(max(h.max.Load(), o.max.Load()))
}

// Count is the number of recorded durations.
func (h *Histogram) Count() uint64 { return h.total.Load() }

// Max is the longest recorded duration, exactly.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Quantile is the duration that the share q (0 to 1) of all recorded ones did not
// exceed, rounded up to its bucket's upper edge; 0 if nothing was recorded.
func (h *Histogram) Quantile(q float64) time.Duration {
	total := h.total.Load()
	if total == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(total))), 1)
	var seen uint64
	for i := range h.counts {
		seen += h.counts[i].Load()
		if seen >= rank {
			return min(upperEdge(i), h.Max())
		}
	}
	return h.Max()
}

// bucketOf keeps the leading bits of a value: each power of two above the first
// exact 256 values is cut into 128 buckets.
func bucketOf(us uint64) int {
	us = min(us, histogramLimit)
	shift := max(bits.Len64(us)-histogramBits-1, 0)
	return shift<<histogramBits + int(us>>shift)
}

func upperEdge(bucket int) time.Duration {
	shift := max(bucket>>histogramBits-1, 0)
	lead := bucket - shift<<histogramBits
	return time.Duration((lead+1)<<shift)*time.Microsecond - 1
}
