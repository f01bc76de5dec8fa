package scheduler_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
)

// TestTickBetweenTwoLeaders kills the leader at many moments before a tick, so that in
// some of them the next one begins right after it: too early for the sweep to miss it.
func TestTickBetweenTwoLeaders(t *testing.T) {
	const ttl = 10 * time.Second // of the locker
	for before := 6500 * time.Millisecond; before <= ttl; before += 250 * time.Millisecond {
		bubble(t, before.String(), func(t *testing.T) {
			c := schedulertest.New(t, schedulertest.Options{
				Replicas:  2,
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Gate = scheduler.GateLeader },
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 1m", effect(r))}
				},
			})
			untilMinute(t)
			time.Sleep(time.Second)
			begin := time.Now().Truncate(time.Minute)
			tick := begin.Add(time.Minute)
			time.Sleep(time.Until(tick.Add(-before)))
			c.Replicas[c.Effects("j")[0].Replica].Kill() // the leader, by the tick before
			killed := time.Now()
			time.Sleep(45 * time.Second)
			once(t, c, "j", time.Minute, begin, tick)
			for _, e := range c.Effects("j") {
				if late := e.At.Sub(killed); e.Tick.Time().Equal(tick) && late > ttl+2*time.Second {
					t.Errorf("killed %v before the tick: it ran %v after the death", before, late)
				}
			}
		})
	}
}

// TestLeadershipIsTold: who leads is told, a line at each turn.
func TestLeadershipIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := new(lines)
		c := schedulertest.New(t, schedulertest.Options{
			Replicas:  2,
			Logs:      logs,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Gate = scheduler.GateLeader },
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1m", effect(r))}
			},
		})
		untilMinute(t)
		time.Sleep(time.Second)
		c.Replicas[c.Effects("j")[0].Replica].CutLocks()
		time.Sleep(time.Minute)
		synctest.Wait()
		text := strings.Join(logs.take(t), "\n")
		won, ended := strings.Count(text, `level=INFO msg="leadership won"`), strings.Count(text, `level=INFO msg="leadership ended"`)
		if won != 2 || ended != 1 {
			t.Errorf("%d lines of leadership won and %d of its end, want 2 and 1:\n%s", won, ended, text)
		}
	})
}
