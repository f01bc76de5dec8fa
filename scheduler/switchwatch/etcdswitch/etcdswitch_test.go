//go:build linux

package etcdswitch_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
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

// TestLeastPrivilege: what the package comment grants is enough for who reads and for who
// throws, and no more than it says.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	const password, key = "Tr0ub4dor-not-to-be-seen", etcdswitch.DefaultPrefix + "/switch:shop"
	admin, ctx := dial(t, server.Addr()), t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for user, may := range map[string]clientv3.PermissionType{
		"worker": clientv3.PermissionType(clientv3.PermRead), "operator": clientv3.PermissionType(clientv3.PermReadWrite),
	} {
		must(admin.RoleAdd(ctx, user))
		must(admin.RoleGrantPermission(ctx, user, key, "", may))
		must(admin.UserAdd(ctx, user, password))
		must(admin.UserGrantRole(ctx, user, user))
	}
	must(admin.UserAdd(ctx, "root", "root-"+password))
	must(admin.UserGrantRole(ctx, "root", "root"))
	must(admin.AuthEnable(ctx))
	as := func(user string) *etcdswitch.Centre {
		client, err := etcdlock.PluginConfig{Endpoints: []string{server.Addr()}, Username: user, Password: secret.New(password)}.Client()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		c, err := etcdswitch.New(client, "shop", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	worker, operator := as("worker"), as("operator")
	watching, stop := context.WithCancel(ctx)
	seen, ended := make(chan string, 10), make(chan error, 1)
	go func() { ended <- worker.Watch(watching, func(value []byte) { seen <- string(value) }) }()
	for _, value := range []string{"", "a", "b"} {
		if value != "" {
			must(nil, operator.Save(ctx, []byte(value)))
		}
		if got := <-seen; got != value {
			t.Errorf("the worker was told %q, want %q", got, value)
		}
	}
	for name, c := range map[string]*etcdswitch.Centre{"worker": worker, "operator": operator} {
		if got, err := c.Load(ctx); err != nil || string(got) != "b" {
			t.Errorf("%s reads %q, %v", name, got, err)
		}
	}
	if err := worker.Save(ctx, []byte("c")); err == nil {
		t.Error("the worker may throw the switch")
	}
	must(nil, operator.Save(ctx, nil))
	if got := <-seen; got != "" {
		t.Errorf("the worker was told %q of a switch that was cleared", got)
	}
	stop()
	<-ended
}
