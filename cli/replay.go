package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast/events"
	"holdfast/store"
)

// LogSource says which log is looked into.
type LogSource struct {
	Redis     string `placeholder:"URL" help:"Redis that holds the log, as for serve."`
	Namespace string `default:"holdfast" help:"Prefix of its keys, as for serve."`
}

func (l LogSource) check() error {
	if l.Redis == "" {
		return usageError{"no Redis is given. Set --redis or HOLDFAST_REDIS to its URL, such as redis://127.0.0.1:6379"}
	}
	if err := (store.Options{URL: l.Redis, Namespace: l.Namespace}).Check(); err != nil {
		return usageError{fmt.Sprintf("--redis or --namespace: %v", err)}
	}
	return nil
}

func (l LogSource) open() (*store.Store, error) {
	return store.Open(store.Options{URL: l.Redis, Namespace: l.Namespace})
}

// ReplayCmd is `replay`. It never writes to Redis.
type ReplayCmd struct {
	File string `arg:"" optional:"" type:"existingfile" help:"Read this file, made by --export, instead of Redis."`
	LogSource
	From moment `env:"-" placeholder:"MOMENT" help:"Begin here: a time (2006-01-02T15:04:05Z), a position (1136214245000-0), or a time ago (-1h)."`
	To   moment `env:"-" placeholder:"MOMENT" help:"End here."`
	filter
	Follow bool   `env:"-" help:"Go on with what is appended from now on, until interrupted."`
	Format string `env:"-" default:"table" enum:"table,json" help:"Form of the output: ${enum}. json is one object for each line."`
	State  bool   `env:"-" help:"Print what the log adds up to after the last event read, instead of the events. Filters choose parts of it."`
	At     moment `env:"-" placeholder:"MOMENT" help:"Print what it added up to then: --state --to MOMENT."`
	Diff   span   `env:"-" placeholder:"A B" help:"Print what differs between two moments."`
	Why    string `env:"-" placeholder:"THING" help:"Print the history of one thing, with consequences of events that do not name it: peer:USER/PEER, method:USER/METHOD or replica:INSTANCE."`
	Export string `env:"-" placeholder:"FILE" help:"Write the events, with the state before them, into a file for replay FILE and dev --from FILE."`
	Redact bool   `env:"-" help:"With --export: replace ids, names, URLs and whatever else may tell something by pseudonyms."`
}

func (c *ReplayCmd) check() error {
	modes := 0
	for _, set := range []bool{c.State || !c.At.isZero(), !c.Diff.isZero(), c.Why != "", c.Export != "", c.Follow} {
		if set {
			modes++
		}
	}
	switch {
	case modes > 1:
		return usageError{"--state (or --at), --diff, --why, --export and --follow exclude each other"}
	case !c.At.isZero() && (!c.From.isZero() || !c.To.isZero()):
		return usageError{"--at takes neither --from nor --to"}
	case c.State && !c.From.isZero():
		return usageError{"--state takes no --from: what is true at a moment follows from everything before it"}
	case !c.Diff.isZero() && (!c.From.isZero() || !c.To.isZero()):
		return usageError{"--diff takes neither --from nor --to: it has its own two moments"}
	case c.Follow && (c.File != "" || !c.To.isZero()):
		return usageError{"--follow reads Redis, and has no end: it takes neither a file nor --to"}
	case (c.Why != "" || c.Export != "") && !c.filter.isZero():
		return usageError{"--why and --export take no filters: choose with --from and --to"}
	case (c.State || !c.At.isZero() || !c.Diff.isZero()) && len(c.Type) > 0:
		return usageError{"--type is about events: it does not go with --state, --at and --diff"}
	case c.Redact && c.Export == "":
		return usageError{"--redact goes with --export"}
	}
	if c.Why != "" {
		if _, err := parseAsked(c.Why); err != nil {
			return usageError{"--why " + err.Error()}
		}
	}
	if c.File != "" {
		return nil
	}
	return c.LogSource.check()
}

// Run prints what was asked for.
func (c *ReplayCmd) Run(ctx context.Context, out *output) error {
	if err := c.check(); err != nil {
		return err
	}
	w := bufio.NewWriter(out.stdout)
	err := c.run(ctx, out, w)
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // interrupted
	}
	return err
}

func (c *ReplayCmd) run(ctx context.Context, out *output, w *bufio.Writer) error {
	var src source
	var live *liveSource
	if c.File != "" {
		file, err := openSlice(c.File)
		if err != nil {
			return err
		}
		src = file
	} else {
		st, err := c.open()
		if err != nil {
			return err
		}
		defer st.Close()
		if live, err = newLiveSource(ctx, st); err != nil {
			return err
		}
		src = live
	}
	from, to := events.Position{}, store.Last
	if !c.From.isZero() {
		from = c.From.first(src.now())
	}
	if !c.To.isZero() {
		to = c.To.last(src.now())
	}
	if to.Before(from) {
		return usageError{"--to is before --from"}
	}
	paint := coloured(out.stdout)
	switch {
	case c.State || !c.At.isZero():
		if !c.At.isZero() {
			to = c.At.last(src.now())
		}
		return c.state(ctx, src, to, w)
	case !c.Diff.isZero():
		return c.diff(ctx, src, w, paint)
	case c.Why != "":
		return c.why(ctx, src, from, to, w, paint)
	case c.Export != "":
		n, err := exportSlice(ctx, src, from, to, c.Export, c.Redact)
		if err == nil {
			fmt.Fprintf(out.stderr, "%s: %d entries\n", c.Export, n)
		}
		return err
	}
	return c.list(ctx, src, live, from, to, out, w, paint)
}

// list prints entries as they are stored, understood or not.
func (c *ReplayCmd) list(ctx context.Context, src source, live *liveSource, from, to events.Position, out *output, w *bufio.Writer, p paint) error {
	printer := entryPrinter{w: w, json: c.Format == "json", paint: p}
	var last store.Entry
	show := func(e store.Entry) error {
		if !last.Token.IsZero() && e.Damage == nil && e.Previous != last.Token {
			fmt.Fprintf(out.stderr, "%s: %v\n", e.Position, brokenChain(last.Position, e))
		}
		last = e
		if !c.matches(aboutEntry(e)) {
			return nil
		}
		return printer.print(e)
	}
	if err := src.each(ctx, from, to, show); err != nil || !c.Follow {
		return err
	}
	at := last.Position
	if at.Before(before(from)) {
		at = before(from)
	}
	return follow(ctx, live.st, at, out.stderr, w, show)
}

// followBlock bounds one wait for new entries.
const followBlock = 5 * time.Second

// follow gives what is appended after a position until ctx ends, also through an outage of Redis.
func follow(ctx context.Context, st *store.Store, at events.Position, stderr io.Writer, w *bufio.Writer, show func(store.Entry) error) error {
	away := false
	for {
		if err := w.Flush(); err != nil {
			return err
		}
		entries, err := st.AwaitEntries(ctx, at, replayPage, followBlock)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted
		case errors.Is(err, store.ErrUnavailable):
			if !away {
				fmt.Fprintf(stderr, "waiting for Redis: %v\n", err)
			}
			away = true
			continue
		case err != nil:
			return err
		}
		away = false
		for _, e := range entries {
			if err := show(e); err != nil {
				return err
			}
			at = e.Position
		}
	}
}

func (c *ReplayCmd) state(ctx context.Context, src source, to events.Position, w io.Writer) error {
	s, err := foldTo(ctx, src, to)
	if err != nil {
		return err
	}
	view := viewState(s, c.filter)
	if c.Format == "json" {
		return writeJSON(w, view)
	}
	return view.print(w, src.now())
}

func (c *ReplayCmd) diff(ctx context.Context, src source, w io.Writer, p paint) error {
	a, b := c.Diff.from.last(src.now()), c.Diff.to.last(src.now())
	if b.Before(a) {
		return usageError{"--diff: the second moment is before the first"}
	}
	was, err := foldTo(ctx, src, a)
	if err != nil {
		return err
	}
	view := viewState(was, c.filter)
	f := folding{state: was}
	if err := src.each(ctx, a.Next(), b, f.apply); err != nil {
		return err
	}
	differences := diffStates(view, viewState(f.state, c.filter))
	if c.Format != "json" {
		fmt.Fprintf(w, "from %s  %s\nto   %s  %s\n", view.Position, view.Time, f.state.Position, clock(f.state.Now()))
	}
	for _, d := range differences {
		if c.Format == "json" {
			err = writeJSON(w, d)
		} else {
			d.print(w, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *ReplayCmd) why(ctx context.Context, src source, from, to events.Position, w io.Writer, p paint) error {
	a, err := parseAsked(c.Why)
	if err != nil {
		return usageError{"--why " + err.Error()}
	}
	told := 0
	err = tellWhy(ctx, src, a, from, to, func(e store.Entry, ch chapter) error {
		told++
		if c.Format == "json" {
			return writeJSON(w, ch)
		}
		ch.print(w, a, e, p)
		return nil
	})
	if err == nil && told == 0 && c.Format != "json" {
		fmt.Fprintf(w, "nothing in this log is about %s\n", c.Why)
	}
	return err
}
