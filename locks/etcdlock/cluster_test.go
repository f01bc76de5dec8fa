package etcdlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

// The leader dies: holders keep their locks, waiters their places.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	members := testenv.Etcd(t, 3)
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr())
	}
	admin := console(t, addrs...)
	p, other := start(t, "", addrs...), start(t, "", addrs...)
	l := locker(t, p, locks.Config{TTL: 10 * time.Second})
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	r := request("k")
	r.TTL = 10 * time.Second
	c := queue(t.Context(), other, r)
	until(t, "it is in line", func() bool { return count(t, admin, etcdlock.DefaultPrefix) == 2 })
	leader := -1
	for i, m := range members {
		st, err := admin.Status(t.Context(), m.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if st.Leader == st.Header.MemberId {
			leader = i
		}
	}
	members[leader].Kill()
	killed := lease.ValidUntil()
	until(t, "the lease is renewed by the next leader", func() bool {
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		return lease.ValidUntil().After(killed)
	})
	select {
	case q := <-c:
		t.Fatalf("the waiter came first: %v", q.err)
	default:
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := take(t, c)
	if q.err != nil || q.hold.Fence <= lease.Fence() {
		t.Fatalf("fence %d after %d, %v", q.hold.Fence, lease.Fence(), q.err)
	}
	release(t, other, q.hold)
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A cluster without a majority is unavailable, and never held.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	members := testenv.Etcd(t, 3)
	p := open(t, "", members[0].Addr())
	t.Cleanup(func() {
		if err := p.Close(); err == nil {
			t.Error("the session was ended without a majority")
		}
	})
	r := request("k")
	r.TTL = time.Minute
	h := grant(t, p, r)
	members[1].Kill()
	members[2].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	stranger := request("k")
	stranger.TTL = time.Minute
	_, err := p.Acquire(ctx, stranger)
	var held *driver.HeldError
	if err == nil || errors.As(err, &held) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := p.Release(ctx, h); err == nil {
		t.Error("a release went well without a majority")
	}
	// And it says so at once, as soon as the member has noticed: without being asked for
	// that, it would keep the request for longer than this.
	until(t, "it hears that there is no leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := request("another")
		r.TTL = time.Minute
		_, err := p.Acquire(ctx, r)
		return driver.IsNotApplied(err) && strings.Contains(err.Error(), "no leader")
	})
	until(t, "renewal hears it too", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Renew(ctx, h)
		return err != nil && strings.Contains(err.Error(), "no leader")
	})
}

const password = "Tr0ub4dor-not-to-be-seen"

// secured starts a server with users: root, and one with a role for one prefix.
func secured(t *testing.T) *testenv.Server {
	t.Helper()
	server := testenv.Etcd(t, 1)[0]
	admin := console(t, server.Addr())
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.UserAdd(ctx, "root", "root-"+password))
	must(admin.UserGrantRole(ctx, "root", "root"))
	must(admin.RoleAdd(ctx, "locks"))
	prefix := etcdlock.DefaultPrefix + "/"
	must(admin.RoleGrantPermission(ctx, "locks", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(admin.UserAdd(ctx, "worker", password))
	must(admin.UserGrantRole(ctx, "worker", "locks"))
	must(admin.AuthEnable(ctx))
	return server
}

func openPlugin(t *testing.T, c etcdlock.PluginConfig) (driver.Driver, error) {
	t.Helper()
	r, err := locks.NewRegistry(etcdlock.Plugin())
	if err != nil {
		t.Fatal(err)
	}
	return r.Open(t.Context(), "etcd", func(into any) error {
		*into.(*etcdlock.PluginConfig) = c
		return nil
	})
}

// The privileges of the package comment are enough for everything.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	server := secured(t)
	conf := etcdlock.PluginConfig{Endpoints: []string{server.Addr()}, Username: "worker", Password: secret.New(password)}
	d, err := openPlugin(t, conf)
	if err != nil {
		t.Fatal(err)
	}
	other, err := openPlugin(t, conf)
	if err != nil {
		t.Fatal(err)
	}
	r := request("k")
	r.TTL = time.Minute
	h := grant(t, d, r)
	lost, stop := d.(driver.LossWatcher).WatchLoss(h)
	defer stop()
	c := queue(t.Context(), other.(driver.Queuer), request("k"))
	until(t, "the waiter is in line", func() bool {
		x, err := d.(driver.Inspector).Inspect(t.Context(), "k")
		return err == nil && x.Waiters == 1
	})
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
	if _, err := other.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
	if hs, err := d.(driver.Inspector).List(t.Context(), "", 10); err != nil || len(hs) != 1 {
		t.Errorf("list %v, %v", hs, err)
	}
	if out, err := other.(driver.Inspector).ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Errorf("force release: %v, %v", out, err)
	}
	select {
	case <-lost:
	case <-time.After(patience):
		t.Error("not told")
	}
	q := take(t, c)
	if q.err != nil {
		t.Fatal(q.err)
	}
	release(t, other, q.hold)
	for _, d := range []driver.Driver{d, other} {
		if err := d.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	}
	conf.Prefix = "elsewhere"
	if _, err := openPlugin(t, conf); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("outside of the role: %v", err)
	}
}

func TestPluginRefuses(t *testing.T) {
	t.Parallel()
	server := secured(t)
	addr := server.Addr()
	files := certificates(t)
	wrong := secret.New("wrong-" + password)
	for _, c := range []struct {
		conf etcdlock.PluginConfig
		want string
	}{
		{etcdlock.PluginConfig{}, "endpoints"},
		{etcdlock.PluginConfig{Endpoints: []string{"127.0.0.1"}}, "host:port"},
		{etcdlock.PluginConfig{Endpoints: []string{"ftp://127.0.0.1:1"}}, "scheme"},
		{etcdlock.PluginConfig{Endpoints: []string{"http://worker:" + password + "@127.0.0.1:1"}}, "username"},
		{etcdlock.PluginConfig{Endpoints: []string{"http://worker:" + password + "%zz@127.0.0.1:1"}}, "URL"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, Prefix: "x/"}, "prefix"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, Username: "worker"}, "password"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, TLS: transport.TLS{CertFile: "x"}}, "key_file"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, TLS: transport.TLS{CAFile: "/nowhere"}}, "ca_file"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, TLS: transport.TLS{CAFile: files.key}}, "ca_file"},
		{etcdlock.PluginConfig{Endpoints: []string{"http://" + addr}, TLS: transport.TLS{Enabled: true}}, "https"},
		{etcdlock.PluginConfig{Endpoints: []string{"etcd.example:2379"}, Username: "worker", Password: secret.New(password)}, "allow_plaintext"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}, Username: "worker", Password: wrong}, "authentication failed"},
		{etcdlock.PluginConfig{Endpoints: []string{addr}}, "user name is empty"},
		{etcdlock.PluginConfig{Endpoints: []string{"127.0.0.1:1"}}, "127.0.0.1:1"},
	} {
		began := time.Now()
		d, err := openPlugin(t, c.conf)
		if err == nil {
			t.Errorf("%+v was accepted", c.conf)
			_ = d.(interface{ Close() error }).Close()
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), password) || strings.Contains(fmt.Sprintf("%+v %#v", c.conf, c.conf.Password), password) && c.conf.Endpoints[0][:4] != "http" {
			t.Errorf("err %v, want one that says %q", err, c.want)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%v took %v", err, took)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	files := certificates(t)
	server := testenv.Etcd(t, 1, "--cert-file", files.cert, "--key-file", files.key, "--client-cert-auth", "--trusted-ca-file", files.cert)[0]
	conf := etcdlock.PluginConfig{
		Endpoints: []string{server.Addr()},
		TLS:       transport.TLS{CAFile: files.cert, CertFile: files.cert, KeyFile: files.key},
	}
	d, err := openPlugin(t, conf)
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, grant(t, d, request("k")))
	if err := d.(interface{ Close() error }).Close(); err != nil {
		t.Error(err)
	}
	conf.TLS.CAFile = ""
	if _, err := openPlugin(t, conf); err == nil {
		t.Error("a server that nobody vouches for was accepted")
	}
}

type certificateFiles struct{ cert, key string }

// certificates makes one that signs itself, for 127.0.0.1, for both sides.
func certificates(t *testing.T) certificateFiles {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secretDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := certificateFiles{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for path, block := range map[string]*pem.Block{
		files.cert: {Type: "CERTIFICATE", Bytes: der},
		files.key:  {Type: "PRIVATE KEY", Bytes: secretDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
