package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// writeCertificate makes a certificate with that serial number, of files that changed at that time.
func writeCertificate(t *testing.T, cert, key string, serial int64, at time.Time) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := loadCertificate(cert, key, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "--tls-cert") {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Hour)
	writeCertificate(t, cert, key, 1, begin)
	c, err := loadCertificate(cert, key, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := c.over(plain)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	serial := func() int64 {
		t.Helper()
		c.mu.Lock()
		c.looked = time.Time{} // certEvery has passed
		c.mu.Unlock()
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Fatal(n)
	}
	writeCertificate(t, cert, key, 2, begin.Add(time.Minute))
	if n := serial(); n != 2 {
		t.Fatal(n)
	}
	if err := os.WriteFile(cert, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := serial(); n != 2 {
		t.Fatal("a damaged file put the certificate out of use", n)
	}
}

func TestAuthoritiesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	file, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	for _, text := range []string{"", "damaged"} {
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := loadAuthorities(file, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "--tls-ca "+file) {
			t.Fatal(err)
		}
	}
	begin := time.Now().Add(-time.Hour)
	write := func(serial int64) *x509.Certificate {
		writeCertificate(t, file, key, serial, begin.Add(time.Duration(serial)*time.Minute))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	one := write(1)
	a, err := loadAuthorities(file, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	trusts := func(c *x509.Certificate) bool {
		_, err := c.Verify(x509.VerifyOptions{Roots: a.config().RootCAs, DNSName: "localhost"})
		return err == nil
	}
	if !trusts(one) {
		t.Error("the first is not trusted")
	}
	two := write(2)
	if trusts(one) || !trusts(two) {
		t.Error("the second does not take the place of the first")
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !trusts(two) {
		t.Error("a damaged file put the certificates out of use")
	}
}
