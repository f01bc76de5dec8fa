package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redislock"
)

func request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: time.Minute, Label: "host 1"}
}

func hold(tb testing.TB, d driver.Driver, r driver.Request) driver.Hold {
	tb.Helper()
	g, err := d.Acquire(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return driver.Hold{Request: r, Fence: g.Fence}
}

func released(tb testing.TB, d driver.Driver, h driver.Hold, want driver.Released) {
	tb.Helper()
	if out, err := d.Release(tb.Context(), h); err != nil || out != want {
		tb.Errorf("Release = %v, %v, want %v", out, err, want)
	}
}

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}

// warm has the connections dialled and the scripts known.
func warm(tb testing.TB, d closing) {
	tb.Helper()
	h := hold(tb, d, request("warm"))
	if _, err := d.Renew(tb.Context(), h); err != nil {
		tb.Fatal(err)
	}
	released(tb, d, h, driver.ReleasedOK)
	d.Checked()
}

func TestRoundTrips(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	other := process(t, s.Addr, s.DB)
	warm(t, d)
	want := func(what string, n int, f func()) {
		t.Helper()
		before := p.Stats()
		f()
		if got := p.Stats().Sub(before); got.RoundTrips != n || got.Conns != 0 {
			t.Errorf("%s: %d round trips and %d new connections, want %d and 0", what, got.RoundTrips, got.Conns, n)
		}
	}
	var h driver.Hold
	want("acquire", 1, func() { h = hold(t, d, request("k")) })
	want("renew", 1, func() {
		if _, err := d.Renew(t.Context(), h); err != nil {
			t.Error(err)
		}
	})
	want("release", 1, func() { released(t, d, h, driver.ReleasedOK) })
	theirs := hold(t, other, request("k"))
	want("acquire of a held key", 1, func() {
		_, err := d.Acquire(t.Context(), request("k"))
		var held *driver.HeldError
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		if x := held.Holder; x.Label != "host 1" || x.Token != theirs.Token || x.Fence != theirs.Fence || x.Remaining <= 30*time.Second || time.Since(x.Since).Abs() > time.Minute {
			t.Errorf("holder %+v", x)
		}
	})
}

func TestCallersSharePipelines(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	p.Delay(faultproxy.ToClient, 200*time.Millisecond) // in which all of them have come
	before := p.Stats()
	const callers = 100
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { hold(t, d, request(fmt.Sprint("k", i))) })
	}
	wg.Wait()
	if got := p.Stats().Sub(before); got.RoundTrips > callers/3 || got.Conns >= 8 {
		t.Errorf("%d round trips and %d connections for %d callers at once", got.RoundTrips, got.Conns, callers)
	}
}

// A silent connection must not hold up those who come after.
func TestOthersPassASilentConnection(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	p.BlackHole(faultproxy.ToClient)
	before := p.Stats()
	first := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		_, err := d.Acquire(ctx, request("a"))
		first <- err
	}()
	if err := p.Await(t.Context(), func(st faultproxy.Stats) bool { return st.BytesToServer > before.BytesToServer }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	start := time.Now()
	_, err := d.Acquire(ctx, request("b"))
	cancel()
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > time.Minute {
		t.Errorf("%v after %v", err, took)
	}
	p.Pass()
	<-first // answered now
	released(t, d, hold(t, d, request("c")), driver.ReleasedOK)
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // the second frees what pools kept for the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAThousandLeasesRenewTogether(t *testing.T) {
	server := testenv.Redis(t)
	admin := console(t, server.Addr(), 0)
	d := process(t, server.Addr(), 0)
	const n = 1000
	interval := time.Second / 2
	l, err := locks.New(d.Driver, locks.Config{TTL: 10 * time.Minute, RenewInterval: interval, RequestTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	leases, keys := make([]*locks.Lease, n), make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	warm(t, d)
	heap, goroutines := liveHeap(), runtime.NumGoroutine()
	for i, key := range keys {
		if leases[i], err = l.TryAcquire(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d goroutines more for %d leases", more, n)
	}
	if each := (liveHeap() - heap) / n; each > 1024 {
		t.Errorf("a lease takes %d bytes", each)
	} else {
		t.Logf("a lease takes %d bytes", each)
	}
	// A slow machine renews late, never more often: counted is before the clock is read.
	start, before := time.Now(), scriptsRun(t, admin)
	for scriptsRun(t, admin)-before < 3*n/100 || time.Since(start) < 6*interval {
		if time.Since(start) > time.Minute {
			t.Fatal("nothing is renewed")
		}
		<-time.After(interval / 10)
	}
	got := (scriptsRun(t, admin) - before) / (n / 100) // of which each renews a hundred
	intervals := float64(time.Since(start)) / float64(interval)
	t.Logf("%d requests in %.1f intervals for %d leases", got, intervals, n)
	if float64(got) > 2*(intervals+1)+1 {
		t.Errorf("%d requests in %.1f intervals for %d leases", got, intervals, n)
	}
	for _, e := range leases {
		if e.Err() != nil {
			t.Fatal(e.Err())
		}
	}
}

// scriptsRun is how many requests for a script the server has had.
func scriptsRun(tb testing.TB, admin *redis.Client) (n int) {
	tb.Helper()
	info, err := admin.Info(tb.Context(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	if _, rest, found := strings.Cut(info, "cmdstat_evalsha:calls="); found {
		calls, _, _ := strings.Cut(rest, ",")
		if n, err = strconv.Atoi(calls); err != nil {
			tb.Fatal(err)
		}
	}
	return n
}

func TestScriptsForgottenBetweenAnyTwoRequests(t *testing.T) {
	server := testenv.Redis(t)
	d, other := process(t, server.Addr(), 0), process(t, server.Addr(), 0, redislock.Fair())
	admin := console(t, server.Addr(), 0)
	forget := func() {
		t.Helper()
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	warm(t, d)
	forget()
	h := hold(t, d, request("k"))
	forget()
	if _, err := other.Acquire(t.Context(), request("k")); !isHeld(err) {
		t.Error(err)
	}
	forget()
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
	holds := []driver.Hold{h}
	for i := range 250 { // several scripts in one pipeline
		holds = append(holds, hold(t, d, request(fmt.Sprint("k", i))))
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
	got := make(chan driver.Grant, 1)
	go func() {
		g, err := other.AcquireQueued(context.Background(), request("k"))
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	inLine(t, admin, "k", 1)
	forget()
	released(t, d, h, driver.ReleasedOK)
	if g := <-got; g.Fence <= h.Fence {
		t.Errorf("fence %d after %d", g.Fence, h.Fence)
	}
	forget()
	if out, err := d.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
}

// inLine waits until n stand in line for the key.
func inLine(tb testing.TB, admin *redis.Client, key string, n int64) {
	tb.Helper()
	inLineOf(tb, admin, redislock.RedisKey(redislock.DefaultPrefix, key), n)
}

func inLineOf(tb testing.TB, admin *redis.Client, redisKey string, n int64) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		got, err := admin.ZCard(tb.Context(), redisKey+":q").Result()
		if err != nil {
			tb.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d in line, want %d", got, n)
		}
	}
}

// The client may repeat a request whose answer was lost, without telling us.
func TestRepeatedReleaseIsNoLoss(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), DB: s.DB, Limiter: unlimited{}}) // sends by itself, and repeats three times
	d := open(t, rdb).(closing)
	defer func() { _ = d.Close() }()
	warm(t, d)
	h := hold(t, d, request("k"))
	trap := p.SwallowReply([]byte(h.Token.String()))
	released(t, d, h, driver.ReleasedOK)
	<-trap.Fired()
	released(t, d, h, driver.ReleasedGone)
}

// That its repeat was refused says nothing of the request.
func TestRefusedRepeatIsOfUnknownOutcome(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	// It sends by itself, and repeats when there is nobody to connect to.
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), DB: s.DB, Limiter: unlimited{}, MaxRetries: 1, MinRetryBackoff: time.Second, MaxRetryBackoff: time.Second, DialerRetries: 1})
	d := open(t, rdb).(closing)
	defer func() { _ = d.Close() }()
	warm(t, d)
	r := request("k")
	trap := p.SwallowReply([]byte(r.Token.String()))
	go func() {
		<-trap.Fired()
		p.Refuse()
	}()
	_, err := d.Acquire(t.Context(), r)
	if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" {
		t.Fatal(err)
	}
	if driver.IsNotApplied(err) {
		t.Errorf("marked as not applied, and the server has carried it out: %v", err)
	}
	p.Pass()
	released(t, d, driver.Hold{Request: r}, driver.ReleasedOK)
}

type unlimited struct{}

func (unlimited) Allow() error       { return nil }
func (unlimited) ReportResult(error) {}

func TestNothingIsLeftBehind(t *testing.T) {
	s := testenv.SharedRedis(t)
	d := process(t, s.Addr, s.DB, redislock.Fair())
	admin := console(t, s.Addr, s.DB)
	warm(t, d)
	released(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	first := hold(t, d, request("l"))
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := d.AcquireQueued(ctx, request("l"))
		left <- err
	}()
	inLine(t, admin, "l", 1)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || !driver.IsNotApplied(err) {
		t.Errorf("AcquireQueued = %v", err)
	}
	released(t, d, first, driver.ReleasedOK)
	keys, err := admin.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	if want := []string{"solotick:{k}:f", "solotick:{l}:f", "solotick:{warm}:f"}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	for _, k := range keys {
		if ttl := admin.PTTL(t.Context(), k).Val(); ttl <= 0 || ttl > 24*time.Hour {
			t.Errorf("%s lives for %v", k, ttl)
		}
	}
}

// A lock and its release make few objects: what a caller would wait for is not made for
// answers that come at once.
func TestCycleAllocatesLittle(t *testing.T) {
	s := testenv.SharedRedis(t)
	l := locker(t, open(t, client(s.Addr, s.DB)), locks.Config{})
	cycle := func() {
		lease, err := l.Acquire(t.Context(), "k")
		if err == nil {
			err = lease.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cycle() // connects
	if n := testing.AllocsPerRun(300, cycle); n > 40 {
		t.Errorf("%v allocations", n)
	} else {
		t.Logf("%v allocations", n)
	}
}
