package sqllock_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// What 1000 held keys cost a process: memory, goroutines, connections, and round
// trips to renew them.
func TestHeldKeysAreCheap(t *testing.T) {
	t.Parallel()
	const n = 1000
	each(t, func(t *testing.T, p *place, mode sqllock.Mode) {
		proxy := faultproxy.Start(t, p.addr)
		d := p.driver(t, proxy.Addr(), mode)
		warm(t, d)
		holds := make([]driver.Hold, n)
		for i := range holds {
			r := request(fmt.Sprint("many", i))
			r.TTL = 10 * time.Minute
			holds[i] = hold(t, d, r)
		}
		if open := proxy.Stats().Open; open > 4 {
			t.Errorf("%d connections for %d keys", open, n)
		}
		before := proxy.Stats()
		for i, err := range d.(driver.BatchRenewer).RenewBatch(t.Context(), holds) {
			if err != nil {
				t.Fatalf("renewal %d: %v", i, err)
			}
		}
		trips := proxy.Stats().Sub(before).RoundTrips
		t.Logf("%d round trips renew %d keys", trips, n)
		want := map[string]int{"postgres/lease": 1, "postgres/advisory": 2, "mariadb/lease": 2, "mariadb/advisory": 4}[p.name+"/"+string(mode)]
		// PostgreSQL's client prepares a statement that it has not sent before.
		if p.name == "postgres" {
			want *= 2
		}
		if trips > want {
			t.Errorf("%d round trips to renew %d keys, want %d", trips, n, want)
		}
		if err := d.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	})
}

// A held lock takes less than 1 KiB, in the locker and the driver together.
func TestMemoryOfAHeldLock(t *testing.T) {
	const n = 1500
	db := openDB(t, filepath.Join(t.TempDir(), "locks.db"))
	l := locker(t, newDriver(t, db), locks.Config{TTL: 10 * time.Minute, RequestTimeout: time.Minute})
	if _, err := l.TryAcquire(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	keys := make([]string, n) // the caller's
	for i := range keys {
		keys[i] = locks.Key("shop", "order", fmt.Sprint(i))
	}
	leases := make([]*locks.Lease, n)
	goroutines, before := runtime.NumGoroutine(), heap()
	for i, key := range keys {
		lease, err := l.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		leases[i] = lease
	}
	each := (heap() - before) / n
	t.Logf("%d bytes a lock", each)
	if each > 1024 {
		t.Errorf("a held lock takes %d bytes, want at most 1024", each)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d goroutines more for %d locks", more, n)
	}
	runtime.KeepAlive(leases)
}

func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
