// Package hammer puts load on a realtime server and measures it. It speaks stock
// Socket.IO and only the events that any server of this kind has, so the same run
// can be made against another one. It never looks inside a server: all it reports
// is what a client sees, what a server publishes of itself at /metrics, and the
// memory of a process it is told of.
package hammer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrNotConnected: nothing was sent, since there is no connection now.
	ErrNotConnected = errors.New("not connected")
	// ErrDisconnected: the connection ended before the answer came. The server may
	// or may not have handled the event.
	ErrDisconnected = errors.New("disconnected before the answer")
	// ErrServerDisconnect ends a client for good: the server told it to go.
	ErrServerDisconnect = errors.New("disconnected by the server")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("client closed")
)

// ConnectError is the server's refusal of a connection.
type ConnectError struct {
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *ConnectError) Error() string { return "connection refused by the server: " + e.Message }

// Code is the `code` in the refusal's data, or "".
func (e *ConnectError) Code() string {
	var data struct{ Code string }
	_ = json.Unmarshal(e.Data, &data)
	return data.Code
}

// Handler gets one event. The arguments are raw JSON and may be kept. It runs on
// the connection's only reading goroutine: it must not block, nor call
// EmitWithAck or Close; answering and emitting are fine. If the server sends
// recovery offsets, the last argument of an event without ack is one.
type Handler func(args []json.RawMessage, ack Ack)

// Options are a client's choices; the zero value is usable.
type Options struct {
	Path       string             // "/socket.io/" if empty
	Header     http.Header        // added to the WebSocket request
	Handlers   map[string]Handler // in place before the first packet; see also On
	ReadBuffer int                // bytes, 1024 if 0: more joins more packets into one system call

	// Reconnect makes the client come back after a lost connection, with the pid and
	// offset that let the server recover the session, as the stock client does.
	// The first connection is not retried.
	Reconnect bool
	// The waits between attempts double from ReconnectDelay (1 s) to
	// ReconnectDelayMax (5 s), each varied by half. A first wait has them too.
	ReconnectDelay, ReconnectDelayMax time.Duration
	// Elsewhere are bases that attempts to come back go to in turn, after the one before. Empty: always the same.
	Elsewhere []string
	// ConnectTimeout bounds one attempt, 20 s if 0.
	ConnectTimeout time.Duration

	// OnConnect runs when a connection is admitted, the first included, before
	// anything that the client receives after that; OnDisconnect when one has ended.
	// Both as a Handler does.
	OnConnect    func(c *Client, s Session)
	OnDisconnect func(c *Client, reason error)
	// OnAttemptFailed hears of attempts to come back that came to nothing.
	OnAttemptFailed func(reason error)
}

// Session is what the server said when it admitted a connection.
type Session struct {
	SID, PID  string
	Recovered bool // the server took the earlier session up again
}

// Client is one Socket.IO client over WebSocket on namespace "/". All methods may
// be called from any goroutine. It owns one goroutine.
//
// Events are not queued while there is no connection: they fail.
type Client struct {
	url     string
	auth    map[string]json.RawMessage
	options Options

	handlers atomic.Pointer[map[string]Handler]
	cancel   context.CancelFunc
	done     chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	link    *link // nil while there is no connection
	up      chan struct{}
	session Session
	offset  string
	nextID  uint64 // never used twice, over all connections
	waiting map[uint64]*answer
	err     error // why the client is over
}

// answer is a place for one ack.
type answer struct {
	ready chan struct{} // holds one token
	value json.RawMessage
	err   error
}

var answers sync.Pool

func newAnswer() *answer {
	if a, ok := answers.Get().(*answer); ok {
		return a
	}
	return &answer{ready: make(chan struct{}, 1)}
}

// Dial connects to base (http, https, ws or wss) and returns when the server has
// admitted the client. auth is marshalled to a JSON object; nil leaves it out.
// A refusal is a *ConnectError. ctx bounds this first attempt only.
func Dial(ctx context.Context, base string, auth any, o Options) (*Client, error) {
	target, err := endpoint(base, o.Path)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", base, err)
	}
	fields, err := authFields(auth)
	if err != nil {
		return nil, fmt.Errorf("dial %s: auth: %w", base, err)
	}
	if o.ReconnectDelay <= 0 {
		o.ReconnectDelay = time.Second
	}
	if o.ReconnectDelayMax <= 0 {
		o.ReconnectDelayMax = 5 * time.Second
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 20 * time.Second
	}
	if o.ReadBuffer <= 0 {
		o.ReadBuffer = 1024
	}
	c := &Client{url: target, auth: fields, options: o, done: make(chan struct{}), up: make(chan struct{})}
	handlers := maps.Clone(o.Handlers)
	c.handlers.Store(&handlers)

	l, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", base, err)
	}
	life, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go c.live(life, l)
	return c, nil
}

// On sets the handler of an event, in place of an earlier one.
func (c *Client) On(event string, h Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(*c.handlers.Load())
	if next == nil {
		next = make(map[string]Handler)
	}
	next[event] = h
	c.handlers.Store(&next)
}

// Emit sends an event without waiting. The arguments are raw JSON and are not
// kept. No error means handed to the connection, not received.
func (c *Client) Emit(event string, args ...json.RawMessage) error {
	c.mu.Lock()
	l, err := c.link, c.offline()
	c.mu.Unlock()
	if l == nil {
		return err
	}
	return l.event(event, args)
}

// EmitWithAck sends an event and returns the first value of its ack, null if it
// has none. It ends with ctx, or with ErrDisconnected if the connection does.
func (c *Client) EmitWithAck(ctx context.Context, event string, args ...json.RawMessage) (json.RawMessage, error) {
	return c.call(ctx, nil, event, args)
}

// call is EmitWithAck, and ends with context.DeadlineExceeded when late has a
// value: a timer that is used again costs less than a context for each call.
func (c *Client) call(ctx context.Context, late <-chan time.Time, event string, args []json.RawMessage) (json.RawMessage, error) {
	id, a, err := c.ask(event, args)
	if err != nil {
		return nil, err
	}
	return c.await(ctx, late, id, a)
}

// ask sends an event that wants an ack: those of one goroutine go out in the order of its calls. await has to follow.
func (c *Client) ask(event string, args []json.RawMessage) (uint64, *answer, error) {
	a := newAnswer()
	c.mu.Lock()
	l, err := c.link, c.offline()
	if l == nil {
		c.mu.Unlock()
		answers.Put(a)
		return 0, nil, err
	}
	id := c.nextID
	c.nextID++
	if c.waiting == nil {
		c.waiting = make(map[uint64]*answer)
	}
	c.waiting[id] = a
	c.mu.Unlock()

	if err := l.eventWithAck(event, id, args); err != nil {
		c.resolve(id, nil, err)
	}
	return id, a, nil
}

// await waits for the ack of what ask has sent.
func (c *Client) await(ctx context.Context, late <-chan time.Time, id uint64, a *answer) (json.RawMessage, error) {
	// An end either takes the place away, or the token is there or on its way.
	select {
	case <-a.ready:
	case <-ctx.Done():
		c.resolve(id, nil, ctx.Err())
		<-a.ready
	case <-late:
		c.resolve(id, nil, context.DeadlineExceeded)
		<-a.ready
	}
	value, err := a.value, a.err
	a.value, a.err = nil, nil
	answers.Put(a)
	return value, err
}

// Session is that of the current or last connection.
func (c *Client) Session() Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// Connected waits until there is a connection. It fails when the client is over
// or ctx ends.
func (c *Client) Connected(ctx context.Context) error {
	for {
		c.mu.Lock()
		l, up, err := c.link, c.up, c.err
		c.mu.Unlock()
		switch {
		case l != nil:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-up:
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Done is closed when the client is over: closed, told to go by the server, or
// disconnected without Reconnect. Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil until the client is over.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Drop cuts the connection without a word, as a broken network does. With
// Reconnect the client comes back.
func (c *Client) Drop() {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.drop()
	}
}

// Close says goodbye to the server, ends the client and waits for that. Calls
// that still wait for an ack get ErrDisconnected.
func (c *Client) Close() {
	c.mu.Lock()
	l := c.link
	if c.err == nil {
		c.err = ErrClosed
	}
	c.mu.Unlock()
	c.cancel()
	if l != nil {
		cut := time.AfterFunc(closeWait, l.drop)
		defer cut.Stop()
		l.goodbye()
	}
	<-c.done
}

// live owns the client: it reads, and reconnects when that ends.
func (c *Client) live(ctx context.Context, l *link) {
	defer close(c.done)
	defer c.cancel()
	for l != nil {
		err := l.read()
		l.drop()
		c.lost(err)
		l = c.reconnect(ctx, err)
	}
}

// lost fails what waits for an answer, after the connection is no longer offered
// to anyone, so that no call can slip in between and wait for ever.
func (c *Client) lost(reason error) {
	c.mu.Lock()
	c.link = nil
	c.up = make(chan struct{})
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	for _, a := range waiting {
		a.err = ErrDisconnected
		a.ready <- struct{}{}
	}
	if c.options.OnDisconnect != nil {
		c.options.OnDisconnect(c, reason)
	}
}

// reconnect returns nil when the client is over, and has then set why.
func (c *Client) reconnect(ctx context.Context, reason error) *link {
	delay := c.options.ReconnectDelay
	for ctx.Err() == nil {
		var refused *ConnectError
		if !c.options.Reconnect || errors.Is(reason, ErrServerDisconnect) || errors.As(reason, &refused) {
			break
		}
		select {
		case <-time.After(time.Duration(float64(delay) * (0.5 + rand.Float64()))):
		case <-ctx.Done():
			continue
		}
		delay = min(2*delay, c.options.ReconnectDelayMax)
		if err := c.goElsewhere(); err != nil {
			reason = err
			break
		}
		l, err := c.connect(ctx)
		if err == nil {
			return l
		}
		reason = err
		if c.options.OnAttemptFailed != nil && ctx.Err() == nil {
			c.options.OnAttemptFailed(err)
		}
	}
	c.mu.Lock()
	if c.err == nil {
		c.err = reason
	}
	c.mu.Unlock()
	return nil
}

// connect makes one connection and announces it.
func (c *Client) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.ConnectTimeout)
	defer cancel()
	c.mu.Lock()
	before, offset := c.session, c.offset
	c.mu.Unlock()

	auth, err := connectAuth(c.auth, before.PID, offset)
	if err != nil {
		return nil, err
	}
	l, session, err := openLink(ctx, c, auth)
	if err != nil {
		return nil, err
	}
	session.Recovered = session.PID != "" && session.PID == before.PID

	c.mu.Lock()
	if c.err != nil {
		// Closed meanwhile, and Close did not see this connection.
		err := c.err
		c.mu.Unlock()
		l.goodbye()
		l.drop()
		return nil, err
	}
	c.link, c.session = l, session
	close(c.up)
	c.mu.Unlock()
	l.open = true
	for _, deliver := range l.early {
		deliver()
	}
	l.early = nil
	if c.options.OnConnect != nil {
		c.options.OnConnect(c, session)
	}
	return l, nil
}

// offline is the error of a call while there is no link. Holds mu.
func (c *Client) offline() error {
	if c.err != nil {
		return c.err
	}
	return ErrNotConnected
}

// resolve completes one waiting call, if it is still there.
func (c *Client) resolve(id uint64, value json.RawMessage, err error) {
	c.mu.Lock()
	a, ok := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if ok {
		a.value, a.err = value, err
		a.ready <- struct{}{}
	}
}

// dispatch hands an event to its handler.
func (c *Client) dispatch(event string, args []json.RawMessage, ack Ack) {
	if !ack.Wanted() {
		c.keepOffset(event, args)
	}
	if h := (*c.handlers.Load())[event]; h != nil {
		h(args, ack)
	}
}

// keepOffset does as the stock client: once there is a pid, any last string of an
// event is taken for the recovery offset, even the event's name.
func (c *Client) keepOffset(event string, args []json.RawMessage) {
	offset := event
	if len(args) > 0 {
		last := args[len(args)-1]
		if last[0] != '"' {
			return
		}
		if bytes.IndexByte(last, '\\') < 0 {
			offset = string(last[1 : len(last)-1])
		} else if json.Unmarshal(last, &offset) != nil {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session.PID != "" {
		c.offset = offset
	}
}
