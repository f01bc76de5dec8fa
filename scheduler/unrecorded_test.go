package scheduler_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// TestStoreAway takes the store away from three replicas for half a minute, once for a
// job that waits for it and once for one that runs without.
func TestStoreAway(t *testing.T) {
	for _, policy := range []scheduler.StoreDown{scheduler.StoreDownWait, scheduler.StoreDownRun} {
		for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader} {
			bubble(t, string(policy)+"/"+string(gate), func(t *testing.T) {
				dir := t.TempDir()
				c := schedulertest.New(t, schedulertest.Options{
					Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
						cfg.Gate, cfg.Journal = gate, dir
						cfg.Degradation.After = 2 * time.Second
					},
					Jobs: func(r *schedulertest.Replica) []scheduler.Job {
						return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.WhenStoreDown(policy),
							scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
					},
				})
				untilMinute(t)
				begin := time.Now()
				for _, r := range c.Replicas {
					r.CutStore()
				}
				time.Sleep(30*time.Second + 500*time.Millisecond)
				inside := modes(c, "j", begin.Add(time.Second), time.Now())
				for _, r := range c.Replicas {
					if h := r.Health(); h.Store == "ok" {
						t.Errorf("replica %d does not know: %+v", r.ID, h)
					}
					r.Store.Heal()
				}
				time.Sleep(time.Minute)
				accounted(t, c, "j", time.Second, begin, begin.Add(80*time.Second))
				if policy == scheduler.StoreDownWait {
					if len(inside) != 0 {
						t.Errorf("runs without a store: %v", inside)
					}
					once(t, c, "j", time.Second, begin, begin.Add(80*time.Second))
					return
				}
				if d := c.Replicas[0].Describe().Jobs[0]; d.Guarantee != scheduler.AtLeastOnce || d.StoreDown != scheduler.StoreDownRun {
					t.Errorf("described as %+v", d)
				}
				// Until the outage is known for what it is: two seconds after the first call
				// that was not answered, which is not before its time limit.
				if n := inside[store.ModeStoreDown]; n < 20 || len(inside) != 1 {
					t.Errorf("runs while the store was away: %v", inside)
				}
				recorded := 0
				for _, row := range c.Rows("j") {
					if row.Mode == store.ModeStoreDown {
						recorded++
						if row.State != store.StateSucceeded {
							t.Errorf("tick %v is recorded as %v", row.Key.Tick, row.State)
						}
					}
				}
				if recorded < inside[store.ModeStoreDown] {
					t.Errorf("%d runs are recorded as made without the store, want %d", recorded, inside[store.ModeStoreDown])
				}
				once(t, c, "j", time.Second, begin, begin.Add(80*time.Second)) // the gate was there
				for _, r := range c.Replicas {
					if h := r.Health(); h.Journal != 0 || h.Store != "ok" {
						t.Errorf("replica %d is not back: %+v", r.ID, h)
					}
				}
			})
		}
	}
}

// TestLateReplicaFindsTheGateHeld: without the store the gate alone keeps a replica whose
// clock is late from running a short job again.
func TestLateReplicaFindsTheGateHeld(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		dir := t.TempDir()
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 2,
			Configure: func(r *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Journal, cfg.Degradation.After = dir, 2*time.Second
				scheduler.Uncorrected(cfg)
				cfg.ClockOffset = -time.Duration(r.ID) * 800 * time.Millisecond
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 5s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun))}
			},
		})
		untilMinute(t)
		for _, r := range c.Replicas {
			r.CutStore()
		}
		time.Sleep(15 * time.Second) // each has found out
		begin := time.Now()
		time.Sleep(time.Minute)
		once(t, c, "j", 5*time.Second, begin, begin.Add(55*time.Second))
		for _, r := range c.Replicas {
			r.Store.Heal()
		}
		time.Sleep(10 * time.Second)
	})
}

// TestRunsWithoutTheStoreDoNotOverlap: runs longer than their period, of a job that
// buffers what falls into them, without store or without both.
func TestRunsWithoutTheStoreDoNotOverlap(t *testing.T) {
	for _, both := range []bool{false, true} {
		bubble(t, fmt.Sprint("both ", both), func(t *testing.T) {
			dir := t.TempDir()
			var running, most atomic.Int32
			var quick atomic.Bool
			c := schedulertest.New(t, schedulertest.Options{
				Replicas: 1,
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Journal, cfg.Degradation = dir, scheduler.Degradation{Mode: store.ModeLocalMutex, After: 2 * time.Second, RecoverAfter: 2 * time.Second}
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 2s", func(ctx context.Context, run *scheduler.Run) error {
						most.Store(max(most.Load(), running.Add(1)))
						defer running.Add(-1)
						if !quick.Load() {
							if err := sleep(ctx, 5*time.Second); err != nil {
								return err
							}
						}
						r.Effect(run)
						return nil
					}, scheduler.WhenStoreDown(scheduler.StoreDownRun), scheduler.OnMisfire(scheduler.MisfireFireAll),
						scheduler.CatchUp(time.Hour, 1000), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
				},
			})
			untilMinute(t)
			begin, r := time.Now(), c.Replicas[0]
			r.CutStore()
			if both {
				r.CutLocks()
			}
			time.Sleep(time.Minute)
			r.Lock.Heal()
			time.Sleep(10 * time.Second)
			quick.Store(true) // else it never makes up for them
			r.Store.Heal()
			time.Sleep(2 * time.Minute)
			if n := most.Load(); n != 1 {
				t.Errorf("%d runs of the job at a time", n)
			}
			once(t, c, "j", 2*time.Second, begin, begin.Add(time.Minute))
		})
	}
}

// TestBothAway: with the lock backend away, too, each replica runs each tick in mode
// store_only, which is at-least-once, and none in mode fail_fast, which loses none.
func TestBothAway(t *testing.T) {
	for _, mode := range []store.Mode{store.ModeFailFast, store.ModeStoreOnly} {
		bubble(t, string(mode), func(t *testing.T) {
			dir := t.TempDir()
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Journal, cfg.Degradation = dir, scheduler.Degradation{Mode: mode, After: 2 * time.Second, RecoverAfter: 2 * time.Second}
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun),
						scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
				},
			})
			untilMinute(t)
			begin := time.Now()
			for _, r := range c.Replicas {
				r.CutStore()
				r.CutLocks()
			}
			time.Sleep(30*time.Second + 500*time.Millisecond)
			inside := modes(c, "j", begin.Add(time.Second), time.Now())
			for _, r := range c.Replicas {
				r.Store.Heal()
				r.Lock.Heal()
			}
			time.Sleep(90 * time.Second)
			accounted(t, c, "j", time.Second, begin, begin.Add(100*time.Second))
			ran := map[time.Time]int{}
			for _, e := range c.Effects("j") {
				ran[e.Tick.Time()]++
			}
			most := 3
			if mode == store.ModeFailFast {
				most = 1
				if len(inside) != 0 {
					t.Errorf("runs without store and lock: %v", inside)
				}
			} else if inside[store.ModeStoreDown] < 40 {
				t.Errorf("runs without store and lock: %v", inside)
			}
			for tick := begin.UTC().Truncate(time.Second).Add(time.Second); tick.Before(begin.Add(100 * time.Second)); tick = tick.Add(time.Second) {
				if ran[tick] < 1 || ran[tick] > most {
					t.Errorf("tick %v ran %d times", tick.Sub(begin), ran[tick])
				}
			}
		})
	}
}

// TestDeathInARunWithoutARecord: what a process left that died in such a run is settled
// by the next one on its host, by the job's policy for dead owners.
func TestDeathInARunWithoutARecord(t *testing.T) {
	for name, policy := range map[string]store.OnCrash{"rerun": store.CrashRerun, "mark_failed": store.CrashFail} {
		bubble(t, name, func(t *testing.T) {
			dir := t.TempDir()
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Journal, cfg.Degradation.After = dir, time.Hour // these replicas wait
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 10s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun), scheduler.WhenOwnerDies(policy))}
				},
			})
			untilMinute(t)
			tick := store.MillisOf(time.Now().Add(10 * time.Second))
			for _, r := range c.Replicas {
				r.CutStore()
			}
			time.Sleep(12 * time.Second)
			left := fmt.Sprintf("{\"op\":\"begin\",\"job\":\"j\",\"tick\":%d,\"begun\":%[1]d}\n", int64(tick))
			if err := os.WriteFile(filepath.Join(dir, schedulertest.Namespace+".dead.journal"), []byte(left), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Replicas {
				r.Store.Heal()
			}
			time.Sleep(time.Minute)
			ran := 0
			for _, e := range c.Effects("j") {
				if e.Tick == tick {
					ran++
				}
			}
			for _, row := range c.Rows("j") {
				switch {
				case row.Key.Tick != tick:
				case policy == store.CrashRerun && (row.State != store.StateSucceeded || ran != 1):
					t.Errorf("the tick ran %d times and is %v, want once and succeeded", ran, row.State)
				case policy == store.CrashFail && (row.State != store.StateFailed || row.Reason != store.ReasonLost || row.Mode != store.ModeStoreDown || ran != 0):
					t.Errorf("the tick ran %d times and is %v(%v), mode %q, want failed(lost) and store_down", ran, row.State, row.Reason, row.Mode)
				}
			}
		})
	}
}

// TestRunningWithoutTheStoreIsRefused where it contradicts what the job promises, or
// has no place to be noted.
func TestRunningWithoutTheStoreIsRefused(t *testing.T) {
	nop := func(context.Context, *scheduler.Run) error { return nil }
	run := scheduler.WhenStoreDown(scheduler.StoreDownRun)
	for want, given := range map[string]struct {
		job     scheduler.Job
		journal string
	}{
		"scheduler.journal":            {job: scheduler.Cron("j", "@daily", nop, run)},
		"contradicts exactly-once":     {scheduler.Cron("j", "@daily", nop, run, scheduler.Promise(scheduler.ExactlyOnce)), "d"},
		"rows of a queue":              {scheduler.QueueFunc("j", nop, run), "d"},
		`"maybe" is none of wait, run`: {scheduler.Cron("j", "@daily", nop, scheduler.WhenStoreDown("maybe")), "d"},
	} {
		s, err := scheduler.New(scheduler.Config{Namespace: "n", Gate: scheduler.GateNone, Journal: given.journal}, scheduler.Deps{Store: memstore.New()})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(given.job); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %q", err, want)
		}
	}
}

// TestRunInProgressWhenTheStoreGoesAway: its end cannot be recorded, and it does not
// stand in the way of the ticks that run without the store.
func TestRunInProgressWhenTheStoreGoesAway(t *testing.T) {
	for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader} {
		bubble(t, string(gate), func(t *testing.T) {
			dir := t.TempDir()
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Gate, cfg.Journal, cfg.Lease = gate, dir, 3*time.Second
					cfg.Degradation.After = 2 * time.Second
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 4s", func(ctx context.Context, run *scheduler.Run) error {
						if err := sleep(ctx, 3*time.Second); err != nil {
							return err
						}
						r.Effect(run)
						return nil
					}, scheduler.WhenStoreDown(scheduler.StoreDownRun), scheduler.OnMisfire(scheduler.MisfireFireAll))}
				},
			})
			untilMinute(t)
			time.Sleep(4*time.Second + 500*time.Millisecond) // in the middle of a run
			cut := time.Now()
			for _, r := range c.Replicas {
				r.CutStore()
			}
			time.Sleep(40 * time.Second)
			if n := modes(c, "j", cut, time.Now())[store.ModeStoreDown]; n < 5 {
				t.Errorf("%d ticks ran without the store in 40 s, want one every 4 s from the tenth on", n)
			}
			for _, r := range c.Replicas {
				r.Store.Heal()
			}
			time.Sleep(time.Minute)
			accounted(t, c, "j", 4*time.Second, cut, cut.Add(80*time.Second))
		})
	}
}

// TestRunOfAJobThatIsGoneIsRecorded: a job that was removed while its run waited in a
// journal leaves no entry behind, and no line a second.
func TestRunOfAJobThatIsGoneIsRecorded(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		dir := t.TempDir()
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1, Logs: log,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Journal, cfg.Degradation.After = dir, time.Hour
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 10s", effect(r)), scheduler.Cron("gone", "@every 10s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun))}
			},
		})
		untilMinute(t)
		r := c.Replicas[0]
		tick := store.MillisOf(time.Now().Add(10 * time.Second))
		r.CutStore()
		time.Sleep(12 * time.Second)
		// The second line is of a job that the store has never heard of.
		left := ""
		for _, job := range []string{"gone", "stranger"} {
			left += fmt.Sprintf("{\"op\":\"end\",\"job\":%q,\"tick\":%d,\"begun\":%[2]d,\"result\":{\"state\":%d}}\n", job, int64(tick), store.StateSucceeded)
		}
		if err := os.WriteFile(filepath.Join(dir, schedulertest.Namespace+".dead.journal"), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Store.Heal()
		if _, err := r.Apply(t.Context(), scheduler.Cron("j", "@every 10s", effect(r))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		recorded := false
		for _, row := range c.Rows("gone") {
			recorded = recorded || row.Key.Tick == tick && row.State == store.StateSucceeded && row.Mode == store.ModeStoreDown
		}
		if !recorded {
			t.Error("the run of the job that is gone has no record")
		}
		told := 0
		for _, line := range log.take(t) {
			if strings.Contains(line, "not recorded yet") {
				told++
			}
		}
		if told > 1 || r.Health().Journal > 1 {
			t.Errorf("%d lines about %d runs that cannot be recorded", told, r.Health().Journal)
		}
	})
}
