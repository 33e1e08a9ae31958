package projections

import (
	"crypto/sha256"
	"encoding/binary"
)

// Digest names the state: two replicas at one position have the same, or one of them is wrong. It is the sum of the
// hashes of everything that the state holds, so that nothing has to be put in order for it: of 100,000 peers with
// a registration each it takes a tenth of the time that Encode takes. The sum is for accidents, not for forgers.
func (s *State) Digest() [sha256.Size]byte {
	var d digester
	d.uint(uint64(s.Schema()))
	d.position(s.Position)
	d.b = append(d.b, s.Token[:]...)
	for _, slot := range s.slots {
		d.slot(slot)
	}
	d.add('s')
	for a, at := range s.versions {
		d.version(a, at)
		d.add('v')
	}
	for _, r := range s.replicas {
		d.replica(r)
		if r.Draining {
			d.flags(true)
		}
		d.add('i')
	}
	for _, p := range s.peers {
		d.peer(p)
		d.add('p')
	}
	for _, r := range s.methods {
		d.registration(r)
		d.add('m')
	}
	for _, r := range s.rooms {
		d.room(r)
		d.add('r')
	}
	for key, value := range s.settings {
		d.text(key, value)
		d.add('c')
	}
	var sum [sha256.Size]byte
	for i, part := range d.sum {
		binary.BigEndian.PutUint64(sum[8*i:], part)
	}
	return sum
}

// digester adds up what was encoded since the last add.
type digester struct {
	encoder
	sum [sha256.Size / 8]uint64
}

// add takes one thing of a kind into the sum.
func (d *digester) add(kind byte) {
	d.b = append(d.b, kind)
	hash := sha256.Sum256(d.b)
	for i := range d.sum {
		d.sum[i] += binary.BigEndian.Uint64(hash[8*i:])
	}
	d.b = d.b[:0]
}
