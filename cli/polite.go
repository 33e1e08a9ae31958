package cli

import (
	"net"
	"runtime"
	"time"
)

// acceptEach is the least time between two batches of connections, acceptPer how many of them a batch has for each
// processor. On 2 processors that is 4,000 a second, about what they can take.
const (
	acceptEach = time.Millisecond
	acceptPer  = 2
)

// politeListener accepts connections in small batches. When thousands come at once, as after the loss of a replica, one
// handshake would follow the other without a gap, and Go looks at the network only when nothing else is ready to run, or
// every 10 ms: each step of a message of the clients that are here would wait as long. Those who come wait in the
// system's queue of connections instead.
type politeListener struct {
	net.Listener
	batch int
	n     int       // accepted of the present batch
	began time.Time // when its first was let in
}

func polite(l net.Listener) net.Listener {
	return &politeListener{Listener: l, batch: acceptPer * runtime.GOMAXPROCS(0)}
}

// Accept is called by one goroutine, as http.Server does.
func (l *politeListener) Accept() (net.Conn, error) {
	if l.n == l.batch {
		time.Sleep(acceptEach - time.Since(l.began)) // not at all when the batch took longer to come
		l.n = 0
	}
	conn, err := l.Listener.Accept()
	if l.n++; l.n == 1 {
		l.began = time.Now()
	}
	return conn, err
}
