package locks_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestReentryCountsUpAndGivesBackOnce(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		p, other := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		outer := p.mustTry(t, "k")
		ctx := locks.ContextWith(t.Context(), outer)
		inner, err := p.TryAcquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		third, err := p.Acquire(locks.ContextWith(ctx, inner), "k", locks.WithTTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ran := false
		err = p.Do(ctx, "k", func(ctx context.Context, lease *locks.Lease) error {
			ran = true
			if lease.Fence() != outer.Fence() || lease.Token() != outer.Token() || !lease.Valid() {
				t.Errorf("fence %d inside of %d", lease.Fence(), outer.Fence())
			}
			return nil
		})
		if err != nil || !ran {
			t.Fatalf("Do = %v, ran %v", err, ran)
		}
		if n := p.faults.AllCalls() - p.faults.Calls(lockstest.Wake); n != 1 {
			t.Errorf("%d requests for four levels, want 1", n)
		}
		work, cancel := inner.Context(t.Context())
		defer cancel()
		for _, lease := range []*locks.Lease{third, inner} {
			mustRelease(t, lease)
			for range 2 {
				if err := lease.Release(t.Context()); !errors.Is(err, locks.ErrReleased) {
					t.Errorf("a level released again: %v, want a refusal", err)
				}
			}
			if !errors.Is(lease.Err(), locks.ErrReleased) || lease.Valid() {
				t.Errorf("a released level: Err %v, valid %v", lease.Err(), lease.Valid())
			}
		}
		if cause := context.Cause(work); cause != locks.ErrReleased {
			t.Errorf("the context of a released level ended by %v", cause)
		}
		if _, err := other.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrHeld) || !outer.Valid() {
			t.Errorf("the outermost level is held no more: %v", err)
		}
		mustRelease(t, outer)
		mustRelease(t, outer)
		if n := p.faults.Calls(lockstest.Release); n != 1 {
			t.Errorf("%d release requests, want 1", n)
		}
		// The context of what was given back is one like any other.
		mustRelease(t, other.mustTry(t, "k"))
		fresh, err := p.TryAcquire(ctx, "k")
		if err != nil || fresh.Fence() <= outer.Fence() {
			t.Fatalf("TryAcquire with the context of a released lease: %v", err)
		}
		mustRelease(t, fresh)
	})
}

func TestReentryIsByContextOnly(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		p, other := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := p.mustTry(t, "k")
		defer lease.Release(t.Context())
		ctx := locks.ContextWith(t.Context(), lease)
		for name, try := range map[string]func() (*locks.Lease, error){
			"another goroutine": func() (*locks.Lease, error) { return p.TryAcquire(t.Context(), "k") },
			"another process":   func() (*locks.Lease, error) { return other.TryAcquire(ctx, "k") },
			"the work's own context": func() (*locks.Lease, error) {
				w, c := lease.Context(t.Context())
				defer c()
				return p.TryAcquire(w, "k")
			},
		} {
			if _, err := try(); !errors.Is(err, locks.ErrHeld) {
				t.Errorf("%s: %v, want held", name, err)
			}
		}
		mustRelease(t, p.mustTry(t, "another key"))

		inside := 0
		var wg sync.WaitGroup
		for range 2 { // two goroutines of one process
			wg.Go(func() {
				err := p.Do(t.Context(), "two", func(ctx context.Context, lease *locks.Lease) error {
					inside++
					if inside != 1 {
						t.Error("two goroutines of one process inside")
					}
					time.Sleep(time.Second)
					err := p.Do(locks.ContextWith(ctx, lease), "two", func(context.Context, *locks.Lease) error { return nil })
					inside--
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestTheLastLevelGivesBack(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		p, other := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		outer := p.mustTry(t, "k")
		inner, err := p.TryAcquire(locks.ContextWith(t.Context(), outer), "k")
		if err != nil {
			t.Fatal(err)
		}
		mustRelease(t, outer)
		mustRelease(t, outer)
		time.Sleep(3 * ttl)
		if _, err := other.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrHeld) || !inner.Valid() {
			t.Fatalf("given back under an open level: %v", err)
		}
		mustRelease(t, inner)
		mustRelease(t, other.mustTry(t, "k"))
	})
}

func TestAllLevelsAreLostTogether(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		p := newProcess(t, space, locks.Config{})
		outer := p.mustTry(t, "k")
		ctx := locks.ContextWith(t.Context(), outer)
		inner, err := p.TryAcquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		work, cancel := inner.Context(t.Context())
		defer cancel()
		space.Delete("k")
		<-work.Done()
		for _, err := range []error{context.Cause(work), outer.Err(), inner.Err()} {
			wantLost(t, err, outer, locks.ReasonNotOurs)
		}
		if _, err := p.Acquire(ctx, "k"); !errors.Is(err, locks.ErrLost) {
			t.Errorf("re-entry to a lost lease = %v", err)
		}
		if err := inner.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("Release of a lost level = %v", err)
		}
		if err := outer.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("Release of the outermost = %v", err)
		}
	})
}

func TestCloseGivesBackAllLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		p := newProcess(t, space, locks.Config{})
		outer := p.mustTry(t, "k")
		inner, err := p.TryAcquire(locks.ContextWith(t.Context(), outer), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := space.Len(); n != 0 || inner.Err() == nil {
			t.Errorf("%d keys held after Close, inner %v", n, inner.Err())
		}
		for _, lease := range []*locks.Lease{inner, outer} {
			mustRelease(t, lease)
		}
	})
}
