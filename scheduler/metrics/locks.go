package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/solotick/solotick/locks"
)

// lockSeries are the series of one lock backend, looked up once.
type lockSeries struct {
	won, held, unavailable, unknown prometheus.Counter
	acquire, renew, release         prometheus.Observer
	hold, wait                      prometheus.Observer
	holding, waiting                prometheus.Gauge
	renewed, notRenewed             prometheus.Counter
	lost                            map[locks.Reason]prometheus.Counter
}

var lossReasons = map[locks.Reason]string{
	locks.ReasonUnavailable: "unavailable",
	locks.ReasonNotOurs:     "not_ours",
	locks.ReasonAbandoned:   "abandoned",
}

// Locks is an observer for locks.Config.Observer. Backend, such as "redis", becomes a
// label; its series exist, at zero, from here on. The first backend given is also that
// of coordinator_up.
func (m *Metrics) Locks(backend string) func(locks.Event) {
	m.mu.Lock()
	if m.backend == "" {
		m.backend = backend
	}
	m.mu.Unlock()
	f := &m.fams.locks
	s := &lockSeries{
		won: f.attempts.WithLabelValues(backend, "won"), held: f.attempts.WithLabelValues(backend, "held"),
		unavailable: f.attempts.WithLabelValues(backend, "unavailable"), unknown: f.attempts.WithLabelValues(backend, "unknown"),
		acquire: f.latency.WithLabelValues(backend, locks.OpAcquire.String()),
		renew:   f.latency.WithLabelValues(backend, locks.OpRenew.String()),
		release: f.latency.WithLabelValues(backend, locks.OpRelease.String()),
		hold:    f.hold.WithLabelValues(backend), wait: f.wait.WithLabelValues(backend),
		holding: f.held.WithLabelValues(backend), waiting: f.waiting.WithLabelValues(backend),
		renewed: f.renewals.WithLabelValues(backend, "renewed"), notRenewed: f.renewals.WithLabelValues(backend, "failed"),
		lost: map[locks.Reason]prometheus.Counter{},
	}
	for r, label := range lossReasons {
		s.lost[r] = f.lost.WithLabelValues(backend, label)
	}
	return s.observe
}

func (s *lockSeries) observe(e locks.Event) {
	switch e := e.(type) {
	case locks.EventAcquired:
		s.won.Inc()
		s.holding.Inc()
		s.acquire.Observe(e.Took.Seconds())
	case locks.EventHeld:
		s.held.Inc()
		if !e.Local {
			s.acquire.Observe(e.Took.Seconds())
		}
	case locks.EventUnavailable:
		s.unavailable.Inc()
		s.acquire.Observe(e.Took.Seconds())
	case locks.EventUnknown:
		if e.Op == locks.OpAcquire {
			s.unknown.Inc()
		}
	case locks.EventWaiting:
		s.waiting.Inc()
	case locks.EventWaited:
		s.waiting.Dec()
		s.wait.Observe(e.Took.Seconds())
	case locks.EventRenewed:
		s.renewed.Add(float64(e.Leases))
		s.notRenewed.Add(float64(e.Failed))
		s.renew.Observe(e.Took.Seconds())
	case locks.EventLost:
		s.holding.Dec()
		s.hold.Observe(e.Held.Seconds())
		if c := s.lost[e.Reason]; c != nil {
			c.Inc()
		}
	case locks.EventReleased:
		s.release.Observe(e.Took.Seconds())
		if e.Held > 0 {
			s.holding.Dec()
			s.hold.Observe(e.Held.Seconds())
		}
	}
}
