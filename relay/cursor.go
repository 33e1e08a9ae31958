package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"sync"

	"holdfast/replica"
	"holdfast/store"
)

// A cursor is how far a client has got: its mark in each partition. Clients hold it as an opaque text, the offset,
// and show the last one that they saw. It is made here only, and has to be told from any string that an app sends as
// a last argument, and from one that a client has made up: hence the prefix and the signature.
//
//	"hf" + base64url(number of partitions, then for each 4 bytes of epoch, 4 of the token and the sequence as a uvarint; 8 bytes signature)
//
// A partition in which the client has got nothing has a zero epoch. The token tells the message from another one that
// gets its number after the store has lost some. With one partition, the offset of a message depends on nothing but it
// and the replicas' secret, so that all replicas give it the same. With several, it depends on how far the replica has
// got in the others, and is still the same for all its clients, but for those that have just been recovered beyond that.
type cursor []store.Mark

const (
	cursorPrefix = "hf"
	maxOffset    = 1024 // bytes; no offset is longer

	// signatureLength is that of the signature, an HMAC-SHA256 of which the rest is cut off. Every message carries it to
	// every subscriber. It can only be guessed at, one guess for each connection: 64 bits are enough for that, and to
	// take no app's text for an offset. More would help against who can try by himself, which needs the key.
	signatureLength = 8

	// offsetLabel makes the key of offsets another one than that of requests that replicas hand to each other.
	offsetLabel = "holdfast offset 1"
)

// signer makes and reads offsets by one secret.
type signer struct {
	secret *replica.Secret
	hashes sync.Pool
}

func newSigner(secret *replica.Secret) *signer {
	key := secret.Key(offsetLabel)
	return &signer{secret: secret, hashes: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

// sign appends the signature of b to it.
func (s *signer) sign(b []byte) []byte {
	h := s.hashes.Get().(hash.Hash)
	defer s.hashes.Put(h)
	h.Reset()
	h.Write(b)
	var sum [sha256.Size]byte
	return append(b, h.Sum(sum[:0])[:signatureLength]...)
}

// offset is the cursor as clients hold it.
func (s *signer) offset(c cursor) string {
	b := make([]byte, 0, 18*len(c)+1+signatureLength)
	b = append(b, byte(len(c)))
	for _, m := range c {
		var epoch [store.EpochLength / 2]byte
		_, _ = hex.Decode(epoch[:], []byte(m.Epoch))
		b = append(b, epoch[:]...)
		b = binary.BigEndian.AppendUint32(b, m.Token)
		b = binary.AppendUvarint(b, m.Seq)
	}
	b = s.sign(b)
	text := make([]byte, 0, len(cursorPrefix)+base64.RawURLEncoding.EncodedLen(len(b)))
	return string(base64.RawURLEncoding.AppendEncode(append(text, cursorPrefix...), b))
}

// parse reads an offset. ours is false when it has not been made with this secret, or for another number of partitions.
// alike says then that it looks like one all the same.
func (s *signer) parse(offset string, partitions int) (c cursor, ours, alike bool) {
	if len(offset) > maxOffset || len(offset) < len(cursorPrefix) || offset[:len(cursorPrefix)] != cursorPrefix {
		return nil, false, false
	}
	b, err := base64.RawURLEncoding.DecodeString(offset[len(cursorPrefix):])
	if err != nil || len(b) < 1+signatureLength {
		return nil, false, false
	}
	if c, alike = decodeCursor(b[:len(b)-signatureLength], partitions); !alike {
		return nil, false, false
	}
	// Made again it is the same text, or it was never made here.
	if subtle.ConstantTimeCompare([]byte(s.offset(c)), []byte(offset)) != 1 {
		return nil, false, true
	}
	return c, true, true
}

// decodeCursor reads a cursor without its signature.
func decodeCursor(b []byte, partitions int) (cursor, bool) {
	if int(b[0]) != partitions {
		return nil, false
	}
	c, rest := make(cursor, partitions), b[1:]
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
	return c, len(rest) == 0
}

// signer is that of the present secret.
func (c *Channels) signer() *signer {
	s, secret := c.signing.Load(), c.rep.Secret()
	if s == nil || s.secret != secret {
		s = newSigner(secret)
		c.signing.Store(s) // several may do so: they are alike
	}
	return s
}

// offset is the cursor as clients hold it.
func (c *Channels) offset(at cursor) string { return c.signer().offset(at) }

// place reads an offset that a client shows. false: it is not one of this namespace's, and says nothing.
func (c *Channels) place(offset string) (cursor, bool) {
	at, ours, alike := c.signer().parse(offset, len(c.parts))
	if alike && !ours { // another replica may have learned of another secret before this one
		c.rep.RenewSecret()
		at, ours, _ = c.signer().parse(offset, len(c.parts))
	}
	if alike && !ours {
		c.figures.Count.With("offsets-refused").Inc()
	}
	if !ours {
		return make(cursor, len(c.parts)), false
	}
	return at, true
}
