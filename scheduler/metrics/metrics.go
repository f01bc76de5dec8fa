package metrics

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/solotick/solotick/scheduler"
)

// Config of the metrics. The zero value works.
type Config struct {
	// Registerer takes the metrics. Default: a registry of their own, which has the
	// usual metrics of the Go runtime and the process as well.
	Registerer prometheus.Registerer
	// ConstLabels stand on every series. Needed where two schedulers of one process share
	// a registry. Default none.
	ConstLabels prometheus.Labels
	// Version of the program, in build_info. Default "unknown".
	Version string
	// MaxJobs is how many jobs have series of their own; what further ones do counts for
	// job="other". Default 500.
	MaxJobs int
	// DurationBuckets of run_duration_seconds and e2e_delay_seconds, in seconds. Default
	// 0.01 to 3600.
	DurationBuckets []float64
	// DelayBuckets of start_lateness_seconds, in seconds. Default 0.01 to 300.
	DelayBuckets []float64
}

const defaultMaxJobs = 500

// Other is the job label of what jobs beyond Config.MaxJobs do.
const Other = "other"

func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, "unknown")
	c.MaxJobs = cmp.Or(c.MaxJobs, defaultMaxJobs)
	if c.DurationBuckets == nil {
		c.DurationBuckets = []float64{0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3600}
	}
	if c.DelayBuckets == nil {
		c.DelayBuckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60, 300}
	}
	return c
}

// Watched is what gauges are read from; a *scheduler.Scheduler is one.
type Watched interface{ Snapshot() scheduler.Snapshot }

var (
	_ Watched              = (*scheduler.Scheduler)(nil)
	_ scheduler.Listener   = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// Metrics is a scheduler.Listener, and a prometheus.Collector that is registered
// already. Make one with New, for one scheduler. Its methods are safe for concurrent
// use.
type Metrics struct {
	cfg  Config
	reg  prometheus.Registerer
	own  prometheus.Gatherer
	fams families

	jobs sync.Map // name -> *jobSeries

	mu       sync.Mutex
	watched  Watched
	known    int        // jobs with series of their own
	overflow *jobSeries // of the jobs beyond MaxJobs; nil while there are none
	backend  string     // of the locks
}

// New makes the metrics and registers them. The error is that of the registerer: the
// names are taken, by another Metrics for one.
func New(cfg Config) (*Metrics, error) {
	if cfg.MaxJobs < 0 {
		return nil, fmt.Errorf("metrics: MaxJobs: %d is negative: give the number of jobs with series of their own", cfg.MaxJobs)
	}
	cfg = cfg.withDefaults()
	m := &Metrics{cfg: cfg, reg: cfg.Registerer, fams: newFamilies(cfg)}
	if m.reg == nil {
		own := prometheus.NewRegistry()
		own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		m.reg = own
	}
	if err := m.reg.Register(m); err != nil {
		return nil, fmt.Errorf("metrics: not registered: %w", err)
	}
	m.own, _ = m.reg.(prometheus.Gatherer)
	if m.own == nil {
		alone := prometheus.NewRegistry()
		alone.MustRegister(m)
		m.own = alone
	}
	return m, nil
}

// Close takes the metrics out of the registry.
func (m *Metrics) Close() { m.reg.Unregister(m) }

// Handler serves what the registry has, in the format that the scraper asks for. A
// registerer that cannot be read, such as one that wraps a registry, leaves it these
// metrics alone.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.own, promhttp.HandlerOpts{})
}

// Gatherer is what Handler serves.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.own }

// Watch reads the gauges and the list of jobs from s, now and at every scrape: jobs
// that are added or removed live get and lose their series.
func (m *Metrics) Watch(s Watched) {
	m.mu.Lock()
	m.watched = s
	m.mu.Unlock()
	m.read()
}

// Jobs makes these the known jobs: new ones get their series at zero, those that are
// named no more lose theirs. Needed only where nothing is watched.
func (m *Metrics) Jobs(names ...string) {
	keep := make(map[string]bool, len(names))
	for _, name := range names {
		keep[name] = true
	}
	m.mu.Lock()
	m.jobs.Range(func(k, _ any) bool {
		if name := k.(string); !keep[name] {
			m.dropLocked(name)
		}
		return true
	})
	m.jobs.Range(func(k, s any) bool {
		if !s.(*jobSeries).own && m.known < m.cfg.MaxJobs {
			m.jobs.Delete(k) // there is room for series of its own now
		}
		return true
	})
	m.mu.Unlock()
	for _, name := range names {
		m.series(name)
	}
}

// read takes over what a scrape of the watched scheduler says.
func (m *Metrics) read() {
	m.mu.Lock()
	s := m.watched
	m.mu.Unlock()
	if s == nil {
		return
	}
	snap := s.Snapshot()
	names := make([]string, len(snap.Jobs))
	for i, j := range snap.Jobs {
		names[i] = j.Name
	}
	m.Jobs(names...)
	for _, j := range snap.Jobs {
		m.series(j.Name).describe(&m.fams, j)
	}
	m.fams.set(snap, m.coordinator(snap))
}

// coordinator is the label of who the gates ask.
func (m *Metrics) coordinator(snap scheduler.Snapshot) string {
	for _, j := range snap.Jobs {
		if j.Gate == scheduler.GateLock {
			m.mu.Lock()
			defer m.mu.Unlock()
			return cmp.Or(m.backend, "lock")
		}
	}
	return "leader"
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.fams.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.read()
	for _, c := range m.fams.all {
		c.Collect(ch)
	}
}
