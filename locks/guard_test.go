package locks

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// deaf is a driver that answers no renewal.
type deaf struct{ solo }

func (*deaf) Renew(ctx context.Context, _ driver.Hold) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}

// One timer guards all leases, and ends each at its own deadline.
func TestGuardEndsEachAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(&deaf{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for key, ttl := range map[string]time.Duration{"a": 30 * time.Second, "b": 10 * time.Second, "c": 20 * time.Second, "d": 10 * time.Second} {
			lease, err := l.TryAcquire(t.Context(), key, WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // in the bubble: the deadlines differ
			wg.Go(func() {
				<-lease.Done()
				if late := time.Since(lease.ValidUntil()); late < 0 || late > time.Millisecond {
					t.Errorf("%s: ended %v after its deadline", key, late)
				}
			})
		}
		wg.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An Observer that hangs delays nobody's stop.
func TestGuardCancelsBeforeItIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		l, err := New(&deaf{}, Config{Observer: func(e Event) {
			if _, lost := e.(EventLost); lost {
				<-hang
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		var works []context.Context
		for i, ttl := range []time.Duration{10 * time.Second, 10 * time.Second, 20 * time.Second} {
			lease, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			work, cancel := lease.Context(t.Context())
			defer cancel()
			works = append(works, work)
		}
		time.Sleep(time.Minute) // in the bubble
		for i, work := range works {
			if work.Err() == nil {
				t.Errorf("the work under lease %d goes on after its deadline", i)
			}
		}
		close(hang)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
