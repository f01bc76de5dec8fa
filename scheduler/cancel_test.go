package scheduler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// TestCanceledRunIsNotTriedAgain: somebody asks a run to end, and its handler fails, or
// its owner dies, before the owner hears of it. It is not called again, and what is told
// of the run is what its record says.
func TestCanceledRunIsNotTriedAgain(t *testing.T) {
	for _, how := range []string{"failed", "failed, and the first answer was lost", "killed"} {
		bubble(t, how, func(t *testing.T) {
			var calls atomic.Int32
			var owner atomic.Pointer[schedulertest.Replica]
			c := schedulertest.New(t, schedulertest.Options{
				Replicas: 2,
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.QueueFunc("mail", func(ctx context.Context, _ *scheduler.Run) error {
						owner.Store(r)
						if calls.Add(1); sleep(ctx, time.Second) != nil {
							return ctx.Err()
						}
						return errors.New("no luck")
					}, scheduler.Retry(5, time.Second, time.Second))}
				},
			})
			key := store.Key{Class: store.ClassKey, Job: "mail", Name: "1"}
			if _, err := c.Store.Enqueue(t.Context(), schedulertest.Namespace, []store.NewExecution{{Key: key}}); err != nil {
				t.Fatal(err)
			}
			for calls.Load() == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			if _, err := c.Store.Cancel(t.Context(), schedulertest.Namespace, c.Rows("mail")[0].ID); err != nil {
				t.Fatal(err)
			}
			r := owner.Load()
			switch how {
			case "killed":
				r.Kill()
			case "failed":
			default:
				r.Store.Arm(storetest.Fault{Applied: true, Times: 1}, storetest.Finish)
			}
			time.Sleep(time.Minute)
			row := c.Rows("mail")[0]
			if row.State != store.StateCanceled || calls.Load() != 1 {
				t.Errorf("%v (%s) after %d calls, want canceled after 1", row.State, row.Reason, calls.Load())
			}
			told := 0
			for _, r := range c.Replicas {
				if r.Dead() {
					continue
				}
				for _, e := range r.Events() {
					switch e := e.(type) {
					case scheduler.RunFinished:
						told++
						if e.State != store.StateCanceled || e.Fenced || e.Unrecorded || e.Err == nil {
							t.Errorf("told: %+v", e)
						}
					case scheduler.RunTakenOver:
						told++
						if e.Execution.State != store.StateCanceled {
							t.Errorf("told: %v was taken over", e.Execution.State)
						}
					}
				}
			}
			if told != 1 {
				t.Errorf("told %d times, want once", told)
			}
		})
	}
}
