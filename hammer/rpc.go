package hammer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	setupTimeout = 30 * time.Second
	// Servers that let a registration expire want to hear from the daemon; others
	// ignore it.
	keepAliveEvery = 20 * time.Second
	// A daemon's connection carries the calls of many callers.
	daemonReadBuffer = 16 << 10
	sharedReadBuffer = 8 << 10
	// How much longer than the server the caller waits for the answer.
	answerSlack = 2 * time.Second
	// The heap is small: a few megabytes more save most of the collector's work.
	benchGCPercent = 800
)

// RPCOptions describe one run of calls between clients.
type RPCOptions struct {
	// The daemons connect to the first server, the callers to the others in turn;
	// a single one gets all.
	URLs        []string
	Path        string // "/socket.io/" if empty
	User        string // of all clients
	Token       string // sent as auth.token if set
	Callers     int    // calls at one time
	Connections int    // that the callers share; 0: one each
	Handlers    int    // daemons, each with a connection and a method
	Payload     int    // bytes of params, and of the result
	Rate        float64
	Warmup      time.Duration
	Duration    time.Duration
	Timeout     time.Duration // of one call
	Baseline    string        // redis:// address for bare streams beside it, or ""
	Progress    io.Writer     // nil: none
}

// RPCReport is the outcome of a run, and what it was.
type RPCReport struct {
	URLs        []string `json:"urls"`
	Callers     int      `json:"callers"`
	Connections int      `json:"connections"`
	Handlers    int      `json:"handlers"`
	Payload     int      `json:"payloadBytes"`
	Rate        float64  `json:"rate"`
	RPC         Figures  `json:"rpc"`
	Baseline    *Figures `json:"baseline,omitempty"`
}

// RunRPC registers the daemons' methods, then calls them for the given time, and
// after that measures the baseline, if asked to, with the same load: one after
// the other, so that neither takes time from the other. An error means that the
// run did not take place; failed calls are in the report. If ctx ends early the
// report holds what was measured until then.
func RunRPC(ctx context.Context, o RPCOptions) (RPCReport, error) {
	if err := o.validate(); err != nil {
		return RPCReport{}, err
	}
	connections := o.Connections
	if connections <= 0 || connections > o.Callers {
		connections = o.Callers
	}
	report := RPCReport{URLs: o.URLs, Callers: o.Callers, Connections: connections, Handlers: o.Handlers, Payload: o.Payload, Rate: o.Rate}
	// This process's garbage is not what is measured, and shares the machine with what is.
	defer debug.SetGCPercent(debug.SetGCPercent(benchGCPercent))
	l := load{Workers: o.Callers, Rate: o.Rate, Warmup: o.Warmup, Duration: o.Duration}

	b := &rpcBench{options: o}
	defer b.close()
	if err := b.open(ctx, connections); err != nil {
		return report, err
	}
	l.Watch = watchLoad(o.Progress, "rpc")
	report.RPC = l.run(ctx, b.call)
	b.close()

	if o.Baseline != "" && ctx.Err() == nil {
		l.Watch = watchLoad(o.Progress, "baseline")
		f, err := runStreams(ctx, o.Baseline, l, o.Payload)
		if err != nil {
			return report, err
		}
		report.Baseline = &f
	}
	return report, nil
}

func (o RPCOptions) validate() error {
	switch {
	case len(o.URLs) == 0:
		return errors.New("rpc: no server to connect to")
	case o.Callers < 1:
		return errors.New("rpc: at least one caller is needed")
	case o.Handlers < 1:
		return errors.New("rpc: at least one handler is needed")
	case o.Duration <= 0:
		return errors.New("rpc: the duration must be positive")
	case o.Payload < 0 || o.Rate < 0 || o.Warmup < 0 || o.Connections < 0:
		return errors.New("rpc: negative payload, rate, warm-up or connections")
	case o.Timeout < time.Millisecond:
		return errors.New("rpc: the timeout must be at least a millisecond")
	}
	return nil
}

type rpcBench struct {
	options RPCOptions
	daemons []*Client
	callers []*caller
	clients []*Client
	stop    context.CancelFunc
	alive   sync.WaitGroup
}

// caller makes one call at a time; its buffers are used again.
type caller struct {
	client *Client
	prefix []byte // of the argument, up to the params
	suffix []byte
	id     []byte
	arg    []byte
	args   [1]json.RawMessage
	late   *time.Timer
}

func (b *rpcBench) open(ctx context.Context, connections int) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	o := b.options
	run := runID()
	methods := make([]string, o.Handlers)
	for i := range methods {
		methods[i] = "bench-" + run + "-" + strconv.Itoa(i)
		d, err := o.daemon(ctx, methods[i])
		if err != nil {
			return fmt.Errorf("rpc: daemon %d: %w", i, err)
		}
		b.daemons = append(b.daemons, d)
	}
	life, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.alive.Go(func() { keepAlive(life, b.daemons) })

	to := o.URLs[1:]
	if len(to) == 0 {
		to = o.URLs
	}
	var buffer int
	if connections < o.Callers {
		buffer = sharedReadBuffer
	}
	for i := range connections {
		c, err := Dial(ctx, to[i%len(to)], o.auth(), Options{Path: o.Path, Reconnect: true, ReadBuffer: buffer})
		if err != nil {
			return fmt.Errorf("rpc: caller %d: %w", i, err)
		}
		b.clients = append(b.clients, c)
	}
	for i := range o.Callers {
		b.callers = append(b.callers, &caller{
			client: b.clients[i%connections],
			prefix: fmt.Appendf(nil, `{"method":%q,"timeout":%d,"params":`, methods[i%len(methods)], o.Timeout.Milliseconds()),
			suffix: []byte(`}`),
			late:   time.NewTimer(0),
		})
	}
	return nil
}

func (o RPCOptions) auth() map[string]string {
	auth := map[string]string{"user": o.User}
	if o.Token != "" {
		auth["token"] = o.Token
	}
	return auth
}

// daemon connects and returns when its method is registered. It registers again
// after each reconnection that the server did not recover.
func (o RPCOptions) daemon(ctx context.Context, method string) (*Client, error) {
	registration := json.RawMessage(fmt.Sprintf(`{"method":%q}`, method))
	first := true
	c, err := Dial(ctx, o.URLs[0], o.auth(), Options{
		Path:       o.Path,
		Reconnect:  true,
		ReadBuffer: daemonReadBuffer,
		Handlers: map[string]Handler{"rpc-request": func(args []json.RawMessage, ack Ack) {
			if len(args) > 0 {
				_ = ack.Reply(paramsOf(args[0]))
			}
		}},
		OnConnect: func(c *Client, s Session) {
			if !first && !s.Recovered {
				_ = c.Emit("rpc-register", registration)
			}
			first = false
		},
	})
	if err != nil {
		return nil, err
	}
	reply, err := c.EmitWithAck(ctx, "rpc-register", registration)
	if err == nil {
		if code, _ := failureOf(reply); code != "" {
			err = errors.New(code)
		}
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("register %s: %w", method, err)
	}
	return c, nil
}

func keepAlive(ctx context.Context, daemons []*Client) {
	tick := time.NewTicker(keepAliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, d := range daemons {
				_ = d.Emit("machine-alive")
			}
		case <-ctx.Done():
			return
		}
	}
}

// close may be called twice. The callers go first, so that no call is left to a
// daemon that has gone.
func (b *rpcBench) close() {
	closeAll(b.clients)
	if b.stop != nil {
		b.stop()
		b.alive.Wait()
	}
	closeAll(b.daemons)
}

func closeAll(clients []*Client) {
	var closing sync.WaitGroup
	for _, c := range clients {
		closing.Go(c.Close)
	}
	closing.Wait()
}

// call makes one call and sees to it that the answer is its own: the params say
// which call it is, and the daemon gives them back.
func (b *rpcBench) call(ctx context.Context, worker int, n uint64) string {
	c := b.callers[worker]
	c.id = append(c.id[:0], '"')
	c.id = strconv.AppendUint(c.id, uint64(worker), 10)
	c.id = append(c.id, '-')
	c.id = strconv.AppendUint(c.id, n, 10)
	for len(c.id) < b.options.Payload+1 {
		c.id = append(c.id, "................................................................"[:min(64, b.options.Payload+1-len(c.id))]...)
	}
	c.id = append(c.id, '"')
	c.arg = append(append(append(c.arg[:0], c.prefix...), c.id...), c.suffix...)

	c.late.Reset(b.options.Timeout + answerSlack)
	c.args[0] = c.arg
	reply, err := c.client.call(ctx, c.late.C, "rpc-call", c.args[:])
	switch {
	case err == nil:
		return outcomeOf(reply, c.id)
	case errors.Is(err, context.DeadlineExceeded):
		return "NO_ACK"
	case errors.Is(err, ErrDisconnected):
		return "DISCONNECTED"
	case errors.Is(err, context.Canceled):
		return "CANCELED"
	}
	// Nothing was sent. Count that once and not as fast as the processor can.
	timed, cancel := context.WithTimeout(ctx, b.options.Timeout+answerSlack)
	defer cancel()
	if c.client.Connected(timed) != nil && ctx.Err() == nil {
		<-timed.Done()
	}
	return "NOT_CONNECTED"
}

// outcomeOf is "" if the reply is the wanted result, else the error's code.
func outcomeOf(reply, want []byte) string {
	// The good case needs no decoding: want occurs in nothing but its own result.
	if bytes.HasPrefix(reply, []byte(`{"ok":true`)) && bytes.Contains(reply, want) {
		return ""
	}
	code, result := failureOf(reply)
	if code == "" && !bytes.Equal(result, want) {
		return "WRONG_RESULT"
	}
	return code
}

// failureOf is the code of a failed reply, its text if it has no code, or "" and
// the result of a good one.
func failureOf(reply []byte) (code string, result json.RawMessage) {
	var r struct {
		OK          bool
		Result      json.RawMessage
		Error, Code string
	}
	switch err := json.Unmarshal(reply, &r); {
	case err != nil:
		return "BAD_REPLY", nil
	case r.OK:
		return "", r.Result
	case r.Code != "":
		return r.Code, nil
	case r.Error != "":
		return r.Error, nil
	}
	return "FAILED", nil
}

// paramsOf cuts the params, which have no escapes in them, out of a request.
func paramsOf(request json.RawMessage) json.RawMessage {
	if _, rest, ok := bytes.Cut(request, []byte(`"params":"`)); ok {
		if end := bytes.IndexByte(rest, '"'); end >= 0 {
			from := len(request) - len(rest) - 1
			return request[from : from+end+2]
		}
	}
	var r struct{ Params json.RawMessage }
	if json.Unmarshal(request, &r) != nil || r.Params == nil {
		return json.RawMessage("null")
	}
	return r.Params
}

// runID keeps the names of two runs on one server apart.
func runID() string { return strings.ToLower(rand.Text()[:10]) }
