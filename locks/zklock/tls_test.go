package zklock_test

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/zklock"
)

// secure opens a TLS port in front of a server, as secureClientPort is.
func secure(t *testing.T, backend string, cfg *tls.Config) (addr string) {
	t.Helper()
	l, err := tls.Listen("tcp4", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp4", backend)
			if err != nil {
				client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				wg.Go(func() {
					_, _ = io.Copy(way[0], way[1]) // its end is that of both
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	return l.Addr().String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	space := testenv.SharedZooKeeper(t)
	vouched := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	defer vouched.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: vouched.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	addr := secure(t, space.Addr, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: vouched.TLS.Certificates})
	registry, err := locks.NewRegistry(zklock.Plugin())
	if err != nil {
		t.Fatal(err)
	}
	openWith := func(files transport.TLS) (driver.Driver, error) {
		return registry.Open(t.Context(), "zookeeper", func(into any) error {
			*into.(*zklock.PluginConfig) = zklock.PluginConfig{
				Servers: []string{addr}, SessionTimeout: testSession, ConnectTimeout: 2 * time.Second, Prefix: "/" + space.Name, TLS: files,
			}
			return nil
		})
	}
	d, err := openWith(transport.TLS{CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	if err := d.(*zklock.Driver).Close(); err != nil {
		t.Error(err)
	}
	if d, err := openWith(transport.TLS{Enabled: true}); err == nil {
		t.Error("a server that nobody vouches for was accepted")
		_ = d.(*zklock.Driver).Close()
	}
	if d, err := openWith(transport.TLS{}); err == nil {
		t.Error("a session without TLS on a port that wants it")
		_ = d.(*zklock.Driver).Close()
	}
}
