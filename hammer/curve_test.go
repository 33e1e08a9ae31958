package hammer

import (
	"strings"
	"testing"
	"time"
)

func TestCurveShowsTheAccidentOnly(t *testing.T) {
	var c curve
	accident := time.Now()
	c.record(accident, accident.Add(-time.Millisecond), time.Hour) // before it
	c.record(accident, accident.Add(150*time.Millisecond), 90*time.Millisecond)
	c.record(accident, accident.Add(199*time.Millisecond), 80*time.Millisecond)
	c.record(accident, accident.Add(time.Second), time.Millisecond)
	c.record(accident, accident.Add(curveSteps*curveStep), time.Hour) // not kept
	points := c.points()
	if len(points) != 2 || points[0].At != 100 || points[0].Count != 2 || points[1].At != 1000 {
		t.Fatalf("%+v", points)
	}
	var text strings.Builder
	writeCurve(&text, points)
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "+  100 ms") {
		t.Fatalf("%q", got)
	}
}
