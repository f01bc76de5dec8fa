//go:build linux

package zkswitch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/zklock"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
	"github.com/solotick/solotick/scheduler/switchwatch/zkswitch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

func faults(p *faultproxy.Proxy) switchwatchtest.Faults {
	return switchwatchtest.Faults{Silence: func() { p.BlackHole(faultproxy.Both) }, Reset: p.Reset, Heal: p.Pass}
}

func centre(tb testing.TB, addr string, o zkswitch.Options) *zkswitch.Centre {
	tb.Helper()
	conn, err := zklock.PluginConfig{Servers: []string{addr}, SessionTimeout: 2 * time.Second}.Connect()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	c, err := zkswitch.New(conn, "shop", &o)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestCentre(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	switchwatchtest.Run(t, func(t *testing.T) switchwatchtest.Harness {
		o := zkswitch.Options{Prefix: "/" + strings.ReplaceAll(t.Name(), " ", "_")}
		return switchwatchtest.Harness{
			Open: func(tb testing.TB) switchwatch.Centre { return centre(tb, server.Addr(), o) },
			Proxied: func(tb testing.TB) (switchwatch.Centre, switchwatchtest.Faults) {
				p := faultproxy.Start(tb, server.Addr())
				return centre(tb, p.Addr(), o), faults(p)
			},
			Restart: func(testing.TB) { server.Restart() },
		}
	})
}

// What a user makes is for that user alone.
func TestDigest(t *testing.T) {
	t.Parallel()
	space := testenv.SharedZooKeeper(t)
	o := zkswitch.Options{Prefix: "/" + space.Name, Username: "ann", Password: secret.New("secret")}
	ann, ann2 := centre(t, space.Addr, o), centre(t, space.Addr, o)
	if err := ann.Save(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := ann2.Load(t.Context()); err != nil || string(got) != "x" {
		t.Errorf("ann: %q, %v", got, err)
	}
	if got, err := centre(t, space.Addr, zkswitch.Options{Prefix: o.Prefix}).Load(t.Context()); err == nil {
		t.Errorf("anybody: %q", got)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := zkswitch.New(nil, "shop", nil); err == nil {
		t.Error("no connection is accepted")
	}
	if _, err := zkswitch.New(new(zk.Conn), "shop", &zkswitch.Options{Timeout: -1}); err == nil || !strings.Contains(err.Error(), "Timeout: -1ns is negative") {
		t.Errorf("a negative timeout: %v", err)
	}
}
