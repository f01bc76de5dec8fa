package idempotent_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
)

// keyedRun is a run as *scheduler.Run is one, with a result that can be set.
type keyedRun struct{ keyed }

func (k keyedRun) SetResult(b []byte) { k.result = b }

// elsewhere makes effects in the world's database as if it were not the store's:
// nothing of the store's tables is used.
func elsewhere(w *world) *idempotent.Effects {
	w.Helper()
	e, err := idempotent.NewEffects(w.db)
	if err != nil {
		w.Fatal(err)
	}
	if err := errors.Join(e.Migrate(w.Context()), e.Migrate(w.Context()), e.CheckSchema(w.Context())); err != nil {
		w.Fatal(err)
	}
	return e
}

func note(calls *atomic.Int64, text string) func(tx *gorm.DB) error {
	return func(tx *gorm.DB) error {
		calls.Add(1)
		return tx.Create(&effect{Note: text}).Error
	}
}

func TestEffectElsewhereIsMadeOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		e := elsewhere(w)
		var calls atomic.Int64
		first := keyedRun{keyed{w.claim()}}
		first.result = []byte("42")
		if err := e.Do(w.Context(), first, note(&calls, "a")); err != nil {
			w.Fatal(err)
		}
		// The process dies before the run is finished; the next attempt finds it done.
		second := keyedRun{keyed{w.takeOver(first.run)}}
		if err := e.Do(w.Context(), second, note(&calls, "a")); err != nil || string(second.result) != "42" {
			w.Errorf("the second attempt: %v, result %q", err, second.result)
		}
		if err := e.Do(w.Context(), first, note(&calls, "a")); err != nil {
			w.Errorf("the first again: %v, want nil: the effect is there", err)
		}
		if calls.Load() != 1 || w.effects("a") != 1 {
			w.Errorf("%d calls, %d effects", calls.Load(), w.effects("a"))
		}
		// fn's error leaves nothing.
		own := errors.New("no")
		third := keyedRun{keyed{w.claim()}}
		if err := e.Do(w.Context(), third, func(tx *gorm.DB) error { return errors.Join(note(&calls, "b")(tx), own) }); !errors.Is(err, own) {
			w.Errorf("fn's error: %v", err)
		}
		if err := e.Do(w.Context(), third, note(&calls, "b")); err != nil || w.effects("b") != 1 {
			w.Errorf("after fn's error: %v with %d effects", err, w.effects("b"))
		}
		if n, err := e.Prune(w.Context(), time.Hour, 10); err != nil || n != 0 {
			w.Errorf("Prune of an hour = %d, %v", n, err)
		}
		if n, err := e.Prune(w.Context(), -time.Hour, 1); err != nil || n != 1 {
			w.Errorf("Prune = %d, %v, want 1", n, err)
		}
		if err := w.db.Transaction(func(tx *gorm.DB) error { return e.Fence(tx, "r", 2) }); err != nil {
			w.Error(err)
		}
		if err := w.db.Transaction(func(tx *gorm.DB) error { return e.Fence(tx, "r", 1) }); !errors.Is(err, idempotent.ErrFenced) {
			w.Errorf("a lower fence: %v", err)
		}
	})
}

// A late attempt, woken before or among its writes, commits nothing.
func TestLateAttemptElsewhereIsFenced(t *testing.T) {
	onServers(t, func(w *world) {
		e := elsewhere(w)
		var calls atomic.Int64
		first := keyedRun{keyed{w.claim()}}
		second := keyedRun{keyed{w.takeOver(first.run)}}
		third := keyedRun{keyed{w.takeOver(second.run)}}
		err := e.Do(w.Context(), second, func(tx *gorm.DB) error {
			if err := note(&calls, "a")(tx); err != nil {
				return err
			}
			// The third comes, and fails; the second goes on.
			if err := e.Do(w.Context(), third, func(*gorm.DB) error { return errors.New("no") }); err == nil {
				w.Error("no error")
			}
			return nil
		})
		if !errors.Is(err, idempotent.ErrFenced) || w.effects("a") != 0 {
			w.Errorf("the second attempt: %v with %d effects, want ErrFenced and 0", err, w.effects("a"))
		}
		if err := e.Do(w.Context(), first, note(&calls, "a")); !errors.Is(err, idempotent.ErrFenced) {
			w.Errorf("the first attempt: %v, want ErrFenced", err)
		}
		if err := e.Do(w.Context(), third, note(&calls, "a")); err != nil || w.effects("a") != 1 || calls.Load() != 2 {
			w.Errorf("the third attempt: %v with %d effects after %d calls", err, w.effects("a"), calls.Load())
		}
	})
}

func TestManyAttemptsElsewhereAtOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		e := elsewhere(w)
		var calls atomic.Int64
		r := keyedRun{keyed{w.claim()}}
		var wg sync.WaitGroup
		for range 8 { // one attempt from many places: the program's fault, and no second effect
			wg.Go(func() {
				if err := e.Do(w.Context(), r.again(), note(&calls, "a")); err != nil && !errors.Is(err, idempotent.ErrFenced) {
					w.Error(err)
				}
			})
		}
		wg.Wait()
		if w.effects("a") != 1 {
			w.Errorf("%d effects", w.effects("a"))
		}
	})
}

// again is the run as another goroutine holds it.
func (k keyedRun) again() keyedRun { return keyedRun{keyed{&run{exec: k.exec}}} }

func TestAnswerCutAfterTheCommitElsewhere(t *testing.T) {
	w := newWorld(t)
	elsewhere(w)
	e := w.effectsBehindTheLine()
	var calls atomic.Int64
	for name, how := range map[string]func(tx gorm.Tx) error{"after": cutAfter, "before": cutBefore} {
		r := keyedRun{keyed{w.claim()}}
		w.line.once(how)
		if err := e.Do(t.Context(), r, note(&calls, name)); err != nil || w.effects(name) != 1 {
			t.Errorf("cut %s the commit: %v with %d effects", name, err, w.effects(name))
		}
	}
	if calls.Load() != 3 {
		t.Errorf("%d calls, want 1 for the commit that was applied, and 2", calls.Load())
	}
}
