package hammer

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	joinWait  = 20 * time.Second // for one subscription or publication, and for the last of the first messages
	idleEvent = "idle"
)

// The messages of an idler's channel.
const (
	first = iota // its own, after the subscription: so that it has a recovery offset
	away         // published when its connection is broken
	idlerMessages
)

// idler is one idle connection.
type idler struct {
	bench  *connectBench
	number int
	client *Client // nil if it was refused; written before anybody else looks

	subscribed atomic.Bool
	seen       [idlerMessages]atomic.Int32 // how often each message came
	published  atomic.Bool                 // the message while it was away was acknowledged

	// What happened to its connection.
	ends, returns atomic.Int32
	backAt        atomic.Int64 // unix ns, of the last return
	fresh         atomic.Bool  // a return was not a recovery
}

func (d *idler) dial(ctx context.Context) {
	b := d.bench
	o := b.options
	auth := map[string]string{"user": o.User + strconv.Itoa(d.number)}
	if o.Token != "" {
		auth["token"] = o.Token
	}
	start := time.Now()
	c, err := Dial(ctx, o.URLs[d.number%len(o.URLs)], auth, Options{
		Path: o.Path, ReadBuffer: 512, Handlers: map[string]Handler{idleEvent: d.got},
		Reconnect: o.storms(), ReconnectDelay: o.ReconnectDelay, Elsewhere: o.URLs,
		OnConnect: d.connected, OnDisconnect: d.ended, OnAttemptFailed: b.attemptFailed,
	})
	switch {
	case err == nil:
		b.latencies.Record(time.Since(start))
		d.client = c
		b.connected.Add(1)
	case ctx.Err() == nil:
		b.failed.Add(1)
		b.count(b.errors, dialCode(err))
	}
}

func (d *idler) connected(_ *Client, s Session) {
	if d.ends.Load() == 0 {
		return
	}
	if !s.Recovered {
		d.fresh.Store(true)
	}
	d.backAt.Store(time.Now().UnixNano())
	d.returns.Add(1)
	d.bench.back.Add(1)
}

func (d *idler) ended(c *Client, _ error) {
	if c.Err() == nil { // nobody has closed it
		d.ends.Add(1)
		d.bench.lost.Add(1)
	}
}

// got takes one message: [which, ...].
func (d *idler) got(args []json.RawMessage, _ Ack) {
	if len(args) == 0 {
		return
	}
	which, err := strconv.Atoi(string(args[0]))
	if err != nil || which < 0 || which >= idlerMessages {
		return
	}
	if d.seen[which].Add(1) == 1 && which == first {
		d.bench.received.Add(1)
	}
}

// channel is the name of its own.
func (d *idler) channel() string { return fmt.Sprintf("idle-%s-%d", d.bench.run, d.number) }

// publish has a client publish a message of the idler's channel, and returns "" or the code of the error.
func (d *idler) publish(ctx context.Context, by *Client, which int) string {
	names := eventsOf(d.bench.options.Mode)
	return ask(ctx, by, names.publish, fmt.Sprintf(`{%q:%q,"event":%q,"data":%d}`, names.key, d.channel(), idleEvent, which))
}

// subscribe gives each connection its channel and a message there.
func (b *connectBench) subscribe(ctx context.Context) *ChannelsReport {
	o := b.options
	r := &ChannelsReport{ErrorsByCode: make(map[string]uint64)}
	var latencies Histogram
	var subscribed atomic.Int64
	start := time.Now()
	inTurn(ctx, len(b.idlers), o.Parallel, o.Rate, func(i int) {
		d := b.idlers[i]
		if d.client == nil {
			return
		}
		names := eventsOf(o.Mode)
		asked := time.Now()
		code := ask(ctx, d.client, names.subscribe, fmt.Sprintf(`{%q:%q}`, names.key, d.channel()))
		if code == "" {
			latencies.Record(time.Since(asked))
			d.subscribed.Store(true)
			subscribed.Add(1)
			code = d.publish(ctx, d.client, first)
		}
		if code != "" && ctx.Err() == nil {
			b.count(r.ErrorsByCode, code)
		}
	})
	for end := time.Now().Add(joinWait); b.received.Load() < subscribed.Load() && time.Now().Before(end) && ctx.Err() == nil; {
		wait(ctx, 5*time.Millisecond)
	}
	r.Seconds = time.Since(start).Seconds()
	r.Subscribed, r.Received = int(subscribed.Load()), int(b.received.Load())
	r.PerSecond = float64(r.Subscribed) / r.Seconds
	r.Latency = latencyOf(&latencies)
	return r
}

// ask sends an event and returns the code of the answer if that is a failure, else "".
func ask(ctx context.Context, c *Client, event, arg string) string {
	bounded, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	answer, err := c.EmitWithAck(bounded, event, json.RawMessage(arg))
	if err != nil {
		return dialCode(err)
	}
	return failureCode(answer)
}
