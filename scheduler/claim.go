package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// fire brings one tick through gate and claim and starts its run.
func (s *Scheduler) fire(j *job, tick store.Millis) {
	run := store.ClaimRun{NewExecution: j.row(j.tickKey(tick))}
	if j.o.overlap == OverlapBufferAll {
		run.Busy = store.BusyBuffer
	}
	if j.busyHere() {
		// The gate is ours already, so nobody else will record this tick.
		if run.Busy == store.BusySkip {
			run.Skip = store.ReasonOverlap
		} else if j.busyAlone() {
			return // the sweep's, when that run is over and recorded
		}
		s.claim(s.intake, j, run, admission{})
		return
	}
	for {
		adm, ok := s.admit(j, tick)
		if !ok {
			return
		}
		run.Mode = adm.mode
		run.TraceParent = s.tickTrace(run.Key, adm)
		wait := s.claim(s.intake, j, run, adm)
		if wait <= 0 {
			return
		}
		// Early by the store's clock: this machine's was set wrong after the start.
		// Nothing is held meanwhile, and what is absurdly early is the sweep's.
		if wait > j.o.window || backoff.Wait(s.intake, wait) != nil {
			return
		}
	}
}

// tickTrace asks the listeners for the name of the trace. Without a gate the tick may
// well be another's, and a trace that nobody makes would be begun for it.
func (s *Scheduler) tickTrace(key store.Key, adm admission) string {
	if adm.lease == nil && adm.term == nil {
		return ""
	}
	for _, l := range s.deps.Listeners {
		if t, ok := l.(TickTracer); ok {
			if name := t.TickTrace(s.cfg.Namespace, key, adm.asked); name != "" {
				return name
			}
		}
	}
	return ""
}

// latest makes the tick the one that waits for the job's gate: an older one that
// still waits is given up, and left to the sweep and the misfire policy.
func (j *job) latest(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	j.mu.Lock()
	if j.giveUp != nil {
		j.giveUp()
	}
	j.giveUp = cancel
	j.mu.Unlock()
	return ctx, cancel
}

// The shortest wait for which a tick that is early gives its gate back.
const holdWhileEarly = time.Second

// claim asks for the run and starts it when it is ours. In every other case the
// gate is given back. The answer is positive when the tick is early: come again
// after it.
func (s *Scheduler) claim(ctx context.Context, j *job, run store.ClaimRun, adm admission) (wait time.Duration) {
	// The claim itself is not cut off by a newer tick or a stop: its answer must be
	// known, since it may have made us the owner.
	for try := 0; ; try++ {
		if run.Skip == "" && s.runsUnrecorded(j) {
			s.startUnrecorded(j, run.Key, adm)
			return 0
		}
		a, err := s.claims.ask(s.alive, claimAsk{run}, nil)
		if err != nil {
			s.log.Warn("stopped without an answer to a claim; if it was carried out, the run is taken over when its lease ends", "job", j.name, "tick", run.Key.Tick.String())
			s.release(adm)
			return 0
		}
		switch {
		case a.err != nil && errors.Is(a.err, store.ErrUnavailable) && s.keepAsking(ctx, adm, a.err, try):
			continue
		case a.err != nil:
			s.release(adm)
			if ctx.Err() == nil {
				s.log.Warn("tick not claimed; the sweep accounts for it", "job", j.name, "tick", run.Key.Tick.String(), "error", a.err)
			}
			return 0
		}
		if a.Outcome != store.OutcomeStarted {
			s.emit(TickClaimed{Job: j.name, Tick: run.Key.Tick, Outcome: a.Outcome, State: a.Execution.State, Reason: a.Execution.Reason})
		}
		switch a.Outcome {
		case store.OutcomeStarted:
			adm.claimed = a.took
			s.start(j, a.Execution, a.sent, adm, nil)
			return 0
		case store.OutcomeEarly:
			if a.Wait > holdWhileEarly {
				s.release(adm)
				return a.Wait
			}
			if backoff.Wait(ctx, a.Wait) != nil {
				s.release(adm)
				return 0
			}
			try = 0
		case store.OutcomeSuperseded:
			s.release(adm)
			nudge(s.sweepNow) // learns which schedule is in force
			return 0
		case store.OutcomeBusy:
			s.release(adm)
			if a.Execution.State == store.StatePending {
				nudge(s.fetchNow)
			}
			return 0
		default:
			s.release(adm)
			return 0
		}
	}
}

// keepAsking waits before a claim is repeated, while the gate that it stands on
// may still be ours.
func (s *Scheduler) keepAsking(ctx context.Context, adm admission, err error, try int) bool {
	if try > 20 || adm.lease != nil && !adm.lease.Valid() || adm.term != nil && adm.term.Err() != nil {
		return false
	}
	return backoff.Wait(ctx, backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}.Delay(try)) == nil
}

type claimAsk struct{ run store.ClaimRun }

type claimAnswer struct {
	store.ClaimedRun
	sent leaseclock.Instant
	took Interval
	err  error
}

// claimBatch claims all runs that are asked for together in one transaction.
func (s *Scheduler) claimBatch(asks []claimAsk) []claimAnswer {
	answers := make([]claimAnswer, len(asks))
	if err := s.intake.Err(); err != nil {
		for i := range answers {
			answers[i].err = err // they stood behind others when the stop began
		}
		return answers
	}
	req := store.ClaimRequest{
		Namespace: s.cfg.Namespace, Owner: s.owner, OwnerLabel: s.cfg.Label, Lease: s.cfg.Lease,
		Runs: make([]store.ClaimRun, len(asks)),
	}
	for i, a := range asks {
		req.Runs[i] = a.run
	}
	ctx, cancel := context.WithTimeout(s.alive, s.storeTimeout())
	defer cancel()
	sent, at := leaseclock.Now(), time.Now()
	claimed, err := s.deps.Store.Claim(ctx, req)
	s.asked("claim", at, err)
	took := since(at)
	if err == nil {
		s.clock.observe(at, claimed.Now)
	}
	for i := range answers {
		answers[i].sent, answers[i].took, answers[i].err = sent, took, err
		if err == nil {
			answers[i].ClaimedRun = claimed.Runs[i]
		}
	}
	return answers
}
