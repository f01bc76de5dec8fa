package locks_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func inLine(t *testing.T, run func(t *testing.T, space *memlock.Space)) {
	synctest.Test(t, func(t *testing.T) { run(t, &memlock.Space{Queue: true}) })
}

func TestProcessesGetTheKeyInOrderOfArrival(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		var ps []*process
		for range 5 {
			ps = append(ps, newProcess(t, space, locks.Config{}))
		}
		lease := ps[0].mustTry(t, "k")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i, p := range ps { // the process that holds it stands in line too, as the first
			wg.Go(func() {
				next, err := p.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(3 * ttl)
				if !next.Valid() {
					t.Errorf("process %d lost it: %v", i, next.Err())
				}
				mustRelease(t, next)
			})
			synctest.Wait()
		}
		if h, err := ps[0].Inspect(t.Context(), "k"); err != nil || h.Waiters != 5 {
			t.Errorf("holder = %+v, %v; want 5 waiters", h, err)
		}
		time.Sleep(5 * ttl)
		start := time.Now()
		mustRelease(t, lease)
		wg.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
			t.Errorf("order = %v", order)
		}
		if took := time.Since(start); took != 5*3*ttl {
			t.Errorf("five turns took %v: hand-over is not at once", took)
		}
		for i, p := range ps {
			if n := p.faults.Calls(lockstest.Acquire); n > 2 {
				t.Errorf("process %d sent %d requests while it waited", i, n)
			}
		}
	})
}

func TestWaiterInLineThatGivesUp(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		a, b, c := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := b.Acquire(short, "k")
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locks.ErrHeld) || errors.Is(err, locks.ErrUnavailable) {
				t.Errorf("Acquire = %v, want held and the end of the context", err)
			}
		})
		synctest.Wait()
		var next *locks.Lease
		wg.Go(func() {
			var err error
			if next, err = c.Acquire(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(2 * time.Minute)
		if h, err := a.Inspect(t.Context(), "k"); err != nil || h.Waiters != 1 {
			t.Errorf("holder = %+v, %v; want one waiter", h, err)
		}
		if n := b.faults.Calls(lockstest.Release); n != 0 {
			t.Errorf("%d requests to settle what the driver knew", n)
		}
		mustRelease(t, lease)
		wg.Wait()
		mustRelease(t, next)
	})
}

func TestLineThatBreaks(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		var answers []error
		var wg sync.WaitGroup
		wg.Go(func() {
			next, err := b.Acquire(t.Context(), "k", locks.WithAnswers(func(err error) { answers = append(answers, err) }))
			if err != nil {
				t.Errorf("Acquire = %v", err)
				return
			}
			if left := time.Until(next.ValidUntil()); left < ttl*9/10 {
				t.Errorf("%v left right after the grant", left)
			}
			mustRelease(t, next)
		})
		for _, kind := range []lockstest.Kind{lockstest.ErrorBefore, lockstest.ErrorAfter, lockstest.Refuse} {
			time.Sleep(time.Minute)
			// The grant is lost on its way, and then the next requests fail.
			b.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.BlackHole})
			mustRelease(t, lease)
			synctest.Wait()
			time.Sleep(ttl / 2)
			b.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: kind, Times: 3})
			a.faults.Heal()
			var err error
			if lease, err = a.Acquire(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		mustRelease(t, lease)
		wg.Wait()
		if !slices.Contains(answers, nil) || !slices.ContainsFunc(answers, func(err error) bool { return errors.Is(err, locks.ErrUnavailable) }) {
			t.Errorf("answers = %v, want that it is held, and that it is unavailable", answers)
		}
		if n := space.Len(); n != 0 {
			t.Errorf("%d keys left", n)
		}
	})
}

func TestLineOfASilentBackendIsUnavailable(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		p := newProcess(t, space, locks.Config{})
		for _, kind := range []lockstest.Kind{lockstest.BlackHole, lockstest.Refuse, lockstest.ErrorAfter} {
			p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: kind})
			p.faults.Arm(lockstest.Release, lockstest.Fault{Kind: kind})
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := p.Acquire(short, "k"); !errors.Is(err, locks.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("kind %d: Acquire with a deadline = %v", kind, err)
			}
			cancel()
			start := time.Now()
			if _, err := p.Acquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
				t.Errorf("kind %d: Acquire = %v", kind, err)
			}
			if took := time.Since(start); took < ttl || took > 4*ttl {
				t.Errorf("kind %d: given up after %v", kind, took)
			}
			p.faults.Heal()
			mustRelease(t, p.mustTry(t, "k"))
		}
	})
}

// silentLine has no connection to its backend, and leaves nothing there for certain.
type silentLine struct{ driver.Driver }

func (d silentLine) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Key == "told" {
		r.Tell(nil)
	}
	if r.Key == "gone silent" {
		r.Tell(nil)
		r.Tell(errors.New("no answer"))
	}
	<-ctx.Done()
	return driver.Grant{}, driver.NotApplied(ctx.Err())
}

// Only a backend that has said so has the key held by somebody.
func TestLineThatWasNotReachedIsUnavailable(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		l, err := locks.New(silentLine{memlock.NewDriver(space)}, locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		here, err := l.TryAcquire(t.Context(), "here")
		if err != nil {
			t.Fatal(err)
		}
		for key, held := range map[string]bool{"never": false, "gone silent": false, "told": true, "here": true} {
			for _, wait := range []time.Duration{time.Second, time.Hour} {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				_, err := l.Acquire(ctx, key)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrHeld) != held || errors.Is(err, locks.ErrUnavailable) == held {
					t.Errorf("%s, for %v: %v", key, wait, err)
				}
			}
		}
		mustRelease(t, here)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestGrantFromTheLineThatIsOverOnArrival(t *testing.T) {
	for name, from := range map[string]time.Duration{"no moment": 0, "a moment too long ago": time.Minute, "a moment ago": time.Second} {
		t.Run(name, func(t *testing.T) {
			inLine(t, func(t *testing.T, space *memlock.Space) {
				d := &lateGrant{Driver: memlock.NewDriver(space), from: from}
				l, err := locks.New(d, locks.Config{})
				if err != nil {
					t.Fatal(err)
				}
				lease, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				if want := time.Now().Add(-from + ttl - l.Config().Margin); from == time.Second && !lease.ValidUntil().Equal(want) {
					t.Errorf("valid for %v", time.Until(lease.ValidUntil()))
				}
				if lateFence := d.fence; (from == time.Second) != (lease.Fence() == lateFence) {
					t.Errorf("fence %d, the late grant's was %d", lease.Fence(), lateFence)
				}
				mustRelease(t, lease)
				if err := l.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := space.Len(); n != 0 {
					t.Errorf("%d keys left", n)
				}
			})
		})
	}
}

// lateGrant is a line whose first grant comes after an hour, and says that it began
// some time ago or does not say when.
type lateGrant struct {
	driver.Driver
	from  time.Duration
	fence int64
}

func (d *lateGrant) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if d.fence != 0 {
		return d.Acquire(ctx, r)
	}
	time.Sleep(time.Hour)
	g, err := d.Acquire(ctx, r)
	d.fence = g.Fence
	if d.from > 0 {
		g.From = time.Now().Add(-d.from)
	}
	return g, err
}

func TestCloseEndsTheWaitInLine(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		a.mustTry(t, "k")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := b.Acquire(t.Context(), "k"); !errors.Is(err, locks.ErrClosed) {
					t.Errorf("Acquire = %v", err)
				}
			})
		}
		synctest.Wait()
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("Close = %v", err)
		}
		wg.Wait()
		if h, err := a.Inspect(t.Context(), "k"); err != nil || h.Waiters != 0 {
			t.Errorf("holder = %+v, %v; want no waiter", h, err)
		}
	})
}

func TestGrantThatOvertakesItsForerunnersEnd(t *testing.T) {
	inLine(t, func(t *testing.T, space *memlock.Space) {
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		old := a.mustTry(t, "k")
		var next *locks.Lease
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			if next, err = a.Acquire(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if _, err := b.ForceRelease(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		// The same process got it from the line, so it knows.
		wantLost(t, old.Err(), old, locks.ReasonNotOurs)
		if !next.Valid() || next.Fence() <= old.Fence() {
			t.Errorf("fence %d after %d, valid %v", next.Fence(), old.Fence(), next.Valid())
		}
		if err := old.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("Release = %v", err)
		}
		mustRelease(t, next)
		// And where the release's own answer is the slower one.
		old = a.mustTry(t, "k")
		a.faults.Arm(lockstest.Release, lockstest.Fault{Kind: lockstest.Swallow, Times: 1})
		wg.Go(func() {
			var err error
			if next, err = a.Acquire(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		start := time.Now()
		wg.Go(func() { _ = old.Release(t.Context()) })
		synctest.Wait()
		if next == nil || !next.Valid() || time.Since(start) != 0 {
			t.Error("the next one waits for the answer to the release")
		}
		wg.Wait()
		mustRelease(t, next)
	})
}
