package hammer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// FanoutOptions describe a run of messages to many.
type FanoutOptions struct {
	URLs        []string // subscribers connect to them in turn, publishers to the last
	Path        string   // "/socket.io/" if empty
	User        string   // each client is a user of its own: this and a number
	Token       string   // sent as auth.token if set; then all are the token's user
	Mode        string   // "channel": channel-subscribe and channel-publish; "room": room-join and room-emit
	Channels    int
	Subscribers int     // of each channel, its publishers besides
	Publishers  int     // each publishes to one channel, which it has too
	Window      int     // messages of one publisher that have not come back to it, at most
	Payload     int     // bytes of a message's data, about
	Rate        float64 // messages a second over all publishers; latency then counts from when one was due
	Warmup      time.Duration
	Duration    time.Duration
	KillPID     int           // a server that is killed meanwhile, or 0: that of the first URL
	KillAfter   time.Duration // from the end of the warm-up
	Progress    io.Writer
}

// FanoutReport is the outcome of such a run.
type FanoutReport struct {
	URLs            []string          `json:"urls"`
	Mode            string            `json:"mode"`
	Channels        int               `json:"channels"`
	Subscribers     int               `json:"subscribers"`
	Publishers      int               `json:"publishers"`
	Payload         int               `json:"payload"`
	Rate            float64           `json:"rate"`
	Seconds         float64           `json:"seconds"`
	Published       uint64            `json:"published"` // in all, the warm-up too
	Received        uint64            `json:"received"`
	Deliveries      uint64            `json:"deliveries"` // during the measurement
	PerSecond       float64           `json:"deliveriesPerSecond"`
	Latency         Latency           `json:"latencyMs"` // publish to delivery, over those who kept their connection
	Missing         uint64            `json:"missing"`
	Duplicates      uint64            `json:"duplicates"`
	OrderViolations uint64            `json:"orderViolations"` // a publisher's messages out of its order
	Disagreements   uint64            `json:"disagreements"`   // subscribers that have another order than the rest
	Lost            uint64            `json:"lostConnections"`
	Recovered       uint64            `json:"recovered"`
	Fresh           uint64            `json:"notRecovered"`
	Back            Latency           `json:"backMs"`          // from the kill to the end of a client's recovery
	Meanwhile       Latency           `json:"meanwhileMs"`     // as Latency, from the kill to the last one's return
	OwnDelay        Latency           `json:"ownDelayMs"`      // how late this process was with what was due
	Curve           []CurvePoint      `json:"curve,omitempty"` // as Latency, from the kill on
	ErrorsByCode    map[string]uint64 `json:"errorsByCode"`
}

// events are the names by which a client takes part and speaks, in a mode.
type events struct{ subscribe, publish, key string }

func eventsOf(mode string) events {
	if mode == "room" {
		return events{subscribe: "room-join", publish: "room-emit", key: "room"}
	}
	return events{subscribe: "channel-subscribe", publish: "channel-publish", key: "channel"}
}

// drainWait bounds the wait for the last messages.
const drainWait = 20 * time.Second

type fanout struct {
	o       FanoutOptions
	subs    []*fanSubscriber
	pubs    []*fanPublisher
	sent    []atomic.Uint64 // by channel
	latency Histogram
	back    Histogram
	own     Histogram
	curve   curve

	measuring                     atomic.Bool
	killed                        atomic.Int64 // unix ns
	received, deliveries          atomic.Uint64
	duplicates, disorder          atomic.Uint64
	lost, recovered, notRecovered atomic.Uint64

	mu     sync.Mutex
	errors map[string]uint64
}

// fanSubscriber is one client's view of its channel. Its fields belong to the client's reading goroutine.
type fanSubscriber struct {
	f       *fanout
	client  *Client
	user    string
	channel int
	last    []int64 // by publisher, of this channel
	own     *fanPublisher
	moved   atomic.Bool // it has lost its connection once
	count   atomic.Uint64
	order   atomic.Uint64 // a hash of what came, in order
}

type fanPublisher struct {
	number  int
	channel int
	window  chan struct{}
	client  *Client

	head, tail string // of its messages
}

// RunFanout connects, publishes, and compares what everybody got. An error means that the run did not take place.
func RunFanout(ctx context.Context, o FanoutOptions) (FanoutReport, error) {
	switch {
	case len(o.URLs) == 0:
		return FanoutReport{}, errors.New("fanout: no server to connect to")
	case o.Channels < 1 || o.Subscribers < 0 || o.Publishers < 1 || o.Window < 1 || o.Duration <= 0:
		return FanoutReport{}, errors.New("fanout: at least one channel, one publisher, one message at a time and some duration are needed")
	case o.Mode != "channel" && o.Mode != "room":
		return FanoutReport{}, fmt.Errorf("fanout: mode %q: want channel or room", o.Mode)
	}
	f := &fanout{o: o, sent: make([]atomic.Uint64, o.Channels), errors: map[string]uint64{}}
	defer f.close()
	if err := f.connect(ctx); err != nil {
		return FanoutReport{}, fmt.Errorf("fanout: %w", err)
	}
	stop := showProgress(o.Progress, func() string {
		return fmt.Sprintf("fanout  %d deliveries  p99 %.2f ms", f.deliveries.Load(), latencyOf(&f.latency).P99)
	})
	defer stop()

	publishing, end := context.WithCancel(ctx)
	defer end()
	slots := &pacer{start: time.Now(), rate: o.Rate}
	var group sync.WaitGroup
	for _, p := range f.pubs {
		group.Go(func() { f.publish(publishing, p, slots) })
	}
	wait(ctx, o.Warmup)
	f.measuring.Store(true)
	began, before := time.Now(), f.received.Load()
	group.Go(func() { ownDelay(publishing, &f.own) })
	if o.KillPID > 0 {
		wait(ctx, o.KillAfter)
		f.killed.Store(time.Now().UnixNano())
		if err := syscall.Kill(o.KillPID, syscall.SIGKILL); err != nil {
			return FanoutReport{}, fmt.Errorf("fanout: kill %d: %w", o.KillPID, err)
		}
	}
	wait(ctx, o.Duration-time.Since(began))
	took, got := time.Since(began), f.received.Load()-before
	f.measuring.Store(false)
	end()
	group.Wait()
	f.drain(ctx)
	return f.report(took, got), nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (f *fanout) connect(ctx context.Context) error {
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	total := f.o.Channels*f.o.Subscribers + f.o.Publishers
	f.subs = make([]*fanSubscriber, total)
	for i := range f.o.Publishers {
		f.pubs = append(f.pubs, &fanPublisher{number: i, channel: i % f.o.Channels, window: make(chan struct{}, f.o.Window)})
	}
	slots := make(chan struct{}, 64)
	errs := make(chan error, total)
	var group sync.WaitGroup
	for i := range total {
		s := &fanSubscriber{f: f, user: f.o.User + strconv.Itoa(i), channel: i % f.o.Channels, last: make([]int64, f.o.Publishers)}
		base := f.o.URLs[(i/f.o.Channels)%len(f.o.URLs)]
		if i < f.o.Publishers {
			s.own, s.channel, base = f.pubs[i], f.pubs[i].channel, f.o.URLs[len(f.o.URLs)-1]
		}
		f.subs[i] = s
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := s.join(ctx, base, run); err != nil {
				errs <- err
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func (s *fanSubscriber) join(ctx context.Context, base, run string) error {
	f := s.f
	auth := map[string]string{"user": s.user}
	if f.o.Token != "" {
		auth["token"] = f.o.Token
	}
	c, err := Dial(ctx, base, auth, Options{
		Path: f.o.Path, Handlers: map[string]Handler{"fan": s.got}, ReadBuffer: 4096,
		Reconnect: true, ReconnectDelay: 200 * time.Millisecond, Elsewhere: f.o.URLs,
		OnConnect: func(_ *Client, session Session) {
			switch {
			case !s.moved.Load():
			case session.Recovered:
				f.recovered.Add(1)
				if at := f.killed.Load(); at != 0 {
					f.back.Record(time.Since(time.Unix(0, at)))
				}
			default:
				f.notRecovered.Add(1)
			}
		},
		OnDisconnect: func(c *Client, _ error) {
			if c.Err() == nil {
				s.moved.Store(true)
				f.lost.Add(1)
			}
		},
	})
	if err != nil {
		return err
	}
	s.client = c
	if s.own != nil {
		s.own.client = c
	}
	names := eventsOf(f.o.Mode)
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	answer, err := c.EmitWithAck(bounded, names.subscribe, json.RawMessage(fmt.Sprintf(`{%q:"bench-%s-%d"}`, names.key, run, s.channel)))
	if err == nil && failureCode(answer) != "" {
		err = fmt.Errorf("%s: %s", names.subscribe, answer)
	}
	if s.own != nil {
		s.own.body(f, run)
	}
	return err
}

// failureCode is the code of an ack that is a failure, else "".
func failureCode(answer json.RawMessage) string {
	var a struct {
		OK   bool
		Code string
	}
	if json.Unmarshal(answer, &a) == nil && a.OK {
		return ""
	}
	if a.Code == "" {
		return "FAILED"
	}
	return a.Code
}

// got takes one message: [publisher, number, sent at, padding].
func (s *fanSubscriber) got(args []json.RawMessage, _ Ack) {
	f := s.f
	parts := strings.SplitN(strings.Trim(string(args[0]), "[]"), ",", 4)
	if len(parts) < 3 {
		return
	}
	p, _ := strconv.Atoi(parts[0])
	n, _ := strconv.ParseInt(parts[1], 10, 64)
	at, _ := strconv.ParseInt(parts[2], 10, 64)
	f.received.Add(1)
	switch last := s.last[p]; {
	case n == last:
		f.duplicates.Add(1)
	case n < last:
		f.disorder.Add(1)
	default:
		s.last[p] = n
	}
	s.order.Store(s.order.Load()*1_099_511_628_211 + uint64(p)<<48 + uint64(n))
	s.count.Add(1)
	if f.measuring.Load() {
		f.deliveries.Add(1)
		if !s.moved.Load() {
			now := time.Now()
			latency := now.Sub(time.Unix(0, at))
			f.latency.Record(latency)
			if killed := f.killed.Load(); killed != 0 {
				f.curve.record(time.Unix(0, killed), now, latency)
			}
		}
	}
	if s.own != nil && s.own.number == p {
		select {
		case <-s.own.window:
		default:
		}
	}
}

// body prepares what does not change of a publisher's messages.
func (p *fanPublisher) body(f *fanout, run string) {
	p.head = fmt.Sprintf(`{%q:"bench-%s-%d","event":"fan","data":[%d,`, eventsOf(f.o.Mode).key, run, p.channel, p.number)
	p.tail = `,"` + strings.Repeat("x", max(0, f.o.Payload-40)) + `"]}`
}

// publish sends one message after the other, as many at a time as the window has places, until ctx ends.
// With a rate each message is due at a time that does not depend on how the server does, and counts from then.
func (f *fanout) publish(ctx context.Context, p *fanPublisher, slots *pacer) {
	event := eventsOf(f.o.Mode).publish
	var acks sync.WaitGroup
	defer acks.Wait()
	for n := int64(1); ; n++ {
		var from time.Time
		if f.o.Rate > 0 {
			due := slots.take()
			wait(ctx, time.Until(due))
			from = startOf(due, time.Now())
		}
		select {
		case p.window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
		if f.o.Rate <= 0 {
			from = time.Now()
		}
		body := p.head + strconv.FormatInt(n, 10) + "," + strconv.FormatInt(from.UnixNano(), 10) + p.tail
		f.sent[p.channel].Add(1)
		// Sent here, not in the goroutine that waits: the order on the wire is that of the numbers.
		id, place, err := p.client.ask(event, []json.RawMessage{json.RawMessage(body)})
		if err != nil {
			f.failed(p, err.Error())
			continue
		}
		acks.Go(func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWait)
			defer cancel()
			answer, err := p.client.await(bounded, nil, id, place)
			if err != nil {
				f.failed(p, err.Error())
			} else if code := failureCode(answer); code != "" {
				f.failed(p, code)
			}
		})
	}
}

// failed counts a publication that got no good answer, and frees its place in the window.
func (f *fanout) failed(p *fanPublisher, code string) {
	f.mu.Lock()
	f.errors[code]++
	f.mu.Unlock()
	select {
	case <-p.window:
	default:
	}
}

// drain waits until everybody has everything, or nothing more comes.
func (f *fanout) drain(ctx context.Context) {
	for end := time.Now().Add(drainWait); time.Now().Before(end) && ctx.Err() == nil; wait(ctx, 20*time.Millisecond) {
		all := true
		for _, s := range f.subs {
			all = all && s.count.Load() >= f.sent[s.channel].Load()
		}
		if all {
			return
		}
	}
}

func (f *fanout) report(took time.Duration, got uint64) FanoutReport {
	r := FanoutReport{
		URLs: f.o.URLs, Mode: f.o.Mode, Channels: f.o.Channels, Subscribers: len(f.subs), Publishers: f.o.Publishers,
		Payload: f.o.Payload, Rate: f.o.Rate, Seconds: took.Seconds(), Received: f.received.Load(),
		Deliveries: got, PerSecond: float64(got) / took.Seconds(), Latency: latencyOf(&f.latency),
		Duplicates: f.duplicates.Load(), OrderViolations: f.disorder.Load(), Lost: f.lost.Load(),
		Recovered: f.recovered.Load(), Fresh: f.notRecovered.Load(), Back: latencyOf(&f.back),
		Meanwhile: f.curve.until(f.back.Max()),
		OwnDelay:  latencyOf(&f.own), Curve: f.curve.points(), ErrorsByCode: f.errors,
	}
	for i := range f.sent {
		r.Published += f.sent[i].Load()
	}
	orders := make([]map[uint64]uint64, f.o.Channels) // of those that have everything
	for _, s := range f.subs {
		sent, count := f.sent[s.channel].Load(), s.count.Load()
		if count < sent {
			r.Missing += sent - count
			continue
		}
		if orders[s.channel] == nil {
			orders[s.channel] = map[uint64]uint64{}
		}
		orders[s.channel][s.order.Load()]++
	}
	for _, byOrder := range orders {
		var all, most uint64
		for _, n := range byOrder {
			all, most = all+n, max(most, n)
		}
		r.Disagreements += all - most
	}
	return r
}

func (f *fanout) close() {
	var group sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, s := range f.subs {
		if s == nil || s.client == nil {
			continue
		}
		slots <- struct{}{}
		group.Go(func() { s.client.Close(); <-slots })
	}
	group.Wait()
}

// Failed reports whether anything was lost, doubled or out of order.
func (r FanoutReport) Failed() bool {
	return r.Missing+r.Duplicates+r.OrderViolations+r.Disagreements+r.Fresh > 0 || len(r.ErrorsByCode) > 0
}

// WriteText writes the report for people.
func (r FanoutReport) WriteText(w io.Writer) error {
	pace := "as fast as they come back"
	if r.Rate > 0 {
		pace = fmt.Sprintf("%.0f messages/s wanted", r.Rate)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%s: %d channels, %d clients, %d publishers, %d bytes, %s, %.1f s\n", strings.Join(r.URLs, " "),
		r.Mode, r.Channels, r.Subscribers, r.Publishers, r.Payload, pace, r.Seconds)
	fmt.Fprintf(&text, "%.0f deliveries/s of %d messages\n", r.PerSecond, r.Published)
	fmt.Fprintf(&text, "publish to delivery: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, max %.2f ms\n", r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.Max)
	fmt.Fprintf(&text, "this process itself was late by: p50 %.2f ms, p99 %.2f ms, max %.2f ms\n", r.OwnDelay.P50, r.OwnDelay.P99, r.OwnDelay.Max)
	fmt.Fprintf(&text, "%d missing, %d duplicates, %d out of order, %d clients with another order\n", r.Missing, r.Duplicates, r.OrderViolations, r.Disagreements)
	if r.Lost > 0 {
		fmt.Fprintf(&text, "%d connections lost, %d recovered, %d not; back after p50 %.0f ms, p95 %.0f ms, p99 %.0f ms, max %.0f ms\n",
			r.Lost, r.Recovered, r.Fresh, r.Back.P50, r.Back.P95, r.Back.P99, r.Back.Max)
		fmt.Fprintf(&text, "the others meanwhile: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, max %.2f ms\n", r.Meanwhile.P50, r.Meanwhile.P95, r.Meanwhile.P99, r.Meanwhile.Max)
	}
	writeCurve(&text, r.Curve)
	text.WriteString(failureLines("fanout", r.ErrorsByCode))
	_, err := io.WriteString(w, text.String())
	return err
}
