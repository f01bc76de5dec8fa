package lockstest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/locks"
)

// faultCases are what the portable lock does when requests to this backend fail.
var faultCases = []testCase{
	testCase{name: "fault/an acquire of unknown outcome is settled", run: unknownAcquire}.asLong(),
	testCase{name: "fault/an acquire that stays unknown leaves nothing", run: acquireStaysUnknown}.asLong(),
	testCase{name: "fault/one failed renewal ends nothing", run: failedRenewal}.asLong(),
	testCase{name: "fault/a release of unknown outcome is settled", run: unknownRelease}.asLong(),
	testCase{name: "fault/a release that stays unknown is repeated", run: releaseStaysUnknown}.asLong(),
	testCase{name: "fault/a cut-off holder is told before another is let in", run: cutOffHolder}.asLong(),
	testCase{name: "fault/a cut-off caller hears unavailable, within a bound", run: cutOffCaller}.asLong(),
	testCase{name: "fault/a holder on a silent connection is told before another is let in", run: silencedHolder}.withProxy(),
	testCase{name: "fault/a paused holder's writes are refused", run: pausedHolder}.asLong(),
	testCase{name: "fault/release after expiry takes one request", run: releaseAfterExpiry}.asLong(),
}

// once is each way in which one request can fail.
var once = []Fault{
	{Kind: Refuse, Times: 1},
	{Kind: ErrorBefore, Times: 1},
	{Kind: ErrorAfter, Times: 1},
	{Kind: BlackHole, Times: 1},
	{Kind: Swallow, Times: 1},
}

// failing is a process whose leases last, and whose requests end soon.
func (b *bench) failing(cfg locks.Config) process {
	b.Helper()
	cfg.TTL, cfg.RequestTimeout = max(b.h.TTL, 5*time.Minute), b.h.TTL/2
	return b.processWith(cfg)
}

// slow is what a starved machine may add to a bound that keeps a call from hanging.
const slow = 15 * time.Second

func unknownAcquire(b *bench) {
	p, other := b.failing(locks.Config{}), b.steady()
	for _, fault := range once {
		if fault.Kind == Refuse {
			continue // known, and not settled by a repeat
		}
		key := b.key("k")
		p.Arm(Acquire, fault)
		lease := b.try(p, key)
		if left := time.Until(lease.ValidUntil()); !b.h.Sessions && left < p.Config().TTL/2 {
			b.Errorf("kind %d: %v left right after the grant", fault.Kind, left)
		}
		_, err := other.TryAcquire(b.within(b.patience()), key)
		b.wantHeld(err)
		b.release(lease)
		b.release(b.try(other, key))
	}
}

func acquireStaysUnknown(b *bench) {
	// Its TTL is so long that only the reaper can free the key in time.
	p, other := b.failing(locks.Config{}), b.steady()
	for _, kind := range []Kind{ErrorBefore, ErrorAfter, BlackHole, Swallow} {
		key := b.key("k")
		p.Arm(Acquire, Fault{Kind: kind})
		_, err := p.TryAcquire(b.within(b.patience()), key)
		if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
			b.Fatalf("kind %d: TryAcquire = %v", kind, err)
		}
		p.Heal()
		b.release(b.acquire(other, key))
		b.release(b.acquire(p, key))
	}
}

func failedRenewal(b *bench) {
	other := b.steady()
	leases := make([]*locks.Lease, len(once))
	ttl := 3 * b.h.TTL // leaves a slow machine the time for another renewal
	for i, fault := range once {
		p := b.processWith(locks.Config{TTL: ttl, RenewInterval: ttl / 4})
		leases[i] = b.acquire(p, b.key(fmt.Sprint(i)))
		p.Arm(Renew, fault)
	}
	for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); b.sleep(b.h.TTL / 5) {
		for _, lease := range leases {
			_, err := other.TryAcquire(b.within(b.patience()), lease.Key())
			b.wantHeld(err)
		}
	}
	for i, lease := range leases {
		if err := lease.Err(); err != nil {
			b.Errorf("kind %d: lost after one failed renewal: %v", once[i].Kind, err)
			continue
		}
		b.release(lease)
	}
}

func unknownRelease(b *bench) {
	p, other := b.failing(locks.Config{}), b.steady()
	for _, fault := range once {
		lease := b.acquire(p, b.key("k"))
		p.Arm(Release, fault)
		b.release(lease)
		b.release(b.try(other, lease.Key()))
	}
}

func releaseStaysUnknown(b *bench) {
	cfg := locks.Config{ReleaseTimeout: b.h.TTL / 2}
	p, other := b.failing(cfg), b.steady()
	for _, kind := range []Kind{Refuse, ErrorBefore, ErrorAfter, BlackHole, Swallow} {
		lease := b.acquire(p, b.key("k"))
		p.Arm(Release, Fault{Kind: kind})
		start := time.Now()
		err := lease.Release(context.Background())
		if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrLost) {
			b.Fatalf("kind %d: Release = %v", kind, err)
		}
		if took := time.Since(start); took > cfg.ReleaseTimeout+slow {
			b.Errorf("kind %d: Release took %v", kind, took)
		}
		p.Heal()
		b.release(b.acquire(other, lease.Key()))
	}
}

func cutOffHolder(b *bench) {
	other := b.steady()
	for _, kind := range []Kind{BlackHole, Deaf, Refuse, ErrorBefore} {
		p := b.processWith(b.wideMargin())
		lease := b.acquire(p, b.key("k"))
		work, cancel := lease.Context(context.Background())
		p.Arm(Renew, Fault{Kind: kind})
		b.toldBefore(other, lease, locks.ReasonUnavailable)
		if cause := context.Cause(work); !errors.Is(cause, locks.ErrLost) {
			b.Errorf("kind %d: cause = %v", kind, cause)
		}
		cancel()
		p.Heal()
		b.release(b.acquire(p, lease.Key())) // the same object gets it again
	}
}

// wideMargin has a margin for a test machine that is busy with other things.
func (b *bench) wideMargin() locks.Config {
	return locks.Config{TTL: b.h.TTL, Margin: b.h.TTL * 7 / 20, RenewInterval: b.h.TTL / 5}
}

// toldBefore lets other look for the key as often as it can: when it gets it, the
// lease must be over by its holder's clock, and the holder be told, as soon as a
// timer of this process fires.
func (b *bench) toldBefore(other process, lease *locks.Lease, why locks.Reason) {
	b.Helper()
	end := time.Now().Add(b.patience())
	var until time.Time
	var overdue <-chan struct{}
	for {
		if t := lease.ValidUntil(); !t.Equal(until) { // a renewal was on its way
			until, overdue = t, b.overdue(t, 5*time.Second)
		}
		next, err := other.TryAcquire(b.within(b.patience()), lease.Key())
		if err == nil {
			if lease.Valid() {
				b.Fatalf("two holders: the lease of the first lasts for another %v", time.Until(lease.ValidUntil()))
			}
			select {
			case <-lease.Done():
			case <-overdue:
				if lease.Err() == nil {
					b.Fatal("two holders: the first has not been told that its lease is over")
				}
			}
			b.release(next)
			break
		}
		b.wantHeld(err)
		if time.Now().After(end) {
			b.Fatal("a holder that was cut off kept the key")
		}
		b.sleep(b.h.TTL / 200)
	}
	b.wantLost(lease, b.patience(), why)
}

func silencedHolder(b *bench) {
	d, cut, heal := b.h.Proxied(b)
	b.Cleanup(heal)
	p := b.processOn(d, b.wideMargin())
	lease := b.acquire(p, b.key("k"))
	b.sleep(b.h.TTL)
	if err := lease.Err(); err != nil {
		b.Fatalf("lost over a healthy connection: %v", err)
	}
	cut()
	why := locks.ReasonUnavailable
	if b.h.Transactions {
		why = locks.ReasonNotOurs // a connection that is given up ends it for certain
	}
	b.toldBefore(b.steady(), lease, why)
	start := time.Now()
	if _, err := p.TryAcquire(context.Background(), lease.Key()); !errors.Is(err, locks.ErrUnavailable) {
		b.Errorf("TryAcquire over a silent connection = %v", err)
	}
	if took, bound := time.Since(start), 2*p.Config().RequestTimeout+slow; took > bound {
		b.Errorf("TryAcquire took %v, want at most %v", took, bound)
	}
	heal()
	b.release(b.acquire(p, lease.Key()))
}

func cutOffCaller(b *bench) {
	p, other := b.processWith(locks.Config{ReleaseTimeout: time.Second}), b.steady()
	lease := b.acquire(p, b.key("mine"))
	theirs := b.try(other, b.key("theirs"))
	p.Cut()
	for _, key := range []string{theirs.Key(), b.key("free")} {
		start := time.Now()
		_, err := p.TryAcquire(context.Background(), key)
		if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("TryAcquire = %v, want unavailable and nothing else", err)
		}
		if took, bound := time.Since(start), 2*p.Config().RequestTimeout+slow; took > bound {
			b.Errorf("TryAcquire took %v, want at most %v", took, bound)
		}
		ctx, cancel := context.WithTimeout(context.Background(), b.h.TTL/20)
		start = time.Now()
		if _, err := p.Acquire(ctx, key); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locks.ErrUnavailable) {
			b.Errorf("Acquire with a deadline = %v", err)
		}
		cancel()
		if took := time.Since(start); took > b.h.TTL/20+slow {
			b.Errorf("Acquire took %v after its context's %v", took, b.h.TTL/20)
		}
	}
	start := time.Now()
	if err := lease.Release(context.Background()); err == nil {
		b.Error("Release of a silent backend went well")
	}
	if took := time.Since(start); took > p.Config().ReleaseTimeout+slow {
		b.Errorf("Release took %v", took)
	}
	if _, err := p.List(context.Background(), "", 1); !errors.Is(err, locks.ErrUnavailable) && !errors.Is(err, locks.ErrUnsupported) {
		b.Errorf("List = %v", err)
	}
	p.Heal()
	b.release(b.acquire(p, lease.Key()))
	_, err := b.steady().TryAcquire(b.within(b.patience()), theirs.Key())
	b.wantHeld(err)
	b.release(theirs)
}

func pausedHolder(b *bench) {
	p, other := b.process(), b.steady()
	var high int64
	write := func(fence int64) bool {
		ok := fence >= high
		high = max(high, fence)
		return ok
	}
	stale := b.acquire(p, b.key("k"))
	if !write(stale.Fence()) {
		b.Fatal("the holder's write was refused")
	}
	p.Arm(Renew, Fault{Kind: Deaf}) // as if all of it stood still
	fresh := b.acquire(other, stale.Key())
	if !write(fresh.Fence()) {
		b.Error("the new holder's write was refused")
	}
	p.Heal()
	if write(stale.Fence()) {
		b.Errorf("the stale holder's write passed: fence %d after %d", stale.Fence(), fresh.Fence())
	}
	if stale.Token() == fresh.Token() {
		b.Error("the stale handle shows the new token")
	}
	b.release(fresh)
}

func releaseAfterExpiry(b *bench) {
	p, other := b.process(), b.steady()
	lease := b.acquire(p, b.key("k"))
	p.Arm(Renew, Fault{Kind: Refuse})
	next := b.acquire(other, lease.Key())
	p.Heal()
	before := p.Calls(Release)
	var re *locks.ReleaseError
	if err := lease.Release(context.Background()); !errors.As(err, &re) || re.Outcome != locks.ReleasedOther || !errors.Is(err, locks.ErrLost) {
		b.Errorf("Release = %v, want that another holds it", err)
	}
	if n := p.Calls(Release) - before; n != 1 {
		b.Errorf("%d release requests, want 1", n)
	}
	third := b.steady()
	_, err := third.TryAcquire(b.within(b.patience()), lease.Key())
	b.wantHeld(err)
	if !next.Valid() {
		b.Errorf("the next holder was disturbed: %v", next.Err())
	}
	b.release(next)
}
