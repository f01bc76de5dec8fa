package scheduler_test

import (
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// slow makes every answer of the lock backend take so long, to all replicas.
func slow(c *schedulertest.Cluster, by time.Duration) {
	for _, r := range c.Replicas {
		for _, m := range []lockstest.Method{lockstest.Acquire, lockstest.Renew, lockstest.Release} {
			r.Lock.Arm(m, lockstest.Fault{Kind: lockstest.Delay, Delay: by})
		}
	}
}

// TestSlowLockBackend: an answer takes twice as long as the time between two ticks. One
// that comes within the time that a request has is an answer, and ticks go through the
// gate or are made up for; one that comes later is none, and the mode is taken in time.
func TestSlowLockBackend(t *testing.T) {
	for name, request := range map[string]time.Duration{"an answer": 2400 * time.Millisecond, "no answer": time.Second} {
		bubble(t, name, func(t *testing.T) {
			const after, lease, longest = 3 * time.Second, 10 * time.Second, 30 * time.Second
			c := schedulertest.New(t, schedulertest.Options{
				Locks: locks.Config{RequestTimeout: request},
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Lease = lease
					cfg.Degradation = scheduler.Degradation{Mode: store.ModeStoreOnly, After: after, RecoverAfter: 4 * time.Second}
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r),
						scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
				},
			})
			untilMinute(t)
			begin := time.Now()
			slow(c, 2*time.Second)
			time.Sleep(longest)
			inside := c.Effects("j")
			for _, r := range c.Replicas {
				r.Lock.Heal()
			}
			time.Sleep(30 * time.Second)
			once(t, c, "j", time.Second, begin, begin.Add(59*time.Second))
			accounted(t, c, "j", time.Second, begin, begin.Add(45*time.Second))

			ran := map[time.Duration]schedulertest.Effect{}
			for _, e := range inside {
				ran[e.Tick.Time().Sub(begin.Truncate(time.Second))] = e
			}
			within := func(from, to, late time.Duration, mode store.Mode) {
				t.Helper()
				for tick := from; tick <= to; tick += time.Second {
					if e, ok := ran[tick]; !ok || e.Mode != mode || e.At.Sub(begin)-tick > late {
						t.Errorf("tick %v: ran %v, at %v under %q, want %v late at most, under %q", tick, ok, e.At, e.Mode, late, mode)
					}
				}
			}
			if name == "an answer" {
				within(time.Second, longest-lease-2*time.Second, lease+2*time.Second, store.ModeNone)
			} else {
				within(time.Second, longest-time.Second, after+2*request+time.Second, store.ModeStoreOnly)
				within(after+2*request+2*time.Second, longest-time.Second, 100*time.Millisecond, store.ModeStoreOnly)
			}
		})
	}
}
