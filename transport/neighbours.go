package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/replica"
)

// signedFor is how old a signature may be, by the store's clock.
const signedFor = 30 * time.Second

// forwardHeader is on requests that one replica hands to another: <ms since 1970> <HMAC-SHA256 of method, target
// and time>. A request that has it is never handed on.
const forwardHeader = "Holdfast-Forwarded"

// tagAlphabet has a letter for each half of a slot's number.
const tagAlphabet = "abcdefghijklmnop"

// Neighbours finds the replica that has a session, as the log knows the replicas, and signs what is handed there.
type Neighbours struct {
	rep *replica.Replica
}

// NewNeighbours makes the Neighbours of a replica.
func NewNeighbours(rep *replica.Replica) *Neighbours { return &Neighbours{rep: rep} }

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
func (n *Neighbours) Sign(r *http.Request) {
	at := strconv.FormatInt(n.rep.Now().UnixMilli(), 10)
	r.Header.Set(forwardHeader, at+" "+seal(n.rep.Secret().Bytes(), r, at))
}

// Signed reports whether another replica has handed the request on.
func (n *Neighbours) Signed(r *http.Request) bool {
	at, mac, _ := strings.Cut(r.Header.Get(forwardHeader), " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || n.rep.Now().Sub(time.UnixMilli(ms)).Abs() > signedFor {
		return false
	}
	fits := func() bool { return hmac.Equal([]byte(mac), []byte(seal(n.rep.Secret().Bytes(), r, at))) }
	if fits() {
		return true
	}
	n.rep.RenewSecret()
	return fits()
}

// Refused has the next request signed with the secret that the store has now.
func (n *Neighbours) Refused() { n.rep.RenewSecret() }

func seal(key []byte, r *http.Request, at string) string {
	h := hmac.New(sha256.New, key)
	for _, s := range []string{r.Method, r.URL.RequestURI(), at} {
		h.Write([]byte(s))
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}
