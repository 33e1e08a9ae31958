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
	Channel     bool          // each connection has a channel of its own, and got one message there
	Mode        string        // with Channel, by which events: "channel" or "room"; see FanoutOptions
	Hold        time.Duration // how long they stay, all idle
	PID         int           // a server on this machine whose memory is read, or 0

	Storm          bool          // after the hold all connections break, and the clients come back
	KillPID        int           // or those of the first URL do: its server's process is killed
	ReconnectDelay time.Duration // how long a client waits then, varied by half; twice that after each failure
	StormWait      time.Duration // for the clients' return, and then again for their messages
	Progress       io.Writer     // nil: none
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
	Channels             *ChannelsReport   `json:"channels,omitempty"`
	Memory               *ServerMemory     `json:"memory,omitempty"` // none if it is not available
	Storm                *StormReport      `json:"storm,omitempty"`
}

// ChannelsReport tells of the connections' own channels.
type ChannelsReport struct {
	Subscribed   int               `json:"subscribed"`
	Seconds      float64           `json:"seconds"` // until the last one has got its message
	PerSecond    float64           `json:"subscriptionsPerSecond"`
	Latency      Latency           `json:"latencyMs"` // of a subscription
	Received     int               `json:"received"`  // the first message of each
	ErrorsByCode map[string]uint64 `json:"errorsByCode"`
}

// ServerMemory is the resident memory of the server's process in bytes.
type ServerMemory struct {
	Before        int64 `json:"before"`
	Connected     int64 `json:"connected"` // right after the last connection, before the channels
	Held          int64 `json:"held"`      // at the end of the hold
	PerConnection int64 `json:"perConnection"`
}

func (o ConnectOptions) validate() error {
	switch {
	case len(o.URLs) == 0:
		return errors.New("connect: no server to connect to")
	case o.Connections < 1 || o.Parallel < 1:
		return errors.New("connect: at least one connection at a time is needed")
	case o.Rate < 0 || o.Hold < 0:
		return errors.New("connect: negative rate or hold")
	case o.Channel && o.Mode != "channel" && o.Mode != "room":
		return fmt.Errorf("connect: mode %q: want channel or room", o.Mode)
	case o.KillPID < 0:
		return fmt.Errorf("connect: process %d to kill: want the id of one", o.KillPID)
	case o.KillPID > 0 && len(o.URLs) < 2:
		return errors.New("connect: the clients of a server that is killed need another one: give its URL after that of the first")
	case o.storms() && o.StormWait <= 0:
		return errors.New("connect: a storm needs some time to wait for the clients' return")
	case o.storms() && o.ReconnectDelay <= 0:
		return errors.New("connect: clients that come back need a delay above 0")
	}
	return nil
}

func (o ConnectOptions) storms() bool { return o.Storm || o.KillPID > 0 }

// RunConnect opens the connections, holds them, lets a storm come over them if one
// is wanted, and closes them. An error means that the run did not take place;
// failed connections are in the report.
func RunConnect(ctx context.Context, o ConnectOptions) (ConnectReport, error) {
	if err := o.validate(); err != nil {
		return ConnectReport{}, err
	}
	b := &connectBench{options: o, run: strconv.FormatInt(time.Now().UnixNano(), 36), idlers: make([]*idler, o.Connections), errors: make(map[string]uint64)}
	for i := range b.idlers {
		b.idlers[i] = &idler{bench: b, number: i}
	}
	defer b.close()

	before, memoryErr := residentMemory(o.PID)
	start := time.Now()
	stop := sync.OnceFunc(showProgress(o.Progress, func() string { return b.progress(time.Since(start)) }))
	defer stop()
	b.open(ctx)
	r := ConnectReport{
		URLs: o.URLs, Connections: o.Connections,
		Connected: int(b.connected.Load()), Refused: int(b.failed.Load()),
		Seconds: time.Since(start).Seconds(), Latency: latencyOf(&b.latencies), ErrorsByCode: b.errors,
	}
	r.ConnectionsPerSecond = float64(r.Connected) / r.Seconds
	connected, _ := residentMemory(o.PID)
	if o.Channel {
		r.Channels = b.subscribe(ctx)
	}
	wait(ctx, o.Hold)
	held, err := residentMemory(o.PID)
	r.Lost = int(b.lost.Load())
	if memoryErr == nil && err == nil {
		r.Memory = &ServerMemory{Before: before, Connected: connected, Held: held}
		if r.Connected > 0 {
			r.Memory.PerConnection = (held - before) / int64(r.Connected)
		}
	}
	if o.storms() && ctx.Err() == nil {
		r.Storm, err = b.storm(ctx)
		if err != nil {
			return ConnectReport{}, fmt.Errorf("connect: %w", err)
		}
	}
	return r, nil
}

type connectBench struct {
	options           ConnectOptions
	run               string // tells its channels from those of other runs
	idlers            []*idler
	connected, failed atomic.Int64
	lost              atomic.Int64 // in all
	received          atomic.Int64 // first messages of channels
	back              atomic.Int64 // came back after they were lost
	latencies         Histogram

	mu       sync.Mutex
	errors   map[string]uint64 // what went wrong with first connections
	attempts map[string]uint64 // and with those to come back during a storm; nil before
}

func (b *connectBench) progress(elapsed time.Duration) string {
	o, up := b.options, b.connected.Load()
	line := fmt.Sprintf("connect %s %d of %d  %.0f/s  %d failed", bar(float64(up)/float64(o.Connections)),
		up, o.Connections, float64(up)/elapsed.Seconds(), b.failed.Load())
	if o.Channel {
		line += fmt.Sprintf("  %d with a message", b.received.Load())
	}
	if lost := b.lost.Load(); lost > 0 {
		line += fmt.Sprintf("  %d lost, %d back", lost, b.back.Load())
	}
	return line
}

func (b *connectBench) open(ctx context.Context) {
	o := b.options
	inTurn(ctx, o.Connections, o.Parallel, o.Rate, func(i int) { b.idlers[i].dial(ctx) })
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

// close ends the connections, few at a time: each one is a task for the server.
func (b *connectBench) close() {
	clients := make([]*Client, len(b.idlers))
	for i, d := range b.idlers {
		clients[i] = d.client
	}
	closeInTurn(clients, b.options.Parallel)
}

// closeInTurn closes those that are there, so many at one time.
func closeInTurn(clients []*Client, parallel int) {
	inTurn(context.Background(), len(clients), parallel, 0, func(i int) {
		if clients[i] != nil {
			clients[i].Close()
		}
	})
}

// count adds one to a code of errors.
func (b *connectBench) count(errors map[string]uint64, code string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	errors[code]++
}

// attemptFailed counts what kept clients from coming back during a storm.
func (b *connectBench) attemptFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempts != nil {
		b.attempts[dialCode(err)]++
	}
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
