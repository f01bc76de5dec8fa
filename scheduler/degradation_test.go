package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// TestLockBackendAway takes the lock backend away for 20 s and looks at every
// tick before, in and after it, in each mode.
func TestLockBackendAway(t *testing.T) {
	for _, mode := range scheduler.Modes() {
		bubble(t, string(mode), func(t *testing.T) {
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Degradation = scheduler.Degradation{Mode: mode, After: 3 * time.Second, RecoverAfter: 4 * time.Second}
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r),
						scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
				},
			})
			untilMinute(t)
			begin := time.Now()
			for _, r := range c.Replicas {
				r.CutLocks()
			}
			time.Sleep(20 * time.Second)
			inside := c.Effects("j")
			for _, r := range c.Replicas {
				if h := r.Health(); !h.Degraded || h.Coordinator == "ok" {
					t.Errorf("replica %d does not know: %+v", r.ID, h)
				}
				r.Lock.Heal()
			}
			healed := time.Now()
			time.Sleep(40 * time.Second)
			once(t, c, "j", time.Second, begin, begin.Add(59*time.Second))
			accounted(t, c, "j", time.Second, begin, begin.Add(45*time.Second))

			degraded, late := 0, time.Duration(0)
			for _, e := range c.Effects("j") {
				if e.Mode == mode {
					degraded++
				}
				if e.Tick.Time().After(begin) && e.Tick.Time().Before(healed) {
					late = max(late, e.At.Sub(e.Tick.Time()))
				}
				if e.Mode != store.ModeNone && e.At.After(healed.Add(6*time.Second)) {
					t.Errorf("tick %v still ran under mode %s %v after the backend was back", e.Tick, e.Mode, e.At.Sub(healed))
				}
			}
			n := 0
			for _, e := range inside {
				if e.Tick.Time().After(begin) {
					n++
				}
			}
			switch mode {
			case store.ModeFailFast:
				if degraded != 0 || n > 1 {
					t.Errorf("%d ticks ran without the coordinator", n)
				}
				revived := 0
				for _, row := range c.Rows("j") {
					if row.Reason == store.ReasonDegraded {
						revived++
					}
				}
				if revived < 5 {
					t.Errorf("%d ticks were skipped(degraded) and revived", revived)
				}
			default:
				if n < 16 || degraded < 14 {
					t.Errorf("%d ticks ran inside, %d under the mode", n, degraded)
				}
			}
			for _, r := range c.Replicas {
				if h := r.Health(); h.Degraded || h.Coordinator != "ok" {
					t.Errorf("replica %d is not back: %+v", r.ID, h)
				}
			}
		})
	}
}

func TestShortOutageTakesNoMode(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Degradation.Mode = store.ModeStoreOnly },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 10s", effect(r))}
			},
		})
		untilMinute(t)
		begin := time.Now()
		time.Sleep(9 * time.Second)
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(4 * time.Second)
		for _, e := range c.Effects("j") {
			if e.Tick.Time().After(begin) {
				t.Error("a tick ran while the coordinator was in doubt")
			}
		}
		for _, r := range c.Replicas {
			r.Lock.Heal()
		}
		time.Sleep(10 * time.Second)
		for _, e := range c.Effects("j") {
			if e.Mode != store.ModeNone {
				t.Errorf("tick %v ran under mode %s", e.Tick, e.Mode)
			}
		}
		once(t, c, "j", 10*time.Second, begin, begin.Add(20*time.Second))
	})
}

func TestRunInProgressWhenTheCoordinatorGoesAway(t *testing.T) {
	for mode, want := range map[store.Mode]int{store.ModeFailFast: 2, store.ModeLocalMutex: 1, store.ModeStoreOnly: 1} {
		bubble(t, string(mode), func(t *testing.T) {
			causes := make(chan error, 10)
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Degradation.Mode = mode },
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 10m", func(ctx context.Context, run *scheduler.Run) error {
						if err := sleep(ctx, 40*time.Second); err != nil {
							causes <- context.Cause(ctx)
							return err
						}
						r.Effect(run)
						return nil
					})}
				},
			})
			time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(10*time.Minute + time.Second)))
			for _, r := range c.Replicas {
				r.CutLocks()
			}
			time.Sleep(60 * time.Second)
			for _, r := range c.Replicas {
				r.Lock.Heal()
			}
			time.Sleep(2 * time.Minute)
			effects := c.Effects("j")
			if len(effects) != 1 || effects[0].Attempt != want {
				t.Fatalf("effects %+v, want one, of attempt %d", effects, want)
			}
			if mode == store.ModeFailFast {
				if cause := <-causes; !errors.Is(cause, scheduler.ErrGateLost) {
					t.Errorf("ended with %v, want ErrGateLost", cause)
				}
			} else if row := c.Rows("j")[0]; effects[0].Mode != mode || row.Mode != mode {
				t.Errorf("ran under %q, recorded as %q, want %q", effects[0].Mode, row.Mode, mode)
			}
		})
	}
}

func TestGateGivenToAnotherEndsTheRunInEveryMode(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		causes := make(chan error, 1)
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Degradation.Mode = store.ModeStoreOnly },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1h", func(ctx context.Context, _ *scheduler.Run) error {
					err := sleep(ctx, time.Minute)
					if err != nil {
						select {
						case causes <- context.Cause(ctx):
						default:
						}
					}
					return err
				})}
			},
		})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Second)))
		c.Locks.Delete(scheduler.LockKey(schedulertest.Namespace, "j"))
		time.Sleep(5 * time.Second)
		select {
		case cause := <-causes:
			if !errors.Is(cause, scheduler.ErrGateLost) {
				t.Errorf("ended with %v, want ErrGateLost", cause)
			}
		default:
			t.Error("the run went on without its lock")
		}
	})
}

func TestSwitchIsSetLive(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Mode: store.ModeFailFast, After: time.Second}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("a", "@every 1s", effect(r)), scheduler.Cron("b", "@every 1s", effect(r))}
			},
		})
		untilMinute(t)
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(10 * time.Second)
		a, b := len(c.Effects("a")), len(c.Effects("b"))
		for _, r := range c.Replicas {
			if err := r.SetDegradation(scheduler.Degradation{Mode: "guess"}); err == nil {
				t.Error("a mode that does not exist was taken")
			}
			if err := r.SetDegradation(scheduler.Degradation{Jobs: map[string]store.Mode{"nobody": store.ModeStoreOnly}}); err == nil {
				t.Error("a job that does not exist was taken")
			}
			err := r.SetDegradation(scheduler.Degradation{Mode: store.ModeStoreOnly, After: time.Second, Jobs: map[string]store.Mode{"b": store.ModeFailFast}})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		if ran := len(c.Effects("a")) - a; ran < 9 {
			t.Errorf("job a ran %d times in 10 s under store_only", ran)
		}
		if ran := len(c.Effects("b")) - b; ran != 0 {
			t.Errorf("job b ran %d times although it fails fast", ran)
		}
	})
}
