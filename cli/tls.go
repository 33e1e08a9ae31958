package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// certEvery is how often the files of the certificate are looked at, when clients come.
const certEvery = time.Second

// files tells when files have changed since they were read.
type files struct {
	names []string
	read  []version // as they were before that
}

type version struct {
	at   time.Time
	size int64
}

func (f *files) versions() []version {
	all := make([]version, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil {
			all[i] = version{info.ModTime(), info.Size()}
		}
	}
	return all
}

// load calls read. What is not complete then, and fails, is read again when it changes.
func (f *files) load(read func() error) error {
	f.read = f.versions()
	return read()
}

func (f *files) changed() bool { return !slices.Equal(f.versions(), f.read) }

// certificate is read from two files, and again when they change.
type certificate struct {
	cert, key string
	log       zerolog.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	files  files
	looked time.Time
}

// loadCertificate fails when the files hold none; a later change that holds none is logged, and changes nothing.
func loadCertificate(cert, key string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log, files: files{names: []string{cert, key}}}
	if err := c.files.load(c.load); err != nil {
		return nil, usageError{fmt.Sprintf("--tls-cert %s and --tls-key %s: %v", cert, key, err)}
	}
	return c, nil
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.loaded = &pair
	return nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) <= certEvery {
		return c.loaded, nil
	}
	c.looked = time.Now()
	if c.files.changed() {
		if err := c.files.load(c.load); err != nil {
			c.log.Error().Err(err).Msg("the changed certificate (--tls-cert, --tls-key) cannot be read; the former one stays")
		} else {
			c.log.Info().Msg("the certificate was read again")
		}
	}
	return c.loaded, nil
}

// over makes connections of the listener TLS. HTTP/1.1 only: a WebSocket wants it.
func (c *certificate) over(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
}

// authorities are the certificates by which those of other replicas are verified, beside the system's. They are read
// from a file, and again when it changes.
type authorities struct {
	file string
	log  zerolog.Logger

	mu    sync.Mutex
	roots *x509.CertPool
	files files
}

// loadAuthorities fails when the file holds none; a later change that holds none is logged, and changes nothing.
func loadAuthorities(file string, log zerolog.Logger) (*authorities, error) {
	a := &authorities{file: file, log: log, files: files{names: []string{file}}}
	if err := a.files.load(a.load); err != nil {
		return nil, usageError{fmt.Sprintf("--tls-ca %s: %v", file, err)}
	}
	return a, nil
}

func (a *authorities) load() error {
	text, err := os.ReadFile(a.file)
	if err != nil {
		return err
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // there are no others, as in an empty image
	}
	if !roots.AppendCertsFromPEM(text) {
		return errors.New("there is no certificate in it, in PEM form")
	}
	a.roots = roots
	return nil
}

// config is for a connection to another replica. There are few: they are kept.
func (a *authorities) config() *tls.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.files.changed() {
		if err := a.files.load(a.load); err != nil {
			a.log.Error().Err(err).Msg("the changed certificates (--tls-ca) cannot be read; the former ones stay")
		} else {
			a.log.Info().Msg("the certificates of --tls-ca were read again")
		}
	}
	return &tls.Config{RootCAs: a.roots, MinVersion: tls.VersionTLS12}
}
