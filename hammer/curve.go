package hammer

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	curveStep  = 100 * time.Millisecond
	curveSteps = 150 // later ones are not kept
	calm       = 50  // ms; the text ends with the last step whose maximum is above it
)

// curve is how latencies went after an accident, step by step.
type curve [curveSteps]Histogram

// CurvePoint is one step.
type CurvePoint struct {
	At      int64   `json:"atMs"` // from the accident to the step's beginning
	Count   uint64  `json:"count"`
	Latency Latency `json:"latencyMs"`
}

func (c *curve) record(accident, now time.Time, latency time.Duration) {
	if after := now.Sub(accident); after >= 0 && after < curveSteps*curveStep {
		c[after/curveStep].Record(latency)
	}
}

// points leaves out the steps in which nothing came.
func (c *curve) points() []CurvePoint {
	var list []CurvePoint
	for i := range c {
		if n := c[i].Count(); n > 0 {
			list = append(list, CurvePoint{At: (time.Duration(i) * curveStep).Milliseconds(), Count: n, Latency: latencyOf(&c[i])})
		}
	}
	return list
}

// until is all that was recorded from the accident to a moment after it, as whole steps.
func (c *curve) until(after time.Duration) Latency {
	var sum Histogram
	for i := range c {
		if time.Duration(i)*curveStep <= after {
			sum.add(&c[i])
		}
	}
	return latencyOf(&sum)
}

func writeCurve(text *strings.Builder, points []CurvePoint) {
	for len(points) > 0 && points[len(points)-1].Latency.Max < calm {
		points = points[:len(points)-1]
	}
	for _, p := range points {
		fmt.Fprintf(text, "  +%5d ms  %7d deliveries  p50 %7.1f ms  p99 %7.1f ms  max %7.1f ms\n",
			p.At, p.Count, p.Latency.P50, p.Latency.P99, p.Latency.Max)
	}
}

// ownDelay records how late this process comes to what is due, until ctx ends: latencies that it measures hold as much.
func ownDelay(ctx context.Context, into *Histogram) {
	for ctx.Err() == nil {
		due := time.Now().Add(5 * time.Millisecond)
		wait(ctx, time.Until(due))
		into.Record(time.Since(due))
	}
}
