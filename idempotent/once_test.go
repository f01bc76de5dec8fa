package idempotent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

var _ idempotent.KeyedRun = (*scheduler.Run)(nil)

func order(name string) idempotent.Key {
	return idempotent.Key{Namespace: ns, Job: "create-order", Name: name}
}

func printOf(t testing.TB, v any) idempotent.Fingerprint {
	t.Helper()
	f, err := idempotent.FingerprintOf(v)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// buy is an fn with an effect; its result is the effect's id.
func buy(calls *atomic.Int64, note string) func(tx *gorm.DB) (int64, error) {
	return func(tx *gorm.DB) (int64, error) {
		calls.Add(1)
		e := effect{Note: note}
		err := tx.Create(&e).Error
		return e.ID, err
	}
}

// effects counts the rows that were written with the note.
func (w *world) effects(note string) int64 {
	w.Helper()
	var n int64
	if err := w.db.Model(&effect{}).Where("note = ?", note).Count(&n).Error; err != nil {
		w.Fatal(err)
	}
	return n
}

// record is the key's record.
func (w *world) record(k idempotent.Key) store.Execution {
	w.Helper()
	e, err := w.store.Find(w.Context(), k.Namespace, store.Key{Class: store.ClassKey, Job: k.Job, Name: k.Name})
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// silence makes the record look as if its owner had been silent for longer than
// its lease.
func (w *world) silence(k idempotent.Key) {
	w.Helper()
	e := w.record(k)
	if err := w.db.Exec("UPDATE solotick_executions SET lease_until_ms = 1 WHERE id = ?", e.ID[:]).Error; err != nil {
		w.Fatal(err)
	}
}

func TestFiftyCallsOfOneKeyAreOneEffect(t *testing.T) {
	everywhere(t, func(w *world) {
		var calls, made atomic.Int64
		var wg sync.WaitGroup
		values := make([]int64, 50)
		fingerprint := printOf(w, map[string]any{"item": 7})
		other := idempotent.New(w.store) // another process
		for i := range values {
			wg.Go(func() {
				g := w.guard
				if i%2 == 1 {
					g = other
				}
				r, err := idempotent.Once(w.Context(), g, order("a"), fingerprint, buy(&calls, "a"))
				if err != nil {
					w.Errorf("call %d: %v", i, err)
				}
				if values[i] = r.Value; !r.Replayed {
					made.Add(1)
				}
			})
		}
		wg.Wait()
		if calls.Load() != 1 || made.Load() != 1 || w.effects("a") != 1 {
			w.Errorf("%d calls of fn, %d that were not replayed, %d effects, want 1 each", calls.Load(), made.Load(), w.effects("a"))
		}
		for i, v := range values {
			if v != values[0] || v == 0 {
				w.Errorf("call %d was answered %d, another %d", i, v, values[0])
			}
		}
	})
}

func TestAnswersWhileTheFirstCallRuns(t *testing.T) {
	w := newWorld(t)
	mine, others := printOf(t, "mine"), printOf(t, "another's")
	var calls atomic.Int64
	inside, release := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() {
		_, err := idempotent.Once(t.Context(), w.guard, order("a"), mine, buy(&calls, "a"), idempotent.Lease(time.Minute),
			idempotent.Before(func(context.Context, *idempotent.Attempt) error {
				close(inside)
				<-release
				return nil
			}))
		result <- err
	}()
	<-inside
	_, err := idempotent.Once(t.Context(), w.guard, order("a"), mine, buy(&calls, "a"), idempotent.Reject())
	var progress *idempotent.InProgressError
	if !errors.Is(err, idempotent.ErrInProgress) || !errors.As(err, &progress) {
		t.Fatalf("Reject: %v, want ErrInProgress", err)
	}
	if progress.RetryAfter <= 0 || progress.RetryAfter > time.Minute || progress.Pending || progress.Attempt != 1 || progress.ID != w.record(order("a")).ID {
		t.Errorf("Reject: %+v, want what is left of the lease of attempt 1", progress)
	}
	// Told before any wait: with one this would hang.
	if _, err := idempotent.Once(t.Context(), w.guard, order("a"), others, buy(&calls, "a")); !errors.Is(err, idempotent.ErrMismatch) {
		t.Errorf("another fingerprint: %v, want ErrMismatch", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = idempotent.Once(short, w.guard, order("a"), mine, buy(&calls, "a"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ends: %v, want the deadline", err)
	}
	waited := make(chan error, 1)
	go func() {
		r, err := idempotent.Once(t.Context(), w.guard, order("a"), mine, buy(&calls, "a"))
		if err == nil && (!r.Replayed || r.Value == 0 || r.Attempt != 1) {
			err = fmt.Errorf("reply %+v", r)
		}
		waited <- err
	}()
	close(release)
	if err := errors.Join(<-result, <-waited); err != nil {
		t.Error(err)
	}
	if _, err := idempotent.Once(t.Context(), w.guard, order("a"), others, buy(&calls, "a")); !errors.Is(err, idempotent.ErrMismatch) {
		t.Errorf("another fingerprint after success: %v, want ErrMismatch", err)
	}
	if calls.Load() != 1 || w.effects("a") != 1 {
		t.Errorf("%d calls, %d effects", calls.Load(), w.effects("a"))
	}
}

func TestErrorOfFnIsTriedAgainByTheNextCall(t *testing.T) {
	everywhere(t, func(w *world) {
		var calls atomic.Int64
		own := errors.New("the printer is out of paper")
		fail := func(tx *gorm.DB) (int64, error) {
			_, err := buy(&calls, "a")(tx)
			return 0, errors.Join(err, own)
		}
		if _, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 1), fail); !errors.Is(err, own) {
			w.Fatalf("Once = %v, want fn's own error", err)
		}
		if e := w.record(order("a")); e.State != store.StatePending || e.ErrorText != own.Error() || w.effects("a") != 0 {
			w.Errorf("the record is %v (%s), with %d effects", e.State, e.ErrorText, w.effects("a"))
		}
		if _, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 2), fail); !errors.Is(err, idempotent.ErrMismatch) {
			w.Errorf("another fingerprint = %v, want ErrMismatch", err)
		}
		r, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 1), buy(&calls, "a"))
		if err != nil || r.Replayed || r.Attempt != 2 || w.effects("a") != 1 {
			w.Errorf("Once = %+v, %v with %d effects, want attempt 2", r, err, w.effects("a"))
		}
	})
}

func TestRunThatWaitsForItsNextTry(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	fail := func(*gorm.DB) (int64, error) { return 0, errors.New("not yet") }
	if _, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), fail, idempotent.RetryDelay(time.Hour)); err == nil {
		t.Fatal("no error")
	}
	_, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), idempotent.Reject())
	var progress *idempotent.InProgressError
	if !errors.As(err, &progress) || !progress.Pending || progress.RetryAfter < 50*time.Minute || progress.RetryAfter > time.Hour {
		t.Errorf("before it is due: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := idempotent.Once(short, w.guard, order("a"), printOf(t, 1), buy(&calls, "a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ends: %v", err)
	}
	r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), idempotent.RunNow())
	if err != nil || r.Attempt != 2 || calls.Load() != 1 {
		t.Errorf("RunNow = %+v, %v after %d calls", r, err, calls.Load())
	}
}

func TestPermanentErrorIsReplayed(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	declined := errors.New("card declined")
	fail := func(tx *gorm.DB) (int64, error) {
		_, err := buy(&calls, "a")(tx)
		return 0, errors.Join(err, idempotent.Permanent("declined", declined))
	}
	_, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), fail)
	var failed *idempotent.Failure
	if !errors.As(err, &failed) || failed.Replayed || failed.Code != "declined" || !errors.Is(err, declined) {
		t.Fatalf("the first call: %v", err)
	}
	_, err = idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), fail)
	if !errors.As(err, &failed) || !failed.Replayed || failed.Code != "declined" || failed.Text != "card declined" || calls.Load() != 1 {
		t.Errorf("the repeat: %v after %d calls", err, calls.Load())
	}
	if _, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 2), fail); !errors.Is(err, idempotent.ErrMismatch) {
		t.Errorf("another fingerprint: %v, want ErrMismatch", err)
	}
	r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), idempotent.RetryFailed())
	if err != nil || r.Attempt != 2 || calls.Load() != 2 || w.effects("a") != 1 {
		t.Errorf("RetryFailed = %+v, %v after %d calls", r, err, calls.Load())
	}
	// A success is not retried.
	if r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), fail, idempotent.RetryFailed()); err != nil || !r.Replayed {
		t.Errorf("RetryFailed after success = %+v, %v", r, err)
	}
}

func TestRefusedCallLeavesNoRecord(t *testing.T) {
	everywhere(t, func(w *world) {
		var calls atomic.Int64
		invalid := errors.New("quantity is 0")
		refuse := func(tx *gorm.DB) (int64, error) {
			_, err := buy(&calls, "a")(tx)
			return 0, errors.Join(err, idempotent.Refuse(invalid))
		}
		_, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 0), refuse)
		if !errors.Is(err, invalid) {
			w.Fatalf("Once = %v", err)
		}
		if e, err := w.store.Find(w.Context(), ns, store.Key{Class: store.ClassKey, Job: "create-order", Name: "a"}); !errors.Is(err, store.ErrNotFound) {
			w.Errorf("the record is %v, %v", e.State, err)
		}
		// The corrected request has another fingerprint.
		r, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 1), buy(&calls, "a"))
		if err != nil || r.Replayed || r.Attempt != 1 || w.effects("a") != 1 {
			w.Errorf("the corrected request: %+v, %v with %d effects", r, err, w.effects("a"))
		}
	})
}

// Attempt 1 freezes in what it does before the transaction, attempt 2 takes over
// and commits, attempt 1 wakes.
func TestFrozenCallIsTakenOver(t *testing.T) {
	everywhere(t, func(w *world) {
		var calls atomic.Int64
		_, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 1), buy(&calls, "a"), idempotent.Lease(10*time.Minute),
			idempotent.Before(func(ctx context.Context, a *idempotent.Attempt) error {
				w.silence(order("a"))
				if _, err := idempotent.Once(ctx, idempotent.New(w.store), order("a"), printOf(w, 2), buy(&calls, "a")); !errors.Is(err, idempotent.ErrMismatch) {
					w.Errorf("take over with another fingerprint: %v, want ErrMismatch", err)
				}
				r, err := idempotent.Once(ctx, idempotent.New(w.store), order("a"), printOf(w, 1), buy(&calls, "a"))
				if err != nil || r.Replayed || r.Attempt != 2 || a.Number() != 1 {
					w.Errorf("the take-over: %+v, %v", r, err)
				}
				return nil
			}))
		if !errors.Is(err, idempotent.ErrFenced) || calls.Load() != 1 || w.effects("a") != 1 {
			w.Errorf("the frozen call: %v after %d calls, %d effects, want ErrFenced, 1, 1", err, calls.Load(), w.effects("a"))
		}
	})
}

// The same where attempt 1 freezes among its writes.
func TestFrozenAmongItsWritesIsTakenOver(t *testing.T) {
	onServers(t, func(w *world) {
		var calls atomic.Int64
		_, err := idempotent.Once(w.Context(), w.guard, order("a"), printOf(w, 1), func(tx *gorm.DB) (int64, error) {
			if _, err := buy(&calls, "a")(tx); err != nil {
				return 0, err
			}
			w.silence(order("a"))
			r, err := idempotent.Once(w.Context(), idempotent.New(w.store), order("a"), printOf(w, 1), buy(&calls, "a"))
			if err != nil || r.Attempt != 2 {
				w.Errorf("the take-over: %+v, %v", r, err)
			}
			return 0, nil
		}, idempotent.Lease(10*time.Minute))
		if !errors.Is(err, idempotent.ErrFenced) || calls.Load() != 2 || w.effects("a") != 1 {
			w.Errorf("the frozen call: %v after %d calls, %d effects, want ErrFenced, 2, 1", err, calls.Load(), w.effects("a"))
		}
	})
}

func TestAnswerCutAfterACommit(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	if _, err := idempotent.Once(t.Context(), w.guard, order("warm"), idempotent.Fingerprint{}, buy(&calls, "warm")); err != nil {
		t.Fatal(err)
	}
	for _, cutting := range []struct {
		name string
		how  func(tx gorm.Tx) error
		runs int64
	}{{"after", cutAfter, 1}, {"before", cutBefore, 2}} {
		calls.Store(0)
		r, err := idempotent.Once(t.Context(), w.guard, order(cutting.name), idempotent.Fingerprint{}, func(tx *gorm.DB) (int64, error) {
			if calls.Load() == 0 {
				w.line.once(cutting.how)
			}
			return buy(&calls, cutting.name)(tx)
		})
		if err != nil || r.Replayed || r.Attempt != 1 || calls.Load() != cutting.runs || w.effects(cutting.name) != 1 {
			t.Errorf("cut %s the effect's commit: %+v, %v after %d calls, %d effects", cutting.name, r, err, calls.Load(), w.effects(cutting.name))
		}
		// The answer of the claim.
		calls.Store(0)
		key := order("claim cut " + cutting.name)
		w.line.once(cutting.how)
		r, err = idempotent.Once(t.Context(), w.guard, key, idempotent.Fingerprint{}, buy(&calls, key.Name))
		if err != nil || r.Replayed || r.Attempt != 1 || calls.Load() != 1 || w.effects(key.Name) != 1 {
			t.Errorf("cut %s the claim's commit: %+v, %v after %d calls", cutting.name, r, err, calls.Load())
		}
		// The answer of a take-over.
		calls.Store(0)
		key = order("take-over cut " + cutting.name)
		fail := func(*gorm.DB) (int64, error) { return 0, errors.New("not yet") }
		if _, err := idempotent.Once(t.Context(), w.guard, key, idempotent.Fingerprint{}, fail); err == nil {
			t.Fatal("no error")
		}
		commits := 0
		second := func(tx gorm.Tx) error {
			if commits++; commits == 2 { // the first is the claim that finds the record
				w.line.commit = nil
				return cutting.how(tx)
			}
			return tx.Commit()
		}
		w.line.commit = second
		r, err = idempotent.Once(t.Context(), w.guard, key, idempotent.Fingerprint{}, buy(&calls, key.Name))
		if err != nil || r.Replayed || r.Attempt != 2 || calls.Load() != 1 || commits != 2 {
			t.Errorf("cut %s the take-over's commit: %+v, %v after %d calls, %d commits", cutting.name, r, err, calls.Load(), commits)
		}
	}
}

// A lease that nobody renews would end the wait, and so the call, with ErrLeaseLost.
func TestLeaseIsKeptWhileFnRuns(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, buy(&calls, "a"), idempotent.Lease(6*time.Second),
		idempotent.Before(func(ctx context.Context, _ *idempotent.Attempt) error {
			first := w.record(order("a")).LeaseUntil
			for ctx.Err() == nil {
				if w.record(order("a")).LeaseUntil > first {
					return nil
				}
				<-time.After(20 * time.Millisecond) // real time: the lease is the database's
			}
			return context.Cause(ctx)
		}))
	if err != nil || calls.Load() != 1 {
		t.Errorf("Once = %v after %d calls", err, calls.Load())
	}
}

func TestLostOrCanceledRunEndsTheContext(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause error
		end   func(w *world, e store.Execution) error
		check func(err error) bool
	}{
		{"taken over", idempotent.ErrLeaseLost, func(w *world, e store.Execution) error {
			return w.db.Exec("UPDATE solotick_executions SET attempt = attempt + 1 WHERE id = ?", e.ID[:]).Error
		}, func(err error) bool { return errors.Is(err, idempotent.ErrLeaseLost) }},
		{"canceled", idempotent.ErrCanceled, func(w *world, e store.Execution) error {
			_, err := w.store.Cancel(w.Context(), ns, e.ID)
			return err
		}, func(err error) bool {
			var failed *idempotent.Failure
			return errors.As(err, &failed) && failed.Code == "canceled" && errors.Is(err, idempotent.ErrCanceled)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			var calls atomic.Int64
			_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, buy(&calls, "a"), idempotent.Lease(2*time.Second),
				idempotent.Before(func(ctx context.Context, _ *idempotent.Attempt) error {
					if err := c.end(w, w.record(order("a"))); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}))
			if !c.check(err) || calls.Load() != 0 {
				t.Errorf("Once = %v after %d calls, want %v", err, calls.Load(), c.cause)
			}
		})
	}
	t.Run("canceled is replayed", func(t *testing.T) {
		w := newWorld(t)
		var calls atomic.Int64
		fail := func(*gorm.DB) (int64, error) { return 0, errors.New("not yet") }
		if _, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, fail, idempotent.RetryDelay(time.Hour)); err == nil {
			t.Fatal("no error")
		}
		if _, err := w.store.Cancel(t.Context(), ns, w.record(order("a")).ID); err != nil {
			t.Fatal(err)
		}
		_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, buy(&calls, "a"))
		var failed *idempotent.Failure
		if !errors.As(err, &failed) || !failed.Replayed || calls.Load() != 0 {
			t.Errorf("Once = %v after %d calls", err, calls.Load())
		}
	})
}

func TestPanicOfFnLeavesTheKeyToTheNextCall(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v, want fn's panic", got)
			}
		}()
		_, _ = idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, func(*gorm.DB) (int64, error) { panic("boom") })
	}()
	r, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, buy(&calls, "a"), idempotent.Reject())
	if err != nil || r.Attempt != 2 {
		t.Errorf("Once after a panic = %+v, %v", r, err)
	}
}

func TestMaxAttempts(t *testing.T) {
	w := newWorld(t)
	fail := func(*gorm.DB) (int64, error) { return 0, errors.New("out of paper") }
	var failed *idempotent.Failure
	for n := 1; n <= 3; n++ {
		_, err := idempotent.Once(t.Context(), w.guard, order("a"), idempotent.Fingerprint{}, fail, idempotent.MaxAttempts(2))
		if errors.As(err, &failed) != (n >= 2) || n >= 2 && (failed.Code != "attempts" || failed.Replayed != (n == 3)) {
			t.Errorf("call %d: %v", n, err)
		}
	}
	// Crashes count.
	_, err := idempotent.Once(t.Context(), w.guard, order("b"), idempotent.Fingerprint{}, fail, idempotent.MaxAttempts(1), idempotent.Lease(10*time.Minute),
		idempotent.Before(func(ctx context.Context, _ *idempotent.Attempt) error {
			w.silence(order("b"))
			_, err := idempotent.Once(ctx, idempotent.New(w.store), order("b"), idempotent.Fingerprint{}, fail, idempotent.MaxAttempts(1))
			if !errors.As(err, &failed) || failed.Code != "poison" || !failed.Replayed {
				t.Errorf("after a crash in the last attempt: %v", err)
			}
			return nil
		}))
	if !errors.Is(err, idempotent.ErrFenced) {
		t.Errorf("the attempt that came back: %v, want ErrFenced", err)
	}
}

func TestResultsAndCodecs(t *testing.T) {
	w := newWorld(t)
	large := func(*gorm.DB) ([]byte, error) { return bytes.Repeat([]byte("x"), idempotent.MaxResult+1), nil }
	if _, err := w.guard.Once(t.Context(), order("a"), idempotent.Fingerprint{}, large); !errors.Is(err, idempotent.ErrTooLarge) || !strings.Contains(err.Error(), "65537 bytes") {
		t.Errorf("a large result: %v, want ErrTooLarge", err)
	}
	for _, want := range [][]byte{bytes.Repeat([]byte("x"), idempotent.MaxResult), nil, []byte("a\nb")} {
		key := order(fmt.Sprint(len(want)))
		for n := range 2 {
			r, err := w.guard.Once(t.Context(), key, idempotent.Fingerprint{}, func(*gorm.DB) ([]byte, error) { return want, nil })
			if err != nil || !bytes.Equal(r.Value, want) || r.Replayed != (n == 1) {
				t.Errorf("%d bytes, call %d: %d bytes, %v", len(want), n, len(r.Value), err)
			}
		}
	}
	_, err := idempotent.Once(t.Context(), w.guard, order("0"), idempotent.Fingerprint{}, func(*gorm.DB) (string, error) { return "", nil })
	if err == nil || !strings.Contains(err.Error(), `stored with codec "bytes", and is read with "json"`) {
		t.Errorf("another codec: %v", err)
	}
	// A result that was pruned.
	e := w.record(order("0"))
	if err := w.db.Exec("UPDATE solotick_executions SET result = NULL, args = NULL WHERE id = ?", e.ID[:]).Error; err != nil {
		t.Fatal(err)
	}
	if _, err := w.guard.Once(t.Context(), order("0"), idempotent.Fingerprint{}, large); !errors.Is(err, idempotent.ErrForgotten) {
		t.Errorf("a result that was pruned: %v, want ErrForgotten", err)
	}
}

func TestOnceRefusesBadCalls(t *testing.T) {
	w := newWorld(t)
	if _, err := w.store.Register(t.Context(), ns, []store.JobSpec{{Job: "nightly", Spec: "{}", Hash: "h"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key  idempotent.Key
		opt  idempotent.Option
		want string
	}{
		{idempotent.Key{Job: "a", Name: "b"}, idempotent.Reject(), "Key.Namespace is empty"},
		{idempotent.Key{Namespace: ns, Name: "b"}, idempotent.Reject(), "Key.Job is empty"},
		{idempotent.Key{Namespace: ns, Job: "a", Name: strings.Repeat("x", 1025)}, idempotent.Reject(), "Key.Name has 1025 bytes"},
		{idempotent.Key{Namespace: ns, Job: "a", Name: "a\x00"}, idempotent.Reject(), "Key.Name is not text"},
		{order("a"), idempotent.Lease(time.Millisecond), "Lease of 1ms"},
		{order("a"), idempotent.MaxAttempts(-1), "MaxAttempts of -1"},
		{order("a"), idempotent.RetryDelay(-1), "RetryDelay of -1ns"},
		{order("a"), idempotent.WithCodec(badCodec{}), "has to have 1 to 32 bytes"},
		{idempotent.Key{Namespace: ns, Job: "nightly", Name: "a"}, idempotent.Reject(), `"nightly" has a schedule`},
	} {
		_, err := idempotent.Once(t.Context(), w.guard, c.key, idempotent.Fingerprint{}, func(*gorm.DB) (int, error) {
			t.Error("fn was called")
			return 0, nil
		}, c.opt)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.key, err, c.want)
		}
	}
}

type badCodec struct{ idempotent.Codec }

func (badCodec) Name() string { return "" }

func TestFingerprintOf(t *testing.T) {
	type request struct {
		B int `json:"b"`
		A any `json:"a"`
	}
	raw := func(s string) any { return rawJSON(s) }
	same := []any{
		request{B: 1, A: []string{"x"}},
		map[string]any{"a": []any{"x"}, "b": 1.0},
		raw(`{"b":1e0, "a": ["x"]}`), raw(`{ "a":["\u0078"],"b":1.00 }`),
	}
	for _, v := range same {
		if printOf(t, v) != printOf(t, same[0]) {
			t.Errorf("%v has a fingerprint of its own", v)
		}
	}
	seen := map[idempotent.Fingerprint]any{}
	for _, v := range []any{
		1, 2, -1, 1.5, "1", nil, true,
		[]int{1},
		[]int{1, 2},
		[]int{2, 1},
		map[string]int{"a": 1},
		map[string]int{"b": 1},
		raw("9007199254740993"), raw("9007199254740992"), raw("1e400"),
	} {
		f := printOf(t, v)
		if was, twice := seen[f]; twice {
			t.Errorf("%v and %v have one fingerprint", v, was)
		}
		seen[f] = v
	}
	if _, err := idempotent.FingerprintOf(make(chan int)); err == nil {
		t.Error("a channel has a fingerprint")
	}
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func TestEffectKeyIsTheSchedulers(t *testing.T) {
	w := newWorld(t)
	r := w.claim()
	if a, b := idempotent.EffectKey(keyed{r}, "charge"), idempotent.EffectKey(keyed{w.takeOver(r)}, "charge"); a != b || len(a) != 32 {
		t.Errorf("attempt 1 has %q, attempt 2 %q", a, b)
	}
	if a, b := idempotent.EffectKey(keyed{r}, "charge"), idempotent.EffectKey(keyed{r}, "refund"); a == b {
		t.Error("two steps have one key")
	}
	if a, b := idempotent.EffectKey(keyed{r}, "charge"), idempotent.EffectKey(keyed{w.claim()}, "charge"); a == b {
		t.Error("two runs have one key")
	}
}

type keyed struct{ *run }

func (k keyed) Key() store.Key { return k.exec.Key }
