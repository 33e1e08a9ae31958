package transport

import "sync"

// window is how many packets are with the carrier at a time. It is the carrier's buffer as well,
// so that it never overflows.
const window = 4

// carrier takes a packet without blocking while fewer than window are with it, and calls sent
// after each one that it has written.
type carrier interface {
	Write(packet []byte) error
}

// outbox is what waits for one client, in order. Its bounds are the two maxima, which count the
// packets that are with the carrier too; a packet that does not fit is refused, and the owner then
// cuts the connection, because a client that misses a packet without knowing is worse off than
// one that reconnects.
//
// Nothing is called back under the lock except the carrier.
type outbox struct {
	to                    carrier
	maxBytes, maxMessages int

	mu     sync.Mutex
	state  outboxState
	ring   []parcel // its length is a power of two
	head   int
	n      int
	handed int // how many of the first are with the carrier; the others only if it is window
	bytes  int
}

type parcel struct {
	packet  []byte
	dropped func() // may be nil
}

type outboxState uint8

const (
	outboxOpen      outboxState = iota
	outboxFinishing             // takes no more, sends what it has
	outboxStopped               // sends no more
)

// put result.
type putResult uint8

const (
	putQueued putResult = iota
	putOver             // the connection is ending
	putFull
)

// put queues a packet, which must not change afterwards.
func (o *outbox) put(packet []byte, dropped func()) putResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != outboxOpen {
		return putOver
	}
	if o.n >= o.maxMessages || o.bytes+len(packet) > o.maxBytes {
		return putFull
	}
	o.grow()
	o.ring[o.at(o.n)] = parcel{packet, dropped}
	o.n++
	o.bytes += len(packet)
	o.hand()
	return putQueued
}

// putFirst queues a packet before all that the carrier does not have yet, beyond the bounds: a
// ping must not wait for a backlog, or a slow client looks like a dead one.
func (o *outbox) putFirst(packet []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != outboxOpen {
		return
	}
	o.grow()
	o.head = o.at(len(o.ring) - 1)
	o.n++
	for i := range o.handed {
		o.ring[o.at(i)] = o.ring[o.at(i+1)]
	}
	o.ring[o.at(o.handed)] = parcel{packet: packet}
	o.bytes += len(packet)
	o.hand()
}

// sent takes note that the carrier has written its oldest packet. It is true once: when the
// outbox was told to finish and this was the last one.
func (o *outbox) sent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handed == 0 {
		return false // dropped meanwhile
	}
	first := &o.ring[o.head]
	o.bytes -= len(first.packet)
	*first = parcel{}
	o.head = o.at(1)
	o.n--
	o.handed--
	if o.n > 0 {
		o.hand()
		return false
	}
	if len(o.ring) > 64 {
		o.ring, o.head = nil, 0 // a burst is over; idle connections stay small
	}
	if o.state == outboxFinishing {
		o.state = outboxStopped
		return true
	}
	return false
}

// finish lets the outbox send what it has and take no more. True: nothing is left to send, and
// sent will not report it.
func (o *outbox) finish() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != outboxOpen {
		return false
	}
	if o.n == 0 {
		o.state = outboxStopped
		return true
	}
	o.state = outboxFinishing
	return false
}

// stop hands nothing more to the carrier.
func (o *outbox) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state = outboxStopped
}

// drop empties the outbox and returns the dropped functions of all packets of which no byte has
// been written. The caller has closed the connection before. The carrier writes one packet at a
// time and reports each before it starts on the next, so only its oldest is in doubt.
func (o *outbox) drop() []func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state = outboxStopped
	var dropped []func()
	for i := min(o.handed, 1); i < o.n; i++ {
		if f := o.ring[o.at(i)].dropped; f != nil {
			dropped = append(dropped, f)
		}
	}
	o.ring, o.head, o.n, o.handed, o.bytes = nil, 0, 0, 0, 0
	return dropped
}

// hand fills the window.
func (o *outbox) hand() {
	for o.state != outboxStopped && o.handed < min(o.n, window) {
		if o.to.Write(o.ring[o.at(o.handed)].packet) != nil {
			return // the connection is over; drop comes
		}
		o.handed++
	}
}

// at is where the i-th packet lies.
func (o *outbox) at(i int) int { return (o.head + i) & (len(o.ring) - 1) }

func (o *outbox) grow() {
	if o.n < len(o.ring) {
		return
	}
	ring := make([]parcel, max(2, 2*len(o.ring)))
	for i := range o.n {
		ring[i] = o.ring[o.at(i)]
	}
	o.ring, o.head = ring, 0
}
