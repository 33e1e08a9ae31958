// Command holdfast is a realtime server for stock Socket.IO clients whose state is a log in Redis Streams.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	cli.FollowLoad()
	code := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
