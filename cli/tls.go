package cli

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// certEvery is how often the files of the certificate are looked at, when clients come.
const certEvery = time.Second

// certificate is read from two files, and again when they change.
type certificate struct {
	cert, key string
	log       zerolog.Logger

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed [2]time.Time // of the files that were read
	looked  time.Time
}

// loadCertificate fails when the files hold none; a later change that holds none is logged, and changes nothing.
func loadCertificate(cert, key string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log}
	if err := c.load(); err != nil {
		return nil, usageError{fmt.Sprintf("--tls-cert %s and --tls-key %s: %v", cert, key, err)}
	}
	return c, nil
}

func (c *certificate) load() error {
	changed := c.times()
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.loaded, c.changed = &pair, changed
	return nil
}

func (c *certificate) times() (at [2]time.Time) {
	for i, file := range []string{c.cert, c.key} {
		if info, err := os.Stat(file); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) > certEvery {
		c.looked = time.Now()
		if c.times() != c.changed {
			if err := c.load(); err != nil {
				c.log.Error().Err(err).Msg("the changed certificate (--tls-cert, --tls-key) cannot be read; the former one stays")
			} else {
				c.log.Info().Msg("the certificate was read again")
			}
		}
	}
	return c.loaded, nil
}

// over makes connections of the listener TLS. HTTP/1.1 only: a WebSocket wants it.
func (c *certificate) over(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
}
