package etcdlock_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/lockstest"
)

func harness(tb testing.TB, server *testenv.Server) lockstest.Harness {
	admin := console(tb, server.Addr())
	count(tb, admin, "") // connects, before the suite counts goroutines
	return lockstest.Harness{
		TTL: 2 * time.Second, // the shortest that etcd honours
		New: func(tb testing.TB) driver.Driver { tb.Helper(); return open(tb, "", server.Addr()) },
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			dir := etcdlock.Path(etcdlock.DefaultPrefix, key)
			out, err := admin.Delete(tb.Context(), dir, clientv3.WithPrefix())
			if err != nil || out.Deleted == 0 {
				tb.Fatalf("nothing was deleted at %s: %v", dir, err)
			}
		},
		Restart: func(tb testing.TB) {
			tb.Helper()
			server.Kill()
			server.Restart()
			// Its goroutines are counted, so it must have them again.
			admin.ActiveConnection().ResetConnectBackoff()
			until(tb, "the console is connected again", func() bool {
				_, err := admin.Get(tb.Context(), "x")
				return err == nil
			})
		},
		Proxied: func(tb testing.TB) (driver.Driver, func(), func()) {
			tb.Helper()
			proxy := faultproxy.Start(tb, server.Addr())
			return open(tb, "", proxy.Addr()), func() { proxy.BlackHole(faultproxy.Both) }, proxy.Pass
		},
	}
}

func TestConformance(t *testing.T) {
	lockstest.Run(t, harness(t, testenv.Etcd(t, 1)[0]))
}

// All traffic through a proxy, as slow as a network, which cuts every connection where
// the suite asks for a restart. The suite counts goroutines, so it runs beside no other
// test.
func TestConformanceThroughAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	server := testenv.Etcd(t, 1)[0]
	proxy := faultproxy.Start(t, server.Addr())
	proxy.Delay(faultproxy.Both, time.Millisecond)
	h := harness(t, server)
	h.New = func(tb testing.TB) driver.Driver { tb.Helper(); return open(tb, "", proxy.Addr()) }
	h.Restart = func(testing.TB) { proxy.Reset() }
	lockstest.Run(t, h)
}

func BenchmarkLock(b *testing.B) { lockstest.Bench(b, harness(b, testenv.Etcd(b, 1)[0])) }

func locker(tb testing.TB, p process, cfg locks.Config) *locks.Locker {
	tb.Helper()
	l, err := locks.New(p, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
