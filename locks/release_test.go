package locks_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

// world is two processes, and a lease of the first.
type world struct {
	space *memlock.Space
	a, b  *process
	lease *locks.Lease
}

func TestReleaseOutcomes(t *testing.T) {
	fault := func(m lockstest.Method, k lockstest.Kind, times int) func(*testing.T, world) {
		return func(_ *testing.T, w world) { w.a.faults.Arm(m, lockstest.Fault{Kind: k, Times: times}) }
	}
	take := func(t *testing.T, w world) {
		w.space.Delete("k")
		w.b.mustTry(t, "k")
	}
	for name, c := range map[string]struct {
		before  func(*testing.T, world)
		is      error // nil for a release that went well
		outcome driver.Released
		within  time.Duration
		free    bool
	}{
		"held":                  {before: func(*testing.T, world) {}, free: true},
		"deleted by hand":       {before: func(_ *testing.T, w world) { w.space.Delete("k") }, is: locks.ErrLost, outcome: driver.ReleasedGone, free: true},
		"taken by another":      {before: take, is: locks.ErrLost, outcome: driver.ReleasedOther},
		"lost, then taken":      {before: func(t *testing.T, w world) { take(t, w); <-w.lease.Done() }, is: locks.ErrLost, outcome: driver.ReleasedOther},
		"answer lost":           {before: fault(lockstest.Release, lockstest.Swallow, 1), within: time.Second, free: true},
		"executed but error":    {before: fault(lockstest.Release, lockstest.ErrorAfter, 1), within: time.Second, free: true},
		"not executed":          {before: fault(lockstest.Release, lockstest.ErrorBefore, 2), within: time.Second, free: true},
		"refused":               {before: fault(lockstest.Release, lockstest.Refuse, 2), within: time.Second, free: true},
		"silent":                {before: fault(lockstest.Release, lockstest.BlackHole, 0), is: locks.ErrUnavailable, within: time.Second},
		"silent, then answered": {before: fault(lockstest.Release, lockstest.BlackHole, 3), is: locks.ErrUnavailable, within: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				space := new(memlock.Space)
				w := world{space: space, a: newProcess(t, space, locks.Config{}), b: newProcess(t, space, locks.Config{})}
				w.lease = w.a.mustTry(t, "k")
				c.before(t, w)
				ended, cancel := context.WithCancel(t.Context())
				cancel() // Release must not need it
				start := time.Now()
				err := w.lease.Release(ended)
				took := time.Since(start)
				if again := w.lease.Release(t.Context()); !errors.Is(again, err) && again != err {
					t.Errorf("second Release = %v, first %v", again, err)
				}
				if took > c.within {
					t.Errorf("took %v, want at most %v", took, c.within)
				}
				var re *locks.ReleaseError
				switch {
				case c.is == nil && err != nil:
					t.Errorf("Release = %v", err)
				case c.is != nil && (!errors.Is(err, c.is) || !errors.As(err, &re) || re.Outcome != c.outcome):
					t.Errorf("Release = %v, want %v with outcome %v", err, c.is, c.outcome)
				case errors.Is(err, locks.ErrLost) && errors.Is(err, locks.ErrUnavailable):
					t.Errorf("Release = %v is both lost and unknown", err)
				}
				if _, err := w.b.Inspect(t.Context(), "k"); errors.Is(err, locks.ErrFree) != c.free {
					t.Errorf("Inspect = %v, want free %v", err, c.free)
				}
				if c.outcome != driver.ReleasedOther {
					time.Sleep(3 * time.Second)
					w.a.faults.Heal()
					time.Sleep(ttl)
					mustRelease(t, w.b.mustTry(t, "k"))
				}
			})
		})
	}
}

func TestReaperRepeatsAnUnknownRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{TTL: time.Hour, ReleaseTimeout: time.Second})
		lease := p.mustTry(t, "k")
		p.faults.Arm(lockstest.Release, lockstest.Fault{Kind: lockstest.Refuse})
		if err := lease.Release(t.Context()); !errors.Is(err, locks.ErrUnavailable) {
			t.Fatalf("Release = %v", err)
		}
		time.Sleep(time.Minute)
		p.faults.Heal()
		time.Sleep(20 * time.Minute)
		if n := space.Len(); n != 0 {
			t.Error("the key is still held, long before its TTL and long after the backend came back")
		}
	})
}

func TestContextsOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		type key struct{}
		parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
		first, cancelFirst := lease.Context(parent)
		second, cancelSecond := lease.Context(t.Context())
		defer cancelSecond()
		if first.Value(key{}) != 1 {
			t.Error("the child has not the parent's values")
		}
		cancelFirst()
		if !errors.Is(context.Cause(first), context.Canceled) || second.Err() != nil || !lease.Valid() {
			t.Error("cancelling one context touched the lease or another")
		}
		third, cancelThird := lease.Context(parent)
		defer cancelThird()
		cancelParent()
		if third.Err() == nil || !lease.Valid() {
			t.Error("the parent's end: child goes on, or lease does not")
		}
		mustRelease(t, lease)
		if !errors.Is(context.Cause(second), locks.ErrReleased) {
			t.Errorf("cause after release = %v", context.Cause(second))
		}
		late, cancelLate := lease.Context(t.Context())
		defer cancelLate()
		if !errors.Is(context.Cause(late), locks.ErrReleased) {
			t.Errorf("cause of a context made after the end = %v", context.Cause(late))
		}
	})
}

func TestDoKeepsTheLeaseUntilTheFunctionReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		started, returned := make(chan struct{}), false
		done := make(chan error)
		go func() {
			done <- a.Do(ctx, "k", func(ctx context.Context, lease *locks.Lease) error {
				close(started)
				<-ctx.Done()
				time.Sleep(3 * ttl) // a function that does not obey
				if !lease.Valid() {
					t.Error("the lease ended while the function drained")
				}
				returned = true
				return ctx.Err()
			})
		}()
		<-started
		time.AfterFunc(time.Second, cancel)
		lease, err := b.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if !returned {
			t.Error("the next holder started before the function had returned")
		}
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, locks.ErrLost) {
			t.Errorf("Do = %v", err)
		}
		mustRelease(t, lease)
	})
}

func TestDoAbandonsAFunctionThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{DrainTimeout: 30 * time.Second}), newProcess(t, space, locks.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		stuck := make(chan struct{})
		done := make(chan error)
		go func() {
			done <- a.Do(ctx, "k", func(context.Context, *locks.Lease) error {
				<-stuck
				return nil
			})
		}()
		synctest.Wait()
		cancel()
		start := time.Now()
		lease, err := b.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 30*time.Second || took > 30*time.Second+2*ttl {
			t.Errorf("taken over after %v", took)
		}
		close(stuck)
		if err := <-done; !errors.Is(err, locks.ErrLost) {
			t.Errorf("Do = %v, want the loss told although the function succeeded", err)
		}
		if !lease.Valid() {
			t.Error("the late return took the key from the next holder")
		}
	})
}

func TestDoTellsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		boom := errors.New("boom")
		err := p.Do(t.Context(), "k", func(ctx context.Context, lease *locks.Lease) error {
			space.Delete("k")
			<-ctx.Done()
			wantLost(t, context.Cause(ctx), lease, locks.ReasonNotOurs)
			return boom
		})
		if !errors.Is(err, boom) || !errors.Is(err, locks.ErrLost) {
			t.Errorf("Do = %v", err)
		}
		// A loss that nobody has noticed is found by the release.
		err = p.Do(t.Context(), "k", func(context.Context, *locks.Lease) error {
			space.Delete("k")
			return nil
		})
		if !errors.Is(err, locks.ErrLost) {
			t.Errorf("Do = %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = p.Do(t.Context(), "k", func(context.Context, *locks.Lease) error { panic("boom") })
		}()
		if space.Len() != 0 {
			t.Error("a panic left the key held")
		}
	})
}

// A goroutine left behind makes the bubble panic.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p, other := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		for _, k := range keys(100) {
			p.mustTry(t, k)
		}
		other.mustTry(t, "theirs")
		lease := p.mustTry(t, "work")
		ctx, cancel := lease.Context(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.Acquire(t.Context(), "theirs"); !errors.Is(err, locks.ErrClosed) {
				t.Errorf("waiting Acquire = %v", err)
			}
		})
		wg.Go(func() {
			if _, err := p.Acquire(t.Context(), "work"); !errors.Is(err, locks.ErrClosed) {
				t.Errorf("waiting Acquire = %v", err)
			}
		})
		ran := false
		wg.Go(func() {
			err := p.Do(t.Context(), "done", func(ctx context.Context, lease *locks.Lease) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), locks.ErrClosed) {
					t.Errorf("cause = %v", context.Cause(ctx))
				}
				time.Sleep(2 * ttl)
				ran = lease.Valid()
				return nil
			})
			if err != nil {
				t.Errorf("Do = %v", err)
			}
		})
		synctest.Wait()
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close = %v", err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("second Close = %v", err)
		}
		wg.Wait()
		if !ran {
			t.Error("Close did not wait for Do with the lease renewed")
		}
		if !errors.Is(context.Cause(ctx), locks.ErrReleased) {
			t.Errorf("cause = %v", context.Cause(ctx))
		}
		if _, err := p.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrClosed) {
			t.Errorf("TryAcquire = %v", err)
		}
		if _, err := p.Inspect(t.Context(), "k"); !errors.Is(err, locks.ErrClosed) {
			t.Errorf("Inspect = %v", err)
		}
		if n := space.Len(); n != 1 {
			t.Errorf("%d keys held, want only the other's", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release after Close = %v", err)
		}
	})
}

func TestCloseOfADeadBackendIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, faults := faultyLocker(t)
		for _, k := range keys(50) {
			if _, err := l.TryAcquire(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		stuck := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			err := l.Do(t.Context(), "stuck", func(context.Context, *locks.Lease) error { <-stuck; return nil })
			if !errors.Is(err, locks.ErrLost) {
				t.Errorf("Do = %v", err)
			}
		})
		synctest.Wait()
		faults.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v", err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Close took %v under a context of 2s", took)
		}
		close(stuck)
		wg.Wait()
	})
}

func faultyLocker(t *testing.T) (*locks.Locker, *lockstest.Faulty) {
	t.Helper()
	faults := lockstest.NewFaulty(memlock.NewDriver(nil))
	l, err := locks.New(faults.Driver(), locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l, faults
}
