package scheduler_test

import (
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// TestReplicasComeBackOneByOne: the first that leaves the mode leads, and makes up for
// what was skipped; those that still fail fast skip a tick after that.
func TestReplicasComeBackOneByOne(t *testing.T) {
	for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader} {
		for phase := time.Duration(0); phase < time.Second; phase += 50 * time.Millisecond {
			bubble(t, string(gate)+"/"+phase.String(), func(t *testing.T) {
				c := schedulertest.New(t, schedulertest.Options{
					Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
						cfg.Gate = gate
						cfg.Degradation = scheduler.Degradation{Mode: store.ModeFailFast, After: time.Second, RecoverAfter: 2 * time.Second}
					},
					Jobs: func(r *schedulertest.Replica) []scheduler.Job {
						return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
					},
				})
				untilMinute(t)
				begin := time.Now()
				for _, r := range c.Replicas {
					r.CutLocks()
				}
				time.Sleep(30*time.Second + phase)
				for _, r := range c.Replicas {
					r.Lock.Heal()
					time.Sleep(700 * time.Millisecond)
				}
				time.Sleep(time.Minute)
				once(t, c, "j", time.Second, begin, begin.Add(time.Minute+10*time.Second))
			})
		}
	}
}

// TestWhoDoesNotLeadRevives: the leader was never degraded, so what another one has
// skipped meanwhile is made up for by that one.
func TestWhoDoesNotLeadRevives(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 2,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Gate = scheduler.GateLeader
				cfg.Degradation = scheduler.Degradation{Mode: store.ModeFailFast, After: time.Second, RecoverAfter: 2 * time.Second}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 10s", effect(r), scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
			},
		})
		leads, follows := c.Replicas[0], c.Replicas[1]
		untilMinute(t)
		begin := time.Now()
		if e := c.Effects("j"); len(e) == 0 {
			t.Fatal("nothing ran")
		} else if e[0].Replica == follows.ID {
			leads, follows = follows, leads
		}
		follows.CutLocks()
		time.Sleep(15 * time.Second)
		leads.CutStore()
		time.Sleep(10 * time.Second) // the other skips a tick
		skipped := 0
		for _, row := range c.Rows("j") {
			if row.Reason == store.ReasonDegraded {
				skipped++
			}
		}
		if skipped == 0 {
			t.Fatal("nothing was skipped")
		}
		leads.Store.Heal()
		follows.Lock.Heal()
		time.Sleep(time.Minute)
		once(t, c, "j", 10*time.Second, begin, begin.Add(time.Minute))
	})
}
