package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store"
)

func TestEffectAndSuccessAreOneTransaction(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
		w.want(r, store.StateRunning) // nobody sees it yet
		r.result = []byte("42 rows")
		return write(r, &calls)(tx)
	})
	if err != nil || !r.Settled() {
		t.Fatalf("Do = %v, settled %v", err, r.Settled())
	}
	w.want(r, store.StateSucceeded, 1)
	if e, _ := w.store.Get(t.Context(), ns, r.exec.ID); string(e.Result) != "42 rows" {
		t.Errorf("the stored result is %q", e.Result)
	}
	if n := len(w.line.statements); n != 3 {
		t.Errorf("Do made %d statements beside BEGIN and COMMIT, want 3 with the handler's own: %q", n, w.line.statements)
	}
	if last := w.line.statements[len(w.line.statements)-1]; !strings.HasPrefix(last, "UPDATE solotick_executions") {
		t.Errorf("the last statement is %q, want the guarded completion", last)
	}

	if err := w.guard.Do(t.Context(), r, write(r, &calls)); !errors.Is(err, idempotent.ErrSettled) || calls != 1 {
		t.Errorf("a second Do = %v after %d calls, want ErrSettled and 1", err, calls)
	}
	w.want(r, store.StateSucceeded, 1)
}

func TestSecondDoInProgressIsRefused(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
		if err := w.guard.Do(t.Context(), r, write(r, &calls)); !errors.Is(err, idempotent.ErrSettled) {
			t.Errorf("Do within Do = %v, want ErrSettled", err)
		}
		return write(r, &calls)(tx)
	})
	if err != nil || calls != 1 {
		t.Fatalf("Do = %v after %d calls", err, calls)
	}
	w.want(r, store.StateSucceeded, 1)
}

func TestErrorOfTheHandlerRollsBackAndComesBackAsItIs(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	for _, own := range []error{errors.New("no funds"), context.DeadlineExceeded} {
		err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
			if err := write(r, &calls)(tx); err != nil {
				return err
			}
			return own
		})
		if err != own || r.Settled() {
			t.Errorf("Do = %v, settled %v, want the handler's own error", err, r.Settled())
		}
		w.want(r, store.StateRunning)
	}
	// The attempt may try again.
	if err := w.guard.Do(t.Context(), r, write(r, &calls)); err != nil || calls != 3 {
		t.Fatalf("Do = %v after %d calls", err, calls)
	}
	w.want(r, store.StateSucceeded, 1)
}

func TestPanicRollsBackAndIsPassedOn(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v, want the handler's panic", got)
			}
		}()
		_ = w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
			if err := write(r, &calls)(tx); err != nil {
				return err
			}
			panic("boom")
		})
	}()
	w.want(r, store.StateRunning)
	if err := w.guard.Do(t.Context(), r, write(r, &calls)); err != nil {
		t.Fatalf("Do after a panic = %v: the transaction stayed open?", err)
	}
	w.want(r, store.StateSucceeded, 1)
}

// Attempt 1 freezes, attempt 2 takes over and commits, attempt 1 wakes.
func TestFrozenAttemptWritesNothing(t *testing.T) { everywhere(t, frozenAttempt) }

func frozenAttempt(w *world) {
	first := w.claim()
	second := w.takeOver(first)
	calls := 0
	if err := w.guard.Do(w.Context(), second, write(second, &calls)); err != nil {
		w.Fatal(err)
	}
	err := w.guard.Do(w.Context(), first, write(first, &calls))
	if !errors.Is(err, idempotent.ErrFenced) || !errors.Is(err, store.ErrFenced) || first.Settled() {
		w.Errorf("Do of the frozen attempt = %v, settled %v, want ErrFenced", err, first.Settled())
	}
	if calls != 1 {
		w.Errorf("the handler was called %d times, want 1: a fenced attempt does not begin", calls)
	}
	w.want(second, store.StateSucceeded, 2)
}

// Attempt 1 has passed the first look and freezes among its writes; attempt 2 takes
// over before it commits. On a database with row locks the take-over is another
// transaction's; SQLite has one writer, so here it is put into the same one.
func TestAttemptThatIsTakenOverAmongItsWritesIsRolledBack(t *testing.T) {
	for _, c := range []struct{ name, set string }{
		{"NewAttempt", "attempt = attempt + 1"},
		{"NewOwner", "owner = randomblob(16)"},
		{"Finished", "state = 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			r := w.claim()
			calls := 0
			err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
				if err := write(r, &calls)(tx); err != nil {
					return err
				}
				return tx.Exec("UPDATE solotick_executions SET "+c.set+" WHERE id = ?", r.exec.ID[:]).Error
			})
			if !errors.Is(err, idempotent.ErrFenced) || r.Settled() || calls != 1 {
				t.Errorf("Do = %v after %d calls, settled %v, want ErrFenced", err, calls, r.Settled())
			}
			w.want(r, store.StateRunning)
		})
	}
}

// The same where the take-over is another process's.
func TestAttemptThatIsTakenOverByAnotherProcess(t *testing.T) {
	onServers(t, func(w *world) {
		first := w.claim()
		var second *run
		other := idempotent.New(w.store)
		calls := 0
		err := w.guard.Do(w.Context(), first, func(tx *gorm.DB) error {
			if err := write(first, &calls)(tx); err != nil {
				return err
			}
			second = w.takeOver(first)
			return other.Do(w.Context(), second, write(second, &calls))
		})
		if !errors.Is(err, idempotent.ErrFenced) || first.Settled() || calls != 2 {
			w.Errorf("Do = %v after %d calls, settled %v, want ErrFenced", err, calls, first.Settled())
		}
		w.want(second, store.StateSucceeded, 2)
	})
}

// A handler that writes for longer than a heartbeat takes commits at the first try.
func TestHeartbeatWhileTheHandlerWrites(t *testing.T) {
	onServers(t, func(w *world) {
		r := w.claim()
		calls := 0
		err := w.guard.Do(w.Context(), r, func(tx *gorm.DB) error {
			if err := write(r, &calls)(tx); err != nil {
				return err
			}
			got, err := w.store.Heartbeat(w.Context(), store.HeartbeatRequest{
				Namespace: ns, Owner: r.exec.Owner, Lease: time.Minute, Beats: []store.Beat{{ID: r.exec.ID, Attempt: r.exec.Attempt}},
			})
			if err == nil && got.Beats[0].Lost {
				w.Error("the heartbeat did not reach the row")
			}
			return err
		})
		if err != nil || calls != 1 {
			w.Errorf("Do = %v after %d calls", err, calls)
		}
		w.want(r, store.StateSucceeded, 1)
	})
}

func TestNothingIsCommittedOnceTheContextHasEnded(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	lost := errors.New("lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	calls := 0
	err := w.guard.Do(ctx, r, func(tx *gorm.DB) error {
		if err := write(r, &calls)(tx); err != nil {
			return err
		}
		cancel(lost)
		return nil
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, lost) || r.Settled() {
		t.Errorf("Do = %v, settled %v, want the context's error with its cause", err, r.Settled())
	}
	w.want(r, store.StateRunning)
	if err := w.guard.Do(ctx, r, write(r, &calls)); !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("Do with an ended context = %v after %d calls", err, calls)
	}

	// It can also end while the COMMIT is on its way: the record tells what became
	// of it.
	ctx, cancel = context.WithCancelCause(t.Context())
	w.line.once(func(tx gorm.Tx) error { cancel(lost); return cutBefore(tx) })
	if err := w.guard.Do(ctx, r, write(r, &calls)); !errors.Is(err, lost) || r.Settled() {
		t.Errorf("Do = %v, settled %v, want the cause", err, r.Settled())
	}
	w.want(r, store.StateRunning)
	ctx, cancel = context.WithCancelCause(t.Context())
	w.line.once(func(tx gorm.Tx) error { err := cutAfter(tx); cancel(lost); return err })
	if err := w.guard.Do(ctx, r, write(r, &calls)); err != nil || !r.Settled() {
		t.Errorf("Do = %v, settled %v, want success: it was committed before the end", err, r.Settled())
	}
	w.want(r, store.StateSucceeded, 1)
}

func TestBusyDatabaseIsTriedAgainAsAWhole(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
		if err := write(r, &calls)(tx); err != nil {
			return err
		}
		if calls < 3 {
			return fmt.Errorf("wrapped: %w", &sqliteError{code: 5})
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Fatalf("Do = %v after %d calls, want the third to pass", err, calls)
	}
	w.want(r, store.StateSucceeded, 1)

	// The tries are bounded, and by the context.
	w.guard.SetPatience(50 * time.Millisecond)
	r = w.claim()
	busy := &sqliteError{code: 517}
	calls = 0
	err = w.guard.Do(t.Context(), r, func(*gorm.DB) error { calls++; return busy })
	if !errors.Is(err, busy) || !errors.Is(err, store.ErrUnavailable) || calls < 2 {
		t.Errorf("Do = %v after %d calls, want the busy error as ErrUnavailable", err, calls)
	}
	w.guard.SetPatience(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.guard.Do(ctx, r, func(*gorm.DB) error { return busy }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Do = %v, want the deadline", err)
	}
	w.want(r, store.StateRunning, 1)
}

func TestLostAnswerOfCommitIsSettledByTheRecord(t *testing.T) {
	t.Run("Applied", func(t *testing.T) {
		w := newWorld(t)
		r := w.claim()
		calls := 0
		w.line.once(cutAfter)
		if err := w.guard.Do(t.Context(), r, write(r, &calls)); err != nil || !r.Settled() || calls != 1 {
			t.Errorf("Do = %v after %d calls, settled %v, want success after 1", err, calls, r.Settled())
		}
		w.want(r, store.StateSucceeded, 1)
	})
	t.Run("NotApplied", func(t *testing.T) {
		w := newWorld(t)
		r := w.claim()
		calls := 0
		w.line.once(cutBefore)
		if err := w.guard.Do(t.Context(), r, write(r, &calls)); err != nil || !r.Settled() || calls != 2 {
			t.Errorf("Do = %v after %d calls, settled %v, want success after 2", err, calls, r.Settled())
		}
		w.want(r, store.StateSucceeded, 1)
	})
	t.Run("TakenOverMeanwhile", func(t *testing.T) {
		w := newWorld(t)
		first := w.claim()
		calls := 0
		w.line.once(func(tx gorm.Tx) error {
			err := cutBefore(tx)
			w.takeOver(first)
			return err
		})
		if err := w.guard.Do(t.Context(), first, write(first, &calls)); !errors.Is(err, idempotent.ErrFenced) || first.Settled() || calls != 1 {
			t.Errorf("Do = %v after %d calls, settled %v, want ErrFenced after 1", err, calls, first.Settled())
		}
		w.want(first, store.StateRunning)
	})
	// The server is still at work on the COMMIT when the record is read back.
	t.Run("AppliedLater", func(t *testing.T) {
		w := newWorld(t)
		r := w.claim()
		calls := 0
		w.line.once(func(tx gorm.Tx) error {
			w.line.begin = func() {
				w.line.begin = nil
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
			}
			return errCut
		})
		if err := w.guard.Do(t.Context(), r, write(r, &calls)); err != nil || !r.Settled() || calls != 1 {
			t.Errorf("Do = %v after %d calls, settled %v, want success after 1", err, calls, r.Settled())
		}
		w.want(r, store.StateSucceeded, 1)
	})
	t.Run("RecordUnreadable", func(t *testing.T) {
		w := newWorld(t)
		w.guard.SetPatience(50 * time.Millisecond)
		r := w.claim()
		calls := 0
		w.line.once(func(tx gorm.Tx) error {
			w.line.query = errCut
			return cutAfter(tx)
		})
		err := w.guard.Do(t.Context(), r, write(r, &calls))
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, idempotent.ErrFenced) || r.Settled() || calls != 1 ||
			!strings.Contains(err.Error(), "outcome unknown") {
			t.Errorf("Do = %v after %d calls, settled %v, want an outcome unknown after 1", err, calls, r.Settled())
		}
		w.want(r, store.StateSucceeded, 1)
		w.line.query = nil
		if err := w.guard.Do(t.Context(), r, write(r, &calls)); !errors.Is(err, idempotent.ErrFenced) || calls != 1 {
			t.Errorf("Do after that = %v after %d calls, want ErrFenced", err, calls)
		}
	})
}

func TestFullDiskIsUnavailableAndNotTriedAgain(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	calls := 0
	w.line.once(func(tx gorm.Tx) error { return errors.Join(tx.Rollback(), &sqliteError{code: 13}) })
	err := w.guard.Do(t.Context(), r, write(r, &calls))
	if !errors.Is(err, store.ErrUnavailable) || calls != 1 || !strings.Contains(err.Error(), "make space") {
		t.Errorf("Do = %v after %d calls", err, calls)
	}
	w.want(r, store.StateRunning)
}

func TestHandlerCannotEndTheTransaction(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	err := w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
		if err := tx.Create(&effect{Attempt: 1}).Error; err != nil {
			return err
		}
		if err := tx.Commit().Error; err == nil || !strings.Contains(err.Error(), "the guard ends the transaction") {
			t.Errorf("Commit within Do = %v", err)
		}
		return errors.New("no")
	})
	if err == nil || err.Error() != "no" {
		t.Errorf("Do = %v", err)
	}
	w.want(r, store.StateRunning)

	// Nested transactions are savepoints, and sessions with prepared statements stay
	// inside.
	err = w.guard.Do(t.Context(), r, func(tx *gorm.DB) error {
		_ = tx.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Create(&effect{Attempt: 7}).Error, errors.New("only this part"))
		})
		// GORM keeps the error of a Commit with the *gorm.DB: use one of its own.
		if err := tx.Session(&gorm.Session{}).Rollback().Error; err == nil {
			t.Error("Rollback within Do was not refused")
		}
		prepared := &gorm.Session{PrepareStmt: true}
		if err := tx.Session(prepared).Commit().Error; err == nil {
			t.Error("Commit of a prepared session within Do was not refused")
		}
		return tx.Session(prepared).Transaction(func(tx *gorm.DB) error {
			return tx.Create(&effect{Attempt: 1}).Error
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	w.want(r, store.StateSucceeded, 1)
}

func TestResultThatIsTooLargeCommitsNothing(t *testing.T) {
	w := newWorld(t)
	effects := w.effectsBehindTheLine()
	if err := effects.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(ctx context.Context, r *run, fn func(tx *gorm.DB) error) error{
		"Guard.Do": func(ctx context.Context, r *run, fn func(tx *gorm.DB) error) error { return w.guard.Do(ctx, r, fn) },
		"Effects.Do": func(ctx context.Context, r *run, fn func(tx *gorm.DB) error) error {
			return effects.Do(ctx, keyedRun{keyed{r}}, fn)
		},
	} {
		r := w.claim()
		calls := 0
		err := do(t.Context(), r, func(tx *gorm.DB) error {
			r.result = make([]byte, store.MaxResult+1)
			return write(r, &calls)(tx)
		})
		if !errors.Is(err, store.ErrTooLarge) || r.Settled() || calls != 1 {
			t.Errorf("%s = %v after %d calls, settled %v", name, err, calls, r.Settled())
		}
		w.want(r, store.StateRunning)
	}
}
