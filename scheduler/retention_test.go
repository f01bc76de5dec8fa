package scheduler_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

// Two replicas remove what is old while they run: what is left is younger than its
// age and a pass, no tick runs twice, and the ledger finds no gap.
func TestOldRecordsAreRemoved(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		list := func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(_ context.Context, run *scheduler.Run) error {
				r.Effect(run)
				return nil
			})}
		}
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 2, Jobs: list,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Retention.Succeeded = 2 * time.Hour
			},
		})
		from := time.Now()
		time.Sleep(4*time.Hour + 30*time.Second) // between two ticks
		v, err := c.Store.Survey(t.Context(), schedulertest.Namespace, []string{"j"})
		if err != nil {
			t.Fatal(err)
		}
		now, mark := v.Now, v.Jobs[0].Pruned
		if oldest, latest := now.Add(-2*time.Hour-17*time.Minute), now.Add(-2*time.Hour); mark < oldest || mark > latest {
			t.Errorf("pruned up to %s, want between %s and %s", mark, oldest, latest)
		}
		rows, err := c.Store.List(t.Context(), store.Filter{Namespace: schedulertest.Namespace, Limit: 2000})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range rows {
			if x.Key.Tick <= mark {
				t.Errorf("%s is left below the watermark, %s", x.Key, mark)
			}
		}
		seen := map[store.Millis]int{}
		for _, e := range c.Effects("j") {
			seen[e.Tick]++
		}
		for tick, n := range seen {
			if n != 1 {
				t.Errorf("%s ran %d times", tick, n)
			}
		}
		if len(seen) < 4*60-1 {
			t.Errorf("%d ticks ran in 4 h", len(seen))
		}
		if l := c.Ledger("j", from, time.Now()); l.Pruned != mark || l.Total() != int64(len(rows)) {
			t.Errorf("ledger %+v, %d rows", l, len(rows))
		}
		for _, r := range c.Replicas {
			for _, e := range r.Events() {
				if gap, ok := e.(scheduler.LedgerGap); ok && gap.Gap != 0 {
					t.Errorf("replica %d finds a gap of %d", r.ID, gap.Gap)
				}
			}
			if r.Store.Calls(storetest.Prune) == 0 {
				t.Errorf("replica %d removed nothing", r.ID)
			}
		}
	})
}

func TestRetentionOff(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas:  1,
			Jobs:      jobs(scheduler.Cron("j", "@hourly", func(context.Context, *scheduler.Run) error { return nil })),
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Retention.Off = true },
		})
		time.Sleep(2 * time.Hour)
		if n := c.Replicas[0].Store.Calls(storetest.Prune); n != 0 {
			t.Errorf("%d prunes", n)
		}
	})
}

func TestRetentionIsChecked(t *testing.T) {
	for want, r := range map[string]scheduler.Retention{
		"retention.succeeded: -1s is below 1m":   {Succeeded: -time.Second},
		"retention.every: 1s is below 1m":        {Every: time.Second},
		"retention.keys: 1h0m0s is below 720h":   {Keys: time.Hour},
		"retention.failed: 30s is below 1m0s":    {Failed: 30 * time.Second},
		"retention.ranges: 1ns is below 1m":      {Ranges: 1},
		"retention.canceled: 59s is below 1m":    {Canceled: 59 * time.Second},
		"retention.skipped: 1ms is below 1m0s: ": {Skipped: time.Millisecond},
	} {
		want = strings.Replace(want, "below 1m0s", "below 1m", 1)
		err := scheduler.Config{Namespace: "shop", Retention: r}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	if got := (scheduler.Retention{Failed: 90 * 24 * time.Hour}).Ages(); got.Keys != 90*24*time.Hour {
		t.Errorf("keys are kept for %v, failed runs for 90 days", got.Keys)
	}
	// Records must not go while the job may still ask for them.
	noop := func(context.Context, *scheduler.Run) error { return nil }
	for name, job := range map[string]scheduler.Job{
		"window":  scheduler.Cron("j", "@daily", noop, scheduler.CatchUp(3*time.Hour, 10), scheduler.WithGate(scheduler.GateNone)),
		"retries": scheduler.QueueFunc("j", noop, scheduler.Retry(20, time.Minute, time.Hour)),
	} {
		for keep, refused := range map[time.Duration]bool{2 * time.Hour: true, 48 * time.Hour: false} {
			s, err := scheduler.New(scheduler.Config{Namespace: "shop", Retention: scheduler.Retention{Skipped: keep}}, scheduler.Deps{Store: memstore.New()})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Add(job); (err != nil) != refused || refused && !strings.Contains(err.Error(), "is too short") {
				t.Errorf("%s with a retention of %v: %v", name, keep, err)
			}
		}
	}
	// Nor where the sum of the pauses is more than a duration holds.
	for _, most := range []time.Duration{1000 * time.Hour, math.MaxInt64} {
		err := scheduler.Config{Namespace: "shop"}.CheckJob(scheduler.QueueFunc("j", noop, scheduler.Retry(10_000, time.Hour, most)))
		if err == nil || !strings.Contains(err.Error(), "scheduler: retry: a retention of") {
			t.Errorf("10,000 retries up to %v apart: %v", most, err)
		}
	}
}
