package transport

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/replica"
)

const (
	// signedFor is how old a signature may be, by the store's clock.
	signedFor = 30 * time.Second
	// secretEvery is how often a signature that does not fit makes a replica read the shared secret again: it is
	// another one after Redis was emptied.
	secretEvery = time.Second
	// secretPatience bounds reading it.
	secretPatience = 2 * time.Second
)

// forwardHeader is on requests that one replica hands to another: <ms since 1970> <HMAC-SHA256 of method, target
// and time>. A request that has it is never handed on.
const forwardHeader = "Holdfast-Forwarded"

// tagAlphabet has a letter for each half of a slot's number.
const tagAlphabet = "abcdefghijklmnop"

// Neighbours finds the replica that has a session, as the log knows the replicas, and signs what is handed there.
type Neighbours struct {
	rep   *replica.Replica
	fixed []byte // --cluster-key

	reading sync.Mutex // held while the store is asked; taken before mu

	mu     sync.Mutex
	shared []byte    // from the store; nil until it is needed
	read   time.Time // when it was asked, whatever came of it
}

// NewNeighbours makes the Neighbours of a replica. Without a key they share one that is kept in the store.
func NewNeighbours(rep *replica.Replica, key string) *Neighbours {
	return &Neighbours{rep: rep, fixed: []byte(key)}
}

// Tag is the part of a sid that names this replica; false while it starts. Its length is tagBytes.
func (n *Neighbours) Tag() (string, bool) {
	_, slot, ok := n.rep.Self()
	return string([]byte{tagAlphabet[slot>>4&15], tagAlphabet[slot&15]}), ok
}

const tagBytes = 2

// Locate is the URL of the replica that a sid names; empty when that is this one, or none that lives.
func (n *Neighbours) Locate(sid string) (url string) {
	if len(sid) < tagBytes {
		return ""
	}
	high, low := strings.IndexByte(tagAlphabet, sid[0]), strings.IndexByte(tagAlphabet, sid[1])
	slot := high<<4 | low
	if high < 0 || low < 0 || slot >= events.Slots {
		return ""
	}
	n.rep.View(func(s *projections.State) {
		holder := s.Slot(slot)
		if r, ok := s.Replica(holder.Instance); ok && holder.Live && holder.Instance != n.rep.Instance() {
			url = r.URL
		}
	})
	return url
}

// Sign makes the request one that another replica takes from this one.
func (n *Neighbours) Sign(r *http.Request) bool {
	key := n.key(false)
	if key == nil {
		return false
	}
	at := strconv.FormatInt(n.rep.Now().UnixMilli(), 10)
	r.Header.Set(forwardHeader, at+" "+seal(key, r, at))
	return true
}

// Signed reports whether another replica has handed the request on.
func (n *Neighbours) Signed(r *http.Request) bool {
	at, mac, _ := strings.Cut(r.Header.Get(forwardHeader), " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || n.rep.Now().Sub(time.UnixMilli(ms)).Abs() > signedFor {
		return false
	}
	fits := func(key []byte) bool { return key != nil && hmac.Equal([]byte(mac), []byte(seal(key, r, at))) }
	return fits(n.key(false)) || len(n.fixed) == 0 && fits(n.key(true))
}

func seal(key []byte, r *http.Request, at string) string {
	h := hmac.New(sha256.New, key)
	for _, s := range []string{r.Method, r.URL.RequestURI(), at} {
		h.Write([]byte(s))
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// key is the secret; again asks the store even if it is known. Who comes meanwhile waits for that answer and no other.
func (n *Neighbours) key(again bool) []byte {
	if len(n.fixed) > 0 {
		return n.fixed
	}
	if key, ok := n.known(again); ok {
		return key
	}
	n.reading.Lock()
	defer n.reading.Unlock()
	if key, ok := n.known(again); ok {
		return key
	}
	ctx, cancel := context.WithTimeout(context.Background(), secretPatience)
	defer cancel()
	secret, err := n.rep.Store().Secret(ctx, rand.Text())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read = time.Now()
	if err == nil {
		n.shared = []byte(secret)
	}
	return n.shared
}

// known is the secret as far as it is known; false: the store is to be asked.
func (n *Neighbours) known(again bool) ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shared, n.shared != nil && !again || time.Since(n.read) < secretEvery
}
