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
