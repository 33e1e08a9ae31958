package hammer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"holdfast/sockets"
	"holdfast/transport/engineio"
	"holdfast/transport/socketio"
)

const (
	// Only a connection that is writing holds a write buffer of this size.
	writeBuffer = 4096
	// How long a goodbye waits for the server to close.
	closeWait = time.Second
)

var (
	writeBuffers   sync.Pool
	messageBuffers = buffers{size: 1024, keep: 64 << 10}
	netDialer      net.Dialer
)

// link is one admitted connection of a client. Exactly one goroutine reads.
type link struct {
	client *Client
	socket *websocket.Conn
	conn   *batchConn
	// A silence longer than this means that the server is gone: it pings.
	patience time.Duration

	writing sync.Mutex // of socket, which takes one writer at a time

	// early are the events that came before the client was admitted, if open is false; connect delivers them.
	early []func()
	open  bool
}

// Ack answers one event. The zero value answers nothing.
type Ack struct {
	client *Client
	id     uint64
}

// Wanted reports whether the server asked for an answer.
func (a Ack) Wanted() bool { return a.client != nil }

// Reply sends the answer, raw JSON, over the connection that the client has by
// now, as the stock client does: a late answer may go over a later connection.
// Without a connection it is lost, with ErrNotConnected.
func (a Ack) Reply(args ...json.RawMessage) error {
	if a.client == nil {
		return nil
	}
	a.client.mu.Lock()
	l, err := a.client.link, a.client.offline()
	a.client.mu.Unlock()
	if l == nil {
		return err
	}
	return l.ack(a.id, args)
}

// openLink makes the WebSocket and does both handshakes. What the server sends before it admits the client, as what
// a recovered session missed, waits in early, as in stock clients: it cannot be answered yet.
func openLink(ctx context.Context, c *Client, auth []byte) (*link, Session, error) {
	l := &link{client: c}
	dialer := websocket.Dialer{
		NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := netDialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			l.conn = newBatchConn(sockets.Wrap(conn))
			return l.conn, nil
		},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		ReadBufferSize:  c.options.ReadBuffer,
		WriteBufferSize: writeBuffer,
		WriteBufferPool: &writeBuffers,
	}
	socket, response, err := dialer.DialContext(ctx, c.url, c.options.Header)
	if response != nil {
		defer response.Body.Close()
	}
	if err != nil {
		if response != nil {
			return nil, Session{}, fmt.Errorf("%w: HTTP %d", err, response.StatusCode)
		}
		return nil, Session{}, err
	}
	l.socket = socket
	l.conn.buffer()
	interrupt := context.AfterFunc(ctx, l.drop)
	session, err := l.handshake(auth)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.drop()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, Session{}, err
	}
	return l, session, nil
}

func (l *link) handshake(auth []byte) (Session, error) {
	var session Session
	admitted := false
	hello := func(p engineio.Packet) error {
		h, err := engineio.DecodeHandshake(p.Data)
		if err != nil {
			return err
		}
		l.patience = time.Duration(h.PingInterval+h.PingTimeout) * time.Millisecond
		return l.send(socketio.Packet{Type: socketio.Connect, Namespace: "/", Data: auth})
	}
	welcome := func(p socketio.Packet) error {
		admitted = true
		if err := json.Unmarshal(p.Data, &session); err != nil {
			return fmt.Errorf("connect reply: %w", err)
		}
		return nil
	}
	for !admitted {
		if err := l.next(hello, welcome); err != nil {
			return Session{}, err
		}
	}
	return session, l.alive()
}

// read delivers packets until the connection ends, and says why.
func (l *link) read() error {
	for {
		if err := l.next(nil, nil); err != nil {
			return err
		}
	}
}

// next reads one message. hello and welcome take the packets that a connection
// begins with; without them those are not expected any more.
func (l *link) next(hello func(engineio.Packet) error, welcome func(socketio.Packet) error) error {
	kind, r, err := l.socket.NextReader()
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	buffer := messageBuffers.get()
	defer messageBuffers.put(buffer)
	*buffer, err = appendAll(*buffer, r)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if kind == websocket.BinaryMessage {
		return nil // an attachment: what it belongs to is delivered without
	}
	p, err := engineio.Decode(*buffer)
	if err != nil {
		return err
	}
	switch p.Type {
	case engineio.Message:
		return l.packet(p.Data, welcome)
	case engineio.Ping:
		if err := l.alive(); err != nil {
			return err
		}
		return l.write([]byte("3"))
	case engineio.Close:
		return errors.New("closed by the server")
	case engineio.Open:
		if hello != nil {
			return hello(p)
		}
	}
	return nil
}

func (l *link) packet(text []byte, welcome func(socketio.Packet) error) error {
	p, err := socketio.Decode(text)
	if err != nil {
		return err
	}
	if p.Namespace != "/" {
		return nil
	}
	switch p.Type {
	case socketio.Event, socketio.BinaryEvent:
		// The arguments outlive the buffer.
		name, args, err := socketio.SplitEvent(append([]byte(nil), p.Data...))
		if err != nil {
			return err
		}
		var ack Ack
		if p.HasID {
			ack = Ack{client: l.client, id: p.ID}
		}
		if !l.open {
			l.early = append(l.early, func() { l.client.dispatch(name, args, ack) })
			return nil
		}
		l.client.dispatch(name, args, ack)
	case socketio.Ack, socketio.BinaryAck:
		if p.HasID {
			value, err := firstValue(p.Data)
			if err != nil {
				return err
			}
			l.client.resolve(p.ID, value, nil)
		}
	case socketio.Connect:
		if welcome != nil {
			return welcome(p)
		}
	case socketio.ConnectError:
		refused := &ConnectError{}
		if err := json.Unmarshal(p.Data, refused); err != nil {
			refused.Message = string(p.Data)
		}
		return refused
	case socketio.Disconnect:
		return ErrServerDisconnect
	}
	return nil
}

// alive allows the server another ping interval of silence.
func (l *link) alive() error { return l.socket.SetReadDeadline(time.Now().Add(l.patience)) }

func (l *link) event(name string, args []json.RawMessage) error {
	var few [4][]byte
	buffer := message()
	defer messageBuffers.put(buffer)
	*buffer = socketio.AppendEvent(*buffer, name, plain(few[:0], args)...)
	return l.write(*buffer)
}

func (l *link) eventWithAck(name string, id uint64, args []json.RawMessage) error {
	var few [4][]byte
	buffer := message()
	defer messageBuffers.put(buffer)
	*buffer = socketio.AppendRequest(*buffer, id, name, plain(few[:0], args)...)
	return l.write(*buffer)
}

func (l *link) ack(id uint64, args []json.RawMessage) error {
	var few [4][]byte
	buffer := message()
	defer messageBuffers.put(buffer)
	*buffer = socketio.AppendAck(*buffer, id, plain(few[:0], args)...)
	return l.write(*buffer)
}

// send writes a packet as one Engine.IO message.
func (l *link) send(p socketio.Packet) error {
	buffer := message()
	defer messageBuffers.put(buffer)
	*buffer = p.Append(*buffer)
	return l.write(*buffer)
}

// message begins one.
func message() *[]byte {
	buffer := messageBuffers.get()
	*buffer = append(*buffer, '4')
	return buffer
}

func (l *link) write(message []byte) error {
	l.writing.Lock()
	err := l.socket.WriteMessage(websocket.TextMessage, message)
	l.writing.Unlock()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	l.conn.flushSoon()
	return nil
}

// goodbye ends the session and then the connection, so that the server need not
// find out. The reader ends when the server has closed, too.
func (l *link) goodbye() {
	_ = l.send(socketio.Packet{Type: socketio.Disconnect, Namespace: "/"})
	l.writing.Lock()
	_ = l.socket.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(closeWait))
	l.writing.Unlock()
	l.conn.flush()
}

func (l *link) drop() { _ = l.conn.Close() }

// plain puts args into dst as they are.
func plain(dst [][]byte, args []json.RawMessage) [][]byte {
	for _, a := range args {
		dst = append(dst, a)
	}
	return dst
}

// firstValue copies the first of an ack's values; null if it has none.
func firstValue(array []byte) (json.RawMessage, error) {
	parts, err := socketio.SplitArgs(array)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return json.RawMessage("null"), nil
	}
	return append(json.RawMessage(nil), parts[0]...), nil
}

func appendAll(dst []byte, r io.Reader) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}
