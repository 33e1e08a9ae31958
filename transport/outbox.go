package transport

import (
	"encoding/base64"
	"sync"

	"holdfast/transport/engineio"
)

// window is how many packets are handed to the carrier at a time. It is the carrier's buffer as well,
// so that it never overflows. One is enough: it takes along those behind it.
const window = 1

// carrier takes a packet without blocking while fewer than window are with it, may gather more
// when it writes that, and then calls sent. A binary packet is the data of a message and nothing else.
type carrier interface {
	carry(packet []byte, binary bool) error
}

// outbox is what waits for one client, in order. Its bounds are the two maxima, which count the
// packets that are with the carrier too; a packet that does not fit is refused, and the owner then
// cuts the connection, because a client that misses a packet without knowing is worse off than
// one that reconnects.
//
// Nothing is called back under the lock except the carrier.
type outbox struct {
	to                    carrier
	pulled                bool // to only takes what it asks for, by payload
	maxBytes, maxMessages int

	mu     sync.Mutex
	state  outboxState
	ring   []parcel // its length is a power of two
	head   int
	n      int
	handed int // how many of the first are with the carrier; the others only if it is window
	taken  int // how many of the first it is writing now, if it has gathered any
	bytes  int
	more   allowance
}

type parcel struct {
	packet  []byte
	dropped func() // may be nil
	binary  bool
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

// put queues a packet, unless that is nil, and its attachments, which must not change afterwards. Nothing comes
// between them but a ping, and dropped is about the packet: without it, nobody misses the attachments.
func (o *outbox) put(packet []byte, attachments [][]byte, dropped func()) putResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queue(packet, attachments, dropped)
}

// queue is put for who holds mu.
func (o *outbox) queue(packet []byte, attachments [][]byte, dropped func()) putResult {
	size, count := 0, len(attachments)
	for _, a := range attachments {
		size += len(a)
	}
	if packet != nil {
		size, count = size+len(packet), count+1
	}
	if o.state != outboxOpen {
		return putOver
	}
	if o.n+count > o.maxMessages+o.more.packets || o.bytes+size > o.maxBytes+o.more.bytes {
		return putFull
	}
	if packet != nil {
		o.grow()
		o.ring[o.at(o.n)] = parcel{packet: packet, dropped: dropped}
		o.n++
	}
	for _, a := range attachments {
		o.grow()
		o.ring[o.at(o.n)] = parcel{packet: a, binary: true}
		o.n++
	}
	o.bytes += size
	o.hand()
	return putQueued
}

// prompt is a carrier that can write a packet at once, if it has none and need not wait for that.
type prompt interface {
	carrier
	// now reports whether it has written the packet. If not, that may be begun: then the packet is carried next.
	now(packet []byte) bool
}

// putNow is put for a packet that nothing is likely to follow at once: if nothing waits or is with the carrier, and that
// can do it without waiting, it has been written.
func (o *outbox) putNow(packet []byte) (written bool, result putResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == outboxOpen && o.n == 0 {
		if to, ok := o.to.(prompt); ok && to.now(packet) {
			return true, putQueued
		}
	}
	return false, o.queue(packet, nil, nil)
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
	first := o.inDoubt()
	for i := range first {
		o.ring[o.at(i)] = o.ring[o.at(i+1)]
	}
	o.ring[o.at(first)] = parcel{packet: packet}
	o.bytes += len(packet)
	o.hand()
}

// gather appends to dst the frame of the packet that is being written, and those of the packets behind it that
// fit and are not longer than most, and says how many they are.
func (o *outbox) gather(dst, frame []byte, most int) ([]byte, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handed == 0 || o.n == 1 || o.state == outboxStopped {
		return dst, 1
	}
	dst = append(dst, frame...)
	o.taken = 1
	for o.taken < o.n {
		next := &o.ring[o.at(o.taken)]
		if len(next.packet) > most || len(dst)+maxFrameHeader+len(next.packet) > cap(dst) {
			break
		}
		dst = appendFrame(dst, next.packet, next.binary)
		o.taken++
	}
	return dst, o.taken
}

// payload is what an HTTP response takes along: the first packet, and those behind it as long as all are at most
// size bytes. They are in doubt until sent. Nothing: there is no packet.
func (o *outbox) payload(size int) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handed == 0 || o.state == outboxStopped {
		return nil
	}
	var dst []byte
	for o.taken < o.n {
		next := &o.ring[o.at(o.taken)]
		n := len(next.packet) + 1
		if next.binary {
			n = base64.StdEncoding.EncodedLen(len(next.packet)) + 2
		}
		if o.taken > 0 {
			if len(dst)+n > size {
				break
			}
			dst = append(dst, engineio.Separator)
		}
		if next.binary {
			dst = engineio.Packet{Binary: true, Data: next.packet}.Append(dst)
		} else {
			dst = append(dst, next.packet...)
		}
		o.taken++
	}
	return dst
}

// changeTo goes on with another carrier, which is not pulled. The former one has nothing taken, and takes nothing any
// more.
func (o *outbox) changeTo(to carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to, o.pulled, o.handed = to, false, 0
	o.hand()
}

// sent takes note that the carrier has written its oldest packet and what it has gathered with that, and says
// what they were. last is true once: when the outbox was told to finish and nothing is left.
func (o *outbox) sent() (packets, bytes int, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handed == 0 {
		return 0, 0, false // dropped meanwhile
	}
	packets = max(o.taken, 1)
	for range packets {
		first := &o.ring[o.head]
		bytes += len(first.packet)
		*first = parcel{}
		o.head = o.at(1)
	}
	o.bytes -= bytes
	o.n -= packets
	o.more.spend(packets, bytes)
	o.handed, o.taken = 0, 0
	if o.n > 0 {
		o.hand()
		return packets, bytes, false
	}
	if len(o.ring) > 64 {
		o.ring, o.head = nil, 0 // a burst is over; idle connections stay small
	}
	if o.state == outboxFinishing {
		o.state = outboxStopped
		return packets, bytes, true
	}
	return packets, bytes, false
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
// been written. The caller has closed the connection before. Only what the carrier has been handed, and
// what it has taken along, is in doubt.
func (o *outbox) drop() []func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state = outboxStopped
	var dropped []func()
	for i := o.inDoubt(); i < o.n; i++ {
		if f := o.ring[o.at(i)].dropped; f != nil {
			dropped = append(dropped, f)
		}
	}
	o.ring, o.head, o.n, o.handed, o.taken, o.bytes = nil, 0, 0, 0, 0, 0
	return dropped
}

// inDoubt is how many of the first may have been written already.
func (o *outbox) inDoubt() int {
	if o.pulled {
		return o.taken
	}
	return max(o.handed, o.taken)
}

// hand fills the window.
func (o *outbox) hand() {
	for o.state != outboxStopped && o.handed < min(o.n, window) {
		if first := &o.ring[o.at(o.handed)]; o.to.carry(first.packet, first.binary) != nil {
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
