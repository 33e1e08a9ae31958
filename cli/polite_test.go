package cli

import (
	"net"
	"testing"
	"time"
)

// queue is a listener with a connection at any time.
type queue struct{ net.Listener }

func (queue) Accept() (net.Conn, error) { return nil, nil }

func TestManyConnectionsComeInBatches(t *testing.T) {
	l := polite(queue{}).(*politeListener)
	l.batch = 3
	const batches = 20
	began := time.Now()
	for range batches * l.batch {
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < (batches-1)*acceptEach {
		t.Errorf("%d batches in %s, want at least %s", batches, took, (batches-1)*acceptEach)
	}
}
