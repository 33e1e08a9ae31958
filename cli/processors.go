package cli

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

const (
	// loadLook is how often the load is looked at, loadLooks how many looks have to say on average that there is little
	// of it, loadRise how many that there is much: a burst has its processors 200 ms later.
	//
	// Each look also wakes the runtime's watch over goroutines that run for long, which sleeps while nothing runs, and is
	// not woken by what package sockets does. That is why there are looks even where nothing follows from them.
	loadLook  = 20 * time.Millisecond
	loadLooks = 100
	loadRise  = 10
	// loadHigh is how much of its processors a process has to use to get more of them, loadLow how little of what it
	// would be left with to get fewer. They are apart, so that a steady load changes nothing.
	loadHigh = 0.8
	loadLow  = 0.65
)

// FollowLoad lets the Go runtime use as many processors (GOMAXPROCS) as the process has work for, from one up to what it
// has at the call, until stop is called. A process that does little is faster on one: what one goroutine hands to the next
// stays on the thread that runs, while with more processors each such step wakes another thread, which is most of the
// latency of a call and takes processor time from the other processes of the machine.
//
// With GOMAXPROCS in the environment, or a single processor, their number stays.
func FollowLoad() (stop func()) {
	p, follow := processorsToFollow()
	return followLoad(p, follow, loadLook, processorTime)
}

func processorsToFollow() (p processors, follow bool) {
	most := runtime.GOMAXPROCS(0)
	return processors{most: most, now: most}, most > 1 && os.Getenv("GOMAXPROCS") == ""
}

// followLoad looks so often at how much processor time has been used so far.
func followLoad(p processors, follow bool, every time.Duration, spent func() time.Duration) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		at, used := time.Now(), spent()
		for {
			select {
			case <-tick.C:
			case <-end:
				if follow {
					runtime.GOMAXPROCS(p.most)
				}
				return
			}
			if !follow {
				continue
			}
			now, usedNow := time.Now(), spent()
			if p.follow(float64(usedNow-used) / float64(now.Sub(at))) {
				runtime.GOMAXPROCS(p.now)
			}
			at, used = now, usedNow
		}
	}()
	return func() { close(end); <-ended }
}

// processors is how many the runtime may use now and at most.
type processors struct {
	most, now int
	looks     []float64 // since the last change: how many were busy; loadLooks at most, the latest last
}

// follow takes note of how many processors were busy on average since the last look, and reports whether now has
// changed.
func (p *processors) follow(busy float64) bool {
	if len(p.looks) == loadLooks {
		p.looks = append(p.looks[:0], p.looks[1:]...)
	}
	p.looks = append(p.looks, busy)
	former, fewer := p.now, (p.now+1)/2
	switch n := len(p.looks); {
	case n >= loadRise && mean(p.looks[n-loadRise:]) > loadHigh*float64(p.now):
		p.now = min(2*p.now, p.most)
	case n == loadLooks && mean(p.looks) < loadLow*float64(fewer):
		p.now = fewer
	}
	if p.now == former {
		return false
	}
	p.looks = p.looks[:0]
	return true
}

func mean(of []float64) float64 {
	sum := 0.0
	for _, v := range of {
		sum += v
	}
	return sum / float64(len(of))
}

// processorTime is what the process has used of all processors so far, of the system's code too.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // it does not fail with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
