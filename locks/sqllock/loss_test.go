package sqllock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

func locker(t *testing.T, d driver.Driver, cfg locks.Config) *locks.Locker {
	t.Helper()
	l, err := locks.New(d, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// told returns when a lease's context ended.
func told(lease *locks.Lease) <-chan time.Time {
	at := make(chan time.Time, 1)
	work, cancel := lease.Context(context.Background())
	go func() {
		defer cancel()
		<-work.Done()
		at <- time.Now()
	}()
	return at
}

// next waits until another process has the key, and tells when it had.
func next(t *testing.T, l *locks.Locker, key string) (*locks.Lease, time.Time) {
	t.Helper()
	ctx, cancel := contextWithin(t, time.Minute)
	defer cancel()
	lease, err := l.Acquire(ctx, key)
	got := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	return lease, got
}

// each runs f for every kind of server and mode of leases, side by side: they wait
// most of the time.
func each(t *testing.T, f func(t *testing.T, p *place, mode sqllock.Mode)) {
	var all sync.WaitGroup
	for _, kind := range places {
		for _, mode := range modes {
			all.Go(func() {
				t.Run(kind.name+"/"+string(mode), func(t *testing.T) { f(t, kind.shared(t), mode) })
			})
		}
	}
	all.Wait()
}

// A holder that cannot reach the server is told before anybody else is let in.
func TestLossByTimeIsToldFirst(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	faults := map[string]func(*faultproxy.Proxy){
		"silence":    func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"no answers": func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToClient) },
		"delay":      func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, 2*ttl) },
		"reset":      func(p *faultproxy.Proxy) { p.Refuse(); p.Reset() },
	}
	each(t, func(t *testing.T, p *place, mode sqllock.Mode) {
		// A margin for a test machine that is busy with other things.
		cfg := locks.Config{TTL: ttl, Margin: ttl * 7 / 20, RenewInterval: ttl / 5, Poll: 20 * time.Millisecond}
		d := p.driver(t, p.addr, mode)
		warm(t, d)
		other := locker(t, d, cfg)
		type held struct {
			name  string
			lease *locks.Lease
			told  <-chan time.Time
			proxy *faultproxy.Proxy
		}
		var all []held
		for name := range faults {
			proxy := faultproxy.Start(t, p.addr)
			d := p.driver(t, proxy.Addr(), mode)
			warm(t, d)
			l := locker(t, d, cfg)
			t.Cleanup(proxy.Pass) // before the locker is closed
			lease, err := l.TryAcquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, held{name, lease, told(lease), proxy})
		}
		for _, h := range all {
			faults[h.name](h.proxy)
		}
		results := make(chan string, len(all))
		for _, h := range all {
			go func() {
				ctx, cancel := contextWithin(t, time.Minute)
				defer cancel()
				lease, err := other.Acquire(ctx, h.name)
				got := time.Now()
				if err != nil {
					t.Errorf("%s: %v", h.name, err)
					results <- h.name
					return
				}
				margin := got.Sub(<-h.told)
				if margin <= 0 || h.lease.Valid() {
					t.Errorf("%s: told %v after the next holder had the key", h.name, -margin)
				}
				if lease.Fence() <= h.lease.Fence() {
					t.Errorf("%s: fence %d after %d", h.name, lease.Fence(), h.lease.Fence())
				}
				var lost *locks.LostError
				if !errors.As(h.lease.Err(), &lost) || lost.Reason != locks.ReasonUnavailable {
					t.Errorf("%s: lost by %v", h.name, h.lease.Err())
				}
				results <- fmt.Sprintf("%s: told %v before the next holder", h.name, margin.Round(time.Millisecond))
			}()
		}
		for range all {
			t.Log(<-results)
		}
	})
}

// What the server does to a lease is told within one renewal interval; the overlap
// until then is what the fence is for.
func TestLossByTheServerIsToldAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	faults := []struct {
		name string
		do   func(t *testing.T, p *place, mode sqllock.Mode, other driver.Driver, key string)
	}{
		{"row deleted", func(t *testing.T, p *place, mode sqllock.Mode, _ driver.Driver, key string) {
			p.deleteRow(t, key)
			if mode == sqllock.ModeAdvisory {
				p.endSessionLock(t, key)
			}
		}},
		{"forced release", func(t *testing.T, _ *place, _ sqllock.Mode, other driver.Driver, key string) {
			if out, err := other.(driver.Inspector).ForceRelease(t.Context(), key); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		}},
	}
	each(t, func(t *testing.T, p *place, mode sqllock.Mode) {
		cfg := locks.Config{TTL: ttl, Poll: 10 * time.Millisecond}
		d, od := p.driver(t, p.addr, mode), p.driver(t, p.addr, mode)
		warm(t, d)
		warm(t, od)
		l, other := locker(t, d, cfg), locker(t, od, cfg)
		for _, fault := range faults {
			lease, err := l.TryAcquire(t.Context(), fault.name)
			if err != nil {
				t.Fatal(err)
			}
			at := told(lease)
			fault.do(t, p, mode, od, fault.name)
			gone := time.Now()
			newer, got := next(t, other, fault.name)
			when := <-at
			t.Logf("%s: told after %v, overlap %v", fault.name, when.Sub(gone).Round(time.Millisecond), when.Sub(got).Round(time.Millisecond))
			// An interval is TTL/3, spread by a tenth; the rest is for a busy machine.
			if late := when.Sub(gone); late > ttl {
				t.Errorf("%s: told after %v", fault.name, late)
			}
			if newer.Fence() <= lease.Fence() {
				t.Errorf("%s: fence %d after %d", fault.name, newer.Fence(), lease.Fence())
			}
			if err := newer.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A connection that is killed, or a server that starts again, ends no lease.
func TestLeaseOutlivesConnectionsAndServer(t *testing.T) {
	t.Parallel()
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			p, server := kind.own(t)
			for _, mode := range modes {
				t.Run(string(mode), func(t *testing.T) { outlives(t, p, mode, server) })
			}
		})
	}
}

func outlives(t *testing.T, p *place, mode sqllock.Mode, server *testenv.Server) {
	// Long enough for a server to come back.
	cfg := locks.Config{TTL: 15 * time.Second, RenewInterval: 200 * time.Millisecond, RequestTimeout: time.Second}
	d, od := p.driver(t, p.addr, mode), p.driver(t, p.addr, mode)
	warm(t, d)
	l := locker(t, d, cfg)
	key := "outlives-" + string(mode)
	lease, err := l.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	other := locker(t, od, cfg)
	for _, fault := range []func(){
		func() { p.endConnections(t) },
		func() {
			server.Kill()
			server.Restart()
			p.forgetConnections(t)
		},
	} {
		fault()
		if mode == sqllock.ModeAdvisory { // it takes its session lock again
			wait, cancel := contextWithin(t, 30*time.Second)
			for serverLocks(t, p, key) != 1 {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-wait.Done():
					t.Fatal("no session lock any more")
				}
			}
			cancel()
		}
		renewed := lease.ValidUntil()
		wait, cancel := contextWithin(t, 30*time.Second)
		for !lease.ValidUntil().After(renewed) {
			if _, err := other.TryAcquire(wait, key); !errors.Is(err, locks.ErrHeld) && !errors.Is(err, locks.ErrUnavailable) {
				t.Fatalf("acquire by another: %v", err)
			}
		}
		cancel()
		if err := lease.Err(); err != nil {
			t.Errorf("the lease: %v", err)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// forgetConnections has the administrator connect anew.
func (p *place) forgetConnections(t testing.TB) {
	t.Helper()
	pool, err := p.admin.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxIdleConns(-1)
	pool.SetMaxIdleConns(1)
	if err := pool.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
}
