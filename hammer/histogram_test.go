package hammer

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuantilesAreCloseFromAbove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 300).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var h Histogram
		for _, v := range values {
			h.Record(time.Duration(v))
		}
		slices.Sort(values)
		rank := max(int(math.Ceil(q*float64(len(values)))), 1)
		exact := time.Duration(values[rank-1])
		got := h.Quantile(q)
		if got < exact || float64(got) > float64(exact)*(1+1.0/128)+float64(time.Microsecond) {
			t.Fatalf("quantile %v is %v, exactly %v", q, got, exact)
		}
		if want := time.Duration(values[len(values)-1]); h.Max() != want || h.Quantile(1) != want {
			t.Fatalf("max %v and quantile 1 %v, want %v", h.Max(), h.Quantile(1), want)
		}
	})
}

func TestHistogramExtremes(t *testing.T) {
	var h Histogram
	if h.Quantile(0.99) != 0 || h.Max() != 0 {
		t.Error("an empty histogram has values")
	}
	h.Record(-time.Second)
	h.Record(1000 * time.Hour)
	if h.Quantile(0.5) >= time.Microsecond || h.Max() != 1000*time.Hour || h.Count() != 2 {
		t.Errorf("median %v, max %v, count %d", h.Quantile(0.5), h.Max(), h.Count())
	}
	for i := range histogramBuckets {
		if i > 0 && upperEdge(i) <= upperEdge(i-1) {
			t.Fatalf("bucket %d does not end after the one before it", i)
		}
		if got := bucketOf(uint64(upperEdge(i) / time.Microsecond)); got != i {
			t.Fatalf("the upper edge of bucket %d lies in bucket %d", i, got)
		}
	}
}

func TestHistogramIsSharedByManyWriters(t *testing.T) {
	var h Histogram
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range 1000 {
				h.Record(time.Duration(w*1000+i) * time.Microsecond)
			}
		})
	}
	writers.Wait()
	if h.Count() != 8000 || h.Max() != 7999*time.Microsecond {
		t.Errorf("count %d, max %v", h.Count(), h.Max())
	}
}
