package lockstest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/locks"
)

// sharingCases are re-entry, permits and checks on this backend.
var sharingCases = []testCase{
	{name: "locker/handles that share a client exclude each other", run: handlesOnOneClient},
	{name: "locker/re-entry counts, and gives back once", run: reentry},
	{name: "locker/a forced release fences the holder", run: forcedReleaseFences},
	{name: "locker/a semaphore lets n in", run: semaphore},
	{name: "locker/a check asks the backend", run: checks},
}

// Two handles of one process on one client or session are two holders: one at a time
// has the key, and what one gives back is its own (etcd-io/etcd 11360).
func handlesOnOneClient(b *bench) {
	d, cfg := b.driver(), b.steadyConfig()
	cfg.ReleaseTimeout = 20 * time.Second
	first, second := b.processOn(noClose{d}, cfg), b.processOn(noClose{d}, cfg)
	lease := b.try(first, b.key("k"))
	_, err := second.TryAcquire(b.within(b.patience()), lease.Key())
	b.wantHeld(err)
	b.release(lease)
	next := b.try(second, lease.Key())
	if next.Fence() <= lease.Fence() {
		b.Errorf("fence went from %d to %d", lease.Fence(), next.Fence())
	}
	b.release(lease) // again: it is not the first one's any more
	if err := next.Check(b.within(b.patience())); err != nil {
		b.Errorf("the second one lost it by the first one's release: %v", err)
	}
	_, err = first.TryAcquire(b.within(b.patience()), lease.Key())
	b.wantHeld(err)
	b.release(next)
	b.release(b.try(first, lease.Key()))
}

func reentry(b *bench) {
	p, other := b.steady(), b.steady()
	outer := b.try(p, b.key("k"))
	ctx := locks.ContextWith(b.within(b.patience()), outer)
	for range 3 {
		err := p.Do(ctx, outer.Key(), func(_ context.Context, inner *locks.Lease) error {
			if inner.Fence() != outer.Fence() {
				b.Errorf("fence %d inside of %d", inner.Fence(), outer.Fence())
			}
			return nil
		})
		if err != nil {
			b.Fatalf("Do: %v", err)
		}
		_, err = other.TryAcquire(ctx, outer.Key())
		b.wantHeld(err)
		_, err = p.TryAcquire(b.within(b.patience()), outer.Key())
		b.wantHeld(err)
	}
	if n := p.Calls(Acquire) + p.Calls(Release); n != 1 {
		b.Errorf("%d requests to acquire and release while it is held, want 1", n)
	}
	b.release(outer)
	b.release(b.try(other, outer.Key()))
}

func forcedReleaseFences(b *bench) {
	p, operator := b.steady(), b.steady()
	lease := b.try(p, b.key("k"), locks.OnLoss(locks.Continue))
	work, cancel := lease.Context(context.Background())
	defer cancel()
	if _, err := operator.ForceRelease(b.within(b.patience()), lease.Key()); errors.Is(err, locks.ErrUnsupported) {
		b.Skip("the driver cannot force a release")
	} else if err != nil {
		b.Fatal(err)
	}
	b.wantLost(lease, b.patience(), locks.ReasonNotOurs)
	if err := lease.Check(b.within(b.patience())); !errors.Is(err, locks.ErrLost) {
		b.Errorf("Check of the holder thrown out = %v", err)
	}
	if work.Err() != nil {
		b.Errorf("the work that continues was broken off: %v", context.Cause(work))
	}
	next := b.try(operator, lease.Key())
	if next.Fence() <= lease.Fence()+1 {
		b.Errorf("fence went from %d to %d: a forced release raises it by itself", lease.Fence(), next.Fence())
	}
	b.release(next)
	if err := lease.Release(context.Background()); !errors.Is(err, locks.ErrLost) {
		b.Errorf("Release = %v", err)
	}
}

func semaphore(b *bench) {
	const n, each = 3, 3
	var inside, most, served atomic.Int32
	var wg sync.WaitGroup
	var one *locks.Semaphore
	for range 3 {
		s, err := locks.NewSemaphore(b.steady().Locker, b.key("sem"), n)
		if err != nil {
			b.Fatal(err)
		}
		one = s
		for range 2 {
			wg.Go(func() {
				for range each {
					permit, err := s.Acquire(b.within(10 * b.patience()))
					if err != nil {
						b.Errorf("Acquire: %v", err)
						return
					}
					now := inside.Add(1)
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					b.sleep(b.h.TTL / 20)
					inside.Add(-1)
					served.Add(1)
					if err := permit.Release(context.Background()); err != nil {
						b.Errorf("Release: %v", err)
					}
					_ = permit.Release(context.Background()) // frees nobody else's
				}
			})
		}
	}
	wg.Wait()
	if most.Load() > n || served.Load() != 3*2*each {
		b.Errorf("%d inside of a semaphore of %d; %d served", most.Load(), n, served.Load())
	}
	// All of them come back, one that was granted to a waiter who had another already
	// perhaps a request later, and none only when its lease ends.
	for range n {
		permit, err := one.Acquire(b.within(b.patience()))
		if err != nil {
			b.Fatalf("Acquire: %v", err)
		}
		defer b.release(permit)
	}
	_, err := one.TryAcquire(b.within(b.patience()))
	b.wantHeld(err)
}

func checks(b *bench) {
	p := b.failing(locks.Config{})
	lease := b.acquire(p, b.key("k"), locks.OnLoss(locks.Checkpoint))
	if err := lease.Check(b.within(b.patience())); err != nil {
		b.Fatalf("Check: %v", err)
	}
	p.Arm(Renew, Fault{Kind: BlackHole, Times: 1})
	start := time.Now()
	if err := lease.Check(context.Background()); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrLost) {
		b.Errorf("Check without an answer = %v", err)
	}
	if took := time.Since(start); took > p.Config().RequestTimeout+slow {
		b.Errorf("Check took %v", took)
	}
	if err := lease.Check(b.within(b.patience())); err != nil {
		b.Errorf("Check after that: %v", err)
	}
	b.release(lease)
	if err := lease.Check(context.Background()); !errors.Is(err, locks.ErrReleased) {
		b.Errorf("Check after Release = %v", err)
	}
}
