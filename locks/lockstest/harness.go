package lockstest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// Harness is what a backend provides to be tested. Cases run side by side, so its
// functions are called by several goroutines at once, but for Restart.
type Harness struct {
	// New opens a driver as a new process would, onto the backend that all
	// drivers of this Harness share. If it is an io.Closer, the suite closes it.
	// Required.
	New func(t testing.TB) driver.Driver
	// Delete ends the grant of key behind its holder's back, as an operator at
	// the backend's own console would. Where it is nil, the cases that need it are
	// skipped.
	Delete func(t testing.TB, key string)
	// Restart stops the backend and starts it again; it returns when requests are
	// answered. Where it is nil, the cases that need it are skipped.
	Restart func(t testing.TB)
	// Proxied opens a driver that reaches the backend over a connection of its own
	// which cut silences (nothing arrives, nothing is closed) and heal restores.
	// It shows what Faulty cannot: that the client itself obeys its contexts.
	// Where it is nil, the cases that need it are skipped.
	Proxied func(t testing.TB) (d driver.Driver, cut, heal func())
	// TTL is a short TTL that the backend honours, long enough that a busy test
	// machine renews in time. Default 1s.
	TTL time.Duration
	// Sessions says that a grant lives with the driver that took it, as a node of a
	// session does, so that another driver cannot renew it: its answer must then be
	// unknown, never nil.
	Sessions bool
	// Transactions says that a grant is a transaction: it ends for certain with its
	// connection or a restart, only the driver that took it can renew or release it,
	// and others are not told who holds the key.
	Transactions bool
	// Votes says that independent nodes vote on a grant, so that of several who ask at
	// one moment each may be refused, and one who asks right after a release too.
	Votes bool
	// Withdraws says that the release of a grant of unknown outcome also holds for a
	// request that arrives after it, so that a cancelled caller never leaves the key held.
	Withdraws bool
	// Virtual runs every case in a testing/synctest bubble, one after the other. Only
	// a backend in memory can.
	Virtual bool
	// Short leaves out what a second run of the same driver, such as one through a
	// proxy, would only repeat: the cases in which Faulty fails above the driver, the
	// histories, and those that hold on for several TTLs.
	Short bool
	// SideBySide is how many cases run at once; most of their time is waiting.
	// Default 8.
	SideBySide int
}

// Run runs every case as a subtest. Keys are new for each case, so cases share a
// backend and run side by side, but for those that restart it or measure the
// process: they come first, one after the other.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("lockstest: Harness.New is nil")
	}
	if h.TTL == 0 {
		h.TTL = time.Second
	}
	if h.SideBySide == 0 {
		h.SideBySide = 8
	}
	var together []testCase
	for _, c := range slices.Concat(historyCases, faultCases, lockerCases, driverCases, lineCases, sharingCases) {
		if h.Short && c.long {
			continue
		}
		if h.Virtual || c.alone {
			runAll(t, h, []testCase{c})
			continue
		}
		together = append(together, c)
	}
	runAll(t, h, together)
}

// runAll runs the cases side by side. It does not use t.Parallel, which would run no
// more of them than the machine has cores.
func runAll(t *testing.T, h Harness, cases []testCase) {
	t.Helper()
	before := runtime.NumGoroutine()
	queue := make(chan testCase)
	var workers sync.WaitGroup
	for range min(h.SideBySide, len(cases)) {
		workers.Go(func() {
			for c := range queue {
				t.Run(c.name, func(t *testing.T) { c.start(t, h) })
			}
		})
	}
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	workers.Wait()
	if !h.Virtual {
		wantGoroutines(t, before)
	}
}

func (c testCase) start(t *testing.T, h Harness) {
	t.Helper()
	switch {
	case c.needs.deletion && h.Delete == nil:
		t.Skip("the harness cannot delete a record")
	case c.needs.restart && h.Restart == nil:
		t.Skip("the harness cannot restart the backend")
	case c.needs.proxy && h.Proxied == nil:
		t.Skip("the harness cannot silence a connection")
	}
	if h.Virtual {
		synctest.Test(t, func(t *testing.T) { c.run(newBench(t, h)) })
		return
	}
	c.run(newBench(t, h))
}

type testCase struct {
	name  string
	run   func(*bench)
	needs struct{ deletion, restart, proxy bool }
	alone bool // what others do at the same time would disturb it, or it them
	long  bool // left out of a short run
}

func (c testCase) withDelete() testCase  { c.needs.deletion = true; return c }
func (c testCase) withRestart() testCase { c.needs.restart, c.alone = true, true; return c }
func (c testCase) withProxy() testCase   { c.needs.proxy = true; return c }
func (c testCase) byItself() testCase    { c.alone = true; return c }
func (c testCase) asLong() testCase      { c.long = true; return c }

// wantGoroutines fails the test if goroutines outlive their cases. Clients may
// need a moment to end theirs.
func wantGoroutines(t *testing.T, before int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		n := runtime.NumGoroutine()
		if n <= before {
			return
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Errorf("%d goroutines before the cases, %d after:\n%s", before, n, buf[:runtime.Stack(buf, true)])
			return
		}
		tick := time.NewTimer(10 * time.Millisecond)
		<-tick.C
	}
}

// bench is the place a case works at.
type bench struct {
	testing.TB
	h   Harness
	run string // makes this case's keys its own
	n   int
}

func newBench(t testing.TB, h Harness) *bench {
	return &bench{TB: t, h: h, run: driver.NewToken().String()[:12]}
}

func (b *bench) key(name string) string { return locks.Key("lockstest", b.run, name) }

// prefix is what this case's keys begin with.
func (b *bench) prefix() string { return locks.Key("lockstest", b.run) + ":" }

// driver opens a driver that is closed with the case.
func (b *bench) driver() driver.Driver {
	b.Helper()
	d := b.h.New(b)
	b.Cleanup(func() { closeDriver(b, d) })
	return d
}

func closeDriver(t testing.TB, d driver.Driver) {
	if c, ok := d.(interface{ Close() error }); ok {
		if err := c.Close(); err != nil {
			t.Errorf("close driver: %v", err)
		}
	}
}

// process is one locker with a backend that can be made to fail.
type process struct {
	*locks.Locker
	*Faulty
}

func (b *bench) process() process { return b.processWith(locks.Config{}) }

// steady is a process whose leases a slow machine does not outlast and whose requests
// it does not break off, for cases that are not about the end of time. It renews as
// often as others.
func (b *bench) steady() process {
	return b.processWith(b.steadyConfig())
}

func (b *bench) steadyConfig() locks.Config {
	if b.h.Sessions { // no lease is longer than the session
		return locks.Config{TTL: b.h.TTL}
	}
	return locks.Config{
		TTL: b.lastingTTL(), RenewInterval: b.h.TTL / 3, Margin: b.h.TTL/50 + 2*time.Millisecond, RequestTimeout: 20 * time.Second,
	}
}

func (b *bench) processWith(cfg locks.Config) process {
	b.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = b.h.TTL
	}
	if cfg.ReleaseTimeout == 0 {
		cfg.ReleaseTimeout = 20 * time.Second // who gives back is in no hurry here
	}
	if cfg.Label == "" {
		b.n++
		cfg.Label = fmt.Sprintf("process-%d", b.n)
	}
	return b.processOn(b.h.New(b), cfg)
}

func (b *bench) processOn(d driver.Driver, cfg locks.Config) process {
	b.Helper()
	f := NewFaulty(d)
	l, err := locks.New(f.Driver(), cfg)
	if err != nil {
		b.Fatalf("locks.New: %v", err)
	}
	b.Cleanup(func() {
		f.Heal()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			b.Errorf("Close: %v", err)
		}
	})
	return process{l, f}
}

// within is a context that ends after d.
func (b *bench) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	b.Cleanup(cancel)
	return ctx
}

// patience is long enough for anything that should happen at all.
func (b *bench) patience() time.Duration { return 10*b.h.TTL + 10*time.Second }

func (b *bench) try(p process, key string, opts ...locks.Option) *locks.Lease {
	b.Helper()
	ask := p.TryAcquire
	if b.h.Votes {
		ask = p.Acquire
	}
	lease, err := ask(b.within(b.patience()), key, opts...)
	if err != nil {
		b.Fatalf("TryAcquire: %v", err)
	}
	return lease
}

func (b *bench) acquire(p process, key string, opts ...locks.Option) *locks.Lease {
	b.Helper()
	lease, err := p.Acquire(b.within(b.patience()), key, opts...)
	if err != nil {
		b.Fatalf("Acquire: %v", err)
	}
	return lease
}

func (b *bench) release(lease *locks.Lease) {
	b.Helper()
	if err := lease.Release(context.Background()); err != nil {
		b.Fatalf("Release: %v", err)
	}
}

func (b *bench) wantHeld(err error) {
	b.Helper()
	if !errors.Is(err, locks.ErrHeld) || errors.Is(err, locks.ErrUnavailable) {
		b.Fatalf("error = %v, want held", err)
	}
}

func (b *bench) wantLost(lease *locks.Lease, within time.Duration, reason locks.Reason) {
	b.Helper()
	select {
	case <-lease.Done():
	case <-b.within(within).Done():
		b.Fatalf("the holder was not told within %v", within)
	}
	var lost *locks.LostError
	if err := lease.Err(); !errors.As(err, &lost) || lost.Reason != reason {
		b.Fatalf("Err = %v, want reason %q", err, reason)
	}
}

// sleep lets time pass, which is what some cases are about.
func (b *bench) sleep(d time.Duration) {
	t := time.NewTimer(d) // not within: what it leaves for the end of the case would count as a leak
	<-t.C
}

// request is an acquire for a driver.
func (b *bench) request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: b.h.TTL, Label: "label of " + b.run}
}

// lasting is a request of a grant that a slow machine does not outlast.
func (b *bench) lasting(key string) driver.Request {
	r := b.request(key)
	r.TTL = b.lastingTTL()
	return r
}

func (b *bench) lastingTTL() time.Duration { return max(20*b.h.TTL, time.Minute) }

// grantAfter asks until an earlier grant has ended: a backend may be late with that.
func (b *bench) grantAfter(d driver.Driver, r driver.Request) driver.Hold {
	b.Helper()
	for end := time.Now().Add(b.patience()); ; b.sleep(b.h.TTL / 50) {
		g, err := d.Acquire(b.within(b.patience()), r)
		if err == nil {
			h := driver.Hold{Request: r, Fence: g.Fence}
			if b.h.Sessions && r.TTL == b.lastingTTL() {
				b.keep(d, h)
			}
			return h
		}
		var held *driver.HeldError
		if !errors.As(err, &held) || time.Now().After(end) {
			b.Fatalf("driver Acquire of %q: %v", r.Key, err)
		}
	}
}

// overdue is closed when timers that were due at t have fired for certain: whoever
// asks it blames nobody for what a starved machine has not come to yet.
func (b *bench) overdue(t time.Time, after time.Duration) <-chan struct{} {
	due := make(chan struct{})
	second := func() { time.AfterFunc(after/2, func() { close(due) }) }
	time.AfterFunc(time.Until(t)+after/2, second)
	return due
}

// grant asks a driver and insists.
func (b *bench) grant(d driver.Driver, r driver.Request) driver.Hold {
	b.Helper()
	g, err := d.Acquire(b.within(b.patience()), r)
	if err != nil {
		b.Fatalf("driver Acquire of %q: %v", r.Key, err)
	}
	if g.Fence < 1 {
		b.Fatalf("fence = %d, want at least 1", g.Fence)
	}
	h := driver.Hold{Request: r, Fence: g.Fence}
	if b.h.Sessions && r.TTL == b.lastingTTL() {
		b.keep(d, h)
	}
	return h
}

// keep renews a hold until the function is called or the case ends: what a session
// lends is not for longer than the session.
func (b *bench) keep(d driver.Driver, h driver.Hold) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	end = func() { cancel(); renewing.Wait() }
	b.Cleanup(end)
	renewing.Go(func() {
		tick := time.NewTicker(b.h.TTL / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = d.Renew(ctx, h) // a loss shows when it is given back
			}
		}
	})
	return end
}

// refused asks a driver and wants to hear who holds the key.
func (b *bench) refused(d driver.Driver, r driver.Request) *driver.HeldError {
	b.Helper()
	_, err := d.Acquire(b.within(b.patience()), r)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		b.Fatalf("driver Acquire of %q = %v, want a HeldError", r.Key, err)
	}
	return held
}

func (b *bench) wantReleased(d driver.Driver, h driver.Hold, want driver.Released) {
	b.Helper()
	got, err := d.Release(b.within(b.patience()), h)
	if err != nil || got != want {
		b.Fatalf("driver Release = %v, %v; want %v", got, err, want)
	}
}

func (b *bench) wantRenewal(d driver.Driver, h driver.Hold, want error) {
	b.Helper()
	if _, err := d.Renew(b.within(b.patience()), h); !errors.Is(err, want) || want == nil && err != nil {
		b.Fatalf("driver Renew = %v, want %v", err, want)
	}
}
