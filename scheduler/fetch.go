package scheduler

import (
	"context"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// fetchLoop claims pending rows that are due (queue jobs, retries, catch-ups)
// while there is room for them.
func (s *Scheduler) fetchLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		more, err := s.fetch()
		switch {
		case err != nil:
			timer.Reset(backoff.Jitter(s.settings().PollInterval, 0.5))
		case more:
			timer.Reset(0)
		default:
			timer.Reset(backoff.Jitter(s.settings().PollInterval, 0.2))
		}
		select {
		case <-s.intake.Done():
			return
		case <-timer.C:
		case <-s.fetchNow:
		}
	}
}

// fetch claims as many rows as there is room for and starts them. More is true
// when there may be others and room for them.
func (s *Scheduler) fetch() (more bool, err error) {
	room := s.settings().Concurrency - int(s.inFlight.Load())
	set := s.jobs.Load()
	jobs := s.mayStart(set)
	if room <= 0 || len(jobs) == 0 {
		return false, nil // a run that ends nudges us
	}
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	sent, at := leaseclock.Now(), time.Now()
	got, err := s.deps.Store.Fetch(ctx, s.fetchRequest(jobs, room))
	s.asked("fetch", at, err)
	if err != nil {
		return false, err
	}
	s.clock.observe(at, got.Now)
	for _, exec := range got.Runs {
		s.startFetched(set, exec, sent, since(at))
	}
	return got.More && len(got.Runs) < room, nil
}

func (s *Scheduler) fetchRequest(jobs []string, limit int) store.FetchRequest {
	return store.FetchRequest{
		Namespace: s.cfg.Namespace, Owner: s.owner, OwnerLabel: s.cfg.Label, Lease: s.cfg.Lease,
		Jobs: jobs, Limit: limit,
	}
}

// startFetched starts a row that was fetched or taken over. Such a run takes no
// gate: its active key keeps it alone, and a gate would only save a claim that
// has been made already.
func (s *Scheduler) startFetched(set *jobSet, exec store.Execution, sent leaseclock.Instant, claimed Interval) {
	j := set.by[exec.Key.Job]
	mode, _ := s.switcher.degraded(j)
	s.inFlight.Add(1)
	s.start(j, exec, sent, admission{mode: mode, claimed: claimed}, func() {
		s.inFlight.Add(-1)
		nudge(s.fetchNow)
	})
}

// mayStart names the jobs whose waiting rows this process may start now: not
// those that fail fast while their coordinator is away or have a run without a record
// in progress here, and those under a leader only while leading.
func (s *Scheduler) mayStart(set *jobSet) []string {
	names := make([]string, 0, len(set.sorted))
	for _, j := range set.sorted {
		if !s.switcher.failsFast(j) && s.leads(j) && !j.busyAlone() {
			names = append(names, j.name)
		}
	}
	return names
}

// leads reports whether this process looks after the job's ticks: always, but for
// gate leader, where the term's holder does, or everybody in a degraded mode.
func (s *Scheduler) leads(j *job) bool {
	if j.o.gate != GateLeader || j.elector.Term() != nil {
		return true
	}
	_, degraded := s.switcher.degraded(j)
	return degraded
}

// fetchAfter looks for pending rows in d, when a retry that this process wrote
// is due.
func (s *Scheduler) fetchAfter(d time.Duration) {
	if d >= s.settings().PollInterval {
		return // the polls see it in time
	}
	time.AfterFunc(d+time.Millisecond, s.Wake)
}
