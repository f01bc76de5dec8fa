package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store/storetest"
)

// cost is what a stretch of time cost a replica: requests to the lock backend and
// to the store. Each is one statement, or one transaction; the backends' own
// tests (sqllock and gormstore, TestStatements) hold them to that.
type cost struct {
	acquire, release         int
	claim, finish            int
	sweep, fetch, beat, rest int
}

func costs(r *schedulertest.Replica) cost {
	c := cost{
		acquire: r.Lock.Calls(lockstest.Acquire), release: r.Lock.Calls(lockstest.Release),
	}
	for m, n := range r.Store.Counts() {
		switch m {
		case storetest.Claim:
			c.claim += n
		case storetest.Finish:
			c.finish += n
		case storetest.Survey, storetest.Settle, storetest.TakeOver:
			c.sweep += n
		case storetest.Fetch:
			c.fetch += n
		case storetest.Heartbeat:
			c.beat += n
		default:
			c.rest += n
		}
	}
	return c
}

func (c cost) since(o cost) cost {
	return cost{
		c.acquire - o.acquire, c.release - o.release, c.claim - o.claim, c.finish - o.finish,
		c.sweep - o.sweep, c.fetch - o.fetch, c.beat - o.beat, c.rest - o.rest,
	}
}

// TestCostOfATick counts what one tick costs each replica, by the part it plays.
func TestCostOfATick(t *testing.T) {
	for _, tc := range []struct {
		gate                scheduler.Gate
		partitions          int
		late                time.Duration // of replica 1
		work                time.Duration
		winner, heldOrLater cost
	}{
		{scheduler.GateLock, 0, 0, 50 * time.Millisecond, cost{acquire: 1, release: 1, claim: 1, finish: 1}, cost{acquire: 1}},
		{scheduler.GateLock, 0, 200 * time.Millisecond, 50 * time.Millisecond, cost{acquire: 1, release: 1, claim: 1, finish: 1}, cost{acquire: 1, release: 1, claim: 1}},
		{scheduler.GateLeader, 0, 0, 50 * time.Millisecond, cost{claim: 1, finish: 1}, cost{}},
		{scheduler.GateLeader, 24, 0, 50 * time.Millisecond, cost{claim: 1, finish: 1}, cost{}},
		{scheduler.GateNone, 0, 200 * time.Millisecond, 50 * time.Millisecond, cost{claim: 1, finish: 1}, cost{claim: 1}},
	} {
		t.Run(fmt.Sprintf("%s, %d partitions, other %v late", tc.gate, tc.partitions, tc.late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := schedulertest.New(t, schedulertest.Options{
					Replicas: 2,
					Configure: func(r *schedulertest.Replica, cfg *scheduler.Config) {
						cfg.Gate, cfg.Partitions = tc.gate, tc.partitions
						scheduler.Uncorrected(cfg)
						if r.ID == 1 {
							cfg.ClockOffset = -tc.late
						}
					},
					Jobs: func(r *schedulertest.Replica) []scheduler.Job {
						return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
							r.Effect(run)
							return sleep(ctx, tc.work)
						})}
					},
				})
				untilMinute(t)
				// Just before a tick, so that little else falls into the window.
				time.Sleep(time.Minute - 10*time.Millisecond)
				before := []cost{costs(c.Replicas[0]), costs(c.Replicas[1])}
				n := len(c.Effects("j"))
				time.Sleep(time.Second)
				effects := c.Effects("j")[n:]
				if len(effects) != 1 {
					t.Fatalf("effects %+v", effects)
				}
				for i, r := range c.Replicas {
					got, want := costs(r).since(before[i]), tc.heldOrLater
					if i == effects[0].Replica {
						want = tc.winner
					}
					// What comes by chance is counted by TestCostOfIdling.
					got.sweep, got.fetch = 0, 0
					if tc.gate == scheduler.GateLeader {
						got.acquire = 0 // a candidate's looks
					}
					if got != want {
						t.Errorf("replica %d (winner %d): %+v, want %+v", i, effects[0].Replica, got, want)
					}
				}
			})
		})
	}
}

// TestCostOfIdling: nothing is due. One sweep a lease, the polls, and for a leader
// its renewals: together below one request a second.
func TestCostOfIdling(t *testing.T) {
	for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader, scheduler.GateNone} {
		t.Run(string(gate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := schedulertest.New(t, schedulertest.Options{
					Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Gate = gate },
					Jobs: func(r *schedulertest.Replica) []scheduler.Job {
						return []scheduler.Job{scheduler.Cron("j", "@yearly", effect(r))}
					},
				})
				time.Sleep(time.Minute)
				const minutes = 10
				for _, r := range c.Replicas {
					before, lock := costs(r), r.Lock.AllCalls()
					time.Sleep(minutes * time.Minute)
					got := costs(r).since(before)
					sweeps := minutes * 60 / 10
					if got.sweep > sweeps || got.sweep < sweeps*8/10 {
						t.Errorf("replica %d: %d sweeps in %d min, want about one per 10 s lease", r.ID, got.sweep, minutes)
					}
					all := got.sweep + got.fetch + got.beat + got.claim + got.finish + got.rest + r.Lock.AllCalls() - lock
					if perSecond := float64(all) / (minutes * 60); perSecond >= 1 {
						t.Errorf("replica %d: %.2f requests a second while idle: %+v", r.ID, perSecond, got)
					}
				}
			})
		})
	}
}

// TestOneClaimForOneInstant: all ticks of an instant are claimed together.
func TestOneClaimForOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1, Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Gate = scheduler.GateNone },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				var list []scheduler.Job
				for i := range n {
					list = append(list, scheduler.Cron(fmt.Sprint("j", i), "@every 1m", effect(r)))
				}
				return list
			},
		})
		untilMinute(t)
		before := costs(c.Replicas[0])
		time.Sleep(time.Minute)
		got := costs(c.Replicas[0]).since(before)
		// Finishes go together where they meet, which is luck; never more than one each.
		if got.claim > 2 || got.finish > n {
			t.Errorf("%d ticks of one instant cost %d claims and %d finishes", n, got.claim, got.finish)
		}
		if effects := len(c.Effects("")); effects != 2*n {
			t.Errorf("%d effects, want %d", effects, 2*n)
		}
	})
}
