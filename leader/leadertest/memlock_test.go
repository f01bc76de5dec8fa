package leadertest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

// each gives every test, by name, a backend of its own.
func each[T any]() func(t *testing.T) *T {
	made := map[string]*T{}
	return func(t *testing.T) *T {
		if made[t.Name()] == nil {
			made[t.Name()] = new(T)
		}
		return made[t.Name()]
	}
}

func TestLockInMemory(t *testing.T) {
	space := each[memlock.Space]()
	leadertest.Run(t, leadertest.Harness{
		TTL:      3 * time.Second,
		Handover: 100 * time.Millisecond, // pushed
		Around:   synctest.Test,
		New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
			w := new(wire)
			l, err := locks.New(&wired{memlock.NewDriver(space(t)).(backend), w}, locks.Config{TTL: cfg.TTL})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeLocker(t, l) })
			e, err := leader.FromLocks(l, election, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return leadertest.Candidate{Elector: e, Cut: w.Cut}
		},
		Depose: func(t *testing.T, election string) {
			if _, err := memlock.NewDriver(space(t)).(backend).ForceRelease(t.Context(), election); err != nil {
				t.Fatal(err)
			}
		},
	})
}

// Candidates may share one Locker: two parts of one program that each want to
// lead.
func TestLockInMemorySharedByCandidates(t *testing.T) {
	lockers := map[string]*locks.Locker{}
	leadertest.Run(t, leadertest.Harness{
		TTL:      3 * time.Second,
		Handover: 100 * time.Millisecond,
		Around:   synctest.Test,
		New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
			if lockers[t.Name()] == nil {
				l, err := memlock.New(nil, &locks.Config{TTL: cfg.TTL})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { closeLocker(t, l) })
				lockers[t.Name()] = l
			}
			e, err := leader.FromLocks(lockers[t.Name()], election, cfg)
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
