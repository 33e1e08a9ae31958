package store

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
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

// Close ends it. Stores that are still open get ErrUnavailable.
func (e *Embedded) Close() { e.server.Close() }
