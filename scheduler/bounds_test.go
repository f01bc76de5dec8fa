package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// diary is when a handler was called.
type diary struct {
	mu sync.Mutex
	at []time.Time
}

func (d *diary) note() (calls int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = append(d.at, time.Now())
	return len(d.at)
}

// queued runs a queue job with one row until it has ended, or for the time.
func queued(t *testing.T, row store.NewExecution, h scheduler.Handler, most time.Duration, opts ...scheduler.Option) store.Execution {
	t.Helper()
	c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: jobs(scheduler.QueueFunc("mail", h, opts...))})
	row.Key = store.Key{Class: store.ClassKey, Job: "mail", Name: "1"}
	if _, err := c.Store.Enqueue(t.Context(), schedulertest.Namespace, []store.NewExecution{row}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(most); time.Now().Before(end) && c.Rows("mail")[0].State.Open(); {
		time.Sleep(time.Second)
	}
	return c.Rows("mail")[0]
}

// TestRowBoundsItsJob: what a row allows counts where it is less than what its job does.
func TestRowBoundsItsJob(t *testing.T) {
	for _, c := range []struct {
		row, job, want int
	}{{2, 5, 2}, {9, 5, 5}, {0, 5, 5}, {0, 40, 40}} {
		bubble(t, fmt.Sprintf("attempts/%d of %d", c.row, c.job), func(t *testing.T) {
			var calls diary
			row := queued(t, store.NewExecution{MaxAttempts: c.row}, func(context.Context, *scheduler.Run) error {
				calls.note()
				return errors.New("no luck")
			}, time.Hour, scheduler.Retry(c.job, time.Second, time.Second))
			if row.State != store.StateFailed || row.Attempt != c.want || len(calls.at) != c.want {
				t.Errorf("%v on attempt %d after %d calls, want failed on %d", row.State, row.Attempt, len(calls.at), c.want)
			}
		})
	}
	for _, c := range []struct{ row, job, want time.Duration }{
		{2 * time.Second, time.Minute, 2 * time.Second}, {time.Minute, 2 * time.Second, 2 * time.Second}, {0, 3 * time.Second, 3 * time.Second},
	} {
		bubble(t, fmt.Sprintf("timeout/%v of %v", c.row, c.job), func(t *testing.T) {
			var took time.Duration
			row := queued(t, store.NewExecution{Timeout: c.row}, func(ctx context.Context, _ *scheduler.Run) error {
				began := time.Now()
				err := sleep(ctx, time.Hour)
				took = time.Since(began)
				return err
			}, time.Hour, scheduler.Retry(1, time.Second, time.Second), scheduler.Timeout(c.job))
			if row.State != store.StateFailed || row.ErrorCode != "timeout" || took != c.want {
				t.Errorf("%v (%s) after %v, want a timeout after %v", row.State, row.ErrorCode, took, c.want)
			}
		})
	}
}

// TestTimeoutOfAnEarlierDefinition: a tick that waits for its retry when its job's timeout
// is changed has the new one.
func TestTimeoutOfAnEarlierDefinition(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var took []time.Duration
		h := func(ctx context.Context, _ *scheduler.Run) error {
			began := time.Now()
			err := sleep(ctx, time.Hour)
			took = append(took, time.Since(began))
			return err
		}
		define := func(timeout time.Duration) scheduler.Job {
			return scheduler.Cron("j", "@every 1h", h, scheduler.Retry(2, 10*time.Second, 10*time.Second), scheduler.Timeout(timeout))
		}
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: jobs(define(2 * time.Second))})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 5*time.Second)))
		if _, err := c.Replicas[0].Apply(t.Context(), define(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []time.Duration{2 * time.Second, 5 * time.Second}; !slices.Equal(took, want) {
			t.Errorf("attempts took %v, want %v", took, want)
		}
	})
}

// TestDatabaseOfAnEffectIsAway: a handler whose database cannot answer is tried again
// with a growing pause, beyond the attempts that errors have up to those that the record
// has for dead owners, and no further.
func TestDatabaseOfAnEffectIsAway(t *testing.T) {
	away := fmt.Errorf("the other database: %w", store.ErrUnavailable)
	luckless := errors.New("no luck")
	fails := func(d *diary, with ...error) scheduler.Handler {
		return func(context.Context, *scheduler.Run) error {
			if n := d.note(); n <= len(with) {
				return with[n-1]
			}
			return nil
		}
	}
	retry := scheduler.Retry(3, time.Second, time.Minute)
	for name, c := range map[string]struct {
		row   store.NewExecution
		opts  []scheduler.Option
		fails []error
		want  store.State
		why   store.Reason
		calls int
	}{
		"for a while":            {store.NewExecution{}, nil, slices.Repeat([]error{away}, 6), store.StateSucceeded, "", 7},
		"for ever":               {store.NewExecution{MaxAttempts: 12}, nil, slices.Repeat([]error{away}, 100), store.StateFailed, "", 12},
		"for ever, by the row":   {store.NewExecution{MaxAttempts: 2}, nil, slices.Repeat([]error{away}, 100), store.StateFailed, "", 2},
		"and an error after it":  {store.NewExecution{}, nil, append(slices.Repeat([]error{away}, 5), luckless), store.StateFailed, "", 6},
		"and errors are left":    {store.NewExecution{}, nil, []error{away, luckless}, store.StateSucceeded, "", 3},
		"for good":               {store.NewExecution{}, nil, []error{scheduler.Permanent(away)}, store.StateFailed, "", 1},
		"not to be rerun":        {store.NewExecution{}, []scheduler.Option{scheduler.WhenOwnerDies(store.CrashFail)}, slices.Repeat([]error{away}, 100), store.StateFailed, store.ReasonLost, 3},
		"at most once":           {store.NewExecution{}, []scheduler.Option{scheduler.Retry(1, 0, 0), scheduler.WhenOwnerDies(store.CrashIndeterminate)}, slices.Repeat([]error{away}, 100), store.StateIndeterminate, store.ReasonLost, 1},
		"at most once, by a row": {store.NewExecution{OnCrash: store.CrashIndeterminate, MaxAttempts: 1}, nil, slices.Repeat([]error{away}, 100), store.StateIndeterminate, store.ReasonLost, 1},
	} {
		bubble(t, name, func(t *testing.T) {
			var d diary
			row := queued(t, c.row, fails(&d, c.fails...), 2*time.Hour, append([]scheduler.Option{retry}, c.opts...)...)
			if row.State != c.want || row.Reason != c.why || len(d.at) != c.calls {
				t.Errorf("%v (%s) after %d calls, want %v (%s) after %d", row.State, row.Reason, len(d.at), c.want, c.why, c.calls)
			}
			for i, pause := 1, time.Second; i < len(d.at); i, pause = i+1, min(2*pause, time.Minute) {
				if got := d.at[i].Sub(d.at[i-1]); got < pause*4/5 || got > pause*6/5+3*time.Second {
					t.Errorf("pause %d was %v, want about %v", i, got, pause)
				}
			}
		})
	}
}
