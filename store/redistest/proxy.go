package redistest

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// Proxy stands between a client and a Server and can lose replies: what the server did is then done, and the
// client does not know.
type Proxy struct {
	URL string

	listener net.Listener
	target   string
	group    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	lose  []byte // the connection is cut after a request that holds this was forwarded; nil for none
	lost  int
	shut  bool
	thaw  chan struct{} // closed when bytes may flow; nil while they do
}

// NewProxy starts a proxy to the server. It ends with the test.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{URL: "redis://" + l.Addr().String(), listener: l, target: s.Addr, conns: map[net.Conn]struct{}{}}
	p.group.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Freeze(false)
		p.Cut(true)
		p.group.Wait()
	})
	return p
}

// LoseReplyTo cuts the connection, once, right after a request that holds the text has been forwarded and
// answered by the server.
func (p *Proxy) LoseReplyTo(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = []byte(text)
}

// Lost is how many replies were lost.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Cut ends all connections; shut also refuses new ones until it is called with false.
func (p *Proxy) Cut(shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = shut
	for c := range p.conns {
		_ = c.Close()
	}
}

// Freeze holds back all that comes, in both directions, until it is called with false: then it arrives, late. That is
// how a process that stands still, or a network that does, looks from the other side.
func (p *Proxy) Freeze(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case frozen && p.thaw == nil:
		p.thaw = make(chan struct{})
	case !frozen && p.thaw != nil:
		close(p.thaw)
		p.thaw = nil
	}
}

// pass waits until bytes may flow.
func (p *Proxy) pass() {
	p.mu.Lock()
	thaw := p.thaw
	p.mu.Unlock()
	if thaw != nil {
		<-thaw
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.shut {
			p.mu.Unlock()
			_ = client.Close()
			_ = server.Close()
			continue
		}
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		pair := &pair{p: p, client: client, server: server}
		p.group.Go(pair.requests)
		p.group.Go(pair.replies)
	}
}

type pair struct {
	p              *Proxy
	client, server net.Conn
	mu             sync.Mutex
	losing         bool // the next reply is the one to lose
}

func (c *pair) end() {
	_ = c.client.Close()
	_ = c.server.Close()
	c.p.mu.Lock()
	delete(c.p.conns, c.client)
	delete(c.p.conns, c.server)
	c.p.mu.Unlock()
}

func (c *pair) requests() {
	defer c.end()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		c.p.mu.Lock()
		hit := c.p.lose != nil && bytes.Contains(buf[:n], c.p.lose)
		if hit {
			c.p.lose = nil
		}
		c.p.mu.Unlock()
		if hit {
			c.mu.Lock()
			c.losing = true
			c.mu.Unlock()
		}
		c.p.pass()
		if _, err := c.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *pair) replies() {
	defer c.end()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buf)
		if err != nil {
			return
		}
		c.mu.Lock()
		losing := c.losing
		c.mu.Unlock()
		if losing {
			c.p.mu.Lock()
			c.p.lost++
			c.p.mu.Unlock()
			return
		}
		c.p.pass()
		if _, err := c.client.Write(buf[:n]); err != nil {
			return
		}
	}
}
