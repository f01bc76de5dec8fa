package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

const prefix = "solotick"

// families are all metrics, whichever labels their series have.
type families struct {
	all []prometheus.Collector
	// Those with a series for every job.
	perJob []interface {
		DeletePartialMatch(prometheus.Labels) int
	}

	runs, ticks, missed, takeovers, retries, leaseLost, fenced                   *prometheus.CounterVec
	duration, lateness, delay                                                    *prometheus.HistogramVec
	running, lastSuccess, lastRun, nextRun, known, period, paused, ledgerGap, is *prometheus.GaugeVec
	storeLatency                                                                 *prometheus.HistogramVec
	storeErrors, reloads                                                         *prometheus.CounterVec
	degraded, coordinatorUp                                                      *prometheus.GaugeVec
	leader, clockOffset, storeUp, abandoned                                      prometheus.Gauge
	leaderChanges                                                                prometheus.Counter
	locks                                                                        lockFamilies

	store map[string]storeSeries // by operation, looked up once; never changes
}

// storeSeries are the series of one kind of request to the store.
type storeSeries struct {
	latency prometheus.Observer
	errors  prometheus.Counter
}

// storeOf are the series of the operation, whichever: a newer core may have more.
func (f *families) storeOf(op string) storeSeries {
	if s, ok := f.store[op]; ok {
		return s
	}
	label := opLabel(op)
	return storeSeries{f.storeLatency.WithLabelValues(label), f.storeErrors.WithLabelValues(label)}
}

type lockFamilies struct {
	attempts, renewals, lost *prometheus.CounterVec
	latency, hold, wait      *prometheus.HistogramVec
	held, waiting            *prometheus.GaugeVec
}

// The requests to the store that every scheduler makes: the values of the label op.
var storeOps = []string{"register", "claim", "finish", "fetch", "heartbeat", "survey", "take over", "settle", "revive", "audit"}

var latencyBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}

func newFamilies(cfg Config) families {
	var f families
	keep := func(c prometheus.Collector, labels []string) {
		f.all = append(f.all, c)
		if d, ok := c.(interface {
			DeletePartialMatch(prometheus.Labels) int
		}); ok && len(labels) > 0 && labels[0] == "job" {
			f.perJob = append(f.perJob, d)
		}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: prefix, Name: name, Help: help, ConstLabels: cfg.ConstLabels}, labels)
		keep(v, labels)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: prefix, Name: name, Help: help, ConstLabels: cfg.ConstLabels}, labels)
		keep(v, labels)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: prefix, Name: name, Help: help, Buckets: buckets, ConstLabels: cfg.ConstLabels}, labels)
		keep(v, labels)
		return v
	}

	f.runs = counter("runs_total", "Attempts that ended in this process, by result.", "job", "result")
	f.ticks = counter("ticks_total", "Ticks that this process started or accounted for.", "job", "outcome", "reason")
	f.missed = counter("missed_total", "Ticks that this process recorded as missed.", "job")
	f.takeovers = counter("takeovers_total", "Runs of dead owners that this process took over or settled.", "job")
	f.retries = counter("retries_total", "Attempts after which the run is to be tried again.", "job")
	f.leaseLost = counter("lease_lost_total", "Attempts whose lease or gate was lost while they ran.", "job")
	f.fenced = counter("fenced_writes_total", "Ends of attempts that the record refused, because another one had the run.", "job")
	f.duration = histogram("run_duration_seconds", "Time that handlers took, by attempt.", cfg.DurationBuckets, "job")
	f.lateness = histogram("start_lateness_seconds", "Time from when a run was due to the claim of its first attempt.", cfg.DelayBuckets, "job")
	f.delay = histogram("e2e_delay_seconds", "Time from when a run was due to its end, waits and retries included.", cfg.DurationBuckets, "job")
	f.running = gauge("running", "Attempts in progress in this process.", "job")
	f.lastSuccess = gauge("last_success_timestamp_seconds", "End of the last success in this process; 0 before the first.", "job")
	f.lastRun = gauge("last_run_timestamp_seconds", "Start of the last attempt in this process; 0 before the first.", "job")
	f.nextRun = gauge("next_run_timestamp_seconds", "The next tick by the schedule; 0 for queue jobs and while another schedule is in force.", "job")
	f.known = gauge("job_known_timestamp_seconds", "Since when this process knows the job.", "job")
	f.period = gauge("job_period_seconds", "Time between the last tick by the schedule and the next; 0 for queue jobs.", "job")
	f.paused = gauge("paused", "Whether the job is paused.", "job")
	f.ledgerGap = gauge("ledger_gap", "Settled ticks without a record at the last count: must be 0.", "job")
	f.is = gauge("job_info", "Always 1: what the job is.", "job", "kind", "gate", "guarantee")

	f.storeLatency = histogram("store_latency_seconds", "Time that requests to the store took, failed ones included.", latencyBuckets, "op")
	f.storeErrors = counter("store_errors_total", "Requests that the store did not answer.", "op")
	f.storeUp = gauge("store_up", "Whether the store answered the last request.").WithLabelValues()
	f.coordinatorUp = gauge("coordinator_up", "Whether the coordinator of the gates answers.", "backend")
	f.degraded = gauge("degraded", "Whether this degradation mode is in force in place of the gate.", "mode")
	f.leader = gauge("leader", "Leaderships that this process holds: 0 or 1, or its partitions.").WithLabelValues()
	f.leaderChanges = counter("leader_changes_total", "Leaderships that this process won.").WithLabelValues()
	f.clockOffset = gauge("clock_offset_seconds", "How far this process's clock is ahead of the store's.").WithLabelValues()
	f.abandoned = gauge("goroutines_abandoned", "Handlers that go on although their run is over.").WithLabelValues()
	f.reloads = counter("config_reloads_total", "Configurations that were read again, by result.", "result")
	gauge("build_info", "Always 1: the program and its time zone data.", "version", "tzdata").
		WithLabelValues(cfg.Version, cronspec.TZDataVersion()).Set(1)

	f.locks = lockFamilies{
		attempts: counter("lock_attempts_total", "Acquires that ended as won, held or unavailable, and single requests whose outcome was unknown.", "backend", "result"),
		latency:  histogram("lock_latency_seconds", "Time that the lock backend took to answer.", latencyBuckets, "backend", "op"),
		hold:     histogram("lock_hold_seconds", "Time from a grant to its release or loss.", cfg.DurationBuckets, "backend"),
		wait:     histogram("lock_wait_seconds", "Time that callers waited for a lock.", cfg.DelayBuckets, "backend"),
		held:     gauge("lock_held", "Locks that this process holds.", "backend"),
		waiting:  gauge("lock_waiters", "Callers of this process that wait for a lock.", "backend"),
		renewals: counter("lock_renewals_total", "Renewals of leases, by result.", "backend", "result"),
		lost:     counter("lock_lost_total", "Locks that ended before they were released, by reason.", "backend", "reason"),
	}

	f.store = make(map[string]storeSeries, len(storeOps))
	for _, op := range storeOps {
		f.store[op] = f.storeOf(op)
	}
	for _, mode := range scheduler.Modes() {
		f.degraded.WithLabelValues(string(mode))
	}
	for _, r := range []scheduler.ReloadResult{scheduler.ReloadApplied, scheduler.ReloadRejected} {
		f.reloads.WithLabelValues(string(r))
	}
	return f
}

// set takes the gauges of the process from a snapshot.
func (f *families) set(s scheduler.Snapshot, coordinator string) {
	f.storeUp.Set(truth(s.Store == "ok"))
	f.leader.Set(float64(s.Leading))
	f.clockOffset.Set(s.ClockOffset.Seconds())
	f.abandoned.Set(float64(s.Abandoned))
	for _, mode := range scheduler.Modes() {
		f.degraded.WithLabelValues(string(mode)).Set(truth(s.Degraded && s.Mode == mode))
	}
	if s.Coordinator != "none" {
		f.coordinatorUp.WithLabelValues(coordinator).Set(truth(s.Coordinator == "ok"))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// opLabel is the name of a request to the store as a label.
func opLabel(op string) string { return strings.ReplaceAll(op, " ", "_") }

// seconds is an instant as Prometheus has it.
func seconds(t store.Millis) float64 { return float64(t) / 1000 }
