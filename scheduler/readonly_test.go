package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// TestStoreIsOnlyRead: a store that answers what reads and no write, as one whose disk is
// full or whose write lock somebody keeps, is away: a job that may runs without it, the
// health says so all the time, and what ran is recorded afterwards.
func TestStoreIsOnlyRead(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		dir := t.TempDir()
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Journal, cfg.Degradation.After = dir, 2*time.Second
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.WhenStoreDown(scheduler.StoreDownRun),
					scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
			},
		})
		untilMinute(t)
		begin := time.Now()
		for _, r := range c.Replicas {
			r.Store.Arm(storetest.Fault{BlackHole: true}, storetest.Claim, storetest.Finish, storetest.Settle, storetest.Heartbeat, storetest.Revive)
		}
		time.Sleep(40*time.Second + 500*time.Millisecond)
		inside := modes(c, "j", begin.Add(time.Second), time.Now())
		for _, r := range c.Replicas {
			r.Store.Heal()
		}
		healed := time.Now()
		time.Sleep(time.Minute)
		accounted(t, c, "j", time.Second, begin, begin.Add(90*time.Second))
		// The gate was there. When the store is back, each replica learns it by itself, and
		// one may run a tick without a record that another has recorded.
		once(t, c, "j", time.Second, begin, begin.Add(35*time.Second))
		once(t, c, "j", time.Second, begin.Add(60*time.Second), begin.Add(90*time.Second))
		if n := inside[store.ModeStoreDown]; n < 10 || len(inside) != 1 {
			t.Errorf("runs while the store took no write: %v", inside)
		}
		for _, r := range c.Replicas {
			if h := r.Health(); h.Journal != 0 || h.Store != "ok" {
				t.Errorf("replica %d is not back: %+v", r.ID, h)
			}
		}
		for _, e := range c.Effects("j") {
			if e.Mode == store.ModeStoreDown && e.At.After(healed.Add(25*time.Second)) {
				t.Errorf("tick %v ran without a record %v after the store was back", e.Tick, e.At.Sub(healed))
			}
		}
	})
}

// TestTakeoverIsAWrite: where nothing but the takeover of a dead owner's run is there to
// be written, a store that takes no write is not told as back at every read.
func TestTakeoverIsAWrite(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{Logs: log, Jobs: func(*schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1h", func(ctx context.Context, _ *scheduler.Run) error { return sleep(ctx, time.Minute) }, scheduler.WithGate(scheduler.GateNone))}
		}})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Second)))
		for _, r := range c.Replicas {
			r.Store.Arm(storetest.Fault{BlackHole: true}, storetest.TakeOver)
		}
		for _, r := range c.Replicas {
			if r.Health().InProgress > 0 {
				r.Kill()
			}
		}
		time.Sleep(2 * time.Minute)
		n := 0
		for _, line := range log.take(t) {
			if strings.Contains(line, "store cannot answer") {
				n++
			}
		}
		if n == 0 || n > 6 {
			t.Errorf("%d lines tell that the store cannot answer, want a few in two minutes", n)
		}
	})
}
