package locks_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestGuardEndsALeaseWhoseRenewalHangsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		start := time.Now()
		ctx, cancel := lease.Context(t.Context())
		defer cancel()
		a.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Deaf})

		// B polls its own way through a healthy backend: when it gets the key, A
		// must have been told.
		got, err := b.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if ctx.Err() == nil || lease.Valid() {
			t.Fatal("two holders: B was granted the key before A was told")
		}
		if took := time.Since(start); took < ttl || took > ttl+time.Second {
			t.Errorf("B got the key after %v, want about the TTL", took)
		}
		wantLost(t, context.Cause(ctx), lease, locks.ReasonUnavailable)
		wantLost(t, lease.Err(), lease, locks.ReasonUnavailable)
		if got.Fence() <= lease.Fence() {
			t.Errorf("fence went from %d to %d", lease.Fence(), got.Fence())
		}
		if n := len(told[locks.EventLost](a)); n != 1 {
			t.Errorf("%d lost events, want 1", n)
		}
	})
}

func TestLossIsToldBeforeTheTTLByTheMargin(t *testing.T) {
	for _, kind := range []lockstest.Kind{lockstest.BlackHole, lockstest.Swallow, lockstest.ErrorBefore, lockstest.Refuse, lockstest.Deaf} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, nil, locks.Config{Margin: 500 * time.Millisecond})
			start := time.Now()
			lease := p.mustTry(t, "k")
			p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: kind})
			<-lease.Done()
			if took := time.Since(start); took != ttl-500*time.Millisecond {
				t.Errorf("kind %d: told after %v, want TTL - margin exactly", kind, took)
			}
		})
	}
}

func TestOneFailedRenewalEndsNothing(t *testing.T) {
	for _, kind := range []lockstest.Kind{
		lockstest.BlackHole, lockstest.Swallow, lockstest.ErrorBefore, lockstest.ErrorAfter, lockstest.Refuse,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, nil, locks.Config{})
			lease := p.mustTry(t, "k")
			p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: kind, Times: 2})
			time.Sleep(10 * ttl)
			if err := lease.Err(); err != nil || !lease.Valid() {
				t.Fatalf("kind %d: lost after two failed renewals: %v", kind, err)
			}
			if n := len(told[locks.EventUnknown](p)); n != 2 {
				t.Errorf("kind %d: %d unknown events, want 2", kind, n)
			}
			mustRelease(t, lease)
		})
	}
}

func TestRenewalIsAttemptedSeveralTimesBeforeTheGuardFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.BlackHole})
		<-lease.Done()
		if n := p.faults.Calls(lockstest.Renew); n < 3 || n > 40 {
			t.Errorf("%d attempts within a TTL, want some and a bound", n)
		}
	})
}

// A failing backend must not be hammered by a process with many leases.
func TestManyFailingLeasesRetryTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		for _, k := range keys(300) {
			p.mustTry(t, k)
		}
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Refuse})
		time.Sleep(ttl)
		if n := p.faults.Calls(lockstest.Renew); n < 3 || n > 60 {
			t.Errorf("%d renewal requests of 300 leases while the backend refused for a TTL", n)
		}
		if n := len(told[locks.EventLost](p)); n != 300 {
			t.Errorf("%d leases lost, want 300", n)
		}
	})
}

func TestNotOursIsToldAtTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		lease := p.mustTry(t, "k")
		time.Sleep(ttl)
		space.Delete("k")
		start := time.Now()
		<-lease.Done()
		if took := time.Since(start); took > ttl*11/30 {
			t.Errorf("told after %v, want one renewal interval at most", took)
		}
		wantLost(t, lease.Err(), lease, locks.ReasonNotOurs)
		// The same object gets it again.
		mustRelease(t, p.mustTry(t, "k"))
	})
}

func TestLateAnswerRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Deaf})
		<-lease.Done()
		p.faults.Heal()
		time.Sleep(3 * ttl)
		if lease.Valid() || lease.Err() == nil {
			t.Fatal("a lost lease came back")
		}
	})
}

// ours returns the stacks of goroutines that are at work in a Locker, once all of
// the bubble have come to rest.
func ours() (stacks []string) {
	synctest.Wait()
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "solotick/locks.(") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func TestAThousandLeasesShareTheirRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		for _, k := range keys(1000) {
			p.mustTry(t, k)
			time.Sleep(3 * time.Millisecond) // not all at once
		}
		if stacks := ours(); len(stacks) > 0 {
			t.Errorf("%d goroutines for 1000 held leases, want none: %v", len(stacks), stacks)
		}
		const intervals = 30
		from := p.faults.Calls(lockstest.Renew)
		time.Sleep(intervals * ttl / 3)
		if n := p.faults.Calls(lockstest.Renew) - from; n > 2*intervals || n < intervals/2 {
			t.Errorf("%d renewal requests in %d intervals, want at most 2 each", n, intervals)
		}
		if n := len(told[locks.EventLost](p)); n > 0 {
			t.Errorf("%d leases lost", n)
		}
	})
}

func TestOneStrugglingLeaseDoesNotCutTheOthersShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A short lease shares the locker with a long one; the answer takes longer
		// than the short one has.
		p := newProcess(t, nil, locks.Config{})
		short := p.mustTry(t, "short", locks.WithTTL(200*time.Millisecond))
		long := p.mustTry(t, "long")
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Delay, Delay: 300 * time.Millisecond})
		<-short.Done()
		time.Sleep(5 * ttl)
		if err := long.Err(); err != nil {
			t.Fatalf("the long lease was lost: %v", err)
		}
	})
}

func TestAnIdleLockerSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		lease := p.mustTry(t, "k")
		time.Sleep(3 * ttl)
		mustRelease(t, lease)
		n := p.faults.AllCalls()
		time.Sleep(time.Hour)
		if got := p.faults.AllCalls(); got != n {
			t.Errorf("%d requests while idle", got-n)
		}
		if stacks := ours(); len(stacks) > 0 {
			t.Errorf("goroutines while idle: %v", stacks)
		}
	})
}

func TestRenewalStartsAgainAfterTheLastLeaseWasReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{})
		for range 5 {
			mustRelease(t, p.mustTry(t, "a"))
			lease := p.mustTry(t, "b")
			time.Sleep(3 * ttl)
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			mustRelease(t, lease)
		}
	})
}

func TestBackendWithoutBatchesIsAskedByABoundedSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &oneByOne{d: memlock.NewDriver(nil)}
		l, err := locks.New(d, locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var held []*locks.Lease
		for _, k := range keys(200) {
			lease, err := l.TryAcquire(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, lease)
		}
		time.Sleep(5 * ttl)
		for _, lease := range held {
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if d.most > 16 {
			t.Errorf("%d renewals at a time", d.most)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFencedOffWriterAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		var high int64
		write := func(fence int64) error {
			if fence < high {
				return fmt.Errorf("fence %d is below %d", fence, high)
			}
			high = fence
			return nil
		}
		stale := a.mustTry(t, "k")
		a.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Deaf})
		fresh, err := b.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := write(fresh.Fence()); err != nil {
			t.Fatal(err)
		}
		if err := write(stale.Fence()); err == nil {
			t.Fatal("the stale holder's write was let through")
		}
		token := stale.Token()
		if stale.Fence() >= fresh.Fence() || token == fresh.Token() || len(token) != 32 {
			t.Fatal("the stale handle shows the new grant")
		}
	})
}

func TestReleaseWaitsForARenewalUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{RenewInterval: 2 * time.Second})
		lease := p.mustTry(t, "k")
		p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Delay, Delay: 400 * time.Millisecond})
		for p.faults.Calls(lockstest.Renew) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		start := time.Now()
		mustRelease(t, lease)
		if took := time.Since(start); took < 300*time.Millisecond {
			t.Errorf("released after %v, before the renewal had answered", took)
		}
		if _, err := p.Inspect(t.Context(), "k"); !errors.Is(err, locks.ErrFree) {
			t.Errorf("Inspect = %v, want free", err)
		}
	})
}

// shrinking gives a quarter of the TTL at every renewal, until it is gone.
type shrinking struct {
	driver.Driver
	gone atomic.Bool
}

func (d *shrinking) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if d.gone.Load() {
		return driver.Grant{}, errors.New("gone")
	}
	h.TTL /= 4
	g, err := d.Driver.Renew(ctx, h)
	g.TTL = h.TTL
	return g, err
}

// A lease that a renewal makes shorter is kept by earlier renewals, and ends when the
// backend ends it.
func TestRenewalThatGivesLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		d := &shrinking{Driver: memlock.NewDriver(space)}
		l, err := locks.New(d, locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * ttl)
		if !lease.Valid() {
			t.Fatalf("lost: %v", lease.Err())
		}
		d.gone.Store(true)
		time.Sleep(ttl / 4)
		if _, err := newProcess(t, space, locks.Config{}).TryAcquire(t.Context(), "k"); err != nil || lease.Valid() {
			t.Errorf("another one has it: %v; the lease is valid: %v", err == nil, lease.Valid())
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
