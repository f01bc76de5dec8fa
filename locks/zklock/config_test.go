package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/zklock"
)

// The session timeout is the server's to decide, and a TTL that does not fit it is
// refused with what would.
func TestNegotiatedTimeout(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t) // sessions from 1 s to 10 s
	open := func(cfg locks.Config) (*locks.Locker, error) {
		l, err := zklock.New(t.Context(), []string{server.Addr}, &cfg, zklock.WithPrefix("/"+server.Name))
		if err == nil {
			t.Cleanup(func() { l.Close(context.Background()) })
		}
		return l, err
	}
	for ttl, want := range map[time.Duration]string{300 * time.Millisecond: "raise it to 666ms", 20 * time.Second: "6.666s"} {
		if _, err := open(locks.Config{TTL: ttl}); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), "ttl") || !strings.Contains(err.Error(), want) {
			t.Errorf("ttl %v: %v, want an error with %q", ttl, err, want)
		}
	}
	l, err := open(locks.Config{TTL: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), "k", locks.WithTTL(time.Second)); !errors.Is(err, locks.ErrInvalid) {
		t.Errorf("a TTL below the session's = %v", err)
	}
	lease, err := l.TryAcquire(t.Context(), "k", locks.WithTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(lease.ValidUntil()); left > 4*time.Second {
		t.Errorf("valid for %v on a session that carries 4s", left)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	for name, cut := range map[string]func(*faultproxy.Proxy){
		"refused": (*faultproxy.Proxy).Refuse,
		"silent":  func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
	} {
		p := faultproxy.Start(t, server.Addr)
		cut(p)
		start := time.Now()
		_, err := zklock.NewDriver(t.Context(), []string{p.Addr()}, zklock.WithConnectTimeout(300*time.Millisecond))
		if err == nil || !strings.Contains(err.Error(), p.Addr()) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > patience/2 {
			t.Errorf("%s: refused after %v", name, took)
		}
		// Without waiting it is there when the server is.
		d, err := zklock.NewDriver(t.Context(), []string{p.Addr()}, zklock.WithConnectTimeout(-1), zklock.WithPrefix("/"+server.Name+name))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := d.Acquire(ctx, request("k")); err == nil {
			t.Errorf("%s: granted without a server", name)
		}
		cancel()
		p.Pass()
		wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A wait that ends before ZooKeeper has answered does not say that the key is held.
func TestWaitWithoutAnAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	for name, cut := range map[string]func(*faultproxy.Proxy){
		"refused": (*faultproxy.Proxy).Refuse,
		"silent":  func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
	} {
		p := faultproxy.Start(t, server.Addr)
		cut(p)
		l := locker(t, p.Addr(), "/"+server.Name, 10*time.Second, zklock.WithConnectTimeout(-1))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := l.Acquire(ctx, "k")
		cancel()
		if !errors.Is(err, locks.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrHeld) || !strings.Contains(err.Error(), "no connection") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With a digest user everything belongs to that user, also after a new session;
// nobody else gets in, and the password is never told.
func TestDigest(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name + "/locks"
	p := faultproxy.Start(t, server.Addr)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	const password = "hunter2-and-more"
	d := open(t, p.Addr(), prefix, zklock.WithDigest("bob", secret.New(password)), zklock.WithLogger(logger))
	h := hold(t, d, request("k"))
	c, bob := dialConsole(t, server.Addr), dialConsole(t, server.Addr)
	if err := bob.AddAuth("digest", []byte("bob:"+password)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/" + server.Name, prefix, zklock.KeyPath(prefix, "k")} {
		acl, _, err := bob.GetACL(path)
		if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "bob:") || acl[0].Perms != zk.PermAll {
			t.Errorf("ACL of %s = %v, %v", path, acl, err)
		}
	}
	if _, _, err := c.Children(prefix); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger reads %s: %v", prefix, err)
	}
	for range 2 {
		p.Reset()
		await(t, "a release on the next connection", 5*time.Second, func() bool {
			_, err := d.Release(within(t, time.Second), h)
			return err == nil
		})
		h = hold(t, d, request("k"))
	}
	lost, stop := d.WatchLoss(h)
	defer stop()
	p.Refuse()
	<-within(t, 2*testSession).Done() // until the session has ended
	p.Pass()
	<-lost
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)

	for name, opts := range map[string][]zklock.Option{
		"wrong password": {zklock.WithDigest("bob", secret.New(password+"x")), zklock.WithLogger(logger)},
		"nobody":         {zklock.WithLogger(logger)},
	} {
		stranger := opened(t, server.Addr, prefix, opts...)
		_, err := stranger.Acquire(within(t, 10*time.Second), request("k"))
		var held *driver.HeldError
		if !errors.Is(err, zk.ErrNoAuth) || !driver.IsNotApplied(err) || errors.As(err, &held) {
			t.Errorf("%s: Acquire = %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error tells the password", name)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Error("the log tells the password")
	}
}

// What is there already keeps its ACL.
func TestParentsKeepTheirACL(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	c := dialConsole(t, server.Addr)
	top := "/" + server.Name
	if _, err := c.Create(top, nil, 0, worldACL); err != nil {
		t.Fatal(err)
	}
	d := opened(t, server.Addr, top+"/locks", zklock.WithDigest("bob", secret.New("x")))
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	if acl, _, err := c.GetACL(top); err != nil || len(acl) != 1 || acl[0].Scheme != "world" {
		t.Errorf("ACL = %v, %v", acl, err)
	}
}

func TestPlugin(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	registry, err := locks.NewRegistry(zklock.Plugin())
	if err != nil {
		t.Fatal(err)
	}
	openWith := func(cfg zklock.PluginConfig) (driver.Driver, error) {
		return registry.Open(t.Context(), "zookeeper", func(into any) error {
			*into.(*zklock.PluginConfig) = cfg
			return nil
		})
	}
	for name, cfg := range map[string]zklock.PluginConfig{
		"servers":                {},
		"session_timeout":        {Servers: []string{server.Addr}, SessionTimeout: -1},
		"cert_file and key_file": {Servers: []string{server.Addr}, TLS: transport.TLS{CertFile: "x"}},
		"tls.ca_file":            {Servers: []string{server.Addr}, TLS: transport.TLS{CAFile: "/nowhere"}},
		"the password would cross the network to": {Servers: []string{"192.0.2.1"}, Username: "bob", Password: secret.New("x")},
	} {
		if _, err := openWith(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d, err := openWith(zklock.PluginConfig{Servers: []string{server.Addr}, SessionTimeout: testSession, Prefix: "/" + server.Name, Username: "bob", Password: secret.New("x")})
	if err != nil {
		t.Fatal(err)
	}
	h := hold(t, d, request("k"))
	wantReleased(t, d, h, driver.ReleasedOK)
	if err := d.(*zklock.Driver).Close(); err != nil {
		t.Error(err)
	}
}
