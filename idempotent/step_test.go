package idempotent_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store"
)

func TestStepsThatAreDoneAreSkipped(t *testing.T) {
	everywhere(t, func(w *world) {
		var calls atomic.Int64
		first := w.claim()
		a, err := idempotent.Step(w.Context(), w.guard, first, "charge", buy(&calls, "charge"))
		if err != nil || a == 0 {
			w.Fatalf("Step = %d, %v", a, err)
		}
		own := errors.New("no")
		fail := func(tx *gorm.DB) (int64, error) {
			_, err := buy(&calls, "ship")(tx)
			return 0, errors.Join(err, own)
		}
		if _, err := idempotent.Step(w.Context(), w.guard, first, "ship", fail); !errors.Is(err, own) || w.effects("ship") != 0 {
			w.Errorf("a step that fails: %v with %d effects", err, w.effects("ship"))
		}
		second := w.takeOver(first)
		calls.Store(0)
		again, err := idempotent.Step(w.Context(), w.guard, second, "charge", buy(&calls, "charge"))
		if err != nil || again != a || calls.Load() != 0 {
			w.Errorf("the second attempt: %d, %v after %d calls, want %d", again, err, calls.Load(), a)
		}
		if _, err := idempotent.Step(w.Context(), w.guard, second, "ship", buy(&calls, "ship")); err != nil || calls.Load() != 1 {
			w.Errorf("the next step: %v after %d calls", err, calls.Load())
		}
		// The first attempt wakes.
		if _, err := idempotent.Step(w.Context(), w.guard, first, "notify", buy(&calls, "notify")); !errors.Is(err, idempotent.ErrFenced) || calls.Load() != 1 {
			w.Errorf("a step of a late attempt: %v after %d calls, want ErrFenced", err, calls.Load())
		}
		// Another run's steps are its own.
		if _, err := idempotent.Step(w.Context(), w.guard, w.claim(), "charge", buy(&calls, "charge")); err != nil || w.effects("charge") != 2 {
			w.Errorf("another run: %v with %d effects", err, w.effects("charge"))
		}
		done := 0
		if err := w.guard.Do(w.Context(), second, write(second, &done)); err != nil {
			w.Error(err)
		}
		if e, err := w.store.Get(w.Context(), ns, second.exec.ID); err != nil || e.State != store.StateSucceeded {
			w.Errorf("the run is %v, %v", e.State, err)
		}
	})
}

// The attempt is taken over among the writes of its step.
func TestStepOfAFrozenAttempt(t *testing.T) {
	onServers(t, func(w *world) {
		var calls atomic.Int64
		first := w.claim()
		_, err := idempotent.Step(w.Context(), w.guard, first, "charge", func(tx *gorm.DB) (int64, error) {
			w.takeOver(first)
			return buy(&calls, "charge")(tx)
		})
		if !errors.Is(err, idempotent.ErrFenced) || calls.Load() != 1 || w.effects("charge") != 0 {
			w.Errorf("Step = %v after %d calls with %d effects, want ErrFenced, 1, 0", err, calls.Load(), w.effects("charge"))
		}
	})
}

func TestAnswerCutAfterTheCommitOfAStep(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		how   func(tx gorm.Tx) error
		calls int64
	}{"after": {cutAfter, 1}, "before": {cutBefore, 2}} {
		var calls atomic.Int64
		w.line.once(c.how)
		if _, err := idempotent.Step(t.Context(), w.guard, w.claim(), name, buy(&calls, name)); err != nil || calls.Load() != c.calls || w.effects(name) != 1 {
			t.Errorf("cut %s the commit: %v after %d calls with %d effects", name, err, calls.Load(), w.effects(name))
		}
	}
	large := func(*gorm.DB) (string, error) { return strings.Repeat("x", idempotent.MaxResult), nil }
	if _, err := idempotent.Step(t.Context(), w.guard, w.claim(), "large", large); !errors.Is(err, idempotent.ErrTooLarge) {
		t.Errorf("a large result: %v", err)
	}
	if _, err := idempotent.Step(t.Context(), w.guard, w.claim(), "", large); err == nil {
		t.Error("a step without a name is taken")
	}
}

func TestStepsOfACallThatIsTakenOver(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	pay := func(ctx context.Context, a *idempotent.Attempt) error {
		_, err := idempotent.Step(ctx, w.guard, a, "charge", buy(&calls, "charge"))
		return err
	}
	fn := func(*gorm.DB) (string, error) { return "done", nil }
	_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, fn, idempotent.Lease(10*time.Minute),
		idempotent.Before(func(ctx context.Context, a *idempotent.Attempt) error {
			if err := pay(ctx, a); err != nil {
				return err
			}
			w.silence(order("a"))
			_, err := idempotent.Once(ctx, idempotent.New(w.store), order("a"), idempotent.Fingerprint{}, fn, idempotent.Before(pay))
			return err
		}))
	if !errors.Is(err, idempotent.ErrFenced) || calls.Load() != 1 || w.effects("charge") != 1 {
		t.Errorf("Once = %v after %d calls of the step", err, calls.Load())
	}
}

// A call that is refused after a step leaves no step either.
func TestRefusedCallLeavesNoStep(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	for range 2 {
		_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, func(*gorm.DB) (string, error) { return "", idempotent.Refuse(errors.New("no")) },
			idempotent.Before(func(ctx context.Context, a *idempotent.Attempt) error {
				_, err := idempotent.Step(ctx, w.guard, a, "charge", buy(&calls, "charge"))
				return err
			}))
		if err == nil {
			t.Error("no error")
		}
	}
	var left int64
	if err := w.db.Table("solotick_steps").Count(&left).Error; err != nil || left != 0 || calls.Load() != 2 {
		t.Errorf("%d steps are left, %v after %d calls", left, err, calls.Load())
	}
}
