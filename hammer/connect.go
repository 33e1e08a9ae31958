package hammer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// ConnectOptions describe a run of idle connections.
type ConnectOptions struct {
	URLs        []string // in turn
	Path        string   // "/socket.io/" if empty
	User        string   // each connection is a user of its own: this and a number
	Token       string   // sent as auth.token if set; then all are the token's user
	Connections int
	Rate        float64       // connections a second, 0: as fast as they are accepted
	Parallel    int           // handshakes at one time
	Hold        time.Duration // how long they stay, all idle
	PID         int           // a server on this machine whose memory is read, or 0
	Progress    io.Writer     // nil: none
}

// ConnectReport is the outcome of such a run.
type ConnectReport struct {
	URLs                 []string          `json:"urls"`
	Connections          int               `json:"connections"`
	Connected            int               `json:"connected"`
	Refused              int               `json:"failed"`
	Lost                 int               `json:"lost"` // connected, but not to the end of the hold
	Seconds              float64           `json:"seconds"`
	ConnectionsPerSecond float64           `json:"connectionsPerSecond"`
	Latency              Latency           `json:"latencyMs"` // dial to admission
	ErrorsByCode         map[string]uint64 `json:"errorsByCode"`
	Memory               *ServerMemory     `json:"memory,omitempty"` // none if it is not available
}

// ServerMemory is the resident memory of the server's process in bytes.
type ServerMemory struct {
	Before        int64 `json:"before"`
	Connected     int64 `json:"connected"` // right after the last connection
	Held          int64 `json:"held"`      // at the end of the hold
	PerConnection int64 `json:"perConnection"`
}

// RunConnect opens the connections, holds them, and closes them. An error means
// that the run did not take place; failed connections are in the report.
func RunConnect(ctx context.Context, o ConnectOptions) (ConnectReport, error) {
	switch {
	case len(o.URLs) == 0:
		return ConnectReport{}, errors.New("connect: no server to connect to")
	case o.Connections < 1 || o.Parallel < 1:
		return ConnectReport{}, errors.New("connect: at least one connection at a time is needed")
	case o.Rate < 0 || o.Hold < 0:
		return ConnectReport{}, errors.New("connect: negative rate or hold")
	}
	b := &connectBench{options: o, clients: make([]*Client, o.Connections), errors: make(map[string]uint64)}
	defer b.close()

	before, memoryErr := residentMemory(o.PID)
	start := time.Now()
	stop := showProgress(o.Progress, func() string {
		up := b.connected.Load()
		return fmt.Sprintf("connect %s %d of %d  %.0f/s  %d failed", bar(float64(up)/float64(o.Connections)),
			up, o.Connections, float64(up)/time.Since(start).Seconds(), b.failed.Load())
	})
	b.open(ctx)
	took := time.Since(start)
	connected, _ := residentMemory(o.PID)
	select {
	case <-time.After(o.Hold):
	case <-ctx.Done():
	}
	held, err := residentMemory(o.PID)
	stop()

	r := ConnectReport{
		URLs: o.URLs, Connections: o.Connections,
		Connected: int(b.connected.Load()), Refused: int(b.failed.Load()),
		Seconds: took.Seconds(), Latency: latencyOf(&b.latencies), ErrorsByCode: b.errors,
	}
	r.ConnectionsPerSecond = float64(r.Connected) / took.Seconds()
	for _, c := range b.clients {
		if c != nil && c.Err() != nil {
			r.Lost++
		}
	}
	if memoryErr == nil && err == nil {
		r.Memory = &ServerMemory{Before: before, Connected: connected, Held: held}
		if r.Connected > 0 {
			r.Memory.PerConnection = (held - before) / int64(r.Connected)
		}
	}
	return r, nil
}

type connectBench struct {
	options           ConnectOptions
	clients           []*Client // each slot is written by one goroutine, read after all
	connected, failed atomic.Int64
	latencies         Histogram

	mu     sync.Mutex
	errors map[string]uint64
}

func (b *connectBench) open(ctx context.Context) {
	o := b.options
	inTurn(ctx, o.Connections, o.Parallel, o.Rate, func(i int) { b.dial(ctx, i) })
}

// inTurn does n things, so many at one time and so many a second at most (0: any). It ends early with ctx.
func inTurn(ctx context.Context, n, parallel int, perSecond float64, do func(i int)) {
	limit := rate.Inf
	if perSecond > 0 {
		limit = rate.Limit(perSecond)
	}
	pace := rate.NewLimiter(limit, 1)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(parallel, n) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || pace.Wait(ctx) != nil {
					return
				}
				do(i)
			}
		})
	}
	workers.Wait()
}

func (b *connectBench) dial(ctx context.Context, i int) {
	o := b.options
	auth := map[string]string{"user": o.User + strconv.Itoa(i)}
	if o.Token != "" {
		auth["token"] = o.Token
	}
	start := time.Now()
	c, err := Dial(ctx, o.URLs[i%len(o.URLs)], auth, Options{Path: o.Path, ReadBuffer: 512})
	switch {
	case err == nil:
		b.latencies.Record(time.Since(start))
		b.clients[i] = c
		b.connected.Add(1)
	case ctx.Err() == nil:
		b.failed.Add(1)
		b.mu.Lock()
		b.errors[dialCode(err)]++
		b.mu.Unlock()
	}
}

// close ends the connections, few at a time: each one is a task for the server.
func (b *connectBench) close() { closeInTurn(b.clients, b.options.Parallel) }

// closeInTurn closes those that are there, so many at one time.
func closeInTurn(clients []*Client, parallel int) {
	inTurn(context.Background(), len(clients), parallel, 0, func(i int) {
		if clients[i] != nil {
			clients[i].Close()
		}
	})
}

// dialCode names what went wrong with a connection.
func dialCode(err error) string {
	var refused *ConnectError
	if errors.As(err, &refused) {
		if code := refused.Code(); code != "" {
			return code
		}
		return refused.Message
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return "TIMEOUT"
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}
