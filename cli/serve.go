package cli

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"holdfast/commands"
	"holdfast/relay"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/transport"
)

// ServeCmd is `serve`.
type ServeCmd struct {
	Redis      string `placeholder:"URL" help:"Redis that holds the log, required: redis://host:port, rediss://… for TLS; Sentinel: redis://s1:26379?addr=s2:26379&master_set=NAME; Cluster: redis://n1:6379?addr=n2:6379."`
	Namespace  string `default:"holdfast" help:"Prefix of all keys: installations that share a Redis must differ in it."`
	Listen     string `default:":8080" help:"Address to listen on, for clients and for /healthz, /readyz and /metrics."`
	Durability string `default:"fast" enum:"fast,replicated" help:"When a change counts as made, ${enum}: once Redis has it, or once a replica of that Redis has it, too."`
	Advertise  string `placeholder:"URL" help:"URL by which clients and other replicas reach this one. Default: http:// with the instance name and the port."`
	Instance   string `default:"${hostname}" help:"Name of this replica, unique and stable across restarts. Default: the host name."`
	Insecure   bool   `help:"Let clients name their user themselves (auth.user). Never on a network that others reach."`
	TokenKey   string `placeholder:"KEY" help:"Secret that verifies the clients' HS256 tokens (auth.token). Required unless --insecure."`
	TLSCert    string `name:"tls-cert" env:"HOLDFAST_TLS_CERT" placeholder:"FILE" help:"Certificate chain to serve HTTPS with, PEM. Read again when it changes."`
	TLSKey     string `name:"tls-key" env:"HOLDFAST_TLS_KEY" placeholder:"FILE" help:"Private key of --tls-cert, PEM."`
	TLSCA      string `name:"tls-ca" env:"HOLDFAST_TLS_CA" placeholder:"FILE" help:"Certificates, PEM, by which those of other replicas are verified where --advertise is https://, beside the system's. Read again when it changes."`
	ClusterKey string `placeholder:"KEY" help:"Secret by which replicas know each other when they hand requests on, and sign clients' offsets, the same for all. Default: one that they keep in Redis."`
	Limits
	Drain       time.Duration `default:"3s" help:"At SIGTERM, how long clients may take to reconnect elsewhere before they are closed."`
	AdminListen string        `placeholder:"ADDR" help:"Address for the digest of the state (/admin/digest) and Go's profiles (/debug/pprof/), such as 127.0.0.1:6060. Off by default; never where others reach it."`
	LogLevel    string        `default:"info" enum:"trace,debug,info,warn,error" help:"Least level that is logged: ${enum}."`
	LogFormat   string        `default:"json" enum:"json,console" help:"Form of the log, on standard error: ${enum}."`
}

// Limits are the settings that serve and dev share.
type Limits struct {
	Paths                    []string      `default:"/socket.io/,/v1/updates" help:"Paths on which clients connect."`
	Origins                  []string      `help:"Origins that browsers may connect from, such as https://app.example.com; * is any. Default: only the server's own."`
	MaxPayload               int           `default:"1000000" help:"Largest message of a client, in bytes."`
	Deflate                  bool          `help:"Compress WebSocket messages where the client can (permessage-deflate): less traffic, more work for the processor."`
	OutboxBytes              int           `default:"4194304" help:"Bytes that may wait for one client; one that reads more slowly is closed."`
	OutboxMessages           int           `default:"10000" help:"Messages that may wait for one client."`
	MaxConnections           int           `default:"0" help:"Connections that may be open; more get TOO_MANY_CONNECTIONS. 0 is any number."`
	MaxConnectionsPerAddress int           `default:"0" help:"Connections that one network address may have open; behind a proxy that is the proxy's. 0 is any number."`
	PingInterval             time.Duration `default:"25s" help:"Time between the pings to a client."`
	PingTimeout              time.Duration `default:"20s" help:"Time for a client's answer to a ping."`
	PeerGrace                time.Duration `default:"10s" help:"How long a peer that is away is not gone."`
	RoomGrace                time.Duration `default:"5s" help:"How long a room stays open after its last host, guest or member has left."`
	RoomUnused               time.Duration `default:"24h" help:"How long the settings of a room are kept that nobody joins."`
	RPCGrace                 time.Duration `name:"rpc-grace" env:"HOLDFAST_RPC_GRACE" default:"10s" help:"How long calls to a daemon that is away are held."`
	LateAck                  time.Duration `default:"10s" help:"How long after a daemon's return its answers to earlier requests are waited for."`
	RecoveryWindow           time.Duration `default:"2m" help:"How long after its end a connection can be recovered."`
	MaxRoomPeers             int           `default:"10000" help:"Peers that one room may have."`
	MaxPeerRooms             int           `default:"100" help:"Rooms that one peer may be in."`
	MaxRoomState             int           `default:"65536" help:"Largest settings of a room, and largest guest state, in bytes."`
	MaxMeta                  int           `default:"16384" help:"Largest meta of a peer in a room, in bytes."`
	EmitPolicy               []string      `sep:";" placeholder:"EVENT=ROLE,..." help:"Roles that alone may send an event to a room, such as mute-all=host,guest. ambient-noise-alert=host is built in. Several: repeat it, or separate by semicolons."`
	RoomHook                 string        `placeholder:"URL" help:"HTTP server that is told when this replica becomes the owner of a room, and when rooms end or move: docs/operations.md, The room hook."`
	RoomHookKey              string        `placeholder:"KEY" help:"Secret that signs these calls, 16 bytes at least. Required with --room-hook."`
	RoomHookTimeout          time.Duration `default:"5s" help:"How long one of these calls may take before it is tried again."`
	HistoryMessages          int           `default:"1000" help:"Messages of each channel that a client can be given when it comes back, at least."`
	HistoryBytes             int           `default:"16777216" help:"Bytes that the history of one channel may take, about; goes before --history-messages."`
	Partitions               int           `default:"1" help:"Partitions of the data plane, fixed when the namespace is first used. More than 1 spreads channels over the nodes of a Redis Cluster."`
	Patience                 time.Duration `default:"5s" help:"How long a request waits for the log before it fails with STORE_UNAVAILABLE."`
	SnapshotEvents           int           `default:"10000" help:"Events after which a snapshot of the state is due, so that starts are fast."`
	SnapshotEvery            time.Duration `default:"5m" help:"Time after which one is due if anything has happened."`
	Retain                   time.Duration `default:"24h" help:"How long events stay in the log. Those that a snapshot or a replica needs stay longer."`
	RetainMemory             int64         `default:"0" help:"Bytes that the log may take in Redis; then events stay for less than --retain. 0 is any."`
	ForgetReplica            time.Duration `default:"1h" help:"How long after its end a replica's place in the log is kept."`
}

func (l Limits) hook() transport.RoomHookConfig {
	return transport.RoomHookConfig{URL: l.RoomHook, Key: l.RoomHookKey, Timeout: l.RoomHookTimeout}
}

func (l Limits) keeping() replica.Keeping {
	return replica.Keeping{
		SnapshotEvents: l.SnapshotEvents, SnapshotEvery: l.SnapshotEvery,
		Retain: l.Retain, RetainMemory: l.RetainMemory, ForgetReplica: l.ForgetReplica,
	}
}

func (l Limits) graces() commands.Graces {
	return commands.Graces{
		Peer: l.PeerGrace, RPC: l.RPCGrace, Recovery: l.RecoveryWindow, Room: l.RoomGrace, Unused: l.RoomUnused,
	}
}

func (l Limits) rooms() transport.Rooms {
	policy, _ := commands.ParseEmitPolicy(l.EmitPolicy) // check has refused a wrong one
	return transport.Rooms{Policy: policy, Limits: commands.RoomLimits{
		PeersPerRoom: l.MaxRoomPeers, RoomsPerPeer: l.MaxPeerRooms, Settings: l.MaxRoomState, Meta: l.MaxMeta,
	}}
}

// channels: a client that was cut off because too much waited for it has missed that, and what came since.
func (l Limits) channels() relay.ChannelConfig {
	return relay.ChannelConfig{
		History: l.HistoryMessages, HistoryBytes: l.HistoryBytes, Silence: l.PingInterval + l.PingTimeout,
		MaxMissed: 2*l.OutboxMessages + l.HistoryMessages, MaxMissedBytes: 4 * l.OutboxBytes,
		MaxMessage: l.MaxPayload,
	}
}

func (l Limits) check() error {
	for name, d := range map[string]time.Duration{
		"--patience": l.Patience, "--ping-interval": l.PingInterval, "--ping-timeout": l.PingTimeout, "--late-ack": l.LateAck,
		"--room-unused": l.RoomUnused, "--snapshot-every": l.SnapshotEvery, "--retain": l.Retain, "--forget-replica": l.ForgetReplica,
	} {
		if d <= 0 {
			return usageError{fmt.Sprintf("%s must be more than 0, such as 5s", name)}
		}
	}
	for name, d := range map[string]time.Duration{
		"--peer-grace": l.PeerGrace, "--room-grace": l.RoomGrace, "--rpc-grace": l.RPCGrace, "--recovery-window": l.RecoveryWindow,
	} {
		if d < 0 {
			return usageError{fmt.Sprintf("%s must not be negative", name)}
		}
	}
	for name, n := range map[string]int{
		"--max-payload": l.MaxPayload, "--outbox-bytes": l.OutboxBytes, "--outbox-messages": l.OutboxMessages,
		"--snapshot-events": l.SnapshotEvents, "--max-room-peers": l.MaxRoomPeers, "--max-peer-rooms": l.MaxPeerRooms,
		"--max-room-state": l.MaxRoomState, "--max-meta": l.MaxMeta,
		"--history-messages": l.HistoryMessages, "--history-bytes": l.HistoryBytes,
	} {
		if n <= 0 {
			return usageError{fmt.Sprintf("%s must be more than 0", name)}
		}
	}
	if l.Partitions < 1 || l.Partitions > store.MaxPartitions {
		return usageError{fmt.Sprintf("--partitions must be 1 to %d", store.MaxPartitions)}
	}
	if l.MaxConnections < 0 || l.MaxConnectionsPerAddress < 0 {
		return usageError{"--max-connections and --max-connections-per-address must not be negative; 0 is any number"}
	}
	if l.RetainMemory < 0 {
		return usageError{"--retain-memory must not be negative; 0 is no bound"}
	}
	if _, err := commands.ParseEmitPolicy(l.EmitPolicy); err != nil {
		return usageError{fmt.Sprintf("--emit-policy: %v", err)}
	}
	if err := l.hook().Check(); err != nil {
		return usageError{err.Error()}
	}
	for _, p := range l.Paths {
		if !strings.HasPrefix(p, "/") {
			return usageError{fmt.Sprintf("--paths %q: a path begins with /", p)}
		}
	}
	return nil
}

func (l Limits) wire() transport.Options {
	return transport.Options{
		Paths: l.Paths, Origins: l.Origins, MaxPayload: l.MaxPayload, Deflate: l.Deflate, OutboxBytes: l.OutboxBytes,
		MaxConnections: l.MaxConnections, MaxPerAddress: l.MaxConnectionsPerAddress,
		OutboxMessages: l.OutboxMessages, PingInterval: l.PingInterval, PingTimeout: l.PingTimeout,
	}
}

// Run serves until ctx ends.
func (c *ServeCmd) Run(ctx context.Context, out *output) error {
	if err := c.check(); err != nil {
		return err
	}
	log := newLogger(out.stderr, c.LogLevel, c.LogFormat)
	logSettings(log, out.settings)
	wire, hook := c.wire(), c.hook()
	wire.Log, hook.Log = log, log
	if c.Insecure {
		log.Warn().Msg("--insecure: clients name their user themselves")
	}
	adm, err := newAdmin(c.AdminListen, log)
	if err != nil {
		return err
	}
	defer adm.close()
	var cert *certificate
	if c.TLSCert != "" {
		if cert, err = loadCertificate(c.TLSCert, c.TLSKey, log); err != nil {
			return err
		}
	}
	if c.TLSCA != "" {
		others, err := loadAuthorities(c.TLSCA, log)
		if err != nil {
			return err
		}
		wire.ClusterTLS = others.config
	}
	n, err := newNode(nodeConfig{
		Instance: c.Instance, Advertise: c.advertise(), Listen: c.Listen,
		Graces: c.graces(), Patience: c.Patience, LateAck: c.LateAck, Drain: c.Drain, Keeping: c.keeping(),
		Auth: transport.Authenticator{Key: []byte(c.TokenKey), Insecure: c.Insecure}, Wire: wire, Rooms: c.rooms(), Hook: hook, Log: log, Admin: adm,
		Channels: c.channels(), Partitions: c.Partitions, ClusterKey: c.ClusterKey, TLS: cert,
		Open: func() (*store.Store, error) {
			return store.Open(store.Options{URL: c.Redis, Namespace: c.Namespace, Replicated: c.Durability == "replicated"})
		},
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}

func (c *ServeCmd) check() error {
	switch {
	case c.Redis == "":
		return usageError{"no Redis is given. Set --redis or HOLDFAST_REDIS to its URL, such as redis://127.0.0.1:6379. " +
			"(To try the server without one: holdfast dev)"}
	case !c.Insecure && c.TokenKey == "":
		return usageError{"no way to admit clients is given. Set --token-key or HOLDFAST_TOKEN_KEY to the secret of their tokens, " +
			"or --insecure (HOLDFAST_INSECURE=true) on a network that only you reach"}
	case c.Insecure && c.TokenKey != "":
		return usageError{"--token-key and --insecure exclude each other"}
	case c.TokenKey != "" && len(c.TokenKey) < 16:
		return usageError{"--token-key is too short: HS256 needs a secret of 16 bytes at least, better 32"}
	case c.Instance == "" || strings.ContainsAny(c.Instance, " :{}\t\n"):
		return usageError{"--instance must be a word without spaces, colons and braces"}
	}
	if err := (store.Options{URL: c.Redis, Namespace: c.Namespace}).Check(); err != nil {
		return usageError{fmt.Sprintf("--redis or --namespace: %v", err)}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usageError{"--tls-cert and --tls-key are needed both, or neither"}
	}
	if c.ClusterKey != "" && len(c.ClusterKey) < 16 {
		return usageError{"--cluster-key is too short: it needs 16 bytes at least"}
	}
	if c.Drain < 0 {
		return usageError{"--drain must not be negative"}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return usageError{fmt.Sprintf("--listen %q: want host:port or :port", c.Listen)}
	}
	if c.AdminListen != "" {
		if _, _, err := net.SplitHostPort(c.AdminListen); err != nil {
			return usageError{fmt.Sprintf("--admin-listen %q: want host:port, such as 127.0.0.1:6060", c.AdminListen)}
		}
	}
	if c.Advertise != "" {
		if u, err := url.Parse(c.Advertise); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usageError{fmt.Sprintf("--advertise %q: want a URL such as http://10.0.0.5:8080", c.Advertise)}
		}
	}
	return c.Limits.check()
}

func (c *ServeCmd) advertise() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	host, port, _ := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = c.Instance
	}
	if c.TLSCert != "" {
		return "https://" + net.JoinHostPort(host, port)
	}
	return "http://" + net.JoinHostPort(host, port)
}
