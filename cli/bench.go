package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast/hammer"
)

// ErrBenchErrors is returned after the report, so that the process ends with
// exit code 1, when something failed and --fail-on-error was given.
var ErrBenchErrors = errors.New("bench: there were errors, see the report")

// BenchCmd measures servers from the outside, as their clients see them.
type BenchCmd struct {
	RPC     BenchRPCCmd     `cmd:"" name:"rpc" help:"Measure RPC calls between clients of one or more servers: calls per second and latency."`
	Fanout  BenchFanoutCmd  `cmd:"" name:"fanout" help:"Publish to many subscribers: deliveries per second, latency, and what was lost, doubled or out of order."`
	Connect BenchConnectCmd `cmd:"" name:"connect" help:"Open many idle connections: connections per second, the server's memory for each, and how they come back after all broke at once."`
	Rooms   BenchRoomsCmd   `cmd:"" name:"rooms" help:"Let many peers join rooms: joins per second, latency, conflicts, and who hears of it. With --hold also how long rooms are without an owner that was killed meanwhile."`
}

// BenchRPCCmd is `bench rpc`.
type BenchRPCCmd struct {
	URL         []string      `name:"url" required:"" placeholder:"URL" help:"Server to connect to, e.g. http://127.0.0.1:4001. Repeat it: the daemons connect to the first, the callers to the others in turn. With a single one all connect to it."`
	Path        string        `default:"/socket.io/" help:"Path of the Socket.IO endpoint."`
	User        string        `default:"bench" help:"User of all clients, sent as auth.user; for servers that run insecure."`
	Token       string        `env:"HOLDFAST_BENCH_TOKEN" help:"JWT of all clients, sent as auth.token."`
	Callers     int           `default:"64" help:"Callers; each makes one call at a time."`
	Connections int           `default:"0" help:"Connections that the callers share. 0 gives each caller its own."`
	Handlers    int           `default:"4" help:"Daemons that answer the calls, each with a connection and a method of its own. 4 keep one connection from being what is measured."`
	Payload     int           `default:"128" help:"Size of the params of a call, and of its result."`
	Rate        float64       `default:"0" help:"Calls per second over all callers. Latency then counts from the time a call was due, whether or not a caller was free. 0: each caller calls again as soon as it has its answer."`
	Warmup      time.Duration `default:"2s" help:"Time before the measurement, under the same load."`
	Duration    time.Duration `short:"d" default:"10s" help:"Time of the measurement."`
	Timeout     time.Duration `default:"30s" help:"Timeout of one call."`
	Baseline    string        `placeholder:"URL" help:"Redis, e.g. redis://127.0.0.1:6379. Measures afterwards the same load over two bare streams there, which is the least that any server with a log in Redis can take."`
	JSON        bool          `name:"json" help:"Write the report as JSON."`
	FailOnError bool          `help:"Exit with code 1 if any call failed."`
}

// Run measures and writes the report to standard output.
func (c *BenchRPCCmd) Run(ctx context.Context) error {
	report, err := hammer.RunRPC(ctx, hammer.RPCOptions{
		URLs: c.URL, Path: c.Path, User: c.User, Token: c.Token,
		Callers: c.Callers, Connections: c.Connections, Handlers: c.Handlers,
		Payload: c.Payload, Rate: c.Rate, Warmup: c.Warmup, Duration: c.Duration, Timeout: c.Timeout,
		Baseline: c.Baseline, Progress: hammer.Terminal(),
	})
	if err != nil {
		return err
	}
	return writeBench(report, c.JSON, c.FailOnError)
}

// BenchConnectCmd is `bench connect`.
type BenchConnectCmd struct {
	URL         []string      `name:"url" required:"" placeholder:"URL" help:"Server to connect to, e.g. http://127.0.0.1:4001. Repeat it to spread the connections."`
	Path        string        `default:"/socket.io/" help:"Path of the Socket.IO endpoint."`
	User        string        `default:"bench-" help:"Each connection is a user of its own: this and a number, sent as auth.user; for servers that run insecure."`
	Token       string        `env:"HOLDFAST_BENCH_TOKEN" help:"JWT of all connections, sent as auth.token. They are then all peers of one user and hear of each other."`
	Connections int           `short:"n" default:"1000" help:"Connections to open. More than about 28,000 to one address need more local ports than most systems give."`
	Rate        float64       `default:"500" help:"Connections per second at most, and subscriptions with --channel. 0: as fast as the server admits them."`
	Parallel    int           `default:"64" help:"Connections that may be in the making at one time."`
	Channel     bool          `help:"Each connection subscribes a channel of its own and gets one message there, so that it has something to recover. The last look at the memory is after that."`
	Mode        string        `default:"channel" enum:"channel,room" help:"With --channel, by which events, ${enum}: channel-subscribe and channel-publish, or room-join and room-emit, which other servers have too."`
	Hold        time.Duration `default:"10s" help:"Time to keep them open, idle, before the last look at the memory."`
	PID         int           `name:"pid" placeholder:"PID" help:"Process id of the server, if it runs on this machine: its resident memory is read before and after. Give its URL alone then: the memory is divided by all connections. Linux only."`
	Storm       bool          `help:"After the hold, break all connections at once, without a farewell, and let the clients come back with what they have for recovery, each to the next URL. With --channel a message is published to each channel meanwhile, except in rooms."`
	KillPID     int           `name:"kill-pid" placeholder:"PID" help:"A storm, too: kill this process, the server of the first URL. Its clients come back to the others."`
	Delay       time.Duration `name:"reconnect-delay" default:"1s" help:"How long a client waits before it comes back, varied by half, and twice that after each failure up to 5s. The default is what stock clients do; the report's times hold it."`
	StormWait   time.Duration `default:"1m" help:"How long to wait for the clients to come back, and then for their messages."`
	JSON        bool          `name:"json" help:"Write the report as JSON."`
	FailOnError bool          `help:"Exit with code 1 if any connection failed or was lost, or a client did not come back with its session and its messages."`
}

// Run connects, holds, and writes the report to standard output.
func (c *BenchConnectCmd) Run(ctx context.Context) error {
	report, err := hammer.RunConnect(ctx, hammer.ConnectOptions{
		URLs: c.URL, Path: c.Path, User: c.User, Token: c.Token,
		Connections: c.Connections, Rate: c.Rate, Parallel: c.Parallel, Channel: c.Channel, Mode: c.Mode, Hold: c.Hold,
		PID: c.PID, Storm: c.Storm, KillPID: c.KillPID, ReconnectDelay: c.Delay, StormWait: c.StormWait, Progress: hammer.Terminal(),
	})
	if err != nil {
		return err
	}
	return writeBench(report, c.JSON, c.FailOnError)
}

// BenchRoomsCmd is `bench rooms`.
type BenchRoomsCmd struct {
	URL         []string      `name:"url" required:"" placeholder:"URL" help:"Server to connect to, e.g. http://127.0.0.1:4001. Repeat it: the peers of a room connect to them in turn."`
	Path        string        `default:"/socket.io/" help:"Path of the Socket.IO endpoint."`
	User        string        `default:"bench-" help:"The peers of a room are one user: this and a number, sent as auth.user; those of a single room are a user each. For servers that run insecure."`
	Token       string        `env:"HOLDFAST_BENCH_TOKEN" help:"JWT of all peers, sent as auth.token. They are then all of one user and hear of each other's presence, too."`
	Room        string        `help:"Name of the room; of several, what their names begin with. Default: one that no other run has."`
	Rooms       int           `default:"1" help:"Rooms."`
	Peers       int           `short:"n" default:"100" help:"Peers of each room. More than about 28,000 to one address need more local ports than most systems give."`
	Role        string        `enum:",host,guest,member,monitor" default:"" help:"Role of all peers. Default: in each room the first is host, the second guest, the others are members."`
	Rate        float64       `default:"0" help:"Joins per second, in any order. Latency then counts from the time a join was due. 0: all at once."`
	Parallel    int           `default:"64" help:"Connections that may be in the making at one time."`
	Timeout     time.Duration `default:"30s" help:"Timeout of one join."`
	Settle      time.Duration `default:"30s" help:"How long the peers wait, after the last join, for the events that tell them of each other."`
	Hold        time.Duration `default:"0s" help:"How long they stay then, such as to kill a server; the report tells how long it took until every room had another owner."`
	JSON        bool          `name:"json" help:"Write the report as JSON."`
	FailOnError bool          `help:"Exit with code 1 if a peer could not connect or join, or its room did not hear of it."`
}

// Run measures and writes the report to standard output.
func (c *BenchRoomsCmd) Run(ctx context.Context) error {
	report, err := hammer.RunRooms(ctx, hammer.RoomsOptions{
		URLs: c.URL, Path: c.Path, User: c.User, Token: c.Token, Room: c.Room, Rooms: c.Rooms, Peers: c.Peers, Role: c.Role,
		Rate: c.Rate, Parallel: c.Parallel, Timeout: c.Timeout, Settle: c.Settle, Hold: c.Hold, Progress: hammer.Terminal(),
		Joined: func() { fmt.Fprintln(os.Stderr, "all have joined") },
	})
	if err != nil {
		return err
	}
	return writeBench(report, c.JSON, c.FailOnError)
}

type benchReport interface {
	WriteText(w io.Writer) error
	Failed() bool
}

func writeBench(r benchReport, asJSON, failOnError bool) error {
	var err error
	if asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		err = out.Encode(r)
	} else {
		err = r.WriteText(os.Stdout)
	}
	if err == nil && failOnError && r.Failed() {
		err = ErrBenchErrors
	}
	return err
}

// BenchFanoutCmd is `bench fanout`.
type BenchFanoutCmd struct {
	URL         []string      `name:"url" required:"" placeholder:"URL" help:"Server to connect to. Repeat it: the subscribers connect to them in turn, the publishers to the last."`
	Path        string        `default:"/socket.io/" help:"Path of the Socket.IO endpoint."`
	User        string        `default:"bench-" help:"Each client is a user of its own: this and a number, sent as auth.user; for servers that run insecure."`
	Token       string        `env:"HOLDFAST_BENCH_TOKEN" help:"JWT of all clients, sent as auth.token. They are then all peers of one user and hear of each other: thousands cost much of what is measured."`
	Mode        string        `default:"channel" enum:"channel,room" help:"By which events, ${enum}: channel-subscribe and channel-publish, or room-join and room-emit, which other servers have too."`
	Channels    int           `default:"1" help:"Channels, or rooms."`
	Subscribers int           `short:"n" default:"100" help:"Subscribers of each channel, besides its publishers."`
	Publishers  int           `default:"1" help:"Publishers; each publishes to one channel, which it has subscribed too."`
	Window      int           `default:"16" help:"Messages of one publisher that have not come back to it yet, at most."`
	Payload     int           `default:"200" help:"Size of a message's data, about."`
	Rate        float64       `default:"0" help:"Messages per second over all publishers. Latency then counts from the time a message was due, whether or not its publisher's window had room. 0: as fast as they come back."`
	Warmup      time.Duration `default:"1s" help:"Time before the measurement, under the same load."`
	Duration    time.Duration `short:"d" default:"10s" help:"Time of the measurement."`
	KillPID     int           `name:"kill-pid" placeholder:"PID" help:"Kill this process meanwhile: the server of the first URL. Its clients come back to the other servers, and should miss nothing."`
	KillAfter   time.Duration `default:"2s" help:"When, from the beginning of the measurement."`
	JSON        bool          `name:"json" help:"Write the report as JSON."`
	FailOnError bool          `help:"Exit with code 1 if anything was lost, doubled or out of order, or failed."`
}

// Run measures and writes the report to standard output.
func (c *BenchFanoutCmd) Run(ctx context.Context) error {
	report, err := hammer.RunFanout(ctx, hammer.FanoutOptions{
		URLs: c.URL, Path: c.Path, User: c.User, Token: c.Token, Mode: c.Mode,
		Channels: c.Channels, Subscribers: c.Subscribers, Publishers: c.Publishers, Window: c.Window,
		Payload: c.Payload, Rate: c.Rate, Warmup: c.Warmup, Duration: c.Duration,
		KillPID: c.KillPID, KillAfter: c.KillAfter, Progress: hammer.Terminal(),
	})
	if err != nil {
		return err
	}
	return writeBench(report, c.JSON, c.FailOnError)
}
