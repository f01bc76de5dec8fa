package demo

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

const (
	namespace = "demo"
	lease     = 2 * time.Second
	// A dead owner's run is with another replica within the lease and this.
	takeoverSlack = 2 * time.Second
	// The longer job is in progress for this long, so that a kill can hit it.
	reportTakes = 1500 * time.Millisecond
	queueKind   = "email"
	longJob     = "report"
)

// cronJob is a scheduled job of the demo.
type cronJob struct {
	name  string
	spec  string
	gate  scheduler.Gate
	takes time.Duration
}

// The longer job's period is above its run, the lease and the slack together, so
// that every one of its ticks is owed a run even if its owner is killed.
var cronJobs = []cronJob{
	{"prices", "@every 1s", scheduler.GateLock, 20 * time.Millisecond},
	{"pulse", "@every 1s", scheduler.GateNone, 5 * time.Millisecond},
	{"mirror", "* * * * * *", scheduler.GateLock, 100 * time.Millisecond},
	{longJob, "@every 6s", scheduler.GateLock, reportTakes},
}

// due lists the instants of the job in (from, to].
func (j cronJob) due(from, to store.Millis) ([]store.Millis, error) {
	spec, err := cronspec.Parse(j.spec, cronspec.Options{})
	if err != nil {
		return nil, err
	}
	var ticks []store.Millis
	for at := from.Time(); ; {
		next, ok := spec.Next(at)
		if !ok || store.MillisOf(next) > to {
			return ticks, nil
		}
		ticks = append(ticks, store.MillisOf(next))
		at = next
	}
}

// schedulerJobs are the demo's jobs as a replica runs them.
func schedulerJobs(db *gorm.DB, guard *idempotent.Guard, who identity) []scheduler.Job {
	var jobs []scheduler.Job
	for _, j := range cronJobs {
		jobs = append(jobs, scheduler.Cron(j.name, j.spec, func(ctx context.Context, run *scheduler.Run) error {
			entry := who.entry(run)
			if err := entry.insert(db.WithContext(ctx), startsTable); err != nil {
				return fmt.Errorf("note the start: %w", err)
			}
			if err := work(ctx, j.takes); err != nil {
				return err
			}
			return effect(ctx, guard, run, who)
		},
			scheduler.WithGate(j.gate),
			scheduler.OnMisfire(scheduler.MisfireFireAll),
			scheduler.CatchUp(time.Hour, 10_000),
			scheduler.OnOverlap(scheduler.OverlapBufferAll),
			scheduler.Retry(100, 50*time.Millisecond, time.Second), // attempts that a kill ended count
			scheduler.Promise(scheduler.ExactlyOnce)))
	}
	return append(jobs, scheduler.QueueFunc(queueKind, func(ctx context.Context, run *scheduler.Run) error {
		return effect(ctx, guard, run, who)
	},
		scheduler.Retry(100, 50*time.Millisecond, time.Second),
		scheduler.Promise(scheduler.ExactlyOnce)))
}

// effect writes the run's row in the transaction that also completes the run.
func effect(ctx context.Context, guard *idempotent.Guard, run *scheduler.Run, who identity) error {
	return guard.Do(ctx, run, func(tx *gorm.DB) error { return who.entry(run).insert(tx, effectsTable) })
}

// work takes a while, unless the run's right to go on ends.
func work(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
