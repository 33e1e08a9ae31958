package replica

import (
	"sync"
	"sync/atomic"
)

// Metrics are the figures a replica keeps of itself, to be read at any time.
type Metrics struct {
	Applied      atomic.Uint64 // events applied
	Appended     atomic.Uint64 // events appended
	Groups       atomic.Uint64 // script calls that carried them
	Conflicts    atomic.Uint64 // decisions that lost to others and were made again
	Unavailable  atomic.Uint64 // commands that failed because the log could not be reached
	Unreplicated atomic.Uint64 // commands that failed because no replica of Redis confirmed them in time
	Fenced       atomic.Uint64 // times this replica was declared lost
	Reconciled   atomic.Uint64 // things recorded again because the log had lost them
	InboxDepth   atomic.Int64  // messages in the own inbox at the last beat
	Snapshots    atomic.Uint64 // snapshots written by this replica
	SnapshotAt   atomic.Int64  // when it wrote the last one, unix ms; 0 for never
	Trimmed      atomic.Uint64 // entries that it removed from the log
	LogMemory    atomic.Int64  // bytes of the log when it last looked; 0 when not known
	Anomalies    Counters      // what was noticed of the store's accidents, by name
}

// Metrics are this replica's figures.
func (r *Replica) Metrics() *Metrics { return &r.metrics }

// Counters are named counters; the zero value is ready.
type Counters struct {
	mu sync.Mutex
	by map[string]*Counter
}

// Counter counts up.
type Counter struct{ n atomic.Uint64 }

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Add adds n.
func (c *Counter) Add(n uint64) { c.n.Add(n) }

// Load is how far it has counted.
func (c *Counter) Load() uint64 { return c.n.Load() }

// With is the counter of a name.
func (c *Counters) With(name string) *Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]*Counter{}
	}
	if c.by[name] == nil {
		c.by[name] = &Counter{}
	}
	return c.by[name]
}

// Each calls f with every counter.
func (c *Counters) Each(f func(name string, n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, counter := range c.by {
		f(name, counter.n.Load())
	}
}
