package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/store"
)

// Retention says how long records are kept after their end, by the store's clock,
// before a scheduler removes them. The zero value is the defaults. Open runs stay,
// whatever their age, and so do ticks that are not settled.
type Retention struct {
	// Off leaves all records where they are; 'solotick prune' can remove them. Default
	// false.
	Off bool `yaml:"off"`
	// Every is the time between two looks, jittered by half. Default 10m.
	Every time.Duration `yaml:"every"`
	// Succeeded runs. Default 7d.
	Succeeded time.Duration `yaml:"succeeded"`
	// Failed and indeterminate runs. Default 30d.
	Failed time.Duration `yaml:"failed"`
	// Canceled runs. Default 30d.
	Canceled time.Duration `yaml:"canceled"`
	// Skipped and missed ticks. Default 7d.
	Skipped time.Duration `yaml:"skipped"`
	// Ranges are stretches of such ticks. Default 30d.
	Ranges time.Duration `yaml:"ranges"`
	// Keys of queue jobs and of commands that run once are remembered this long after
	// the end of their run, so that a repeat is told from a new one; arguments and
	// result go at the age of the run's state. Default 30d, or the longest of the
	// others if that is more.
	Keys time.Duration `yaml:"keys"`
}

const day = 24 * time.Hour

func (r Retention) withDefaults() Retention {
	setDefault(&r.Every, 10*time.Minute)
	setDefault(&r.Succeeded, 7*day)
	setDefault(&r.Failed, 30*day)
	setDefault(&r.Canceled, 30*day)
	setDefault(&r.Skipped, 7*day)
	setDefault(&r.Ranges, 30*day)
	setDefault(&r.Keys, max(30*day, r.Succeeded, r.Failed, r.Canceled, r.Skipped))
	return r
}

// Validate reports every field that cannot work, and what would.
func (r Retention) Validate() error {
	var errs []error
	r = r.withDefaults()
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"every", r.Every},
		{"succeeded", r.Succeeded},
		{"failed", r.Failed},
		{"canceled", r.Canceled},
		{"skipped", r.Skipped},
		{"ranges", r.Ranges},
		{"keys", r.Keys},
	} {
		if f.d < time.Minute {
			errs = append(errs, fmt.Errorf("scheduler: retention.%s: %v is below 1m: write a longer time, or off: true to keep all records", f.name, f.d))
		}
	}
	if longest := max(r.Succeeded, r.Failed, r.Canceled, r.Skipped); r.Keys < longest {
		errs = append(errs, fmt.Errorf("scheduler: retention.keys: %v is below %v, which runs are kept: a key is remembered at least as long", r.Keys, longest))
	}
	return errors.Join(errs...)
}

// Ages are the ages for the store, with their defaults; Off is the caller's to ask.
func (r Retention) Ages() store.Retention {
	r = r.withDefaults()
	return store.Retention{
		Succeeded: r.Succeeded, Failed: r.Failed, Canceled: r.Canceled, Idle: r.Skipped, Ranges: r.Ranges, Keys: r.Keys,
	}
}

// reach is how far back the scheduler itself asks for the job's records: the
// catch-up window, and the retries.
func (j *job) reach() time.Duration {
	const century = 100 * 365 * day // the sum of more would overflow
	d := j.o.window
	pause := min(j.o.backoffBase, century)
	for i := 1; i < j.o.attempts && d < century; i++ {
		d += pause + pause/5
		pause = min(2*pause, j.o.backoffMax, century)
	}
	return d
}

// keeps refuses a retention under which the job would miss its own records.
func (r Retention) keeps(j *job) error {
	if r.Off {
		return nil
	}
	shortest, need, field := min(r.Succeeded, r.Failed, r.Canceled, r.Skipped, r.Ranges), j.reach(), "retry"
	if need <= shortest {
		return nil
	}
	if need < 2*j.o.window {
		field = "catch_up.window"
	}
	return fmt.Errorf("%s: a retention of %v is too short: the catch-up window and the retries reach %v back: keep records longer, or shorten these", field, shortest, need.Round(time.Second))
}

const (
	pruneCalls   = 10               // in one pass, while there is more
	pruneTimeout = 30 * time.Second // of a call; what it did stays done
	pruneSoon    = 5 * time.Second  // the next pass, while there is more
)

// pruneLoop removes old records of the namespace, those of jobs that no process runs
// any more included. Any number of replicas may do so at once: what one has removed
// the others do not find. The first pass is half of Every or more after the start.
func (s *Scheduler) pruneLoop() {
	last, more := time.Now(), false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if keep := s.settings().Retention; !keep.Off {
			every := keep.Every
			if more {
				every = min(every, pruneSoon)
			}
			timer.Reset(backoff.Jitter(every, 0.5) - time.Since(last))
			due = timer.C
		}
		select {
		case <-s.intake.Done():
			return
		case <-s.pruneNow: // the settings may be others
			continue
		case <-due:
		}
		total, err := s.prune()
		if n := total.Records(); n > 0 {
			s.log.Info("old records removed", "records", n, "more", total.More)
		}
		if s.intake.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("old records not removed: this is tried again", "error", err)
		}
		last, more = time.Now(), err == nil && total.More
	}
}

// prune is one pass.
func (s *Scheduler) prune() (total store.Pruned, err error) {
	for range pruneCalls {
		got, err := s.pruneOnce()
		if total.Add(got); err != nil || !got.More {
			return total, err
		}
	}
	return total, nil
}

func (s *Scheduler) pruneOnce() (store.Pruned, error) {
	ctx, cancel := context.WithTimeout(s.intake, pruneTimeout)
	defer cancel()
	return s.deps.Store.Prune(ctx, store.PruneRequest{Namespace: s.cfg.Namespace, Retention: s.settings().Retention.Ages()})
}
