//go:build linux

package redisswitch_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/redisswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

func faults(p *faultproxy.Proxy) switchwatchtest.Faults {
	return switchwatchtest.Faults{Silence: func() { p.BlackHole(faultproxy.Both) }, Reset: p.Reset, Heal: p.Pass}
}

func centre(tb testing.TB, addr, prefix string) *redisswitch.Centre {
	tb.Helper()
	rdb, err := redislock.PluginConfig{Addrs: []string{addr}}.Client()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			tb.Error(err)
		}
	})
	c, err := redisswitch.New(rdb, "shop", &redisswitch.Options{Prefix: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestCentre(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	switchwatchtest.Run(t, func(t *testing.T) switchwatchtest.Harness {
		prefix := t.Name() + ":"
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

// The least privileges of the package comment are enough.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	admin, err := redislock.PluginConfig{Addrs: []string{server.Addr()}}.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, user := range [][]any{
		{"ACL", "SETUSER", "worker", "on", ">secret", "resetchannels", "%R~solotick:switch:shop", "&solotick:switch:shop", "+get", "+subscribe", "+unsubscribe", "+ping"},
		{"ACL", "SETUSER", "operator", "on", ">secret", "resetchannels", "~solotick:switch:shop", "&solotick:switch:shop", "+get", "+set", "+del", "+publish"},
	} {
		if err := admin.Do(t.Context(), user...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	open := func(user string) *redisswitch.Centre {
		rdb, err := redislock.PluginConfig{Addrs: []string{server.Addr()}, Username: user, Password: secret.New("secret")}.Client()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rdb.Close() })
		c, err := redisswitch.New(rdb, "shop", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	worker, operator := open("worker"), open("operator")
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Watch(ctx, func(value []byte) { seen <- string(value) }) }()
	for _, want := range []string{"on", ""} {
		if err := operator.Save(t.Context(), []byte(want)); err != nil {
			t.Fatal(err)
		}
		for got := range seen {
			if got == want {
				break
			}
		}
	}
	cancel()
	<-ended
	if err := worker.Save(t.Context(), []byte("x")); err == nil {
		t.Error("a worker may throw the switch")
	}
}

func TestNegativeOptionsAreRefused(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{}) // asked nothing
	defer rdb.Close()
	for want, o := range map[string]redisswitch.Options{"Poll: -1s is negative": {Poll: -time.Second}, "Timeout: -1s is negative": {Timeout: -time.Second}} {
		if _, err := redisswitch.New(rdb, "shop", &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
