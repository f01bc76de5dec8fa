package redlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redlock"
)

// counter counts what a client sends: single commands and pipelines.
type counter struct{ requests atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.requests.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.requests.Add(1)
		return next(ctx, cmds)
	}
}

// count is of what goes to the first node: the others are asked the same.
func count(d closing) *counter {
	c := new(counter)
	d.nodes[0].(*redis.Client).AddHook(c)
	return c
}

// The second round of an acquire settles the fence.
func TestRoundTrips(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	for rounds, opts := range map[int64][]redlock.Option{2: nil, 1: {redlock.WithoutOrder()}} {
		opts = append(opts, redlock.WithNodeTimeout(patience)) // a slow node is asked again
		d := dialled(t, process(t, nodes, opts...))
		if out, err := d.Release(t.Context(), hold(t, d, request("warm", time.Minute))); err != nil || out != driver.ReleasedOK {
			t.Error(out, err)
		}
		d.Checked()
		records(t, admin, "warm", "", 0)
		d.Settled() // a node that came late is still told the fence
		c := count(d)
		h := hold(t, d, request("k", time.Minute))
		records(t, admin, "k", h.Token.String(), 3)
		if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
			t.Error(out, err)
		}
		records(t, admin, "k", "", 0)
		if got := c.requests.Load(); got != rounds+1 {
			t.Errorf("%d requests for acquire and release, want %d", got, rounds+1)
		}
	}
}

// What callers ask a node at the same time goes in one pipeline.
func TestCallersSharePipelines(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	d := dialled(t, process(t, behind, redlock.WithNodeTimeout(patience)))
	hold(t, d, request("warm", time.Minute)) // the nodes know the scripts
	d.Checked()
	for _, p := range proxies {
		p.Delay(faultproxy.ToClient, 100*time.Millisecond)
	}
	c := count(d)
	before := proxies[0].Stats()
	const callers = 64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			r := request(fmt.Sprint("k", i), time.Minute)
			g, err := d.Acquire(t.Context(), r)
			if err == nil {
				_, err = d.Release(t.Context(), driver.Hold{Request: r, Fence: g.Fence})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	conns := proxies[0].Stats().Sub(before).Conns
	t.Logf("%d pipelines and %d more connections for 3 requests of %d callers", c.requests.Load(), conns, callers)
	if n := c.requests.Load(); n > callers {
		t.Errorf("%d pipelines to a node for 3 requests of %d callers at once", n, callers)
	}
	if conns > 1 { // where the first stalls
		t.Errorf("%d connections were opened", conns)
	}
}

// A node that answers nothing in time costs two connections for each time limit,
// however many ask it.
func TestLateNodeCostsFewConnections(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	const timeout = 100 * time.Millisecond
	d := dialled(t, process(t, behind, redlock.WithNodeTimeout(timeout)))
	for _, p := range proxies {
		p.Delay(faultproxy.ToClient, time.Hour)
	}
	before, start := proxies[0].Stats(), time.Now()
	var wg sync.WaitGroup
	var asked atomic.Int64
	for i := range 32 {
		wg.Go(func() {
			for n := range 10 {
				if _, err := d.Acquire(t.Context(), request(fmt.Sprint("k", i, n), time.Second)); err == nil {
					t.Error("granted by nodes that do not answer")
				}
				asked.Add(1)
			}
		})
	}
	wg.Wait()
	conns, took := proxies[0].Stats().Sub(before).Conns, time.Since(start)
	t.Logf("%d connections to a node for %d acquires, and what they take back, in %v", conns, asked.Load(), took.Round(time.Millisecond))
	if limit := 2 * (int(took/timeout) + 2); conns > limit {
		t.Errorf("%d connections in %v, want at most %d", conns, took, limit)
	}
}

func TestAThousandLeasesRenewTogether(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	d := dialled(t, open(t, nodes, redlock.WithNodeTimeout(patience)))
	const n = 1000
	interval := time.Second
	l := locker(t, d, locks.Config{TTL: 10 * time.Minute, RenewInterval: interval, RequestTimeout: patience})
	leases, keys := make([]*locks.Lease, n), make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	warm := hold(t, d, request("warm", time.Minute))
	if _, err := d.Renew(t.Context(), warm); err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for some := range slices.Chunk(keys[:200], 25) { // connections and what else is not a lease's
		wg.Go(func() {
			for _, key := range some {
				lease, err := l.TryAcquire(t.Context(), key)
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	settled(t, goroutines)
	heap := liveHeap()
	for i, key := range keys {
		leases[i] = take(t, l, key)
	}
	settled(t, goroutines)
	if each := (liveHeap() - heap) / n; each > 1024 {
		t.Errorf("a lease takes %d bytes", each)
	} else {
		t.Logf("a lease takes %d bytes", each)
	}
	c := count(d)
	// A slow machine renews late, never more often: counted is before the clock is read.
	start := time.Now()
	for end := start.Add(patience); c.requests.Load() < 2; <-time.After(interval / 10) {
		if time.Now().After(end) {
			t.Fatal("nothing is renewed")
		}
	}
	got := float64(c.requests.Load())
	intervals := time.Since(start).Seconds() / interval.Seconds()
	t.Logf("%v requests to a node in %.1f intervals for %d leases", got, intervals, n)
	if got > 2*(intervals+1)+1 {
		t.Errorf("%v requests to a node in %.1f intervals for %d leases", got, intervals, n)
	}
	for _, e := range leases {
		if e.Err() != nil {
			t.Fatal(e.Err())
		}
	}
}

// settled waits until nothing goes on in the background: a node that is slower than
// the majority is still asked.
func settled(t *testing.T, goroutines int) {
	t.Helper()
	for end := time.Now().Add(patience); runtime.NumGoroutine() > goroutines+3; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines where there were %d", runtime.NumGoroutine(), goroutines)
		}
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // the second frees what pools kept for the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestScriptsForgottenBetweenAnyTwoRequests(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	d, other := process(t, nodes, patient), process(t, nodes, patient)
	forget := func() {
		t.Helper()
		for _, a := range admin {
			if err := a.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := hold(t, d, request("k", time.Minute))
	records(t, admin, "k", h.Token.String(), 3)
	forget()
	if _, err := other.Acquire(t.Context(), request("k", time.Minute)); !isHeld(err) {
		t.Error(err)
	}
	holds := []driver.Hold{h}
	for i := range 50 {
		holds = append(holds, hold(t, d, request(fmt.Sprint("k", i), time.Minute)))
	}
	forget()
	if errs := d.RenewBatch(t.Context(), holds); !slices.Equal(errs, make([]error, len(holds))) {
		t.Error(errs)
	}
	forget()
	if x, err := d.Inspect(t.Context(), "k"); err != nil || x.Fence != h.Fence {
		t.Error(x, err)
	}
	forget()
	if all, err := d.List(t.Context(), "k", 1000); err != nil || len(all) != len(holds) {
		t.Error(len(all), err)
	}
	forget()
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	forget()
	if out, err := d.ForceRelease(t.Context(), "k1"); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
}

// What is left of a key is its counter, for a day.
func TestNothingIsLeftBehind(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	d, other := process(t, nodes, patient), process(t, nodes, patient)
	h := hold(t, d, request("k", time.Minute))
	records(t, admin, "k", h.Token.String(), 3)
	if _, err := other.Acquire(t.Context(), request("k", time.Minute)); !isHeld(err) {
		t.Error(err)
	}
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	records(t, admin, "k", "", 0)
	for i, a := range admin {
		keys, err := a.Keys(t.Context(), "*").Result()
		if want := redlock.DefaultPrefix + "k\x00f"; err != nil || !slices.Equal(keys, []string{want}) {
			t.Errorf("node %d keeps %q, %v", i+1, keys, err)
		}
		if ttl := a.PTTL(t.Context(), redlock.DefaultPrefix+"k\x00f").Val(); ttl <= 0 || ttl > 24*time.Hour {
			t.Errorf("the counter lives for %v", ttl)
		}
	}
}
