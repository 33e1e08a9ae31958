package transport

// allowance is what may wait for a client beyond the outbox's bounds: what it is given at once when it comes back. It
// is used up by what is sent, of which that comes first.
type allowance struct{ packets, bytes int }

func (a *allowance) spend(packets, bytes int) {
	a.packets, a.bytes = max(0, a.packets-packets), max(0, a.bytes-bytes)
}

// allow lets so much wait beyond the bounds until it has been sent.
func (o *outbox) allow(packets, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.more.packets += packets
	o.more.bytes += bytes
}

// Allow is for what the client has missed: so much may wait for it beyond Options.OutboxMessages and OutboxBytes until
// it has been sent.
func (s *Socket) Allow(packets, bytes int) { s.c.out.allow(packets, bytes) }
