package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// untilHalfHour waits for the second before the next half hour, lets something go wrong,
// and waits for the second after.
func untilHalfHour(goWrong func()) {
	tick := time.Now().Truncate(time.Hour).Add(30 * time.Minute)
	time.Sleep(time.Until(tick.Add(-time.Second)))
	goWrong()
	time.Sleep(time.Until(tick.Add(time.Second)))
}

// TestStopWithASilentStore: a store that does not answer a claim holds a stop up for no
// longer than a run would, however long the lease is, and what may have been claimed is
// given back or ends by its lease.
func TestStopWithASilentStore(t *testing.T) {
	const lease = 2 * time.Minute
	cluster := func(t *testing.T, gate scheduler.Gate) *schedulertest.Cluster {
		t.Helper()
		return schedulertest.New(t, schedulertest.Options{
			Replicas: 1, Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Lease = lease },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				gate := scheduler.WithGate(gate)
				return []scheduler.Job{scheduler.Cron("j", "30 * * * *", effect(r), gate), scheduler.Cron("k", "2 30 * * * *", effect(r), gate)}
			},
		})
	}
	stop := func(t *testing.T, r *schedulertest.Replica, patience, most time.Duration) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		begin := time.Now()
		err := r.Stop(ctx)
		if d := time.Since(begin); d > most {
			t.Errorf("stopped after %v, want %v at most", d, most)
		}
		return err
	}
	for name, c := range map[string]struct{ patience, most time.Duration }{
		"within the caller's time": {5 * time.Second, 5 * time.Second},
		"within the drain timeout": {time.Hour, 14 * time.Second},
		"at the second signal":     {time.Nanosecond, 5 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			r := cluster(t, scheduler.GateLock).Replicas[0]
			untilHalfHour(r.CutStore)
			r.CutLocks()                       // the tick has one
			_ = stop(t, r, c.patience, c.most) // there is nothing that it could have recorded
			if r.Store.Calls(storetest.Claim) != 1 {
				t.Error("there was no claim under way")
			}
		})
	}
	bubble(t, "a claim that is answered is given back", func(t *testing.T) {
		c := cluster(t, scheduler.GateNone)
		r := c.Replicas[0]
		untilHalfHour(func() {
			r.Store.Arm(storetest.Fault{Delay: 6 * time.Second, Slow: true}, storetest.Claim)
			r.Store.Arm(storetest.Fault{BlackHole: true}, storetest.Survey) // no sweep makes up for the tick
		})
		time.Sleep(2 * time.Second) // the claim of k stands behind that of j
		if err := stop(t, r, time.Hour, 14*time.Second); err != nil {
			t.Error(err)
		}
		if n := r.Store.Calls(storetest.Claim); n != 1 {
			t.Errorf("%d claims, want none after the stop", n)
		}
		if rows := c.Rows("j"); len(rows) != 1 || rows[0].State != store.StatePending || rows[0].Attempt != 0 {
			t.Errorf("the row of j is %+v, want it given back", rows)
		}
		c.Start()
		time.Sleep(10 * time.Second)
		for _, job := range []string{"j", "k"} {
			if e := c.Effects(job); len(e) != 1 || e[0].Replica != 1 || e[0].Attempt != 1 {
				t.Errorf("%s: effects %+v", job, e)
			}
		}
	})
	bubble(t, "a claim whose answer is lost ends by its lease", func(t *testing.T) {
		c := cluster(t, scheduler.GateNone)
		r := c.Replicas[0]
		untilHalfHour(func() { r.Store.Arm(storetest.Fault{Applied: true, BlackHole: true}, storetest.Claim) })
		claimed := time.Now()
		if err := stop(t, r, 5*time.Second, 5*time.Second); err != nil {
			t.Error(err)
		}
		c.Start()
		time.Sleep(time.Until(claimed.Add(lease + 2*time.Second)))
		if e := c.Effects("j"); len(e) != 1 || e[0].Replica != 1 || e[0].Attempt != 2 {
			t.Errorf("effects %+v", e)
		}
	})
}
