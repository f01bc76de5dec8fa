package redislock_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redislock"
)

// authority signs certificates for a test.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = newKey(t)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.write(t, "ca", a.cert, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue signs a certificate for this host, and returns its file and its key's.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	return a.write(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, newKey(t))
}

func (a *authority) write(t *testing.T, name string, cert *x509.Certificate, key *ecdsa.PrivateKey) (certFile, keyFile string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = a.file(name+".pem"), a.file(name+"-key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// A server that asks for a certificate is reached with one, and only where its own
// is verified.
func TestTLS(t *testing.T) {
	ours, strangers := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, "server")
	_, addr := testenv.RedisTLS(t, cert, key, ours.file("ca.pem"))
	cert, key = ours.issue(t, "client")
	wrongCert, wrongKey := strangers.issue(t, "client")
	right := transport.TLS{CAFile: ours.file("ca.pem"), CertFile: cert, KeyFile: key}
	try := func(c transport.TLS) error {
		d, err := openPlugin(redislock.PluginConfig{Addrs: []string{addr}, TLS: c})
		if err != nil {
			t.Fatal(err)
		}
		l := locker(t, d, locks.Config{TTL: 2 * time.Second, RenewInterval: 300 * time.Millisecond, RequestTimeout: 1200 * time.Millisecond})
		lease, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			return err
		}
		return lease.Release(t.Context())
	}
	if err := try(right); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		tls   transport.TLS
		known bool // that nothing was applied
	}{
		"another authority":        {transport.TLS{CAFile: strangers.file("ca.pem"), CertFile: cert, KeyFile: key}, true},
		"the system's authorities": {transport.TLS{Enabled: true, CertFile: cert, KeyFile: key}, true},
		"another name":             {transport.TLS{CAFile: right.CAFile, CertFile: cert, KeyFile: key, ServerName: "redis.example.org"}, true},
		"no certificate":           {transport.TLS{CAFile: right.CAFile}, false},
		"a stranger's certificate": {transport.TLS{CAFile: right.CAFile, CertFile: wrongCert, KeyFile: wrongKey}, false},
		"plain text to a TLS port": {transport.TLS{}, false},
	} {
		start := time.Now()
		err := try(c.tls)
		took := time.Since(start)
		if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) || took > 30*time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
		if c.known && (!driver.IsNotApplied(err) || !strings.Contains(err.Error(), "certificate")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
