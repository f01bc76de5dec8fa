package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/metrics"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// newMetrics makes metrics of a registry that has nothing else.
func newMetrics(t *testing.T, cfg metrics.Config) *metrics.Metrics {
	t.Helper()
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	m, err := metrics.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// read returns all series, written as name{label="value"}, with the label's order as
// Prometheus has it: by name. Of histograms it returns count and sum.
func read(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				series[f.GetName()+suffix] = s.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				series[f.GetName()+suffix] = s.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				series[f.GetName()+"_count"+suffix] = float64(s.GetHistogram().GetSampleCount())
				series[f.GetName()+"_sum"+suffix] = s.GetHistogram().GetSampleSum()
			default:
				t.Fatalf("%s is a %v", f.GetName(), f.GetType())
			}
		}
	}
	return series
}

// expect compares some series.
func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if g, ok := got["solotick_"+name]; !ok {
			t.Errorf("there is no %s", name)
		} else if g != v {
			t.Errorf("%s: got %v, want %v", name, g, v)
		}
	}
}

// world is a scheduler on stores in memory, with metrics.
type world struct {
	*scheduler.Scheduler
	m     *metrics.Metrics
	store *memstore.Store
	lock  *locks.Locker
}

func newWorld(t *testing.T, cfg scheduler.Config, jobs ...scheduler.Job) *world {
	t.Helper()
	w := &world{m: newMetrics(t, metrics.Config{}), store: memstore.New()}
	var err error
	if w.lock, err = locks.New(memlock.NewDriver(new(memlock.Space)), locks.Config{Observer: w.m.Locks("memory")}); err != nil {
		t.Fatal(err)
	}
	cfg.Namespace = "test"
	w.Scheduler, err = scheduler.New(cfg, scheduler.Deps{
		Store: w.store, Locker: w.lock, Listeners: []scheduler.Listener{w.m},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(jobs...); err != nil {
		t.Fatal(err)
	}
	w.m.Watch(w.Scheduler)
	t.Cleanup(func() {
		if err := errors.Join(w.Stop(context.Background()), w.lock.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) start(t *testing.T) {
	t.Helper()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func ok(context.Context, *scheduler.Run) error { return nil }

// TestZero: every series of a job is there before anything happened.
func TestZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, scheduler.Config{}, scheduler.Cron("report", "@every 1m", ok), scheduler.QueueFunc("mail", ok))
		got := read(t, w.m)
		want := map[string]float64{
			`degraded{mode="fail_fast"}`: 0, `degraded{mode="store_only"}`: 0, `degraded{mode="local_mutex"}`: 0,
			`coordinator_up{backend="memory"}`: 1, `leader`: 0, `leader_changes_total`: 0, `clock_offset_seconds`: 0,
			`goroutines_abandoned`: 0, `config_reloads_total{result="applied"}`: 0, `config_reloads_total{result="rejected"}`: 0,
			`store_latency_seconds_count{op="claim"}`: 0, `store_errors_total{op="take_over"}`: 0,
			`lock_attempts_total{backend="memory",result="won"}`: 0, `lock_attempts_total{backend="memory",result="held"}`: 0,
			`lock_attempts_total{backend="memory",result="unavailable"}`: 0, `lock_attempts_total{backend="memory",result="unknown"}`: 0,
			`lock_lost_total{backend="memory",reason="not_ours"}`: 0, `lock_renewals_total{backend="memory",result="failed"}`: 0,
			`lock_hold_seconds_count{backend="memory"}`: 0, `lock_wait_seconds_count{backend="memory"}`: 0,
			`lock_held{backend="memory"}`: 0, `lock_waiters{backend="memory"}`: 0,
			`job_info{gate="lock",guarantee="at-least-once",job="report",kind="cron"}`: 1,
			`job_info{gate="none",guarantee="at-least-once",job="mail",kind="queue"}`:  1,
			`next_run_timestamp_seconds{job="report"}`:                                 float64(time.Now().Add(time.Minute).Unix()),
			`next_run_timestamp_seconds{job="mail"}`:                                   0, `job_period_seconds{job="report"}`: 60,
		}
		for _, job := range []string{"report", "mail"} {
			for _, r := range []string{"success", "failed", "timeout", "panic", "canceled", "interrupted", "fenced", "unrecorded"} {
				want[fmt.Sprintf("runs_total{job=%q,result=%q}", job, r)] = 0
			}
			for _, name := range []string{
				"missed_total", "takeovers_total", "retries_total", "lease_lost_total", "fenced_writes_total", "running", "paused", "ledger_gap",
				"last_success_timestamp_seconds", "last_run_timestamp_seconds", "run_duration_seconds_count", "start_lateness_seconds_count", "e2e_delay_seconds_count",
			} {
				want[fmt.Sprintf("%s{job=%q}", name, job)] = 0
			}
			want[fmt.Sprintf("ticks_total{job=%q,outcome=\"ran\",reason=\"\"}", job)] = 0
			want[fmt.Sprintf("ticks_total{job=%q,outcome=\"skipped\",reason=\"degraded\"}", job)] = 0
			want[fmt.Sprintf("ticks_total{job=%q,outcome=\"missed\",reason=\"window\"}", job)] = 0
		}
		expect(t, got, want)
	})
}

// TestRuns follows jobs of every kind of end through ten minutes.
func TestRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sleep := func(d time.Duration) scheduler.Handler {
			return func(ctx context.Context, _ *scheduler.Run) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(d):
					return nil
				}
			}
		}
		deaf := make(chan struct{})
		w := newWorld(t, scheduler.Config{},
			scheduler.Cron("good", "@every 1m", sleep(2*time.Second)),
			scheduler.Cron("bad", "@every 1m", func(context.Context, *scheduler.Run) error { return errors.New("no") },
				scheduler.Retry(2, time.Second, time.Second)),
			scheduler.Cron("mad", "@every 1m", func(context.Context, *scheduler.Run) error { panic("no") }),
			scheduler.Cron("slow", "@every 1m", sleep(time.Hour), scheduler.Timeout(5*time.Second)),
			scheduler.Cron("long", "@every 1m", sleep(90*time.Second)),
			scheduler.Cron("off", "@every 1m", ok),
			scheduler.Cron("deaf", "@every 10m", func(context.Context, *scheduler.Run) error { <-deaf; return nil }, scheduler.Timeout(time.Second)),
		)
		w.start(t)
		synctest.Wait()
		if _, err := w.store.SetPause(t.Context(), store.Pause{Namespace: "test", Job: "off", By: "test"}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now().Truncate(10 * time.Minute).Add(10 * time.Minute)
		time.Sleep(time.Until(begin.Add(-30 * time.Second)))
		before := read(t, w.m)
		time.Sleep(10*time.Minute + 5*time.Second) // ten ticks, and what they lead to
		got := read(t, w.m)
		diff := map[string]float64{}
		for name, v := range got {
			diff[name] = v - before[name]
		}
		expect(t, diff, map[string]float64{
			`runs_total{job="good",result="success"}`:                    10,
			`run_duration_seconds_sum{job="good"}`:                       20,
			`runs_total{job="bad",result="failed"}`:                      20,
			`retries_total{job="bad"}`:                                   10,
			`e2e_delay_seconds_count{job="bad"}`:                         10,
			`runs_total{job="mad",result="panic"}`:                       10,
			`runs_total{job="slow",result="timeout"}`:                    10,
			`run_duration_seconds_sum{job="slow"}`:                       50,
			`ticks_total{job="good",outcome="ran",reason=""}`:            10,
			`ticks_total{job="bad",outcome="ran",reason=""}`:             10,
			`ticks_total{job="long",outcome="ran",reason=""}`:            5,
			`ticks_total{job="long",outcome="skipped",reason="overlap"}`: 5,
			`ticks_total{job="off",outcome="skipped",reason="paused"}`:   10,
			`missed_total{job="good"}`:                                   0,
			`lock_attempts_total{backend="memory",result="held"}`:        0,
			`lock_attempts_total{backend="memory",result="unavailable"}`: 0,
			`runs_total{job="deaf",result="timeout"}`:                    1,
		})
		expect(t, got, map[string]float64{
			`paused{job="off"}`: 1, `paused{job="good"}`: 0,
			`running{job="good"}`: 0, `running{job="long"}`: 1, `goroutines_abandoned`: 1,
			`last_success_timestamp_seconds{job="bad"}`:  0,
			`last_success_timestamp_seconds{job="good"}`: float64(begin.Add(9*time.Minute + 2*time.Second).Unix()),
			`last_run_timestamp_seconds{job="good"}`:     float64(begin.Add(9 * time.Minute).Unix()),
			`next_run_timestamp_seconds{job="good"}`:     float64(begin.Add(10 * time.Minute).Unix()),
			`store_errors_total{op="claim"}`:             0,
			`ledger_gap{job="good"}`:                     0,
			`lock_held{backend="memory"}`:                1, // of the long one
			`store_up`:                                   1,
		})
		if got[`solotick_store_latency_seconds_count{op="claim"}`] == 0 || got[`solotick_lock_attempts_total{backend="memory",result="won"}`] == 0 {
			t.Error("the requests to store and locks were not counted")
		}
		close(deaf)
	})
}

// TestLabels: however many jobs there are and whatever their errors say, labels stay few.
func TestLabels(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxJobs: 10})
	const canary = "kanarienvogel4711"
	for i := range 1000 {
		x := store.Execution{Key: store.Key{Class: store.ClassCron, Job: fmt.Sprint("job-", i), Tick: store.Millis(i + 1)}, Attempt: 1, Started: store.Millis(i + 2)}
		m.OnEvent(scheduler.RunStarted{Execution: x})
		m.OnEvent(scheduler.RunFinished{Execution: x, State: store.StateFailed, Err: errors.New(canary)})
		m.OnEvent(scheduler.StoreAnswered{Op: "claim", Err: errors.New(canary)})
		m.OnEvent(scheduler.GateUnavailable{Job: x.Key.Job, Err: errors.New(canary)})
	}
	got := read(t, m)
	expect(t, got, map[string]float64{
		`runs_total{job="job-9",result="failed"}`: 1, `runs_total{job="other",result="failed"}`: 990,
		`ticks_total{job="other",outcome="ran",reason=""}`: 990, `running{job="other"}`: 0, `store_errors_total{op="claim"}`: 1000,
	})
	jobs := map[string]bool{}
	for name := range got {
		if strings.Contains(name, canary) {
			t.Errorf("an error's text is in %s", name)
		}
		if j := regexp.MustCompile(`job="([^"]*)"`).FindStringSubmatch(name); j != nil {
			jobs[j[1]] = true
		}
	}
	if len(jobs) != 11 {
		t.Errorf("%d values of label job, want 10 and %q", len(jobs), metrics.Other)
	}
}

type jobs []string

func (j jobs) Snapshot() scheduler.Snapshot {
	s := scheduler.Snapshot{Health: scheduler.Health{Store: "ok", Coordinator: "none"}}
	for _, name := range j {
		s.Jobs = append(s.Jobs, scheduler.JobStatus{Name: name, Kind: "cron", Gate: scheduler.GateNone})
	}
	return s
}

// TestLiveJobs: series come and go with the jobs, and make room under the limit.
func TestLiveJobs(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxJobs: 2})
	count := func(job string) (n int) {
		for name := range read(t, m) {
			if strings.Contains(name, fmt.Sprintf("job=%q", job)) {
				n++
			}
		}
		return n
	}
	m.Watch(jobs{"a", "b"})
	if count("a") < 20 || count("a") != count("b") {
		t.Fatalf("%d series of a, %d of b", count("a"), count("b"))
	}
	m.OnEvent(scheduler.JobsChanged{Removed: []string{"a"}})
	m.Watch(jobs{"b", "c"})
	if count("a") != 0 || count("c") != count("b") || count(metrics.Other) != 0 {
		t.Errorf("a %d, b %d, c %d, other %d series", count("a"), count("b"), count("c"), count(metrics.Other))
	}
	// What a removed job still ends with leaves nothing behind.
	m.OnEvent(scheduler.RunFinished{Execution: store.Execution{Key: store.Key{Job: "a"}}})
	if count("a") != 0 {
		t.Errorf("%d series of a job that is gone", count("a"))
	}
	m.Watch(jobs{"d"})
	if count("b")+count("c") != 0 || count("d") == 0 {
		t.Errorf("b %d, c %d, d %d series", count("b"), count("c"), count("d"))
	}
}

// TestRegistry: metrics are a value, and leave a registry as they found it.
func TestRegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(t, metrics.Config{Registerer: reg, ConstLabels: prometheus.Labels{"namespace": "a"}})
	if _, err := metrics.New(metrics.Config{Registerer: reg, ConstLabels: prometheus.Labels{"namespace": "a"}}); err == nil {
		t.Error("registered twice")
	}
	other := newMetrics(t, metrics.Config{Registerer: reg, ConstLabels: prometheus.Labels{"namespace": "b"}})
	other.Close()
	m.Close()
	if all, err := reg.Gather(); err != nil || len(all) != 0 {
		t.Errorf("%d families left, %v", len(all), err)
	}
	if _, err := metrics.New(metrics.Config{MaxJobs: -1}); err == nil || !strings.Contains(err.Error(), "MaxJobs") {
		t.Errorf("a negative limit: %v", err)
	}

	m, err := metrics.New(metrics.Config{Version: "v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, h := range []*metrics.Metrics{m, newMetrics(t, metrics.Config{Registerer: prometheus.WrapRegistererWithPrefix("x_", prometheus.NewRegistry())})} {
		w := httptest.NewRecorder()
		h.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), "\nsolotick_build_info{") {
			t.Errorf("code %d: %.200s", w.Code, w.Body)
		}
		if h == m && (!strings.Contains(w.Body.String(), `version="v1.2.3"`) || !strings.Contains(w.Body.String(), "\ngo_goroutines ")) {
			t.Error("the own registry lacks the version or the runtime")
		}
	}
}

// TestLocks: what a locker does shows.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		l, err := locks.New(memlock.NewDriver(new(memlock.Space)), locks.Config{Observer: m.Locks("memory")})
		if err != nil {
			t.Fatal(err)
		}
		first, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrHeld) {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			second, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			if err := second.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(30 * time.Second)
		expect(t, read(t, m), map[string]float64{`lock_held{backend="memory"}`: 1, `lock_waiters{backend="memory"}`: 1})
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
		got := read(t, m)
		expect(t, got, map[string]float64{
			`lock_held{backend="memory"}`: 0, `lock_waiters{backend="memory"}`: 0,
			`lock_attempts_total{backend="memory",result="won"}`: 2, `lock_hold_seconds_count{backend="memory"}`: 2,
			`lock_wait_seconds_count{backend="memory"}`: 2, `lock_latency_seconds_count{backend="memory",op="release"}`: 2,
			`lock_renewals_total{backend="memory",result="failed"}`: 0,
		})
		for name, least := range map[string]float64{
			`lock_hold_seconds_sum{backend="memory"}`: 30, `lock_wait_seconds_sum{backend="memory"}`: 29,
			`lock_attempts_total{backend="memory",result="held"}`: 1, `lock_renewals_total{backend="memory",result="renewed"}`: 2,
		} {
			if got["solotick_"+name] < least {
				t.Errorf("%s: %v, want at least %v", name, got["solotick_"+name], least)
			}
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestEventsCostLittle: an event of a known job allocates nothing here.
func TestEventsCostLittle(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	m.Jobs("j")
	observe := m.Locks("memory")
	x := store.Execution{Key: store.Key{Class: store.ClassCron, Job: "j", Tick: 1}, Attempt: 1, Started: 2}
	tick := []scheduler.Event{ // all that one tick causes
		scheduler.TickDue{Job: "j", Tick: 1},
		scheduler.StoreAnswered{Op: "claim", Took: time.Millisecond},
		scheduler.RunStarted{Execution: x},
		scheduler.StoreAnswered{Op: "finish", Took: time.Millisecond},
		scheduler.RunFinished{Execution: x, State: store.StateSucceeded, Took: time.Millisecond},
	}
	lock := []locks.Event{locks.EventAcquired{Key: "k", Took: time.Millisecond}, locks.EventReleased{Key: "k", Held: time.Millisecond}}
	if n := testing.AllocsPerRun(100, func() {
		for _, e := range tick {
			m.OnEvent(e)
		}
		for _, e := range lock {
			observe(e)
		}
	}); n != 0 {
		t.Errorf("the events of a tick cost %v allocations", n)
	}
}
