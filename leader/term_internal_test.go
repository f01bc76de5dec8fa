package leader

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

// deaf answers no renewal.
type deaf struct{ driver.Driver }

func (deaf) Renew(ctx context.Context, _ driver.Hold) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}

func TestTermIsJudgedByTheClockNotByTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := locks.New(deaf{memlock.NewDriver(nil)}, locks.Config{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
		lease, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		// No loop attends to this term: it stands for one whose loop has not been
		// scheduled since the process woke.
		term := newTerm(lease)
		e := &Elector{term: term}
		if e.Term() != term {
			t.Fatalf("a fresh term is not there: %v", term.Err())
		}
		time.Sleep(time.Until(lease.ValidUntil()))
		synctest.Wait()
		if e.Term() != nil || !errors.Is(term.Err(), ErrUnavailable) {
			t.Errorf("after its trust window the term is %v, its error %v", e.Term(), term.Err())
		}
		work, cancel := term.Context(t.Context())
		defer cancel()
		if cause := context.Cause(work); !errors.Is(cause, ErrUnavailable) {
			t.Errorf("a context of the term ended by %v, want ErrUnavailable", cause)
		}
		if term.Since().IsZero() || term.Number() != lease.Fence() {
			t.Errorf("since %v, number %d", term.Since(), term.Number())
		}
	})
}

func TestTermWaitsForItsWork(t *testing.T) {
	term := newTerm(nil)
	term.stop(ErrResigned)
	select {
	case <-term.drained():
	default:
		t.Error("a term without work is not drained")
	}
	if err := term.enter(); !errors.Is(err, ErrResigned) {
		t.Errorf("work entered an ended term: %v", err)
	}
}
