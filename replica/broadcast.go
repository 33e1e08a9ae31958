package replica

import "sync"

// Broadcast is one event for many clients. It is encoded once, by the first Link that sends it.
type Broadcast struct {
	Name string
	Args [][]byte // raw JSON

	once sync.Once
	wire []byte
}

// Wire is the event as the transport encodes it.
func (b *Broadcast) Wire(encode func(name string, args ...[]byte) []byte) []byte {
	b.once.Do(func() { b.wire = encode(b.Name, b.Args...) })
	return b.wire
}
