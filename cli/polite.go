package cli

import (
	"net"
	"runtime"
)

// politeListener lets everything else that is ready to run have its turn before it accepts another connection. When
// thousands come at once, as after the loss of a replica, their requests do not all stand in line before the messages of
// the clients that are here: they wait in the system's queue of connections instead.
type politeListener struct{ net.Listener }

func (l politeListener) Accept() (net.Conn, error) {
	runtime.Gosched()
	return l.Listener.Accept()
}
