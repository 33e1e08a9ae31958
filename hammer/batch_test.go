package hammer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// wire is a connection whose reads are given by the test and whose writes are kept.
type wire struct {
	net.Conn
	reads chan []byte
	gate  chan error // each write takes one

	mu     sync.Mutex
	writes [][]byte
}

func (w *wire) Read(p []byte) (int, error) {
	b, ok := <-w.reads
	if !ok {
		return 0, io.EOF
	}
	return copy(p, b), nil
}

func (w *wire) Write(p []byte) (int, error) {
	if err := <-w.gate; err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, bytes.Clone(p))
	return len(p), nil
}

func (w *wire) SetWriteDeadline(time.Time) error { return nil }
func (w *wire) Close() error                     { return nil }

func (w *wire) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, b := range w.writes {
		all = append(all, string(b))
	}
	return all
}

func newWire() *wire { return &wire{reads: make(chan []byte, 10), gate: make(chan error, 10)} }

// awaitFlusher returns when a flush has taken its bytes and is writing them.
func awaitFlusher(b *batchConn) {
	for {
		b.mu.Lock()
		taken := b.flushing && b.pending == nil
		b.mu.Unlock()
		if taken {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAnswersToOneReadGoOutTogether(t *testing.T) {
	w := newWire()
	b := newBatchConn(w)
	b.buffer()
	w.reads <- []byte("input")
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	// The reading goroutine is awake now: nobody needs to flush.
	for _, s := range []string{"a", "b", "c"} {
		if _, err := b.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		b.flushSoon()
	}
	if got := w.written(); len(got) != 0 {
		t.Errorf("written before the next read: %q", got)
	}
	w.gate <- nil
	close(w.reads)
	_, _ = b.Read(make([]byte, 10))
	if got := w.written(); len(got) != 1 || got[0] != "abc" {
		t.Errorf("got %q, want one write of abc", got)
	}
}

func TestWritesDuringAFlushFollowTogether(t *testing.T) {
	w := newWire()
	b := newBatchConn(w)
	b.buffer()
	first := make(chan struct{})
	_, _ = b.Write([]byte("a"))
	go func() {
		defer close(first)
		b.flushSoon() // held at the gate
	}()
	awaitFlusher(b)
	for _, s := range []string{"b", "c"} {
		_, _ = b.Write([]byte(s))
		b.flushSoon() // returns at once
	}
	w.gate <- nil
	w.gate <- nil
	within(t, "flush", first)
	if got := w.written(); len(got) != 2 || got[0] != "a" || got[1] != "bc" {
		t.Errorf("got %q, want a and bc", got)
	}
}

func TestWritersWaitForAFullBatch(t *testing.T) {
	w := newWire()
	b := newBatchConn(w)
	b.buffer()
	_, _ = b.Write([]byte("a"))
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		b.flush() // held at the gate
	}()
	awaitFlusher(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			_, _ = b.Write(make([]byte, batchLimit))
		}
		b.flush()
	}()
	select {
	case <-done:
		t.Fatal("three full batches fit into one")
	case <-time.After(50 * time.Millisecond):
	}
	for range 6 {
		w.gate <- nil
	}
	within(t, "writers", done)
	within(t, "flush", flushed)
}

func TestWriteAfterAFailedFlush(t *testing.T) {
	w := newWire()
	b := newBatchConn(w)
	b.buffer()
	broken := errors.New("broken pipe")
	w.gate <- broken
	_, _ = b.Write([]byte("a"))
	b.flush()
	if _, err := b.Write([]byte("b")); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
