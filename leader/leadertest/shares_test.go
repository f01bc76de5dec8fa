package leadertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestSharesInMemory(t *testing.T) {
	space := each(func(*testing.T) *memlock.Space { return new(memlock.Space) })
	leadertest.RunShares(t, leadertest.SharesHarness{
		TTL:    3 * time.Second,
		Pushed: true,
		Around: synctest.Test,
		Locker: func(t *testing.T) (*locks.Locker, func() func()) {
			faulty := lockstest.NewFaulty(memlock.NewDriver(space(t)))
			l, err := locks.New(faulty.Driver(), locks.Config{TTL: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeLocker(t, l) })
			return l, func() func() { faulty.Cut(); return faulty.Heal }
		},
	})
}
