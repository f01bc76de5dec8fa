//go:build linux

package etcdswitch_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/etcdswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

func faults(p *faultproxy.Proxy) switchwatchtest.Faults {
	return switchwatchtest.Faults{Silence: func() { p.BlackHole(faultproxy.Both) }, Reset: p.Reset, Heal: p.Pass}
}

func dial(tb testing.TB, addr string) *clientv3.Client {
	tb.Helper()
	client, err := etcdlock.PluginConfig{Endpoints: []string{addr}}.Client()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}

func centre(tb testing.TB, addr, prefix string) *etcdswitch.Centre {
	tb.Helper()
	c, err := etcdswitch.New(dial(tb, addr), "shop", &etcdswitch.Options{Prefix: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestCentre(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	switchwatchtest.Run(t, func(t *testing.T) switchwatchtest.Harness {
		prefix := "p/" + t.Name()
		return switchwatchtest.Harness{
			Open: func(tb testing.TB) switchwatch.Centre { return centre(tb, server.Addr(), prefix) },
			Proxied: func(tb testing.TB) (switchwatch.Centre, switchwatchtest.Faults) {
				p := faultproxy.Start(tb, server.Addr())
				return centre(tb, p.Addr(), prefix), faults(p)
			},
			Restart: func(testing.TB) { server.Restart() },
		}
	})
}

// A watch that asks for history that is compacted ends, and the next one begins with
// the value as it is.
func TestCompaction(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	p := faultproxy.Start(t, space.Addr)
	direct, watching := centre(t, space.Addr, space.Name), centre(t, p.Addr(), space.Name)
	if direct.Key() != space.Name+"/switch:shop" {
		t.Errorf("key %q", direct.Key())
	}
	seen, ended := make(chan string, 100), make(chan error, 1)
	go func() { ended <- watching.Watch(t.Context(), func(value []byte) { seen <- string(value) }) }()
	if got := <-seen; got != "" {
		t.Fatalf("began with %q", got)
	}
	p.Refuse()
	client := dial(t, space.Addr)
	for _, value := range []string{"a", "b", "c"} {
		if err := direct.Save(t.Context(), []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	now, err := client.Get(t.Context(), direct.Key())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), now.Header.Revision); err != nil {
		t.Fatal(err)
	}
	p.Pass()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the watch ended without an error")
		}
	case got := <-seen: // the client began late enough
		t.Logf("told %q", got)
		return
	}
	go func() { ended <- watching.Watch(t.Context(), func(value []byte) { seen <- string(value) }) }()
	if got := <-seen; got != "c" {
		t.Errorf("begins again with %q", got)
	}
}
