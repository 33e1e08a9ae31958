package sockets

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

const patience = 20 * time.Second

// pair is a connection's two ends, both wrapped.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	wrapped := [2]net.Conn{Wrap(a), Wrap(b)}
	for i, c := range []net.Conn{a, b} {
		if wrapped[i] == c {
			t.Fatal("a TCP connection was not wrapped")
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
	}
	return wrapped[0], wrapped[1]
}

// More than the system holds for a connection goes both ways at once, in pieces of all sizes.
func TestAllArrives(t *testing.T) {
	a, b := pair(t)
	sent := make([]byte, 20<<20)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	errs := make(chan error, 2)
	for _, c := range []net.Conn{a, b} {
		go func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(1<<(4+rand.IntN(19))))
				if m, err := c.Write(rest[:n]); err != nil || m != n {
					errs <- errors.Join(err, errors.New("cut short"))
					return
				}
				rest = rest[n:]
			}
			errs <- nil
		}()
	}
	for name, c := range map[string]net.Conn{"a": a, "b": b} {
		got := make([]byte, 0, len(sent))
		for len(got) < len(sent) {
			n, err := c.Read(got[len(got):min(cap(got), len(got)+1+rand.IntN(1<<17))])
			if err != nil {
				t.Fatalf("%s, after %d bytes: %v", name, len(got), err)
			}
			got = got[:len(got)+n]
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%s has not got what was sent", name)
		}
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestEndsAreAsOfOtherConnections(t *testing.T) {
	byte1 := make([]byte, 1)
	t.Run("end", func(t *testing.T) {
		a, b := pair(t)
		if n, err := a.Read(nil); n != 0 || err != nil {
			t.Errorf("reading nothing: %d, %v", n, err)
		}
		a.Close()
		for range 2 {
			if n, err := b.Read(byte1); n != 0 || err != io.EOF {
				t.Errorf("%d, %v, want EOF", n, err)
			}
		}
		if _, err := a.Read(byte1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("reading one's own closed connection: %v", err)
		}
		if _, err := a.Write(byte1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("writing to one's own closed connection: %v", err)
		}
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		a, _ := pair(t)
		time.AfterFunc(20*time.Millisecond, func() { a.Close() })
		if n, err := a.Read(byte1); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%d, %v", n, err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		a, b := pair(t)
		if err := b.(*conn).Conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		b.Close()
		if n, err := a.Read(byte1); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %d, %v", n, err)
		}
		if n, err := a.Write(byte1); n != 0 || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write: %d, %v", n, err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		a, b := pair(t)
		much := make([]byte, 64<<20) // more than there is room for
		if err := a.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Read(byte1); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %d, %v", n, err)
		}
		if err := a.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := a.Write(much)
		if n == 0 || n == len(much) || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %d, %v", n, err)
		}
		if m, err := io.ReadFull(b, make([]byte, n)); err != nil {
			t.Errorf("of %d bytes that were written %d arrived: %v", n, m, err)
		}
	})
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Wrap(a) != a {
		t.Error("it was wrapped")
	}
}
