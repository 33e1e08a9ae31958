package relay

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"

	"holdfast/store"
)

// A cursor is how far a client has got: its mark in each partition. Clients hold it as an opaque text, the offset,
// and show the last one that they saw. It is made here only, and has to be told from any string that an app sends as
// a last argument: hence the prefix and the checksum.
//
//	"hf" + base64url(number of partitions, then for each 4 bytes of epoch, 4 of the token and the sequence as a uvarint; 4 bytes CRC)
//
// A partition in which the client has got nothing has a zero epoch. The token tells the message from another one that
// gets its number after the store has lost some. With one partition, the offset of a message depends on nothing but it, so that all replicas give it the same. With several, it depends on how far the
// replica has got in the others, and is still the same for all its clients, but for those that have just been
// recovered beyond that.
type cursor []store.Mark

const (
	cursorPrefix = "hf"
	maxOffset    = 1024 // bytes; no offset is longer
)

var cursorTable = crc32.MakeTable(crc32.Castagnoli)

func (c cursor) String() string {
	b := make([]byte, 0, 16*len(c)+8)
	b = append(b, byte(len(c)))
	for _, m := range c {
		var epoch [store.EpochLength / 2]byte
		_, _ = hex.Decode(epoch[:], []byte(m.Epoch))
		b = append(b, epoch[:]...)
		b = binary.BigEndian.AppendUint32(b, m.Token)
		b = binary.AppendUvarint(b, m.Seq)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, cursorTable))
	text := make([]byte, 0, len(cursorPrefix)+base64.RawURLEncoding.EncodedLen(len(b)))
	return string(base64.RawURLEncoding.AppendEncode(append(text, cursorPrefix...), b))
}

// parseCursor reads an offset. false: it is not one of ours, or of another number of partitions.
func parseCursor(offset string, partitions int) (cursor, bool) {
	if len(offset) > maxOffset || len(offset) < len(cursorPrefix) || offset[:len(cursorPrefix)] != cursorPrefix {
		return nil, false
	}
	b, err := base64.RawURLEncoding.DecodeString(offset[len(cursorPrefix):])
	if err != nil || len(b) < 5 || int(b[0]) != partitions {
		return nil, false
	}
	rest, sum := b[1:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(b[:len(b)-4], cursorTable) != sum {
		return nil, false
	}
	c := make(cursor, partitions)
	for p := range c {
		const fixed = store.EpochLength/2 + 4
		if len(rest) < fixed {
			return nil, false
		}
		if epoch := rest[:store.EpochLength/2]; epoch[0]|epoch[1]|epoch[2]|epoch[3] != 0 {
			c[p].Epoch = hex.EncodeToString(epoch)
		}
		c[p].Token = binary.BigEndian.Uint32(rest[store.EpochLength/2:])
		seq, used := binary.Uvarint(rest[fixed:])
		if used <= 0 {
			return nil, false
		}
		c[p].Seq, rest = seq, rest[fixed+used:]
	}
	if len(rest) != 0 || c.String() != offset {
		return nil, false
	}
	return c, true
}
