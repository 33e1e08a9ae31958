// Package cli is the command line: its commands, their settings, and what they put together.
//
// It promises that every setting is a flag with an environment variable, a default and a check, and that no
// other package reads the environment. It holds no logic of the server itself.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // the command line or a setting is wrong; nothing was started
)

type commandLine struct {
	Serve   ServeCmd         `cmd:"" help:"Run one replica in production, on a Redis."`
	Dev     DevCmd           `cmd:"" help:"Run replicas for development: embedded Redis, insecure, on loopback."`
	Replay  ReplayCmd        `cmd:"" help:"Look into a log: its events, what they add up to at any moment, and why. Changes nothing."`
	Log     LogCmd           `cmd:"" help:"Show a log's size, ends and readers on one screen. Changes nothing."`
	Doctor  DoctorCmd        `cmd:"" help:"Check a Redis, or a running replica, before it has to carry anything."`
	Migrate MigrateCmd       `cmd:"" help:"Show or change the layout of what is stored."`
	Bench   BenchCmd         `cmd:"" help:"Measure running servers as their clients see them."`
	Version kong.VersionFlag `env:"-" help:"Print the version and end."`
}

// Version is set when a release is built.
var Version = "dev"

// usageError is a setting that makes no sense.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// ended is panicked by kong's --help and --version.
type ended int

// Run runs the command line until it ends or ctx does, and returns the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if v := recover(); v != nil {
			e, ok := v.(ended)
			if !ok {
				panic(v)
			}
			code = int(e)
		}
	}()
	var line commandLine
	parser, err := kong.New(&line,
		kong.Name("holdfast"),
		kong.Description("A realtime server for stock Socket.IO clients. Every setting is a flag or an environment variable."),
		kong.Vars{"version": Version, "hostname": hostname()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(ended(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.DefaultEnvars("HOLDFAST"),
		kong.ShortUsageOnError(),
	)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "holdfast: %v\nTry: holdfast --help\n", err)
		return exitUsage
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	parsed.Bind(&output{stdout: stdout, stderr: stderr, settings: settingsOf(parsed)})
	err = parsed.Run()
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "holdfast %s: %s\nTry: holdfast %s --help\n", parsed.Command(), usage.text, parsed.Command())
		return exitUsage
	}
	fmt.Fprintf(stderr, "holdfast %s: %v\n", parsed.Command(), err)
	return exitFailed
}

// output is where a command writes, and what it was told.
type output struct {
	stdout, stderr io.Writer
	settings       []setting
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "replica-1"
	}
	return name
}
