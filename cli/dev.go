package cli

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"holdfast/store"
	"holdfast/transport"
)

// DevCmd is `dev`.
type DevCmd struct {
	Replicas int    `default:"1" help:"Replicas to run, on consecutive ports."`
	Listen   string `default:"127.0.0.1:8080" help:"Address of the first replica."`
	From     string `env:"HOLDFAST_DEV_FROM" type:"existingfile" placeholder:"FILE" help:"Begin with the part of a log in this file, made by holdfast replay --export."`
	Limits
	LogLevel  string `default:"warn" enum:"trace,debug,info,warn,error" help:"Least level that is logged: ${enum}."`
	LogFormat string `default:"console" enum:"json,console" help:"Form of the log, on standard error: ${enum}."`
}

// Run serves until ctx ends.
func (c *DevCmd) Run(ctx context.Context, out *output) error {
	if err := c.Limits.check(); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(c.Listen)
	first, numErr := strconv.Atoi(port)
	if err != nil || numErr != nil {
		return usageError{fmt.Sprintf("--listen %q: want host:port", c.Listen)}
	}
	if c.Replicas < 1 || c.Replicas > 16 {
		return usageError{"--replicas must be 1 to 16"}
	}
	log := newLogger(out.stderr, c.LogLevel, c.LogFormat)
	embedded, err := store.OpenEmbedded("holdfast")
	if err != nil {
		return err
	}
	defer embedded.Close()
	var from loaded
	if c.From != "" {
		if from, err = loadSlice(ctx, c.From, embedded); err != nil {
			return err
		}
	}

	var nodes []*node
	for i := range c.Replicas {
		wire, hook, channels := c.wire(), c.hook(), c.channels()
		channels.Unrecorded = from.base != nil
		wire.Log, hook.Log = log, log
		if len(wire.Origins) == 0 {
			wire.Origins = []string{"*"}
		}
		at := net.JoinHostPort(host, strconv.Itoa(first+i))
		if first == 0 {
			at = net.JoinHostPort(host, "0")
		}
		n, err := newNode(nodeConfig{
			Instance: fmt.Sprintf("dev-%d", i+1), Advertise: "http://" + at, Listen: at,
			Graces: c.graces(), Patience: c.Patience, LateAck: c.LateAck, Keeping: c.keeping(),
			Channels: channels, Partitions: c.Partitions,
			Auth: transport.Authenticator{Insecure: true}, Wire: wire, Rooms: c.rooms(), Hook: hook,
			Base: from.base, Log: log.With().Int("replica", i+1).Logger(),
			Open: embedded.Open,
		})
		if err != nil {
			return fmt.Errorf("%w (another address: --listen 127.0.0.1:9090)", err)
		}
		nodes = append(nodes, n)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(nodes))
	var group sync.WaitGroup
	for _, n := range nodes {
		group.Go(func() {
			if err := n.Run(ctx); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	c.greet(out, embedded, nodes)
	if c.From != "" {
		fmt.Fprintf(out.stdout, "The log begins with %d entries of %s, up to %s. Its replicas are recorded as lost, their peers are away since now.\n\n",
			from.entries, c.From, from.to)
	}
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// greet says what runs, and how to talk to it.
func (c *DevCmd) greet(out *output, embedded *store.Embedded, nodes []*node) {
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.URL())
	}
	handler, caller := urls[0], urls[len(urls)-1]
	fmt.Fprintf(out.stdout, `Holdfast for development: an embedded Redis (%s) that forgets everything at the end; insecure; loopback.
Clients connect to %s

Try it (npm install socket.io-client; save as try.mjs; node try.mjs):
  import { io } from "socket.io-client"; const at = (url, peer) => io(url, { auth: { user: "me", peer } });
  const daemon = at("%s", "daemon"); daemon.on("rpc-request", (request, answer) => answer("hello " + request.params)); await daemon.emitWithAck("rpc-register", { method: "greet" });
  console.log(await at("%s", "caller").emitWithAck("rpc-call", { method: "greet", params: "world" })); process.exit();

`, embedded.Addr, strings.Join(urls, "  "), handler, caller)
}
