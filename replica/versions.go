package replica

import (
	"holdfast/commands"
	"holdfast/events"
	"holdfast/store"
)

// suit has an append written so that every live replica understands it. What an older generation would not is
// checked against the roster besides: an older replica that joins meanwhile makes it a conflict, and it is
// decided again. The caller holds mu.
func (r *Replica) suit(app *store.Append) error {
	app.Generation = r.state.Understood()
	needs := events.First
	for _, e := range app.Events {
		n, err := events.Needs(e, app.Generation)
		if err != nil {
			return &commands.Refusal{
				Code: commands.CodeStoreUnavailable,
				Text: "Not possible before every replica runs the newer version of the program",
			}
		}
		needs = max(needs, n)
	}
	if needs > events.First {
		roster := events.ReplicasKey()
		app.Checks = append(app.Checks, store.Check{Aggregate: roster, Version: r.state.Version(roster)})
	}
	return nil
}
