package replica

import "context"

// early is the channel when there is no need to wait for more than what it tells.
func early(seen chan struct{}, enough bool) chan struct{} {
	if enough {
		return seen
	}
	return nil
}

// confirm returns once a replica of Redis has everything that this replica has applied; at once when nobody asked
// for that. A history that has changed meanwhile confirms nothing.
func (r *Replica) confirm(ctx context.Context, generation uint64) error {
	if !r.st.Replicated() {
		return nil
	}
	at := r.position()
	head, err := r.st.ConfirmedHead(ctx)
	if err != nil {
		return err
	}
	if head.Position.Before(at) {
		return errUnsettled
	}
	if err := r.await(ctx, generation, head.Position); err != nil {
		return err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.generation != generation {
		return errUnsettled
	}
	return nil
}
