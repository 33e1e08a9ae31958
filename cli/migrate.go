package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/migrations"
	"holdfast/store"
)

// MigrateCmd is `migrate`.
type MigrateCmd struct {
	Status MigrateStatusCmd `cmd:"" help:"Show the layout of the stored keys, and what this program knows."`
	Plan   MigratePlanCmd   `cmd:"" help:"List the steps that up would take. Changes nothing."`
	Up     MigrateUpCmd     `cmd:"" help:"Take the pending steps. serve does so too, for those that need no stop."`
}

// MigrateTarget says whose layout it is.
type MigrateTarget struct {
	Redis     string `placeholder:"URL" help:"Redis that holds the log, required; as for serve."`
	Namespace string `default:"holdfast" help:"Prefix of all keys; as for serve."`
}

func (m MigrateTarget) open() (*store.Store, error) {
	if m.Redis == "" {
		return nil, usageError{"no Redis is given. Set --redis or HOLDFAST_REDIS to its URL, such as redis://127.0.0.1:6379"}
	}
	o := store.Options{URL: m.Redis, Namespace: m.Namespace}
	if err := o.Check(); err != nil {
		return nil, usageError{fmt.Sprintf("--redis or --namespace: %v", err)}
	}
	return store.Open(o)
}

const migrateTimeout = 10 * time.Second // of what only reads

// MigrateStatusCmd is `migrate status`.
type MigrateStatusCmd struct{ MigrateTarget }

// Run prints the state. A layout that this program must not touch is an error.
func (c *MigrateStatusCmd) Run(ctx context.Context, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	st, err := c.open()
	if err != nil {
		return err
	}
	defer st.Close()
	at, err := st.Layout(ctx)
	if err != nil {
		return err
	}
	alive, err := st.Alive(ctx)
	if err != nil {
		return err
	}
	if at.Version == 0 {
		fmt.Fprintln(out.stdout, "stored    no layout is marked: a new namespace, or one from before layouts were counted")
	} else {
		fmt.Fprintf(out.stdout, "stored    layout %d; programs must know layout %d\n", at.Version, at.Oldest)
	}
	fmt.Fprintf(out.stdout, "program   knows layout %d and events of generation %d\n", migrations.Known(), events.Generation)
	fmt.Fprintf(out.stdout, "replicas  %d live %s\n", len(alive), strings.Join(alive, " "))
	pending, err := migrations.Pending(at)
	if err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "pending   %d steps\n", len(pending))
	printSteps(out.stdout, "          ", pending)
	return nil
}

// MigratePlanCmd is `migrate plan`.
type MigratePlanCmd struct{ MigrateTarget }

// Run prints the pending steps.
func (c *MigratePlanCmd) Run(ctx context.Context, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	st, err := c.open()
	if err != nil {
		return err
	}
	defer st.Close()
	at, err := st.Layout(ctx)
	if err != nil {
		return err
	}
	pending, err := migrations.Pending(at)
	if err != nil {
		return err
	}
	if len(pending) == 0 {
		fmt.Fprintln(out.stdout, "nothing to do")
	}
	printSteps(out.stdout, "", pending)
	return nil
}

// MigrateUpCmd is `migrate up`.
type MigrateUpCmd struct {
	MigrateTarget
	Wait time.Duration `env:"HOLDFAST_MIGRATE_WAIT" default:"1m" help:"How long to go on, and to wait for another process that changes the layout."`
}

// Run takes the pending steps.
func (c *MigrateUpCmd) Run(ctx context.Context, out *output) error {
	if c.Wait <= 0 {
		return usageError{"--wait must be more than 0, such as 1m"}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	st, err := c.open()
	if err != nil {
		return err
	}
	defer st.Close()
	taken, err := migrations.Up(ctx, st, "migrate/"+ulid.Make().String())
	printSteps(out.stdout, "done: ", taken)
	if err == nil && len(taken) == 0 {
		fmt.Fprintln(out.stdout, "nothing to do")
	}
	return err
}

func printSteps(w io.Writer, before string, steps []migrations.Step) {
	for _, s := range steps {
		needs := ""
		if s.Breaking {
			needs = " (needs all replicas stopped)"
		}
		fmt.Fprintf(w, "%s%d %s%s\n", before, s.Version, s.Title, needs)
	}
}

// migrate takes the pending steps before a replica starts, and waits while the store is away or another process is
// at it. A layout that is too new, and a step that needs all replicas stopped while some live, are errors.
func (n *node) migrate(ctx context.Context, st *store.Store) error {
	holder := n.cfg.Instance + "/" + ulid.Make().String()
	var said time.Time
	for {
		bounded, cancel := context.WithTimeout(ctx, migrateTimeout)
		taken, err := migrations.Up(bounded, st, holder)
		cancel()
		for _, s := range taken {
			n.cfg.Log.Info().Int("layout", s.Version).Msg("the layout of the stored keys was brought up: " + s.Title)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, migrations.ErrLocked) && !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		if time.Since(said) > 5*time.Second {
			n.cfg.Log.Warn().Err(err).Msg("waiting for the layout of the stored keys")
			said = time.Now()
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
