package locks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// solo is a driver with one user, who gets everything.
type solo struct{ fence int64 }

func (s *solo) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	s.fence++
	return driver.Grant{Fence: s.fence}, nil
}

func (s *solo) Renew(context.Context, driver.Hold) (driver.Grant, error) { return driver.Grant{}, nil }

func (s *solo) Release(context.Context, driver.Hold) (driver.Released, error) {
	return driver.ReleasedOK, nil
}

// A suspended machine wakes: the clock that counts suspension is past the
// deadline, the timers do not know yet.
func TestValidKnowsBeforeTheGuardTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(&solo{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		g := lease.g
		g.deadline = leaseclock.NewDeadline(leaseclock.Now().Add(-time.Minute), g.t.ttl, g.t.margin)
		l.mu.Unlock()
		if lease.Valid() {
			t.Error("valid after the deadline")
		}
		if lease.Err() != nil {
			t.Error("the guard fired by itself: this test shows nothing")
		}
		// The next renewal does not revive it either.
		<-lease.Done()
		if err := lease.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("Err = %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNothingIsKeptOfKeysOutOfUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(&solo{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b", "c"} {
			lease, err := l.TryAcquire(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := l.Acquire(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			if len(l.slots) != 1 {
				t.Errorf("%d slots while one key is held", len(l.slots))
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(l.slots) != 0 || len(l.grants) != 0 || len(l.orphans) != 0 {
				t.Errorf("%d slots, %d leases, %d orphans left", len(l.slots), len(l.grants), len(l.orphans))
			}
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTurn(t *testing.T) {
	var q turn
	if q.enter() != nil {
		t.Fatal("a free turn made its caller wait")
	}
	a, b, c := q.enter(), q.enter(), q.enter()
	q.giveUp(b)
	q.leave()
	if err := <-a; err != nil {
		t.Fatal(err)
	}
	q.leave() // a's turn goes to c, which has given up meanwhile
	q.giveUp(c)
	if q.taken() {
		t.Fatal("the turn stayed with one who gave up")
	}
	q.enter()
	d := q.enter()
	boom := errors.New("boom")
	q.fail(boom)
	if err := <-d; err != boom || q.taken() {
		t.Fatalf("waiter was told %v, taken %v", err, q.taken())
	}
	q.enter()
	e := q.enter()
	q.fail(boom)
	q.giveUp(e) // sent away and gave up at once: the turn is not its to pass on
	if q.taken() || len(e) != 0 {
		t.Fatal("giving up after being sent away left something behind")
	}
}

// late is a context whose deadline has passed and whose timer has not fired yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// A connection that obeys its caller's deadline may be a moment earlier than the
// context: the caller hears of its deadline all the same.
func TestDeadlineIsToldBeforeTheContextKnows(t *testing.T) {
	err := new(Locker).unavailable(late{t.Context()}, t.Context(), OpAcquire, "k", errors.New("i/o timeout"))
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}
