package scheduler

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

const (
	// settleGrace is how old a tick must be before the sweep misses its record:
	// replicas whose clocks are apart, and a claim under way, come first.
	settleGrace = time.Second
	// sweepJitter spreads the sweeps of the replicas that wait for one lease.
	sweepJitter = 500 * time.Millisecond
	// settleMost bounds the jobs that one transaction accounts for.
	settleMost = 100
	// ledgerEvery is how often a stretch that was settled is counted again.
	ledgerEvery = time.Minute
)

// sweepLoop accounts for ticks without a record and for runs without an owner:
// when the earliest lease ends, and at most one lease after the last sweep.
func (s *Scheduler) sweepLoop() {
	won := make(<-chan struct{})
	timer := time.NewTimer(0)
	defer timer.Stop()
	var audited, again time.Time
	terms := termsSeen{}
	for {
		if s.usesGate(GateLeader) {
			won = s.lead.changed()
			begun, ended := s.lead.turns(terms)
			if len(ended) > 0 {
				s.log.Info("leadership ended", "terms", ended)
			}
			if len(begun) > 0 {
				s.log.Info("leadership won", "terms", begun)
				for range begun {
					s.emit(TermWon{})
				}
				// A new leader sweeps at once, and again when the ticks that nobody led
				// just before are old enough to be missed.
				nudge(s.sweepNow)
				if !mutation.On("settle-again") {
					again = time.Now().Add(settleGrace + sweepJitter/10)
				}
				nudge(s.fetchNow)
			}
		}
		select {
		case <-s.intake.Done():
			return
		case <-won:
			continue
		case <-timer.C:
		case <-s.sweepNow:
		}
		next, survey := s.sweep()
		if left := time.Until(again); left > 0 {
			next = min(next, left)
		}
		timer.Reset(next)
		if len(survey.Jobs) > 0 && time.Since(audited) >= ledgerEvery {
			audited = time.Now()
			s.audit(survey.Jobs[rand.N(len(survey.Jobs))])
		}
	}
}

// sweep does one round and returns when the next is due, and what it saw.
func (s *Scheduler) sweep() (next time.Duration, survey store.Surveyed) {
	jitter := rand.N(sweepJitter)
	fallback := s.cfg.Lease/2 + jitter
	set := s.jobs.Load() // what is learned is of these jobs, whatever takes their place
	if len(set.names) == 0 {
		return s.cfg.Lease + jitter, survey
	}
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	at := time.Now()
	survey, err := s.deps.Store.Survey(ctx, s.cfg.Namespace, set.names)
	s.asked("survey", at, err)
	if err != nil {
		return fallback, survey
	}
	s.clock.observe(at, survey.Now)
	s.emit(JobsSurveyed{Now: survey.Now, Jobs: survey.Jobs})
	if survey.NextLeaseEnd != 0 && survey.NextLeaseEnd < survey.Now {
		if more, err := s.takeOver(); err != nil || more {
			fallback = jitter
		}
	}
	tried, err := s.settle(set, survey)
	if err != nil {
		return fallback, survey
	}
	next = s.cfg.Lease + jitter
	if tried {
		next = min(next, s.othersLearn()+jitter)
	}
	if survey.NextLeaseEnd > survey.Now {
		// When that lease ends, unless it is renewed: then the sweep is early and
		// cheap, and looks again.
		next = min(next, survey.NextLeaseEnd.Sub(survey.Now)+jitter)
	} else if survey.NextLeaseEnd != 0 {
		next = min(next, fallback)
	}
	if survey.NextRunAt != 0 {
		s.fetchAfter(max(survey.NextRunAt.Sub(survey.Now), 0))
	}
	return max(next, 100*time.Millisecond), survey
}

func (s *Scheduler) names() []string { return s.jobs.Load().names }

// takeOver runs what dead owners left. More is true when there is more of it.
func (s *Scheduler) takeOver() (more bool, err error) {
	var jobs []string
	policies := map[string]store.OnCrash{}
	set := s.jobs.Load()
	for _, j := range set.sorted {
		if !s.switcher.failsFast(j) && !j.busyAlone() {
			jobs = append(jobs, j.name)
			policies[j.name] = j.o.onCrash
		}
	}
	if len(jobs) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	sent, at := leaseclock.Now(), time.Now()
	// Not bounded by Concurrency: a run that was in progress is owed a place.
	req := s.fetchRequest(jobs, 100)
	if !mutation.On("crash-policy") {
		req.OnCrash = policies // who put a queue row in need not have known its job's
	}
	got, err := s.deps.Store.TakeOver(ctx, req)
	s.asked("take over", at, err)
	if err != nil {
		return false, err
	}
	for _, exec := range got.Settled {
		s.log.With(runFields(&exec)...).Warn("run of a dead owner settled", "state", exec.State.String(), "reason", exec.Reason)
		s.emit(RunTakenOver{Execution: exec})
	}
	for _, exec := range got.Runs {
		s.log.With(runFields(&exec)...).Warn("run of a dead owner taken over")
		s.emit(RunTakenOver{Execution: exec})
		s.startFetched(set, exec, sent, since(at))
	}
	return got.More, nil
}

// settle accounts for the expected ticks of all jobs that have some. Tried means that it
// was only tried whether the store takes writes, for some of them.
func (s *Scheduler) settle(set *jobSet, survey store.Surveyed) (tried bool, err error) {
	to := survey.Now.Add(-settleGrace)
	var due []store.SettleJob
	for _, state := range survey.Jobs {
		j := set.by[state.Job]
		if j == nil {
			continue
		}
		j.learn(s, state)
		// While a coordinator has not answered and no mode is taken, the job's ticks
		// wait unrecorded.
		if j.isSuperseded() || s.awaitsJournals(j) || s.switcher.doubtful(j) || !s.leads(j) {
			continue
		}
		if to := j.beforeAsking(to); to > state.Settled && j.owes(state, to) {
			due = append(due, store.SettleJob{Job: state.Job, Seen: state.Settled, To: to})
		}
	}
	for len(due) > 0 {
		n := min(len(due), settleMost)
		only, err := s.settleBatch(set, due[:n])
		if err != nil {
			return tried, err
		}
		tried = tried || only
		due = due[n:]
	}
	return tried, nil
}

func (s *Scheduler) settleBatch(set *jobSet, jobs []store.SettleJob) (tried bool, err error) {
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	began := time.Now()
	// Decide may be called again when the transaction is; the last call counts.
	events := map[string]TicksSettled{}
	failed := map[string]bool{}
	result, err := s.deps.Store.Settle(ctx, store.SettleRequest{Namespace: s.cfg.Namespace, Jobs: jobs},
		func(v store.TickView) store.Settlement {
			j := set.by[v.Job]
			if s.onlyTries(j, began) {
				tried = true
				delete(events, v.Job)
				delete(failed, v.Job)
				return store.Settlement{To: v.Seen}
			}
			failed[v.Job] = s.switcher.failsFast(j)
			settlement := j.settle(v, failed[v.Job])
			events[v.Job] = countSettled(v.Job, settlement)
			return settlement
		})
	s.asked("settle", began, err)
	if err != nil {
		return tried, err
	}
	for _, e := range events {
		if e.Rows > 0 || e.Ranged > 0 {
			s.log.Log(s.intake, settledLevel(e), "ticks without a record settled",
				"job", e.Job, "to_run", e.Pending, "rows", e.Rows, "in_ranges", e.Ranged)
			s.emit(e)
		}
	}
	left := map[Gate]bool{}
	for job, failed := range failed {
		if j := set.by[job]; failed && !s.switcher.failsFast(j) {
			left[j.o.gate] = true // the mode, meanwhile: perhaps before these were there
		}
	}
	for g := range left {
		s.revive(g)
	}
	if result.Pending > 0 {
		s.Wake()
	}
	return tried, nil
}

// settledLevel keeps quiet about ticks that were merely skipped: while a mode fails
// fast every sweep has some, and that the mode is taken has been said.
func settledLevel(e TicksSettled) slog.Level {
	for _, c := range e.Counts {
		if c.State != store.StateSkipped {
			return slog.LevelInfo
		}
	}
	return slog.LevelDebug
}

// countSettled is what a settlement says of the job's ticks.
func countSettled(job string, what store.Settlement) TicksSettled {
	e := TicksSettled{Job: job}
	count := func(s store.State, r store.Reason, n int64) {
		for i := range e.Counts {
			if c := &e.Counts[i]; c.State == s && c.Reason == r {
				c.Ticks += n
				return
			}
		}
		e.Counts = append(e.Counts, TickCount{s, r, n})
	}
	for _, t := range what.Ticks {
		if e.Rows++; t.State == store.StatePending {
			e.Pending++
		}
		count(t.State, t.Reason, 1)
	}
	for _, r := range what.Ranges {
		e.Ranged += r.Count
		count(r.State, r.Reason, r.Count)
	}
	return e
}

// revive makes up for ticks that were skipped because the gate's coordinator was
// away, as far as each job's misfire policy says. Whoever leaves the mode does so also
// where another one leads: that one may have done it before this one skipped its last.
func (s *Scheduler) revive(g Gate) {
	for _, j := range s.sorted() {
		if j.kind != kindCron || j.o.gate != g || j.isSuperseded() || mutation.On("revive-all") && !s.leads(j) {
			continue
		}
		limit := 0
		switch j.o.misfire {
		case MisfireFireOnce:
			limit = 1
		case MisfireFireAll:
			limit = j.o.maxCatchup
		case MisfireSkip:
		}
		if limit == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
		began := time.Now()
		n, err := s.deps.Store.Revive(ctx, store.ReviveRequest{
			Namespace: s.cfg.Namespace, Job: j.name, Limit: limit,
			Since: store.MillisOf(s.clock.now().Add(-j.o.window)),
		})
		cancel()
		s.asked("revive", began, err)
		if err != nil {
			s.log.Warn("ticks skipped while degraded not revived", "job", j.name, "error", err)
			continue
		}
		if n > 0 {
			s.log.Info("ticks skipped while degraded will run now", "job", j.name, "ticks", n)
			s.Wake()
		}
	}
}
