package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/zklock"
)

// locker is one that the test closes, with a margin for a machine that is busy with
// other things.
func locker(t *testing.T, addr, prefix string, ttl time.Duration, opts ...zklock.Option) *locks.Locker {
	t.Helper()
	cfg := locks.Config{TTL: ttl, Margin: ttl / 4, RenewInterval: ttl / 5}
	l, err := zklock.New(t.Context(), []string{addr}, &cfg, append(opts, zklock.WithPrefix(prefix))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
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
		"delay":         func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, 3*testTTL) },
		"reset, closed": (*faultproxy.Proxy).Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SharedZooKeeper(t)
			prefix := "/" + server.Name
			proxy := faultproxy.Start(t, server.Addr)
			l, other := locker(t, proxy.Addr(), prefix, testTTL), locker(t, server.Addr, prefix, testTTL)
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
		})
	}
}

// What the server takes is told at once.
func TestLossByTheServer(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, c console, other *locks.Locker, prefix string){
		"deleted": func(t *testing.T, c console, other *locks.Locker, prefix string) {
			t.Helper()
			holder, err := other.Inspect(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range c.line(prefix, "k") {
				if strings.HasPrefix(name, holder.Token.String()) {
					if err := c.Delete(zklock.KeyPath(prefix, "k")+"/"+name, -1); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
		"forced": func(t *testing.T, _ console, other *locks.Locker, _ string) {
			t.Helper()
			if out, err := other.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SharedZooKeeper(t)
			prefix := "/" + server.Name
			c := dialConsole(t, server.Addr)
			l, other := locker(t, server.Addr, prefix, 6*time.Second), locker(t, server.Addr, prefix, 6*time.Second)
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			told := make(chan time.Time, 1)
			go func() { <-lease.Done(); told <- time.Now() }()
			next := nextHolder(t, other, lease)
			await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 2 })
			took := time.Now()
			take(t, c, other, prefix)
			w := <-next
			at := <-told
			t.Logf("told %v after it was taken; both held for %v", at.Sub(took).Round(time.Microsecond), max(0, at.Sub(w.at)).Round(time.Microsecond))
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
			}
			if w.lease.Fence() <= lease.Fence() {
				t.Errorf("fence went from %d to %d", lease.Fence(), w.lease.Fence())
			}
		})
	}
}

// The fence grows also where the node of the key was removed, and the counter in the
// names begins anew.
func TestFenceOverRemovedNode(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	d := opened(t, server.Addr, prefix)
	h := hold(t, d, request("k"))
	for range 3 {
		names := c.line(prefix, "k")
		wantReleased(t, d, h, driver.ReleasedOK)
		if err := c.Delete(zklock.KeyPath(prefix, "k"), -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Fatal(err)
		}
		next := hold(t, d, request("k"))
		if again := c.line(prefix, "k"); len(again) != 1 || again[0][len(again[0])-10:] != names[0][len(names[0])-10:] {
			t.Errorf("nodes %q after %q: the counter went on, which proves nothing", again, names)
		}
		if next.Fence <= h.Fence {
			t.Errorf("fence went from %d to %d", h.Fence, next.Fence)
		}
		h = next
	}
	wantReleased(t, d, h, driver.ReleasedOK)
}

// What a held lock costs is little, in the Locker and the driver together.
func TestMemoryPerHold(t *testing.T) {
	server := testenv.SharedZooKeeper(t)
	l := locker(t, server.Addr, "/"+server.Name, 6*time.Second)
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
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	var count counter
	h := locker(t, server.Addr, prefix, 6*time.Second, zklock.WithDialer(count.dial))
	w := locker(t, server.Addr, prefix, 6*time.Second, zklock.WithDialer(count.dial))
	c := dialConsole(t, server.Addr)
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
	await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k0")) == 2 })
	<-within(t, 100*time.Millisecond).Done() // until it watches
	count.take()
	const span = 5 * time.Second
	<-within(t, span).Done() // real time: what is sent in it is counted
	sent := 0
	for _, k := range count.take() {
		sent += k
	}
	if sent > 20 {
		t.Errorf("%d holders and %d waiters sent %d requests in %v", n, n, sent, span)
	}
	stop()
	for range n {
		<-over
	}
}
