// Package sockets reads and writes connections by system calls that Go's scheduler is not told of.
//
// The scheduler wants to know of system calls because they may block. Those of a connection do not: Go waits for the network
// elsewhere, and what cannot be done at once fails with EAGAIN. But telling it has a price where little runs at a time: when
// nothing runs, the thread that watches over the others (sysmon) goes to sleep, and the next system call that the scheduler
// is told of wakes it, for some rounds of 20 µs. A replica that is woken for each few messages pays more for that than for
// the messages.
package sockets

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Read reads once from a non-blocking file descriptor: syscall.EAGAIN if there is nothing yet, 0 bytes and no error at the
// end.
func Read(fd int, p []byte) (int, error) {
	for {
		if n, err := read(fd, p); err != syscall.EINTR {
			return n, err
		}
	}
}

// Write writes once to a non-blocking file descriptor, maybe not all: syscall.EAGAIN if nothing can be written yet.
func Write(fd int, p []byte) (int, error) {
	for {
		if n, err := write(fd, p); err != syscall.EINTR {
			return n, err
		}
	}
}

// WriteAll writes all of b, waiting as long as the connection's deadline allows, as net.Conn's Write does.
func WriteAll(raw syscall.RawConn, b []byte) (int, error) {
	w := writings.Get().(*writing)
	defer writings.Put(w)
	w.left, w.err = b, nil
	err := raw.Write(w.step)
	if err == nil {
		err = w.err
	}
	n := len(b) - len(w.left)
	w.left = nil
	return n, err
}

// writing is one WriteAll.
type writing struct {
	left []byte
	err  error
	step func(fd uintptr) bool // its method on
}

var writings = sync.Pool{New: func() any {
	w := new(writing)
	w.step = w.on
	return w
}}

// on writes what can be written. false: not all yet.
func (w *writing) on(fd uintptr) bool {
	for len(w.left) > 0 {
		n, err := Write(int(fd), w.left)
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			w.err = os.NewSyscallError("write", err)
			return true
		}
		w.left = w.left[n:]
	}
	return true
}

// conn is a connection for one reader and any number of writers.
type conn struct {
	net.Conn
	raw  syscall.RawConn
	fill func(fd uintptr) bool // its method read

	// Of the reader.
	into []byte
	n    int
	err  error
}

// Wrap makes the reads and writes of a connection those of this package. It has one reader at a time from then on. What is
// not a socket itself, as one with TLS, is returned as it is.
func Wrap(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return c
	}
	w := &conn{Conn: c, raw: raw}
	w.fill = w.read
	return w
}

func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.Conn.Read(p)
	}
	c.into = p
	err := c.raw.Read(c.fill)
	c.into = nil
	if err != nil {
		return 0, err
	}
	return c.n, c.err
}

// read reads what has arrived. false: nothing yet.
func (c *conn) read(fd uintptr) bool {
	n, err := Read(int(fd), c.into)
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != nil:
		c.n, c.err = 0, os.NewSyscallError("read", err)
	case n == 0:
		c.n, c.err = 0, io.EOF
	default:
		c.n, c.err = n, nil
	}
	return true
}

func (c *conn) Write(b []byte) (int, error) { return WriteAll(c.raw, b) }
