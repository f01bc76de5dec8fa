package scheduler_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
)

func effect(r *schedulertest.Replica) scheduler.Handler {
	return func(_ context.Context, run *scheduler.Run) error {
		r.Effect(run)
		return nil
	}
}

// once checks that each tick of the job in (from, to] had exactly one effect.
func once(t *testing.T, c *schedulertest.Cluster, job string, period time.Duration, from, to time.Time) {
	t.Helper()
	seen := map[time.Time]int{}
	for _, e := range c.Effects(job) {
		seen[e.Tick.Time()]++
	}
	for tick := from.UTC().Truncate(period).Add(period); !tick.After(to); tick = tick.Add(period) {
		if n := seen[tick]; n != 1 {
			t.Errorf("%s: tick %s ran %d times", job, tick.Format(time.TimeOnly), n)
		}
	}
}

func TestOneRunPerTick(t *testing.T) {
	for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader, scheduler.GateNone} {
		for _, skew := range []time.Duration{0, 300 * time.Millisecond, 700 * time.Millisecond, 5 * time.Second, 90 * time.Second, 24 * time.Hour} {
			t.Run(string(gate)+"/"+skew.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					opts := schedulertest.Options{
						Configure: func(r *schedulertest.Replica, cfg *scheduler.Config) {
							cfg.Gate = gate
							if skew < time.Second {
								// Nobody learns the store's time: one fires early, one late.
								scheduler.Uncorrected(cfg)
							}
							cfg.ClockOffset = time.Duration(r.ID-1) * skew
						},
						Jobs: func(r *schedulertest.Replica) []scheduler.Job {
							return []scheduler.Job{scheduler.Cron("j", "@every 1s", func(ctx context.Context, run *scheduler.Run) error {
								r.Effect(run)
								time.Sleep(5 * time.Millisecond)
								return nil
							})}
						},
					}
					if testing.Verbose() {
						opts.Logs = os.Stderr
					}
					begin := time.Now()
					c := schedulertest.New(t, opts)
					time.Sleep(time.Minute + time.Second)
					once(t, c, "j", time.Second, begin.Add(2*time.Second), begin.Add(time.Minute))
				})
			})
		}
	}
}
