package metrics

import (
	"errors"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// OnEvent implements scheduler.Listener.
func (m *Metrics) OnEvent(e scheduler.Event) {
	switch e := e.(type) {
	case scheduler.RunStarted:
		m.started(&e.Execution)
	case scheduler.RunFinished:
		m.finished(&e)
	case scheduler.RunLost:
		if errors.Is(e.Cause, scheduler.ErrLeaseLost) || errors.Is(e.Cause, scheduler.ErrGateLost) {
			m.series(e.Execution.Key.Job).leaseLost.Inc()
		}
	case scheduler.RunTakenOver:
		s := m.series(e.Execution.Key.Job)
		s.takeovers.Inc()
		if e.Execution.State == store.StateMissed {
			s.missed.Inc()
		}
	case scheduler.TickClaimed:
		if e.Outcome == store.OutcomeBusy || e.Outcome == store.OutcomeSkipped {
			if e.State == store.StateSkipped || e.State == store.StateMissed {
				m.series(e.Job).tick(fate{e.State, e.Reason}, 1)
			}
		}
	case scheduler.TicksSettled:
		s := m.series(e.Job)
		for _, c := range e.Counts {
			if c.State != store.StatePending {
				s.tick(fate{c.State, c.Reason}, c.Ticks)
			}
		}
	case scheduler.StoreAnswered:
		of := m.fams.storeOf(e.Op)
		of.latency.Observe(e.Took.Seconds())
		if e.Err != nil {
			of.errors.Inc()
		}
	case scheduler.JobsSurveyed:
		for i := range e.Jobs {
			m.series(e.Jobs[i].Job).paused.Set(truth(e.Jobs[i].PausedAt(e.Now)))
		}
	case scheduler.JobsChanged:
		for _, name := range e.Added {
			m.series(name)
		}
		m.mu.Lock()
		for _, name := range e.Removed {
			m.dropLocked(name)
		}
		m.mu.Unlock()
	case scheduler.LedgerGap:
		m.series(e.Job).gap.Set(float64(e.Gap))
	case scheduler.TermWon:
		m.fams.leaderChanges.Inc()
	case scheduler.ConfigReloaded:
		m.fams.reloads.WithLabelValues(string(e.Result)).Inc()
	}
}

func (m *Metrics) started(x *store.Execution) {
	s := m.series(x.Key.Job)
	s.progress(1)
	s.lastRun.Set(seconds(x.Started))
	if x.Attempt > 1 {
		return
	}
	if x.Key.Class == store.ClassCron {
		s.tick(ran, 1)
	}
	s.lateness.Observe(max(x.Started.Sub(due(x)).Seconds(), 0))
}

func (m *Metrics) finished(e *scheduler.RunFinished) {
	x := &e.Execution
	s := m.series(x.Key.Job)
	s.progress(-1)
	r := resultOf(e)
	s.runs[r].Inc()
	s.duration.Observe(e.Took.Seconds())
	switch {
	case r == fenced:
		s.refused.Inc()
		return
	case r == unrecorded:
		return
	case e.State == store.StatePending:
		s.retries.Inc()
		return
	case e.State == store.StateMissed:
		s.missed.Inc()
	case r == success:
		s.lastSuccess.Set(seconds(x.Started) + e.Took.Seconds())
	}
	s.delay.Observe(max((x.Started.Sub(due(x)) + e.Took).Seconds(), 0))
}

// due is when the run should have started: its tick; for a queue row the time that it
// was to run at, or, once that has moved with a retry, when it was put in.
func due(x *store.Execution) store.Millis {
	switch {
	case x.Key.Tick != 0 && x.Key.Class == store.ClassCron:
		return x.Key.Tick
	case x.Attempt > 1 || x.RunAt == 0:
		return x.Created
	}
	return max(x.RunAt, x.Created)
}
