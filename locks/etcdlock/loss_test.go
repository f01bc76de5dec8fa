package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

const shortTTL = 2 * time.Second

// lossConfig has a margin for a test machine that is busy with other things.
func lossConfig() locks.Config {
	return locks.Config{TTL: shortTTL, Margin: shortTTL * 7 / 20, RenewInterval: shortTTL / 5}
}

// wins is when another process gets the key that a holder is about to lose.
type wins struct {
	lease *locks.Lease
	at    time.Time
	valid bool // the holder's lease, at that moment
}

func nextHolder(t *testing.T, other *locks.Locker, lease *locks.Lease) <-chan wins {
	t.Helper()
	c := make(chan wins, 1)
	go func() {
		next, err := other.Acquire(t.Context(), lease.Key())
		w := wins{next, time.Now(), lease.Valid()}
		if err != nil {
			t.Error(err)
		}
		c <- w
	}()
	return c
}

// A holder that is cut off is told before anybody else can hold the key.
func TestLossByTime(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*faultproxy.Proxy){
		"silence":       func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"deaf":          func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToClient) },
		"mute":          func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToServer) },
		"delay":         func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, 2*shortTTL) },
		"reset, closed": (*faultproxy.Proxy).Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			space := testenv.SharedEtcd(t)
			proxy := faultproxy.Start(t, space.Addr)
			l := locker(t, open(t, space.Name, proxy.Addr()), lossConfig())
			other := locker(t, open(t, space.Name, space.Addr), lossConfig())
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			told := make(chan time.Time, 1)
			go func() { <-lease.Done(); told <- time.Now() }()
			next := nextHolder(t, other, lease)
			cut(proxy)
			w := <-next
			if w.valid {
				t.Fatal("two holders")
			}
			select {
			case at := <-told:
				t.Logf("told %v before another got the key", w.at.Sub(at).Round(time.Millisecond))
			case <-time.After(patience):
				t.Fatal("not told")
			}
			if w.lease.Fence() <= lease.Fence() {
				t.Errorf("fence went from %d to %d", lease.Fence(), w.lease.Fence())
			}
			proxy.Pass()
			closeAll(t, l, other)
		})
	}
}

func closeAll(t *testing.T, ls ...*locks.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for _, l := range ls {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// What the server takes is told at once, and an effect under the old fence is refused.
func TestLossByTheServer(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, admin *clientv3.Client, other *locks.Locker, prefix string){
		"deleted": func(t *testing.T, admin *clientv3.Client, _ *locks.Locker, prefix string) {
			t.Helper()
			first, err := admin.Get(t.Context(), etcdlock.Path(prefix, "k"), clientv3.WithFirstCreate()...)
			if err == nil {
				_, err = admin.Delete(t.Context(), string(first.Kvs[0].Key))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"lease revoked": func(t *testing.T, admin *clientv3.Client, _ *locks.Locker, prefix string) {
			t.Helper()
			first, err := admin.Get(t.Context(), etcdlock.Path(prefix, "k"), clientv3.WithFirstCreate()...)
			if err == nil {
				_, err = admin.Revoke(t.Context(), clientv3.LeaseID(first.Kvs[0].Lease))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"forced": func(t *testing.T, _ *clientv3.Client, other *locks.Locker, _ string) {
			t.Helper()
			if out, err := other.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			space := testenv.SharedEtcd(t)
			admin := console(t, space.Addr)
			p := open(t, space.Name, space.Addr)
			l := locker(t, p, locks.Config{TTL: time.Minute})
			other := locker(t, open(t, space.Name, space.Addr), locks.Config{TTL: time.Minute})
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			told := make(chan time.Time, 1)
			go func() { <-lease.Done(); told <- time.Now() }()
			next := nextHolder(t, other, lease)
			until(t, "it is watched, and another in line", func() bool {
				return p.sent.watches.Load() > 0 && count(t, admin, space.Name+"/") == 2
			})
			took := time.Now()
			take(t, admin, other, space.Name)
			w := <-next
			at := <-told
			t.Logf("told %v after it was taken; both held for %v", at.Sub(took).Round(time.Microsecond), max(0, at.Sub(w.at)).Round(time.Microsecond))
			if late := at.Sub(took); late > l.Config().RenewInterval {
				t.Errorf("told after %v", late)
			}
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
			}
			// An effect inside etcd, guarded by the key of the grant.
			for _, h := range []*locks.Lease{lease, w.lease} {
				key := etcdlock.Path(space.Name, "k") + h.Token()
				resp, err := admin.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(key), "=", h.Fence())).
					Then(clientv3.OpPut(space.Name+"-effect", fmt.Sprint(h.Fence()))).Commit()
				if err != nil || resp.Succeeded != (h == w.lease) {
					t.Errorf("effect under fence %d: %v, %v", h.Fence(), resp.Succeeded, err)
				}
			}
			if w.lease.Fence() <= lease.Fence() {
				t.Errorf("fence went from %d to %d", lease.Fence(), w.lease.Fence())
			}
			closeAll(t, l, other)
		})
	}
}

// What a held lock costs is little, in the Locker and the driver together.
func TestMemoryPerHold(t *testing.T) {
	space := testenv.SharedEtcd(t)
	p := open(t, space.Name, space.Addr)
	l := locker(t, p, locks.Config{TTL: time.Minute})
	const n = 1000
	keys, leases := make([]string, n), make([]*locks.Lease, n) // the caller's
	for i := range keys {
		keys[i] = locks.Key("shop", "order", fmt.Sprint(i))
	}
	acquire := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			var err error
			if leases[i], err = l.TryAcquire(t.Context(), keys[i]); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "all are watched", func() bool { return p.sent.watches.Load() >= int64(to) })
	}
	acquire(0, 100) // what there is once
	heap, goroutines := liveHeap(), runtime.NumGoroutine()
	acquire(100, n)
	per := (liveHeap() - heap) / (n - 100)
	t.Logf("%d bytes for each held lock", per)
	if per > 1024 {
		t.Errorf("%d bytes for each held lock, want at most 1024", per)
	}
	if more := runtime.NumGoroutine() - goroutines; more > n/10 {
		t.Errorf("%d goroutines for %d held locks", more, n-100)
	}
	runtime.KeepAlive(leases)
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Who holds and who waits sends little while nothing happens.
func TestNoStorm(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	holder, waiters := open(t, space.Name, space.Addr), open(t, space.Name, space.Addr)
	cfg := locks.Config{TTL: time.Minute, RequestTimeout: patience / 3, RenewInterval: patience / 4}
	h, w := locker(t, holder, cfg), locker(t, waiters, cfg)
	const n = 100
	for i := range n {
		if _, err := h.TryAcquire(t.Context(), fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	for range n {
		go func() {
			if _, err := w.Acquire(ctx, "k0"); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire = %v", err)
			}
			over <- struct{}{}
		}()
	}
	until(t, "all are watched, and one is in line", func() bool {
		return holder.sent.watches.Load() >= n && waiters.sent.txns.Load() >= 2
	})
	holder.sent.reset()
	waiters.sent.reset()
	start := time.Now()
	<-time.After(5 * time.Second) // real time: what is sent in it is counted
	sent := holder.sent.all() + waiters.sent.all()
	if span := time.Since(start); float64(sent) > 4*span.Seconds() {
		t.Errorf("%d holders and %d waiters sent %d requests in %v", n, n, sent, span)
	}
	stop()
	for range n {
		<-over
	}
	closeAll(t, w, h)
}
