package cli

import (
	"context"
	"fmt"
	"maps"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// loaded is what a slice has made of an embedded store.
type loaded struct {
	entries int
	to      events.Position
	base    func() *projections.State // the state before the first entry, a new copy each time
}

// loadSlice puts a slice into an embedded store. Its replicas do not run here: they are recorded as lost, and their
// peers are away from now on.
func loadSlice(ctx context.Context, file string, embedded *store.Embedded) (loaded, error) {
	src, err := openSlice(file)
	if err != nil {
		return loaded{}, err
	}
	state, err := src.base(ctx, events.Position{})
	if err != nil {
		return loaded{}, err
	}
	encoded := state.Encode()
	f := folding{state: state}
	var entries []store.Entry
	err = src.each(ctx, events.Position{}, store.Last, func(e store.Entry) error {
		entries = append(entries, e)
		return f.apply(e)
	})
	if err != nil {
		return loaded{}, fmt.Errorf("%s: %w", file, err)
	}
	if err := embedded.Load(entries, maps.Collect(state.Versions()), store.Head{Position: state.Position, Token: state.Token}); err != nil {
		return loaded{}, err
	}
	if err := loseReplicas(ctx, state, embedded); err != nil {
		return loaded{}, err
	}
	return loaded{entries: len(entries), to: state.Position, base: func() *projections.State {
		again, err := projections.Decode(encoded)
		if err != nil {
			panic(err) // it was encoded here
		}
		return again
	}}, nil
}

func loseReplicas(ctx context.Context, state *projections.State, embedded *store.Embedded) error {
	var group []store.Append
	for r := range state.Replicas() {
		checks := []store.Check{{Aggregate: events.IncarnationKey(r.Instance), Version: state.Version(events.IncarnationKey(r.Instance))}}
		group = append(group, store.Append{Command: ulid.Make(), Checks: checks, Events: []events.Event{
			events.ReplicaLost{Instance: r.Instance, Incarnation: r.Incarnation, Reason: "exported"},
		}})
	}
	if len(group) == 0 {
		return nil
	}
	st, err := embedded.Open()
	if err != nil {
		return err
	}
	defer st.Close()
	verdicts, err := st.Append(ctx, store.Fence{Instance: "dev"}, group)
	if err != nil {
		return err
	}
	for _, v := range verdicts {
		if v.Conflict != nil {
			return fmt.Errorf("load: %s stands at %s, not at %s", v.Conflict.Aggregate, v.Conflict.Actual, v.Conflict.Version)
		}
	}
	return nil
}
