package locks_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

// Several processes contend for a few keys for minutes of virtual time while
// requests fail in every way and records are deleted. When a key is granted, its
// last holder has been told, unless its record was deleted by hand; fences grow;
// nothing is left at the end.
func TestRandomFaults(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 4
	}
	for i := range seeds {
		seed := uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			spaces(t, func(t *testing.T, space *memlock.Space) {
				randomFaults(t, space, rand.New(rand.NewPCG(seed, 1)))
			})
		})
	}
}

// ledger is the grants as an outsider sees them.
type ledger struct {
	t  *testing.T
	mu sync.Mutex
	// The latest grant of each key, and whether its record was deleted by hand.
	last    map[string]*locks.Lease
	deleted map[string]bool
	grants  int
}

func (w *ledger) granted(lease *locks.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants++
	if before := w.last[lease.Key()]; before != nil {
		if before.Fence() >= lease.Fence() {
			w.t.Errorf("fence of %q: %d after %d", lease.Key(), lease.Fence(), before.Fence())
		}
		if before.Err() == nil && !w.deleted[lease.Key()] {
			w.t.Errorf("two holders of %q: fences %d and %d", lease.Key(), before.Fence(), lease.Fence())
		}
	}
	w.last[lease.Key()], w.deleted[lease.Key()] = lease, false
}

func randomFaults(t *testing.T, space *memlock.Space, r *rand.Rand) {
	w := &ledger{t: t, last: make(map[string]*locks.Lease), deleted: make(map[string]bool)}
	names := keys(3)
	var procs []*process
	for range 4 {
		procs = append(procs, newProcess(t, space, locks.Config{TTL: time.Second, DrainTimeout: 2 * time.Second}))
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()

	var mu sync.Mutex // r is shared
	dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	millis := func(n int) time.Duration { return time.Duration(1+dice(n)) * time.Millisecond }

	var wg sync.WaitGroup
	for _, p := range procs {
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					worker(ctx, w, p, names[dice(len(names))], dice, millis)
					time.Sleep(millis(300))
				}
			})
		}
	}
	wg.Go(func() { // the nemesis
		for ctx.Err() == nil {
			time.Sleep(millis(1500))
			p := procs[dice(len(procs))]
			fault := lockstest.Fault{
				Kind:  lockstest.Kind(1 + dice(int(lockstest.Swallow))),
				Delay: millis(900), Times: dice(4),
			}
			switch n := dice(13); {
			case n < 3:
				p.faults.Arm(lockstest.Acquire, fault)
			case n < 6:
				p.faults.Arm(lockstest.Renew, fault)
			case n < 9:
				p.faults.Arm(lockstest.Release, fault)
			case n < 10:
				p.faults.Cut()
			case n < 11:
				p.faults.Arm(lockstest.Renew, lockstest.Fault{Kind: lockstest.Deaf})
			case n < 12:
				w.mu.Lock()
				key := names[dice(len(names))]
				space.Delete(key)
				w.deleted[key] = true
				w.mu.Unlock()
			default:
				p.faults.Heal()
			}
		}
	})
	wg.Wait()
	for _, p := range procs {
		p.faults.Heal()
	}
	for _, p := range procs {
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if n := space.Len(); n != 0 {
		t.Errorf("%d keys left", n)
	}
	if w.grants < 50 {
		t.Errorf("only %d grants: this run shows little", w.grants)
	}
}

func worker(ctx context.Context, w *ledger, p *process, key string, dice func(int) int, millis func(int) time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, millis(4000))
	defer cancel()
	work := func(ctx context.Context, lease *locks.Lease) error {
		w.granted(lease)
		if dice(4) == 0 {
			time.Sleep(millis(2500)) // does not obey
			return nil
		}
		t := time.NewTimer(millis(2500))
		defer t.Stop()
		select {
		case <-ctx.Done():
			if lease.Err() == nil && ctx.Err() == nil {
				w.t.Error("told without a reason")
			}
		case <-t.C:
		}
		return nil
	}
	var lease *locks.Lease
	var err error
	switch dice(3) {
	case 0:
		err = p.Do(ctx, key, work)
	case 1:
		lease, err = p.TryAcquire(ctx, key)
	default:
		lease, err = p.Acquire(ctx, key)
	}
	if (lease != nil) && err != nil {
		w.t.Errorf("a lease and an error: %v", err)
	}
	if lease != nil {
		inner, cancel := lease.Context(ctx)
		_ = work(inner, lease)
		cancel()
		err = lease.Release(ctx)
	}
	if errors.Is(err, locks.ErrHeld) && errors.Is(err, locks.ErrUnavailable) {
		w.t.Errorf("held and unavailable at once: %v", err)
	}
	known := errors.Is(err, locks.ErrHeld) || errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrLost) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if err != nil && !known {
		w.t.Errorf("an error of no class: %v", err)
	}
}
