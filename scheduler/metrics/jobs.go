package metrics

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// result is how an attempt ended, as a label.
type result int

const (
	success     result = iota
	failed             // the handler's error
	timeout            // longer than the job's timeout
	panicked           // the handler panicked
	canceled           // somebody asked for that
	interrupted        // lease or gate lost, or the process stopped
	fenced             // the record refused the end: another attempt had the run
	unrecorded         // the store did not take the end before the process stopped
	results
)

func (r result) String() string {
	return [...]string{"success", "failed", "timeout", "panic", "canceled", "interrupted", "fenced", "unrecorded"}[r]
}

// resultOf judges an attempt by what it left in the record.
func resultOf(e *scheduler.RunFinished) result {
	_, panics := errors.AsType[*scheduler.PanicError](e.Err)
	switch {
	case e.Fenced:
		return fenced
	case e.Unrecorded:
		return unrecorded
	case e.State == store.StateSucceeded:
		return success
	case panics:
		return panicked
	case errors.Is(e.Err, scheduler.ErrTimeout):
		return timeout
	case e.State == store.StateCanceled, errors.Is(e.Err, scheduler.ErrCancelRequested):
		return canceled
	case errors.Is(e.Err, scheduler.ErrLeaseLost), errors.Is(e.Err, scheduler.ErrGateLost), errors.Is(e.Err, scheduler.ErrDraining):
		return interrupted
	}
	return failed
}

// fate is what became of a tick, as labels.
type fate struct {
	state  store.State
	reason store.Reason
}

// ran is the fate of a tick whose run was started.
var ran = fate{store.StateRunning, store.ReasonNone}

func (f fate) outcome() string {
	switch f.state {
	case store.StateSkipped:
		return "skipped"
	case store.StateMissed:
		return "missed"
	default:
		return "ran"
	}
}

var fates = []fate{
	ran,
	{store.StateSkipped, store.ReasonOverlap},
	{store.StateSkipped, store.ReasonPaused},
	{store.StateSkipped, store.ReasonDegraded},
	{store.StateMissed, store.ReasonSuperseded},
	{store.StateMissed, store.ReasonMisfire},
	{store.StateMissed, store.ReasonWindow},
}

// jobSeries are the series of one job, looked up once.
type jobSeries struct {
	name string
	own  bool // as opposed to those of all further jobs

	runs                                           [results]prometheus.Counter
	ticks                                          map[fate]prometheus.Counter
	missed, takeovers, retries, leaseLost, refused prometheus.Counter
	duration, lateness, delay                      prometheus.Observer
	lastSuccess, lastRun, paused, gap              prometheus.Gauge
	running                                        prometheus.Gauge

	inProgress atomic.Int64
	described  atomic.Pointer[scheduler.JobStatus]
}

// series are those of the job; they are made at the first call.
func (m *Metrics) series(name string) *jobSeries {
	if s, ok := m.jobs.Load(name); ok {
		return s.(*jobSeries)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.jobs.Load(name); ok {
		return s.(*jobSeries)
	}
	var s *jobSeries
	switch {
	case m.known < m.cfg.MaxJobs:
		s = m.newSeries(name, true)
		m.known++
	case m.overflow == nil:
		m.overflow = m.newSeries(Other, false)
		fallthrough
	default:
		s = m.overflow
	}
	m.jobs.Store(name, s)
	return s
}

// newSeries makes the series of a job, all at zero.
func (m *Metrics) newSeries(name string, own bool) *jobSeries {
	f := &m.fams
	s := &jobSeries{
		name: name, own: own, ticks: make(map[fate]prometheus.Counter, len(fates)),
		missed: f.missed.WithLabelValues(name), takeovers: f.takeovers.WithLabelValues(name),
		retries: f.retries.WithLabelValues(name), leaseLost: f.leaseLost.WithLabelValues(name), refused: f.fenced.WithLabelValues(name),
		duration: f.duration.WithLabelValues(name), lateness: f.lateness.WithLabelValues(name), delay: f.delay.WithLabelValues(name),
		lastSuccess: f.lastSuccess.WithLabelValues(name), lastRun: f.lastRun.WithLabelValues(name),
		paused: f.paused.WithLabelValues(name), gap: f.ledgerGap.WithLabelValues(name),
		running: f.running.WithLabelValues(name),
	}
	for r := range results {
		s.runs[r] = f.runs.WithLabelValues(name, r.String())
	}
	for _, ft := range fates {
		s.ticks[ft] = f.ticks.WithLabelValues(name, ft.outcome(), string(ft.reason))
	}
	if own {
		f.known.WithLabelValues(name).Set(seconds(store.MillisOf(time.Now())))
		f.nextRun.WithLabelValues(name)
		f.period.WithLabelValues(name)
	}
	return s
}

// dropLocked forgets a job. The caller holds mu.
func (m *Metrics) dropLocked(name string) {
	s, ok := m.jobs.LoadAndDelete(name)
	if !ok || !s.(*jobSeries).own {
		return
	}
	m.known--
	for _, v := range m.fams.perJob {
		v.DeletePartialMatch(prometheus.Labels{"job": name})
	}
}

// describe takes the gauges of the job from a snapshot.
func (s *jobSeries) describe(f *families, j scheduler.JobStatus) {
	if !s.own {
		return
	}
	next := 0.0
	if !j.Next.IsZero() {
		next = float64(j.Next.Unix())
	}
	f.nextRun.WithLabelValues(s.name).Set(next)
	f.period.WithLabelValues(s.name).Set(j.Period.Seconds())
	j.Next, j.Period = time.Time{}, 0
	if was := s.described.Swap(&j); was == nil || *was != j {
		f.is.DeletePartialMatch(prometheus.Labels{"job": s.name})
		f.is.WithLabelValues(s.name, j.Kind, string(j.Gate), string(j.Guarantee)).Set(1)
	}
}

// tick counts n ticks of one fate. One that no list above names is of a newer core.
func (s *jobSeries) tick(f fate, n int64) {
	if c := s.ticks[f]; c != nil {
		c.Add(float64(n))
	}
	if f.state == store.StateMissed {
		s.missed.Add(float64(n))
	}
}

// progress counts the attempts in progress. The end of one that began before the
// job's series were made, because it had been removed meanwhile, takes nothing away.
func (s *jobSeries) progress(n int64) {
	now := s.inProgress.Add(n)
	if now < 0 {
		s.inProgress.CompareAndSwap(now, 0)
		now = 0
	}
	s.running.Set(float64(now))
}
