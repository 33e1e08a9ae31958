package replica

import "sync"

// Broadcast is one event for many clients. It is encoded once, however many they are; nothing of it may change after
// it was given to a Link.
type Broadcast struct {
	Name string
	Args [][]byte // raw JSON
	// Attachments are what placeholders in Args stand for. They are not copied for each client.
	Attachments [][]byte
	// Offset is the place after this event, for the client to come back with: it goes out as the last argument.
	// Empty: none goes out.
	Offset string

	once sync.Once
	wire []byte
}

// Wire is what encode makes of it, the first time; the same bytes ever after.
func (b *Broadcast) Wire(encode func(*Broadcast) []byte) []byte {
	b.once.Do(func() { b.wire = encode(b) })
	return b.wire
}
