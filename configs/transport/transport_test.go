package transport_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// identity is a certificate that signs itself, in two files.
type identity struct{ cert, key string }

func newIdentity(t *testing.T, name string) identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i := identity{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for path, block := range map[string]*pem.Block{i.cert: {Type: "CERTIFICATE", Bytes: cert}, i.key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// meet has a server of the name "server" and the client shake hands, and returns
// the common name of the certificate that the client showed.
func meet(t *testing.T, server identity, client *tls.Config) (shown string, err error) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(server.cert, server.key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	names := make(chan string, 1)
	go func() {
		defer close(names)
		a, err := listener.Accept()
		if err != nil {
			return
		}
		defer a.Close()
		s := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})
		_ = s.SetDeadline(time.Now().Add(10 * time.Second))
		if s.Handshake() != nil {
			return
		}
		if peers := s.ConnectionState().PeerCertificates; len(peers) > 0 {
			names <- peers[0].Subject.CommonName
		}
		_, _ = s.Write([]byte("."))
	}()
	b, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(b, client)
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.ReadFull(c, make([]byte, 1))
	b.Close()
	return <-names, err
}

func TestServersAreVerified(t *testing.T) {
	server, other := newIdentity(t, "server"), newIdentity(t, "server")
	for name, c := range map[string]struct {
		tls  transport.TLS
		host string
		fail string
	}{
		"its authority":                   {transport.TLS{CAFile: server.cert}, "server", ""},
		"another authority":               {transport.TLS{CAFile: other.cert}, "server", "certificate"},
		"the system's authorities":        {transport.TLS{Enabled: true}, "server", "certificate"},
		"another host":                    {transport.TLS{CAFile: server.cert}, "elsewhere", "elsewhere"},
		"another host by the name it has": {transport.TLS{CAFile: server.cert, ServerName: "server"}, "elsewhere", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := c.tls.Config(c.host)
			if err != nil {
				t.Fatal(err)
			}
			_, err = meet(t, server, conf)
			if c.fail == "" && err != nil || c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail)) {
				t.Errorf("got the error %v, want %q", err, c.fail)
			}
		})
	}
}

func TestClientCertificateIsReadAgain(t *testing.T) {
	server, client := newIdentity(t, "server"), newIdentity(t, "first")
	conf, err := transport.TLS{CAFile: server.cert, CertFile: client.cert, KeyFile: client.key}.Config("server")
	if err != nil {
		t.Fatal(err)
	}
	if shown, err := meet(t, server, conf); err != nil || shown != "first" {
		t.Fatalf("showed %q, %v", shown, err)
	}
	next := newIdentity(t, "second")
	for from, to := range map[string]string{next.cert: client.cert, next.key: client.key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if shown, err := meet(t, server, conf); err != nil || shown != "second" {
		t.Errorf("after the rotation it showed %q, %v", shown, err)
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	id := newIdentity(t, "x")
	for want, c := range map[string]transport.TLS{
		"cert_file and key_file go together": {CertFile: id.cert},
		"tls.ca_file: open":                  {CAFile: "/does/not/exist"},
		"has no certificate in PEM":          {CAFile: id.key},
		"tls.cert_file, tls.key_file":        {CertFile: id.key, KeyFile: id.cert},
	} {
		if _, err := c.Config(""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", c, err, want)
		}
	}
	if conf, err := (transport.TLS{}).Config("host"); conf != nil || err != nil {
		t.Errorf("the zero TLS gives %v, %v", conf, err)
	}
}

func TestSecretsStayOnThisMachine(t *testing.T) {
	for host, local := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "": true, "/run/mysqld.sock": true, "@abstract": true,
		"10.0.0.1": false, "db.example.org": false, "localhost.example.org": false, "0.0.0.0": false,
	} {
		if err := transport.CheckPlaintext(host, false, false); (err == nil) != local {
			t.Errorf("%q in plain text: %v", host, err)
		}
		if err := transport.CheckPlaintext(host, true, false); err != nil {
			t.Errorf("%q by TLS: %v", host, err)
		}
		if err := transport.CheckPlaintext(host, false, true); err != nil {
			t.Errorf("%q where it is allowed: %v", host, err)
		}
	}
}

func TestHostPort(t *testing.T) {
	if host, port, err := transport.HostPort("[::1]:6379"); host != "::1" || port != "6379" || err != nil {
		t.Error(host, port, err)
	}
	for _, bad := range []string{"", "host", ":6379", "host:", "a:b:c"} {
		if _, _, err := transport.HostPort(bad); err == nil || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
