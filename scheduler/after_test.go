package scheduler_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// A restart of the workers at the end of an outage must not cost the ticks that
// were skipped(degraded) their catch-up.
func TestDegradedTicksAreCaughtUpAfterARestart(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Mode: store.ModeFailFast, After: 2 * time.Second, RecoverAfter: 2 * time.Second}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.OnMisfire(scheduler.MisfireFireAll))}
			},
		})
		untilMinute(t)
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(20 * time.Second)
		for _, r := range c.Replicas {
			if err := r.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			c.Start() // the lock backend answers
		}
		time.Sleep(40 * time.Second)
		left := 0
		for _, row := range c.Rows("j") {
			if row.State == store.StateSkipped && row.Reason == store.ReasonDegraded {
				left++
			}
		}
		if left > 0 {
			t.Errorf("%d ticks of a fire_all job stay skipped(degraded) for good", left)
		}
	})
}

// A handler that goes on for a while after its guarded completion has lost nothing.
func TestContextAfterTheGuardedCompletion(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		causes := make(chan error, 1)
		c := schedulertest.New(t, schedulertest.Options{
			Replicas:  1,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Lease = 2 * time.Second },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
					if _, err := r.Store.Finish(ctx, []store.Finish{{Ref: run.Ref(), State: store.StateSucceeded}}); err != nil {
						return err
					}
					run.MarkSettled()                // as idempotent.Guard.Do does
					err := sleep(ctx, 3*time.Second) // say: a message to somebody, after the effect
					causes <- context.Cause(ctx)
					return err
				})}
			},
		})
		time.Sleep(70 * time.Second)
		if cause := <-causes; cause != nil {
			t.Errorf("the context of a run that was committed ended: %v", cause)
		}
		for _, e := range c.Replicas[0].Events() {
			switch e := e.(type) {
			case scheduler.RunLost:
				t.Errorf("event RunLost for a run that is recorded as succeeded: %v", e.Cause)
			case scheduler.RunFinished:
				if row := c.Rows("j")[0]; e.State != row.State {
					t.Errorf("event RunFinished says %v, the record says %v", e.State, row.State)
				}
			}
		}
	})
}

// What RunFinished says of a run whose handler failed after its commit.
func TestErrorAfterTheGuardedCompletion(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1,
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
					if _, err := r.Store.Finish(ctx, []store.Finish{{Ref: run.Ref(), State: store.StateSucceeded}}); err != nil {
						return err
					}
					run.MarkSettled()
					return errors.New("too late to matter")
				}, scheduler.Retry(3, time.Second, time.Second))}
			},
		})
		time.Sleep(70 * time.Second)
		for _, e := range c.Replicas[0].Events() {
			if e, ok := e.(scheduler.RunFinished); ok {
				if row := c.Rows("j")[0]; e.State != row.State {
					t.Errorf("event RunFinished says %v, the record says %v", e.State, row.State)
				}
			}
		}
	})
}

// RunFinished of an end that the store never took.
func TestEventOfAnEndThatIsNotRecorded(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1,
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1m", effect(r))}
			},
		})
		r := c.Replicas[0]
		r.Store.Arm(storetest.Fault{}, storetest.Finish)
		time.Sleep(70 * time.Second)
		r.Kill() // so that the end of the test asks nothing of it
		err := r.Stop(t.Context())
		row := c.Rows("j")[0]
		for _, e := range r.Events() {
			if e, ok := e.(scheduler.RunFinished); ok && !e.Unrecorded {
				t.Errorf("event %+v, the record says %v", e, row.State)
			}
		}
		if err == nil || !strings.Contains(err.Error(), row.Key.String()) {
			t.Errorf("Stop says %v, though the end of %s was not recorded", err, row.Key)
		}
	})
}

// A per-second job that was down for a month with a window as long.
func TestLongWindowIsBounded(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		list := jobs(scheduler.Cron("j", "@every 1s", func(context.Context, *scheduler.Run) error { return nil },
			scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.CatchUp(90*24*time.Hour, 10)))
		keep := func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Retention.Off = true } // the window is longer
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Configure: keep, Jobs: list})
		time.Sleep(10 * time.Second)
		if err := c.Replicas[0].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(89 * 24 * time.Hour)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.Start()
		time.Sleep(5 * time.Second)
		runtime.ReadMemStats(&after)
		if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 50 {
			t.Errorf("settling took %d MB", mb)
		}
	})
}
