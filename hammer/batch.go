package hammer

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// More than this waiting to be written makes writers wait.
	batchLimit   = 1 << 20
	batchTimeout = 45 * time.Second
	// How old a write's deadline may be: setting one is not free.
	batchDeadlineAge = time.Second
)

var batchBuffers = buffers{size: 4096, keep: 64 << 10}

// batchConn joins small writes into few system calls without delaying any. What
// is written lies in a buffer until flush; whoever flushes takes along what the
// others have written meanwhile. While the one reading goroutine is awake nobody
// else flushes, since it does so itself before it waits for input again. That
// makes one system call of all the answers to one batch of input, and needs no
// goroutine or timer of its own.
//
// Until buffer is called it writes through, for the handshakes of TLS and HTTP.
// An idle one holds no buffer.
type batchConn struct {
	net.Conn
	awake atomic.Bool // the reading goroutine is between two reads

	mu       sync.Mutex
	room     sync.Cond
	buffered bool
	flushing bool
	pending  *[]byte
	err      error
	deadline time.Time // of the flusher: when it was last set
}

func newBatchConn(c net.Conn) *batchConn {
	b := &batchConn{Conn: c}
	b.room.L = &b.mu
	return b
}

func (b *batchConn) buffer() {
	b.mu.Lock()
	b.buffered = true
	b.mu.Unlock()
}

func (b *batchConn) Read(p []byte) (int, error) {
	b.awake.Store(false)
	b.flush()
	n, err := b.Conn.Read(p)
	b.awake.Store(true)
	return n, err
}

// Write reports an error of an earlier flush; its own bytes may fail later.
func (b *batchConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.buffered {
		return b.Conn.Write(p)
	}
	// The flusher itself never waits here, so there is always one to make room.
	for b.flushing && b.pending != nil && len(*b.pending) > batchLimit && b.err == nil {
		b.room.Wait()
	}
	if b.err != nil {
		return 0, b.err
	}
	if b.pending == nil {
		b.pending = batchBuffers.get()
	}
	*b.pending = append(*b.pending, p...)
	return len(p), nil
}

// SetWriteDeadline does nothing once writes are buffered: each flush has its own.
func (b *batchConn) SetWriteDeadline(t time.Time) error {
	b.mu.Lock()
	buffered := b.buffered
	b.mu.Unlock()
	if buffered {
		return nil
	}
	return b.Conn.SetWriteDeadline(t)
}

// flushSoon leaves the flush to the reading goroutine if that is about to do it.
func (b *batchConn) flushSoon() {
	if !b.awake.Load() {
		b.flush()
	}
}

func (b *batchConn) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flushing {
		return
	}
	b.flushing = true
	for b.pending != nil && b.err == nil {
		out := b.pending
		b.pending = nil
		b.mu.Unlock()
		err := b.limit(time.Now())
		if err == nil {
			_, err = b.Conn.Write(*out)
		}
		batchBuffers.put(out)
		if err != nil {
			b.Conn.Close() // so that the reader learns of it as well
		}
		b.mu.Lock()
		b.err = err
		b.room.Broadcast()
	}
	b.flushing = false
}

// limit keeps a deadline for writes that is about batchTimeout away.
func (b *batchConn) limit(now time.Time) error {
	if now.Sub(b.deadline) < batchDeadlineAge {
		return nil
	}
	b.deadline = now
	return b.Conn.SetWriteDeadline(now.Add(batchTimeout))
}

// buffers is a pool of byte slices of at least size; those that grew past keep
// are not taken back.
type buffers struct {
	pool       sync.Pool
	size, keep int
}

func (b *buffers) get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, 0, b.size)
	return &p
}

func (b *buffers) put(p *[]byte) {
	if cap(*p) <= b.keep {
		*p = (*p)[:0]
		b.pool.Put(p)
	}
}
