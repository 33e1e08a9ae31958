package replica

import (
	"time"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/store"
)

// rosterReturns is how long after a rebuild the roster may lack replicas that live: each records its start again at
// its next reconcile.
const rosterReturns = 10 * time.Second

// rememberRoster keeps to what the replicas of the former state understand until they are back in the new one. The
// caller holds mu, and has not replaced the state yet.
func (r *Replica) rememberRoster() {
	least := r.state.Understood()
	if time.Now().Before(r.formerUntil) {
		least = min(least, r.former)
	}
	r.former, r.formerUntil = least, time.Now().Add(rosterReturns)
}

// suit has an append written so that every live replica understands it. What an older generation would not is
// checked against the roster besides: an older replica that joins meanwhile makes it a conflict, and it is
// decided again. The caller holds mu.
func (r *Replica) suit(app *store.Append) error {
	app.Generation = r.state.Understood()
	if time.Now().Before(r.formerUntil) {
		app.Generation = min(app.Generation, r.former)
	}
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
