package store

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"holdfast/sockets"
)

const (
	defaultNamespace = "holdfast"
	defaultTimeout   = 3 * time.Second

	connectionBuffer = 64 << 10
	// blockingConnections bounds the reads that wait at a time; one more waits for a connection until its
	// context ends. A replica needs one for its feed and one for the inbox of each partition.
	blockingConnections = 8 + MaxPartitions
	topologyRefresh     = 5 * time.Second
	maxRedirections     = 8
)

// Options says which Redis, and how long to wait for it.
type Options struct {
	// URL names the Redis: redis://, rediss:// or unix://. Several nodes of a cluster are given as
	// redis://host:port?addr=host2:port2; Sentinels as redis://sentinel:port?addr=sentinel2:port2&master_set=name.
	URL string
	// Namespace separates installations that share a Redis; "holdfast" when empty.
	Namespace string
	// Timeout bounds one command with everything it needs, dialling too; 3 s when zero. A read that may
	// block has its block time besides.
	Timeout time.Duration
	// Replicated has each append wait until a replica of Redis has it, ReplicaWait at most (1 s when zero).
	Replicated  bool
	ReplicaWait time.Duration

	single bool // do not ask whether the server is a cluster
}

// Store is one replica's access to Redis. All methods may be called at the same time. Commands that do not
// wait share one connection for each node and keep their order on it; reads that wait have their own, and so has SendMany.
type Store struct {
	client  rueidis.Client
	reader  rueidis.Client // of reads that wait
	sender  rueidis.Client // of SendMany; it pipelines once two of those are made at a time
	keys    keys
	timeout time.Duration
	doors   *doors

	replicated  bool
	replicaWait time.Duration

	closing context.Context
	close   context.CancelFunc

	mu      sync.Mutex // guards what follows
	closed  bool
	waiting sync.WaitGroup // reads that may block; no Add once closed

	tokens struct {
		sync.Mutex
		entropy *ulid.MonotonicEntropy
	}
}

// Check finds what is wrong with the options, without connecting.
func (o Options) Check() error {
	if o.Namespace != "" {
		if err := validNamespace(o.Namespace); err != nil {
			return err
		}
	}
	_, err := parseURL(o.URL)
	return err
}

// Open connects to Redis. When nothing answers, the error wraps ErrUnavailable and Open may be tried again; any
// other error is one of the options or of the credentials. No error shows a password.
func Open(o Options) (*Store, error) {
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if err := validNamespace(o.Namespace); err != nil {
		return nil, fmt.Errorf("store: open: %w", err)
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	s := &Store{
		keys: newKeys(o.Namespace), timeout: o.Timeout, doors: newDoors(),
		replicated: o.Replicated, replicaWait: cmp.Or(o.ReplicaWait, defaultReplicaWait),
	}
	s.tokens.entropy = ulid.Monotonic(bufio.NewReader(rand.Reader), 0)
	option, err := s.clientOption(o)
	if err != nil {
		return nil, fmt.Errorf("store: open: %w", err)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		if refused, ok := rueidis.IsRedisErr(err); ok && !passing(refused.Error()) {
			return nil, fmt.Errorf("store: open: %w", err)
		}
		return nil, fmt.Errorf("store: open: %w: %w", ErrUnavailable, err)
	}
	s.client = client
	// Reads that wait have a client of their own that does not pipeline: each has a connection to itself, and
	// with one goroutine in place of three it has its answer two wake-ups earlier. SendMany, of which there is one at
	// a time, has one for the same reason.
	option.AlwaysPipelining = false
	if s.reader, err = rueidis.NewClient(option); err != nil {
		client.Close()
		return nil, fmt.Errorf("store: open: %w: %w", ErrUnavailable, err)
	}
	if s.sender, err = rueidis.NewClient(option); err != nil {
		s.reader.Close()
		client.Close()
		return nil, fmt.Errorf("store: open: %w: %w", ErrUnavailable, err)
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s, nil
}

// Close ends the reads that wait and returns after them; then it closes the connections. Any later call is
// ErrUnavailable.
func (s *Store) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	s.close()
	s.waiting.Wait()
	s.reader.Close()
	s.sender.Close()
	s.client.Close()
}

func (s *Store) clientOption(o Options) (rueidis.ClientOption, error) {
	option, err := parseURL(o.URL)
	if err != nil {
		return option, err
	}
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = o.Timeout
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = o.Timeout
	}
	dial := option.DialCtxFn
	if dial == nil {
		dial = dialTCP
	}
	option.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		conn, err := s.doors.dial(ctx, to, func() (net.Conn, error) { return dial(ctx, to, d, t) })
		if err != nil {
			return nil, err
		}
		return sockets.Wrap(conn), nil // its reader is one goroutine at a time
	}
	option.DisableCache = true
	// Otherwise the deadline of one caller would close the shared connection under the others.
	option.AlwaysPipelining = true
	// A repeated write could be written twice.
	option.DisableRetry = true
	option.ConnLifetime = 0
	option.PipelineMultiplex = -1 // one connection, so that writes keep their order
	option.ReadBufferEachConn = connectionBuffer
	option.WriteBufferEachConn = connectionBuffer
	option.BlockingPoolSize = blockingConnections
	option.ForceSingleClient = o.single
	option.ClusterOption.MaxMovedRedirections = maxRedirections
	option.ClusterOption.ShardsRefreshInterval = topologyRefresh
	if option.Sentinel.MasterSet != "" {
		option.Sentinel.TopologyRefreshInterval = topologyRefresh
		option.Sentinel.Dialer = option.Dialer
		option.Sentinel.TLSConfig = option.TLSConfig
	}
	return option, nil
}

func dialTCP(ctx context.Context, to string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	if t != nil {
		return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", to)
	}
	return d.DialContext(ctx, "tcp", to)
}

// parseURL never quotes the URL: any part of it may turn out to be a piece of the password.
func parseURL(s string) (rueidis.ClientOption, error) {
	if s == "" {
		return rueidis.ClientOption{}, errors.New("no Redis URL is given")
	}
	u, err := url.Parse(s)
	if err != nil {
		return rueidis.ClientOption{}, errors.New("the Redis URL cannot be read (want redis://user:password@host:port/db; " +
			"special characters of a password must be percent-encoded)")
	}
	switch u.Scheme {
	case "redis", "rediss", "unix", "valkey", "valkeys":
	default:
		return rueidis.ClientOption{}, errors.New("the Redis URL must begin with redis://, rediss:// or unix://")
	}
	// A host left out would stand for this machine: more likely it is a variable that was not set.
	if u.Scheme != "unix" && u.Hostname() == "" {
		return rueidis.ClientOption{}, errors.New("the Redis URL names no host (want redis://host:port)")
	}
	option, err := rueidis.ParseURL(s)
	if err != nil {
		problem := strings.TrimPrefix(err.Error(), "redis: ")
		problem, _, _ = strings.Cut(problem, ":")
		return rueidis.ClientOption{}, fmt.Errorf("the Redis URL has an %s", problem)
	}
	return option, nil
}

// do runs a command that does not wait, within the Store's timeout.
func (s *Store) do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.client.Do(ctx, cmd)
}

func (s *Store) run(ctx context.Context, script *rueidis.Lua, keys, args []string) rueidis.RedisResult {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return script.Exec(ctx, s.client, keys, args)
}

func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.closing.Err() != nil { // the client of a cluster closes its connections only after its Close
		return s.closing, func() {}
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= s.timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// wait runs a read that may block for that long. It ends at once when ctx or the Store does. After a failure of
// the connection it holds the caller back a little, so that a loop of reads does not spin while Redis is down.
func (s *Store) wait(ctx context.Context, op string, block time.Duration, cmd rueidis.Completed) (rueidis.RedisResult, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return rueidis.RedisResult{}, fmt.Errorf("store: %s: %w: closed", op, ErrUnavailable)
	}
	s.waiting.Add(1)
	s.mu.Unlock()
	defer s.waiting.Done()

	bounded, cancel := context.WithTimeout(ctx, block+s.timeout)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	own, release := s.reader.Dedicate()
	defer release()
	defer context.AfterFunc(bounded, own.Close)() // nothing else ends a read that waits
	res := own.Do(bounded, cmd)
	err := s.check(ctx, op, res)
	if errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
		pause := time.NewTimer(min(block, s.doors.pause()))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-bounded.Done():
		}
	}
	return res, err
}

func blockMillis(block time.Duration) int64 { return max(1, block.Milliseconds()) }

// check gives the error of an answer, wrapped. A nil answer is no error here.
func (s *Store) check(ctx context.Context, op string, res rueidis.RedisResult) error {
	if err := res.NonRedisError(); err != nil {
		return s.unavailable(ctx, op, err)
	}
	err := res.Error()
	if err == nil || rueidis.IsRedisNil(err) {
		return nil
	}
	if passing(err.Error()) {
		return fmt.Errorf("store: %s: %w: %w: %w", op, ErrUnavailable, ErrRefused, err)
	}
	return fmt.Errorf("store: %s: %w", op, err)
}

func (s *Store) unavailable(ctx context.Context, op string, err error) error {
	if own := ctx.Err(); own != nil {
		return fmt.Errorf("store: %s: %w: %w", op, ErrUnavailable, own)
	}
	if s.closing.Err() != nil {
		return fmt.Errorf("store: %s: %w: closed", op, ErrUnavailable)
	}
	// A context error is not the caller's here: of the Store's timeout, or of another caller who was dialling.
	// The caller must not take it for its own.
	return fmt.Errorf("store: %s: %w: %s", op, ErrUnavailable, err.Error())
}

// malformed is an answer that Redis does not give to this command.
func malformed(op string, err error) error {
	return fmt.Errorf("store: %s: unexpected answer: %w", op, err)
}

// passing reports whether an error answer is about the state of the server and not about the command.
func passing(answer string) bool {
	word, _, _ := strings.Cut(answer, " ")
	switch strings.TrimPrefix(word, "-") {
	case "LOADING", "OOM", "READONLY", "MASTERDOWN", "NOREPLICAS", "MISCONF", "CLUSTERDOWN", "TRYAGAIN", "BUSY",
		"MOVED", "ASK":
		return true
	}
	return strings.HasPrefix(answer, "max number of clients")
}

// token makes the name of a log entry: later ones of this Store sort after earlier ones.
func (s *Store) token() (ulid.ULID, error) {
	s.tokens.Lock()
	defer s.tokens.Unlock()
	return ulid.New(ulid.Now(), s.tokens.entropy)
}
