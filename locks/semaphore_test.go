package locks_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

// spaces are the kinds of backend, as far as waiting and loss go.
func spaces(t *testing.T, run func(t *testing.T, space *memlock.Space)) {
	for name, queue := range map[string]bool{"polling": false, "in line": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run(t, &memlock.Space{Queue: queue, PushLoss: queue})
			})
		})
	}
}

func semaphores(t *testing.T, space *memlock.Space, procs, n int) (ps []*process, ss []*locks.Semaphore) {
	for range procs {
		p := newProcess(t, space, locks.Config{})
		s, err := locks.NewSemaphore(p.Locker, "sem", n)
		if err != nil {
			t.Fatal(err)
		}
		ps, ss = append(ps, p), append(ss, s)
	}
	return ps, ss
}

func TestSemaphoreLetsNIn(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		_, ss := semaphores(t, space, 4, 3)
		var inside, most, served atomic.Int32
		var wg sync.WaitGroup
		for _, s := range ss {
			for range 5 {
				wg.Go(func() {
					for range 4 {
						lease, err := s.Acquire(t.Context())
						if err != nil {
							t.Errorf("Acquire = %v", err)
							return
						}
						now := inside.Add(1)
						for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
						}
						time.Sleep(50 * time.Millisecond)
						inside.Add(-1)
						served.Add(1)
						mustRelease(t, lease)
						mustRelease(t, lease) // frees no permit of another
					}
				})
			}
		}
		wg.Wait()
		if most.Load() != 3 || served.Load() != 4*5*4 {
			t.Errorf("at most %d inside, want 3; %d served", most.Load(), served.Load())
		}
		if n := space.Len(); n != 0 {
			t.Errorf("%d keys left", n)
		}
	})
}

func TestSemaphoreRequests(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		ps, ss := semaphores(t, space, 3, 4)
		first, err := ss[0].TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustRelease(t, first)
		if n := ps[0].faults.AllCalls() - ps[0].faults.Calls(lockstest.Wake); n != 2 {
			t.Errorf("%d requests for a free permit and its release, want 2", n)
		}
		var leases []*locks.Lease
		for range 4 {
			lease, err := ss[0].TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		before := ps[0].faults.AllCalls()
		if _, err := ss[0].TryAcquire(t.Context()); !errors.Is(err, locks.ErrHeld) {
			t.Errorf("a fifth permit: %v", err)
		}
		if n := ps[0].faults.AllCalls() - before; n != 0 {
			t.Errorf("%d requests while this process holds all", n)
		}
		if _, err := ss[1].TryAcquire(t.Context()); !errors.Is(err, locks.ErrHeld) {
			t.Errorf("a fifth permit: %v", err)
		}
		if n := ps[1].faults.AllCalls(); n != 4 {
			t.Errorf("%d requests to learn that all are held, want 4", n)
		}
		// Waiters: one of them looks.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 20 {
			for _, s := range ss[1:] {
				wg.Go(func() {
					if _, err := s.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Acquire = %v", err)
					}
				})
			}
		}
		wg.Wait()
		if n := ps[1].faults.AllCalls() + ps[2].faults.AllCalls(); n > 720 {
			t.Errorf("%d requests in a minute of 40 waiters for 4 permits, want less than twelve a second", n)
		}
		for _, lease := range leases {
			mustRelease(t, lease)
		}
		if n := space.Len(); n != 0 {
			t.Errorf("%d keys left", n)
		}
	})
}

func TestSemaphorePermitsComeBack(t *testing.T) {
	spaces(t, func(t *testing.T, space *memlock.Space) {
		ps, ss := semaphores(t, space, 2, 2)
		for range 2 {
			if _, err := ss[0].TryAcquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ps[0].faults.Cut() // as if it had died
		start := time.Now()
		for range 2 {
			lease, err := ss[1].Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// A context with a permit does not make its holder count twice for one.
			again, err := ss[1].TryAcquire(locks.ContextWith(t.Context(), lease))
			if err == nil && again.Key() == lease.Key() {
				t.Error("the same permit was given twice")
			}
			if again != nil {
				mustRelease(t, again)
			}
		}
		if took := time.Since(start); took > ttl+2*time.Second {
			t.Errorf("a dead holder's permits came back after %v", took)
		}
		if _, err := ss[1].TryAcquire(t.Context()); !errors.Is(err, locks.ErrHeld) {
			t.Errorf("a third permit of two: %v", err)
		}
		ps[1].faults.Cut()
		if _, err := ss[1].Acquire(t.Context()); !errors.Is(err, locks.ErrUnavailable) && !errors.Is(err, locks.ErrHeld) {
			t.Errorf("with the backend away: %v", err)
		}
	})
}

func TestSemaphoreArguments(t *testing.T) {
	l, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	for _, c := range []struct {
		l    *locks.Locker
		key  string
		n    int
		want string
	}{
		{nil, "k", 1, "locker"},
		{l, "k", 0, "permits"},
		{l, "k", locks.MaxPermits + 1, "permits"},
		{l, "", 1, "key"},
		{l, strings.Repeat("k", locks.MaxKeyBytes-8), 11, "key"},
	} {
		if _, err := locks.NewSemaphore(c.l, c.key, c.n); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d permits of %.10q: %v, want an error that names %q", c.n, c.key, err, c.want)
		}
	}
}
