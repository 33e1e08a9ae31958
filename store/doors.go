package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second
)

// doors keeps a server that is down from being dialled at the rate of the commands: after a failure an address
// is not dialled again for a while, which doubles up to maxBackoff, and commands fail at once meanwhile.
type doors struct {
	mu sync.Mutex
	at map[string]*door
}

type door struct {
	failures int
	until    time.Time
	err      error
}

func newDoors() *doors { return &doors{at: make(map[string]*door)} }

func (d *doors) dial(ctx context.Context, to string, dial func() (net.Conn, error)) (net.Conn, error) {
	if err := d.shut(to); err != nil {
		return nil, err
	}
	conn, err := dial()
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil, err // says nothing about the server
	}
	d.note(to, err)
	return conn, err
}

func (d *doors) shut(to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.at[to]
	if at == nil || !time.Now().Before(at.until) {
		return nil
	}
	return fmt.Errorf("not dialled again yet: %w", at.err)
}

func (d *doors) note(to string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.at, to)
		return
	}
	at := d.at[to]
	if at == nil {
		at = &door{}
		d.at[to] = at
	}
	at.err = err
	at.until = time.Now().Add(backoff(at.failures))
	at.failures++
}

// pause is how long a loop should rest after a failure.
func (d *doors) pause() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	var longest time.Duration
	for _, at := range d.at {
		longest = max(longest, time.Until(at.until))
	}
	return max(longest, minBackoff)
}

// backoff is spread by a quarter, so that replicas do not come back in step.
func backoff(failures int) time.Duration {
	d := min(minBackoff<<min(failures, 10), maxBackoff)
	return d - time.Duration(rand.Int64N(int64(d)/4))
}
