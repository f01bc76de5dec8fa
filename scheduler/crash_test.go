package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// TestCrashPolicyOfRowAndJob: a queue row is put in by somebody who need not know its
// job's policy, and may want less than the job: whichever says that a run is not to be
// run again has its way, after a death, a drain and a lost lease.
func TestCrashPolicyOfRowAndJob(t *testing.T) {
	ends := map[string]func(t *testing.T, r *schedulertest.Replica){
		"killed": func(_ *testing.T, r *schedulertest.Replica) { r.Kill() },
		"drained": func(t *testing.T, r *schedulertest.Replica) {
			r.Stop(t.Context())
			r.Kill()
		},
		"cut off for a while": func(_ *testing.T, r *schedulertest.Replica) {
			r.CutStore()
			time.Sleep(9 * time.Second) // the run is lost, and nobody has taken it over yet
			r.Store.Heal()
		},
	}
	for how, end := range ends {
		for _, c := range []struct {
			row, job store.OnCrash
			want     store.State
			calls    int32
		}{
			{store.CrashRerun, store.CrashRerun, store.StateSucceeded, 2},
			{store.CrashRerun, store.CrashIndeterminate, store.StateIndeterminate, 1},
			{store.CrashIndeterminate, store.CrashRerun, store.StateIndeterminate, 1},
			{store.CrashFail, store.CrashIndeterminate, store.StateIndeterminate, 1},
			{store.CrashRerun, store.CrashFail, store.StateFailed, 1},
			{store.CrashNextTick, store.CrashRerun, store.StateMissed, 1},
		} {
			for _, deaf := range []bool{false, true} {
				if deaf && c.calls == 2 {
					continue // it is abandoned, which is a failure of the handler
				}
				bubble(t, fmt.Sprintf("%s/row %d, job %d, deaf %v", how, c.row, c.job, deaf), func(t *testing.T) {
					var calls atomic.Int32
					var owner atomic.Pointer[schedulertest.Replica]
					cl := schedulertest.New(t, schedulertest.Options{
						Replicas:  2,
						Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.DrainTimeout = 4 * time.Second },
						Jobs: func(r *schedulertest.Replica) []scheduler.Job {
							return []scheduler.Job{scheduler.QueueFunc("charge", func(ctx context.Context, _ *scheduler.Run) error {
								owner.Store(r)
								if calls.Add(1) > 1 {
									return nil
								}
								if deaf {
									ctx = context.WithoutCancel(ctx)
								}
								return sleep(ctx, time.Minute)
							}, scheduler.Retry(3, time.Second, time.Second), scheduler.WhenOwnerDies(c.job))}
						},
					})
					key := store.Key{Class: store.ClassKey, Job: "charge", Name: "1"}
					if _, err := cl.Store.Enqueue(t.Context(), schedulertest.Namespace, []store.NewExecution{{Key: key, OnCrash: c.row}}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Second)
					end(t, owner.Load())
					time.Sleep(30 * time.Second)
					row := cl.Rows("charge")[0]
					if row.State != c.want || calls.Load() != c.calls {
						t.Errorf("%v (%s, %s) after %d calls, want %v after %d", row.State, row.Reason, row.ErrorText, calls.Load(), c.want, c.calls)
					}
					time.Sleep(time.Minute) // the deaf one ends
				})
			}
		}
	}
}
