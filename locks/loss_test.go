package locks_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestLossPolicies(t *testing.T) {
	for _, policy := range []locks.LossPolicy{locks.Abort, locks.Continue, locks.Checkpoint} {
		t.Run(policy.String(), func(t *testing.T) {
			spaces(t, func(t *testing.T, space *memlock.Space) {
				p := newProcess(t, space, locks.Config{})
				lease := p.mustTry(t, "k", locks.OnLoss(policy))
				work, cancel := lease.Context(t.Context())
				defer cancel()
				if err := lease.Check(t.Context()); err != nil {
					t.Errorf("Check of a healthy lease = %v", err)
				}
				space.Delete("k")
				<-lease.Done()
				synctest.Wait()
				wantLost(t, lease.Err(), lease, locks.ReasonNotOurs)
				wantLost(t, lease.Check(t.Context()), lease, locks.ReasonNotOurs)
				late, cancelLate := lease.Context(t.Context())
				defer cancelLate()
				for _, ctx := range []context.Context{work, late} {
					if goesOn := ctx.Err() == nil; goesOn != (policy != locks.Abort) {
						t.Errorf("the context goes on: %v", goesOn)
					}
				}
				mustRelease(t, p.mustTry(t, "k")) // free for others of this process
				_ = lease.Release(t.Context())
				for _, ctx := range []context.Context{work, late} {
					wantLost(t, context.Cause(ctx), lease, locks.ReasonNotOurs)
				}
			})
		})
	}
	l, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	if _, err := l.TryAcquire(t.Context(), "k", locks.OnLoss(7)); !errors.Is(err, locks.ErrInvalid) {
		t.Errorf("an unknown policy: %v", err)
	}
}

func TestDoThatContinuesIsToldInTheEnd(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		p := newProcess(t, space, locks.Config{})
		var lease *locks.Lease
		err := p.Do(t.Context(), "k", func(ctx context.Context, l *locks.Lease) error {
			lease = l
			space.Delete("k")
			time.Sleep(3 * ttl)
			return ctx.Err()
		}, locks.OnLoss(locks.Continue))
		wantLost(t, err, lease, locks.ReasonNotOurs)
		if errors.Is(err, context.Canceled) {
			t.Error("the work was broken off")
		}
	})
}

func TestCloseEndsContextsThatOutliveTheirLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		lease := p.mustTry(t, "k", locks.OnLoss(locks.Continue))
		work, cancel := lease.Context(t.Context())
		defer cancel()
		space.Delete("k")
		<-lease.Done()
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(work); !errors.Is(cause, locks.ErrClosed) {
			t.Errorf("cause = %v", cause)
		}
	})
}

func TestCheckAsksTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		lease := p.mustTry(t, "k", locks.OnLoss(locks.Checkpoint))
		time.Sleep(time.Second)
		until := lease.ValidUntil()
		if err := lease.Check(t.Context()); err != nil || !lease.ValidUntil().After(until) {
			t.Errorf("Check = %v, renewed %v", err, lease.ValidUntil().After(until))
		}
		if n := p.faults.Calls(lockstest.Renew); n != 1 {
			t.Errorf("%d requests for a check, want 1", n)
		}

		// No answer is no loss.
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.BlackHole, Times: 1})
		start := time.Now()
		if err := lease.Check(t.Context()); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrLost) {
			t.Errorf("Check of a silent backend = %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("Check took %v", took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Check(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Check with an ended context = %v", err)
		}
		if lease.Err() != nil {
			t.Fatalf("lost: %v", lease.Err())
		}

		// Many that ask while one request is under way share the next.
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Delay, Delay: 100 * time.Millisecond})
		before := p.faults.Calls(lockstest.Renew)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := lease.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := p.faults.Calls(lockstest.Renew) - before; n > 3 {
			t.Errorf("%d requests for ten checks at once", n)
		}
		p.faults.Heal()

		// The server knows of a loss before the next renewal does.
		space.Delete("k")
		wantLost(t, lease.Check(t.Context()), lease, locks.ReasonNotOurs)
		wantLost(t, lease.Err(), lease, locks.ReasonNotOurs)

		gone := p.mustTry(t, "k")
		mustRelease(t, gone)
		if err := gone.Check(t.Context()); !errors.Is(err, locks.ErrReleased) {
			t.Errorf("Check after Release = %v", err)
		}
	})
}

func TestReleaseWaitsForACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Delay, Delay: 500 * time.Millisecond})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := lease.Check(t.Context()); !errors.Is(err, locks.ErrReleased) {
				t.Errorf("Check = %v", err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		mustRelease(t, lease)
		if took := time.Since(start); took != 400*time.Millisecond {
			t.Errorf("the release was sent %v after the renewal", took)
		}
		wg.Wait()
	})
}

func TestPushedLossIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := &memlock.Space{PushLoss: true}
		p, err := locks.New(memlock.NewDriver(space), locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		goroutines := runtime.NumGoroutine()
		leases := make(map[string]*locks.Lease)
		for _, key := range keys(1000) {
			if leases[key], err = p.TryAcquire(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if n := runtime.NumGoroutine() - goroutines; n > 64 {
			t.Errorf("%d goroutines for 1,000 watched leases", n)
		}
		start := time.Now()
		for key, lease := range leases {
			space.Delete(key)
			<-lease.Done()
			wantLost(t, lease.Err(), lease, locks.ReasonNotOurs)
			// Its place may be taken at once.
			if leases[key], err = p.TryAcquire(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("told after %v", took)
		}
		for _, lease := range leases {
			mustRelease(t, lease)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - goroutines; n > 64 { // not all need be this test's
			t.Errorf("%d goroutines watch nothing", n)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
