package store

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"holdfast/events"
)

// Embedded is a Redis within the process, for development and fast tests. Nothing in it outlives Close, and its
// speed says nothing about a real one.
type Embedded struct {
	Addr string // on loopback; redis-cli can look into it
	URL  string

	namespace string
	server    *miniredis.Miniredis
}

// OpenEmbedded starts one on a free loopback port.
func OpenEmbedded(namespace string) (*Embedded, error) {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("store: open embedded: %w", err)
	}
	server.ClockTTL(true) // or nothing would ever expire
	return &Embedded{
		Addr:      server.Addr(),
		URL:       "redis://" + server.Addr(),
		namespace: namespace,
		server:    server,
	}, nil
}

// Open gives one more Store on the embedded Redis. Open(Options{URL: e.URL}) would not do: it takes the embedded
// Redis for a cluster.
func (e *Embedded) Open() (*Store, error) {
	return Open(Options{URL: e.URL, Namespace: e.namespace, single: true})
}

// Load puts entries of another log into this one, which must be empty, with the versions and the head that they
// add up to on top of whatever came before the first of them. Appends go on from there: the chain holds.
func (e *Embedded) Load(entries []Entry, versions map[events.Aggregate]events.Position, head Head) error {
	k := newKeys(e.namespace)
	for _, entry := range entries {
		if _, err := e.server.XAdd(k.log, entry.Position.String(), entry.fields()); err != nil {
			return fmt.Errorf("store: load: entry %s: %w", entry.Position, err)
		}
	}
	for aggregate, at := range versions {
		e.server.HSet(k.versions, string(aggregate), at.String())
	}
	if !head.Position.IsZero() {
		e.server.HSet(k.versions, headField, head.Position.String()+" "+head.Token.String())
	}
	return nil
}

// Close ends it. Stores that are still open get ErrUnavailable.
func (e *Embedded) Close() { e.server.Close() }
