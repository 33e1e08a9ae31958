package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/relay"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/transport"
)

// nodeConfig is all that one replica is made of.
type nodeConfig struct {
	Instance   string
	Advertise  string
	Listen     string
	Graces     commands.Graces
	Patience   time.Duration
	LateAck    time.Duration
	Lease      time.Duration
	Drain      time.Duration
	Keeping    replica.Keeping
	Auth       transport.Authenticator
	Wire       transport.Options
	ClusterKey string       // --cluster-key
	TLS        *certificate // nil: plain HTTP
	Rooms      transport.Rooms
	Base       func() *projections.State // as in replica.Config
	Hook       transport.RoomHookConfig
	Log        zerolog.Logger
	Admin      *admin // nil for none
	Channels   relay.ChannelConfig
	Partitions int
	// Open connects to the store; it is tried again while the store is unavailable.
	Open func() (*store.Store, error)
}

// node is one replica with its listener.
type node struct {
	cfg      nodeConfig
	listener net.Listener
}

// HTTP limits against slow or greedy clients, before a connection is a WebSocket.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// newNode takes the listening address, so that a wrong one fails before anything else is done.
func newNode(cfg nodeConfig) (*node, error) {
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on --listen %s: %w", cfg.Listen, err)
	}
	cfg.Advertise = withPort(cfg.Advertise, l.Addr())
	l = polite(l)
	if cfg.TLS != nil {
		l = cfg.TLS.over(l)
	}
	return &node{cfg: cfg, listener: l}, nil
}

// withPort is the URL with the port that was chosen, if it leaves that open with port 0.
func withPort(advertise string, at net.Addr) string {
	u, err := url.Parse(advertise)
	tcp, ok := at.(*net.TCPAddr)
	if err != nil || !ok || u.Port() != "0" {
		return advertise
	}
	u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(tcp.Port))
	return u.String()
}

// URL is where clients of this machine reach the node.
func (n *node) URL() string {
	if n.cfg.TLS != nil {
		return "https://" + n.listener.Addr().String()
	}
	return "http://" + n.listener.Addr().String()
}

// Run serves until ctx ends, then lets the clients go, records the replica's end and returns.
func (n *node) Run(ctx context.Context) error {
	var handler atomic.Pointer[http.Handler]
	set := func(h http.Handler) { handler.Store(&h) }
	set(starting())
	web := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(*handler.Load()).ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}
	served := make(chan error, 1)
	go func() { served <- web.Serve(n.listener) }()
	defer web.Close()
	n.cfg.Log.Info().Str("address", n.listener.Addr().String()).Msg("listening")

	st, err := n.open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer st.Close()
	if err := n.migrate(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}

	if err := n.claimPartitions(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}

	metrics := transport.NewMetrics()
	rep := replica.New(replica.Config{
		Instance: n.cfg.Instance, URL: n.cfg.Advertise, Graces: n.cfg.Graces, Patience: n.cfg.Patience,
		LeaseTTL: n.cfg.Lease, Partitions: n.cfg.Partitions, Keeping: n.cfg.Keeping, Secret: n.cfg.ClusterKey, Base: n.cfg.Base, Log: n.cfg.Log,
	}, st)
	rel := relay.New(rep, relay.Config{LateAck: n.cfg.LateAck, Log: n.cfg.Log, Done: metrics.CallDone, Channels: n.cfg.Channels})
	gate := transport.NewGateway(rep, rel, relay.NewAudience(rep), n.cfg.Auth, n.cfg.Rooms, n.cfg.Log)
	wire := n.cfg.Wire
	wire.Cluster = transport.NewNeighbours(rep)
	clients := transport.NewServer(wire, gate)
	n.cfg.Admin.watch(rep)
	metrics.Watch(rep, rel, clients)
	var hook *transport.RoomHook
	if n.cfg.Hook.URL != "" {
		hook = transport.NewRoomHook(rep, n.cfg.Hook)
		metrics.WatchHook(hook)
	}
	set(transport.Routes(rep, gate, metrics, clients))

	// The replica outlives its clients: their ends are recorded by it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	replicaEnded := make(chan error, 1)
	go func() { replicaEnded <- rep.Run(life) }()
	relayEnded := make(chan struct{})
	relayLife, endRelay := context.WithCancel(context.WithoutCancel(ctx))
	go func() { rel.Run(relayLife); close(relayEnded) }()
	defer func() { endRelay(); <-relayEnded }()
	trimEnded := make(chan struct{})
	go func() { trimMemory(relayLife, clients, rep); close(trimEnded) }()
	defer func() { endRelay(); <-trimEnded }()
	if hook != nil {
		hookEnded := make(chan struct{})
		go func() { hook.Run(relayLife); close(hookEnded) }()
		defer func() { endRelay(); <-hookEnded }()
	}

	select {
	case err = <-served:
		err = fmt.Errorf("serve HTTP: %w", err)
	case err = <-replicaEnded:
		replicaEnded <- nil
	case <-ctx.Done():
		n.cfg.Log.Info().Int("clients", clients.Connections()).Msg("stopping: clients are asked to reconnect elsewhere")
		gate.Drain(n.cfg.Drain)
		n.giveUpRooms(rep)
		n.awaitClients(clients)
	}
	closing, cancel := context.WithTimeout(context.Background(), n.cfg.Patience)
	defer cancel()
	if closeErr := clients.Close(closing); closeErr != nil {
		n.cfg.Log.Warn().Err(closeErr).Msg("not all clients could be closed in time")
	}
	end()
	if ended := <-replicaEnded; err == nil {
		err = ended
	}
	if err == nil {
		n.cfg.Log.Info().Msg("stopped")
	}
	return err
}

// giveUpRooms moves the rooms of this replica to others while its clients still go.
func (n *node) giveUpRooms(rep *replica.Replica) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Patience)
	defer cancel()
	if err := rep.Drain(ctx); err != nil {
		n.cfg.Log.Warn().Err(err).Msg("the rooms of this replica move when it has stopped: its drain could not be recorded")
	}
}

// awaitClients gives the clients their time to go by themselves.
func (n *node) awaitClients(clients *transport.Server) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(n.cfg.Drain); clients.Connections() > 0 && time.Now().Before(end); {
		<-tick.C
	}
}

// open connects to the store, again and again while it is out of reach.
func (n *node) open(ctx context.Context) (*store.Store, error) {
	var said time.Time
	for {
		st, err := n.cfg.Open()
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, store.ErrUnavailable) {
			return nil, err
		}
		if time.Since(said) > 5*time.Second {
			n.cfg.Log.Warn().Err(err).Msg("waiting for Redis (--redis, HOLDFAST_REDIS)")
			said = time.Now()
		}
		select {
		case <-time.After(200*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// claimPartitions makes sure that all replicas of the namespace have the same partitions.
func (n *node) claimPartitions(ctx context.Context, st *store.Store) error {
	if n.cfg.Partitions == 0 {
		n.cfg.Partitions = 1
	}
	for {
		stored, err := st.ClaimPartitions(ctx, n.cfg.Partitions)
		switch {
		case err == nil && stored == n.cfg.Partitions:
			return nil
		case err == nil:
			return fmt.Errorf("this namespace has %d partitions, --partitions (HOLDFAST_PARTITIONS) says %d: give %d, or another --namespace "+
				"(docs/operations.md, Partitions)", stored, n.cfg.Partitions, stored)
		case !errors.Is(err, store.ErrUnavailable):
			return err
		}
		select {
		case <-time.After(200*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// starting answers while the store has not been reached yet.
func starting() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "starting: the store has not been reached yet", http.StatusServiceUnavailable)
	})
	return mux
}
