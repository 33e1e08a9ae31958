package transport

// EngineSession is an Engine.IO session without Socket.IO on it.
type EngineSession struct {
	c      *conn
	handle func(s EngineSession, data []byte, binary bool)
}

// NewEngineServer makes a server of Engine.IO alone. handle gets the messages of each session one by one, and must
// not block for long.
func NewEngineServer(o Options, handle func(s EngineSession, data []byte, binary bool)) *Server {
	s := NewServer(o, nil)
	s.newHandler = func(c *conn) handler { return EngineSession{c, handle} }
	return s
}

// Send queues a message; false: the session is over. The data must not change afterwards.
func (e EngineSession) Send(data []byte, binary bool) bool {
	if binary {
		return e.c.send(nil, [][]byte{data}, nil)
	}
	return e.c.send(append([]byte{'4'}, data...), nil, nil)
}

func (e EngineSession) text(data []byte)   { e.handle(e, data, false) }
func (e EngineSession) binary(data []byte) { e.handle(e, data, true) }
func (e EngineSession) end(Reason)         {}
