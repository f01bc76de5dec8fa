package locks_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestOneRequestToAcquireAndOneToRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{Label: "a"}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		if lease.Key() != "k" || lease.Fence() < 1 || !lease.Valid() || lease.Err() != nil {
			t.Fatalf("lease = %+v", lease)
		}
		_, err := b.TryAcquire(t.Context(), "k")
		var held *locks.HeldError
		if !errors.As(err, &held) || !errors.Is(err, locks.ErrHeld) || errors.Is(err, locks.ErrUnavailable) {
			t.Fatalf("TryAcquire of a held key = %v", err)
		}
		if h := held.Holder; h.Label != "a" || h.Remaining != ttl || h.Key != "k" {
			t.Errorf("holder = %+v", h)
		}
		if _, err := a.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrHeld) {
			t.Errorf("TryAcquire of a key held in this process = %v", err)
		}
		mustRelease(t, lease)
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("second Release = %v", err)
		}
		if got := a.faults.AllCalls(); got != 2 {
			t.Errorf("%d requests of the holder, want 2", got)
		}
		if got := b.faults.AllCalls(); got != 1 {
			t.Errorf("%d requests of the other, want 1", got)
		}
		if !errors.Is(lease.Err(), locks.ErrReleased) || lease.Valid() {
			t.Errorf("after release: Err = %v, Valid = %v", lease.Err(), lease.Valid())
		}
		<-lease.Done()
	})
}

func TestUnknownAcquireIsSettledWithTheSameToken(t *testing.T) {
	for _, kind := range []lockstest.Kind{lockstest.ErrorBefore, lockstest.ErrorAfter, lockstest.BlackHole, lockstest.Swallow} {
		synctest.Test(t, func(t *testing.T) {
			space := new(memlock.Space)
			p := newProcess(t, space, locks.Config{})
			p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: kind, Times: 1})
			lease := p.mustTry(t, "k")
			if until := time.Until(lease.ValidUntil()); until < 9*time.Second {
				t.Errorf("kind %d: validity counts from the first try: %v left", kind, until)
			}
			mustRelease(t, lease)
			if n := space.Len(); n != 0 {
				t.Errorf("kind %d: %d keys left", kind, n)
			}
		})
	}
}

func TestUnavailableWithinABoundAndNothingLeft(t *testing.T) {
	for _, kind := range []lockstest.Kind{lockstest.Refuse, lockstest.ErrorBefore, lockstest.ErrorAfter, lockstest.BlackHole, lockstest.Swallow} {
		synctest.Test(t, func(t *testing.T) {
			space := new(memlock.Space)
			p := newProcess(t, space, locks.Config{})
			p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: kind})
			start := time.Now()
			_, err := p.TryAcquire(t.Context(), "k")
			if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
				t.Fatalf("kind %d: TryAcquire = %v", kind, err)
			}
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("kind %d: %v looks as if the caller's context had ended", kind, err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("kind %d: took %v", kind, took)
			}
			p.faults.Heal()
			time.Sleep(time.Second)
			if n := space.Len(); n != 0 {
				t.Errorf("kind %d: the reaper left %d keys", kind, n)
			}
			n := p.faults.AllCalls()
			time.Sleep(time.Hour)
			if got := p.faults.AllCalls() - n; got != 0 {
				t.Errorf("kind %d: the reaper went on for %d requests", kind, got)
			}
		})
	}
}

func TestReaperGivesUpAfterTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		p.faults.Cut()
		if _, err := p.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		n := p.faults.AllCalls()
		if n > 40 {
			t.Errorf("%d requests to a dead backend for one orphan", n)
		}
		time.Sleep(time.Hour)
		if got := p.faults.AllCalls() - n; got != 0 {
			t.Errorf("%d requests after the TTL", got)
		}
	})
}

func TestOwnGhostIsNotReportedAsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.ErrorAfter})
		p.faults.Arm(lockstest.Release, lockstest.Fault{Kind: lockstest.ErrorBefore})
		if _, err := p.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
			t.Fatal(err)
		}
		p.faults.Arm(lockstest.Acquire, lockstest.Fault{})
		if _, err := p.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
			t.Fatalf("with the ghost unsettled: %v, want unavailable", err)
		}
		p.faults.Heal()
		mustRelease(t, p.mustTry(t, "k"))
	})
}

func TestGrantThatComesTooLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The driver answers after the TTL, against its contract: as when the
		// process was paused between the answer's arrival and its reading.
		space := new(memlock.Space)
		l, err := locks.New(slowAnswer{memlock.NewDriver(space)}, locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := l.TryAcquire(t.Context(), "k", locks.WithTTL(time.Hour))
		if lease != nil || !errors.Is(err, locks.ErrUnavailable) {
			t.Fatalf("TryAcquire = %v, %v", lease, err)
		}
		synctest.Wait()
		if n := space.Len(); n != 0 {
			t.Error("the late grant was not given back")
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestContextEndGivesItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		a.mustTry(t, "k")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		cause := errors.New("told to")
		caused, causedCancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { causedCancel(cause) })
		short, shortCancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer shortCancel()

		if _, err := b.TryAcquire(ended, "free"); !errors.Is(err, context.Canceled) || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("ended before: %v", err)
		}
		if n := b.faults.AllCalls(); n != 0 {
			t.Errorf("%d requests under an ended context", n)
		}
		var wg sync.WaitGroup
		for range 2 { // the first in line, and one behind it
			wg.Go(func() {
				_, err := b.Acquire(caused, "k")
				if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || errors.Is(err, locks.ErrUnavailable) {
					t.Errorf("cancelled while waiting: %v", err)
				}
			})
		}
		_, err := b.Acquire(short, "k")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("deadline while waiting: %v", err)
		}
		wg.Wait()

		// Without an answer, the end of the caller's time is both.
		b.faults.Cut()
		short2, shortCancel2 := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer shortCancel2()
		if _, err := b.TryAcquire(short2, "other"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("deadline without an answer: %v", err)
		}
		cancelled, cancel3 := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel3)
		start := time.Now()
		if _, err := b.TryAcquire(cancelled, "other"); !errors.Is(err, context.Canceled) || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("cancelled without an answer: %v", err)
		}
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("cancelled after 50ms, returned after %v", took)
		}
	})
}

func TestCancelAtRandomInstantsLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.Delay, Delay: time.Millisecond})
		won := 0
		for range 10_000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.N(2000))*time.Microsecond)
			lease, err := p.Acquire(ctx, "k")
			cancel()
			if (err == nil) != (lease != nil) {
				t.Fatalf("Acquire = %v, %v", lease, err)
			}
			if err == nil {
				if !lease.Valid() || space.Len() != 1 {
					t.Fatal("a nil error, and not held")
				}
				mustRelease(t, lease)
				won++
			}
		}
		time.Sleep(time.Second)
		if n := space.Len(); n != 0 || won == 0 || won == 10_000 {
			t.Errorf("%d keys left, %d won", n, won)
		}
	})
}

func TestWaitersOfOneProcessComeInOrderAndOneAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				got, err := b.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // under the lock
				time.Sleep(time.Second)
				mustRelease(t, got)
			})
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		// One waiter looks about once a second; twenty would twenty times.
		if n := b.faults.Calls(lockstest.Acquire); n > 15 {
			t.Errorf("%d requests for 20 waiters in 5s", n)
		}
		mustRelease(t, lease)
		start := time.Now()
		wg.Wait()
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("20 holds of 1s took %v: a hand-over was slow", took)
		}
		if !slices.IsSorted(order) || len(order) != 20 {
			t.Errorf("order = %v", order)
		}
	})
}

func TestAWaiterWhoGivesUpLetsTheNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := p.Acquire(ctx, "k")
				gone <- err
			}()
			synctest.Wait()
		}
		got := make(chan *locks.Lease)
		go func() {
			l, err := p.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire = %v", err)
			}
		}
		mustRelease(t, lease)
		mustRelease(t, <-got)
	})
}

func TestWaitingOutlivesTheHolderAndStartsItsOwnLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		time.AfterFunc(3*ttl, func() { mustRelease(t, lease) })
		got, err := b.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(got.ValidUntil()); left < 9*time.Second {
			t.Errorf("validity counts from the start of the wait: %v left", left)
		}
		time.Sleep(3 * ttl)
		if err := got.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A backend that pushes nothing is polled, and looked at again when the holder's
// lease ends.
func TestWaitingForADeadHolderTakesItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memlock.NewDriver(nil)
		l, err := locks.New(&oneByOne{d: d}, locks.Config{Poll: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		dead, err := memlock.New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = dead.Close(t.Context())
		if _, err := d.Acquire(t.Context(), request("k")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		lease, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < ttl || took > ttl+8*time.Second {
			t.Errorf("took %v", took)
		}
		mustRelease(t, lease)
		_ = l.Close(t.Context())
	})
}

func TestWaitingEndsWhenTheBackendIsSilentForATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		a.mustTry(t, "k")
		time.AfterFunc(time.Minute, b.faults.Cut)
		start := time.Now()
		_, err := b.Acquire(t.Context(), "k")
		if !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
			t.Fatalf("Acquire = %v", err)
		}
		if took := time.Since(start) - time.Minute; took < ttl-2*time.Second || took > ttl+5*time.Second {
			t.Errorf("gave up %v after the last answer, want about a TTL", took)
		}
		// A shorter silence is sat out.
		b.faults.Heal()
		time.AfterFunc(5*time.Second, b.faults.Cut)
		time.AfterFunc(10*time.Second, b.faults.Heal)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locks.ErrHeld) {
			t.Fatalf("Acquire = %v", err)
		}
	})
}

// Many callers of one key and a silent backend: nobody waits for the timeouts of
// all those before it.
func TestCallersOfOneKeyShareABackendsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		p.faults.Cut()
		start := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := p.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
					t.Errorf("TryAcquire = %v", err)
				}
			})
		}
		wg.Go(func() {
			synctest.Wait() // behind them, with less time than a request has
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := p.TryAcquire(ctx, "k")
			if !errors.Is(err, locks.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("TryAcquire with a deadline = %v", err)
			}
		})
		wg.Wait()
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		if n := len(told[locks.EventUnavailable](p)); n != 51 {
			t.Errorf("%d callers were told of in events, want 51", n)
		}
	})
}

func TestCloseEndsAnAcquireUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.Swallow})
		got := make(chan error)
		go func() {
			_, err := p.TryAcquire(t.Context(), "k")
			got <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- p.Close(t.Context()) }()
		if err := <-got; !errors.Is(err, locks.ErrClosed) || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("TryAcquire = %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("Close = %v", err)
		}
		if n := space.Len(); n != 0 {
			t.Error("Close left a grant whose answer was lost")
		}
	})
}

func TestWaitMatrix(t *testing.T) {
	// A lease shorter than the wait, and the reverse, never gives two holders.
	for _, wait := range []time.Duration{0, time.Millisecond, ttl / 2, 3 * ttl} {
		for _, life := range []time.Duration{200 * time.Millisecond, ttl, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				space := new(memlock.Space)
				a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
				lease := a.mustTry(t, "k", locks.WithTTL(life))
				time.AfterFunc(2*ttl, func() { mustRelease(t, lease) })
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				got, err := b.Acquire(ctx, "k", locks.WithTTL(life))
				if (err == nil) != (wait > 2*ttl) {
					t.Errorf("wait %v, life %v: Acquire = %v", wait, life, err)
				}
				if err == nil && lease.Valid() {
					t.Errorf("wait %v, life %v: two holders", wait, life)
				}
				if err == nil {
					mustRelease(t, got)
				}
			})
		}
	}
}

func TestTTLOfOneLeaseDoesNotLeakIntoTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		mustRelease(t, p.mustTry(t, "k", locks.WithTTL(time.Hour), locks.WithLabel("long")))
		p.mustTry(t, "k")
		h, err := p.Inspect(t.Context(), "k")
		if err != nil || h.Remaining != ttl || h.Label != p.Config().Label {
			t.Errorf("Inspect = %+v, %v", h, err)
		}
	})
}
