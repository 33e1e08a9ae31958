package transport

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/olahol/melody"

	"holdfast/sockets"
)

const (
	// readChunk is how much one system call reads, and gatherBytes how much one writes, of what is small.
	readChunk   = 8 << 10
	gatherBytes = 16 << 10
	// promptBytes is the longest packet that is written by who has it for the client. Its frame is written in one part.
	promptBytes = 1 << 10
	// deadlineSlack is how much later than asked for a write may time out. Setting a deadline costs as much as
	// a small system call.
	deadlineSlack = time.Second
)

// carried is the TCP connection of a session, and how the session is found from melody's: its own keys would be
// a map for each connection.
//
// It saves system calls and memory. What is read goes through a large buffer, which is held only while something
// is in it, so that an idle connection has none. A packet that is written takes along those that wait behind it
// in the outbox.
type carried struct {
	net.Conn
	c       *conn
	probe   *probe // until the upgrade; of the reading goroutine
	framed  bool   // what is written are frames of the outbox's packets
	deflate bool   // packets may be compressed

	holding  bool // the frames of a compressed message that is not complete; as what follows writing
	heldPart bool // what comes of rest is one of them
	final    bool // and of the last of them

	// Of the reading goroutine.
	raw    syscall.RawConn // nil: reads and writes are the connection's own
	fill   func(fd uintptr) bool
	buffer *[readChunk]byte
	left   []byte // not yet read of buffer or, without one, of what is given out before all that comes
	err    error

	writing  sync.Mutex // of frames, or parts of one: held for each write
	begun    *[]byte    // what is still to be written of a frame that now has begun: the next one, control frames aside
	deadline time.Time
	rest     int    // bytes that are still to come of a frame written in parts
	held     []byte // while holding, bounded by the packet's size
}

var (
	readBuffers   = sync.Pool{New: func() any { return new([readChunk]byte) }}
	gatherBuffers = sync.Pool{New: func() any { return new([gatherBytes]byte) }}
)

func carry(tcp net.Conn, c *conn) *carried {
	t := &carried{Conn: tcp, c: c}
	if s, ok := tcp.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			t.raw, t.fill = raw, t.receive
		}
	}
	return t
}

func carriedOf(ws *melody.Session) *carried {
	t, ok := ws.WebsocketConnection().NetConn().(*carried)
	if !ok {
		panic("transport: a session that was not upgraded here")
	}
	return t
}

func (t *carried) Read(p []byte) (int, error) {
	if len(t.left) == 0 {
		if t.raw == nil || len(p) >= readChunk {
			return t.Conn.Read(p)
		}
		if err := t.raw.Read(t.fill); err != nil {
			return 0, err
		}
		if t.err != nil {
			return 0, t.err
		}
	}
	n := copy(p, t.left)
	t.left = t.left[n:]
	if len(t.left) == 0 {
		t.left = nil
		if t.buffer != nil {
			readBuffers.Put(t.buffer)
			t.buffer = nil
		}
	}
	return n, nil
}

// receive reads what has arrived. false: nothing yet.
func (t *carried) receive(fd uintptr) bool {
	buffer := readBuffers.Get().(*[readChunk]byte)
	n, err := sockets.Read(int(fd), buffer[:])
	switch {
	case n > 0:
		t.buffer, t.left, t.err = buffer, buffer[:n], nil
		return true
	case err == nil:
		t.err = io.EOF
	case err != syscall.EAGAIN:
		t.err = os.NewSyscallError("read", err)
	}
	readBuffers.Put(buffer)
	return err != syscall.EAGAIN
}

func (t *carried) SetWriteDeadline(at time.Time) error {
	if late := t.deadline.Sub(at); !at.IsZero() && late >= 0 && late <= deadlineSlack {
		return nil
	}
	t.deadline = at
	if !at.IsZero() {
		t.deadline = at.Add(deadlineSlack)
	}
	return t.Conn.SetWriteDeadline(t.deadline)
}

const (
	finalFrame     = 0x80
	controlFrame   = 8              // of the opcode's bits
	textFrame      = finalFrame | 1 // not compressed
	binaryFrame    = finalFrame | 2
	maxFrameHeader = 10
)

// now is webSocket.now: the outbox has handed out nothing, so no frame is being written but maybe a control frame. It does
// not wait, neither for that nor for the client.
func (t *carried) now(packet []byte) bool {
	if t.raw == nil || !t.framed || len(packet) > promptBytes || t.deflate && len(packet) >= deflateFrom || !t.writing.TryLock() {
		return false
	}
	defer t.writing.Unlock()
	w := promptWrites.Get().(*promptWrite)
	defer promptWrites.Put(w)
	w.call, w.frame, w.n = t.c.srv.write, appendFrame(w.buffer[:0], packet, false), 0
	if t.raw.Control(w.do) != nil {
		return false
	}
	if w.n > 0 && w.n < len(w.frame) {
		left := append([]byte(nil), w.frame[w.n:]...)
		t.begun = &left
	}
	return w.n == len(w.frame)
}

// promptWrite is one system call of now.
type promptWrite struct {
	call   func(fd int, b []byte) (int, error)
	frame  []byte
	n      int // bytes written; -1 or 0 if it failed
	do     func(fd uintptr)
	buffer [maxFrameHeader + promptBytes]byte
}

var promptWrites = sync.Pool{New: func() any {
	w := new(promptWrite)
	w.do = func(fd uintptr) { w.n, _ = w.call(int(fd), w.frame) }
	return w
}}

// Write writes a frame or, if that is large, a part of one.
func (t *carried) Write(b []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.begun != nil {
		if _, err := t.write(*t.begun); err != nil {
			return 0, err
		}
		*t.begun = nil
		if b[0]&controlFrame == 0 {
			t.begun = nil
			return len(b), nil
		}
	}
	if t.rest > 0 {
		t.rest -= len(b)
		if t.heldPart {
			return t.hold(b, t.final && t.rest == 0)
		}
		return t.write(b)
	}
	if !t.framed {
		return t.write(b)
	}
	t.rest = frameSize(b) - len(b)
	if t.heldPart = t.deflate && b[0]&controlFrame == 0 && (t.holding || b[0]&finalFrame == 0); t.heldPart {
		t.holding, t.final = true, b[0]&finalFrame != 0
		return t.hold(b, t.final && t.rest == 0)
	}
	if t.rest > 0 || b[0] != textFrame && b[0] != binaryFrame {
		return t.write(b)
	}
	buffer := gatherBuffers.Get().(*[gatherBytes]byte)
	defer gatherBuffers.Put(buffer)
	most := gatherBytes
	if t.deflate {
		most = deflateFrom - 1 // what is larger is to be compressed
	}
	all, packets := t.c.out.gather(buffer[:0], b, most)
	if packets <= 1 {
		return t.write(b)
	}
	if _, err := t.write(all); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (t *carried) write(b []byte) (int, error) {
	if t.raw == nil {
		return t.Conn.Write(b)
	}
	return sockets.WriteAll(t.raw, b)
}

// frameSize is how long the frame is that b begins with, b having all of its header.
func frameSize(b []byte) int {
	switch n := b[1]; n {
	case 126:
		return 4 + int(binary.BigEndian.Uint16(b[2:]))
	case 127:
		return 10 + int(binary.BigEndian.Uint64(b[2:]))
	default:
		return 2 + int(n)
	}
}

func appendFrame(dst, data []byte, isBinary bool) []byte {
	kind := byte(textFrame)
	if isBinary {
		kind = binaryFrame
	}
	switch n := len(data); {
	case n < 126:
		dst = append(dst, kind, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, kind, 126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, kind, 127), uint64(n))
	}
	return append(dst, data...)
}
