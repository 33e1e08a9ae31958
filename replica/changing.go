package replica

import (
	"slices"
	"sync"

	"holdfast/events"
	"holdfast/store"
)

// changing are the changes under way here that were decided on what they change themselves. Another command of this
// replica that was decided on the same would lose to one of them for certain, so it waits and decides on what comes of
// it: a thousand peers that join a room which is not open yet make one attempt to open it, not a thousand. Only the
// store can tell who wins against other replicas.
type changing struct {
	mu sync.Mutex
	by map[events.Aggregate]chan struct{}
}

// change is one of them; the zero value is none.
type change struct {
	of   []events.Aggregate
	done chan struct{} // closed at its end
}

// begin notes what the append is about to change, until end. If it was decided on what another one is about to change,
// the end of that is returned instead, and nothing is noted: nobody waits while others wait for him.
func (c *changing) begin(app store.Append) (mine change, before <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, check := range app.Checks {
		if done := c.by[check.Aggregate]; done != nil {
			return change{}, done
		}
	}
	for _, check := range app.Checks {
		if touches(app.Events, check.Aggregate) {
			mine.of = append(mine.of, check.Aggregate)
		}
	}
	if len(mine.of) == 0 {
		return change{}, nil
	}
	mine.done = make(chan struct{})
	if c.by == nil {
		c.by = map[events.Aggregate]chan struct{}{}
	}
	for _, a := range mine.of {
		c.by[a] = mine.done
	}
	return mine, nil
}

func touches(all []events.Event, a events.Aggregate) bool {
	return slices.ContainsFunc(all, func(e events.Event) bool {
		return slices.Contains(e.Writes(), a) || slices.Contains(e.Ends(), a)
	})
}

// end lets those go on who wait for the change, if it is one, and makes it none.
func (c *changing) end(mine *change) {
	if mine.done == nil {
		return
	}
	c.mu.Lock()
	for _, a := range mine.of {
		delete(c.by, a)
	}
	c.mu.Unlock()
	close(mine.done)
	*mine = change{}
}
