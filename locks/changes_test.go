package locks_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
)

// deaf takes watches and never begins one.
type deaf struct{ driver.Driver }

func (deaf) Watch(ctx context.Context, _ string) (<-chan struct{}, func(), error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		space := new(memlock.Space)
		locker := func(d driver.Driver) *locks.Locker {
			l, err := locks.New(d, locks.Config{RequestTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(context.WithoutCancel(ctx)); err != nil {
					t.Error(err)
				}
			})
			return l
		}
		one, two := locker(memlock.NewDriver(space)), locker(memlock.NewDriver(space))
		keys := []string{"lock:test:a", "lock:test:b"}
		hint, stop, err := one.Changes(ctx, keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			lease, err := two.TryAcquire(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if err := lease.Release(ctx); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case <-hint:
			default:
				t.Errorf("no hint of the release of %s", key)
			}
		}
		stop()
		stop()
		if _, _, err := one.Changes(ctx, []string{""}); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("Changes of no key = %v, want ErrInvalid", err)
		}
		if _, _, err := locker(bare{memlock.NewDriver(nil)}).Changes(ctx, keys); !errors.Is(err, locks.ErrUnsupported) {
			t.Errorf("Changes of a backend that pushes nothing = %v, want ErrUnsupported", err)
		}
		began := time.Now()
		if _, _, err := locker(deaf{memlock.NewDriver(nil)}).Changes(ctx, keys); !errors.Is(err, locks.ErrUnavailable) || time.Since(began) != time.Second {
			t.Errorf("Changes of a backend that does not answer = %v after %v, want ErrUnavailable after its timeout", err, time.Since(began))
		}
	})
}
