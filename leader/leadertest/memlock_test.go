package leadertest_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

// each gives every test, by name, a backend of its own.
func each[T any](open func(t *testing.T) T) func(t *testing.T) T {
	var mu sync.Mutex
	made := map[string]T{}
	return func(t *testing.T) T {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		v, ok := made[t.Name()]
		if !ok {
			v = open(t)
			made[t.Name()] = v
		}
		return v
	}
}

// candidate makes an elector with a locker of its own, as a process has.
func candidate(t *testing.T, d driver.Driver, election string, cfg leader.Config) leadertest.Candidate {
	t.Helper()
	faulty := lockstest.NewFaulty(d)
	l, err := locks.New(faulty.Driver(), locks.Config{TTL: cfg.TTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLocker(t, l) })
	e, err := leader.FromLocks(l, election, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return leadertest.Candidate{Elector: e, Cut: func() func() { faulty.Cut(); return faulty.Heal }}
}

func depose(t *testing.T, d driver.Driver, election string) {
	t.Helper()
	if _, err := d.(driver.Inspector).ForceRelease(t.Context(), election); err != nil {
		t.Fatal(err)
	}
}

func TestLockInMemory(t *testing.T) {
	space := each(func(*testing.T) *memlock.Space { return new(memlock.Space) })
	leadertest.Run(t, leadertest.Harness{
		TTL:      3 * time.Second,
		Handover: 100 * time.Millisecond, Priorities: true, // pushed
		Around: synctest.Test,
		New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
			return candidate(t, memlock.NewDriver(space(t)), election, cfg)
		},
		Depose: func(t *testing.T, election string) { depose(t, memlock.NewDriver(space(t)), election) },
	})
}

// Candidates may share one Locker: two parts of one program that each want to
// lead.
func TestLockInMemorySharedByCandidates(t *testing.T) {
	locker := each(func(t *testing.T) *locks.Locker {
		l, err := memlock.New(nil, &locks.Config{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeLocker(t, l) })
		return l
	})
	leadertest.Run(t, leadertest.Harness{
		TTL:      3 * time.Second,
		Handover: 100 * time.Millisecond, Priorities: true,
		Around: synctest.Test,
		New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
			e, err := leader.FromLocks(locker(t), election, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return leadertest.Candidate{Elector: e}
		},
	})
}

func closeLocker(t *testing.T, l *locks.Locker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	_ = l.Close(ctx) // a candidate that is still cut off abandons its requests
}
