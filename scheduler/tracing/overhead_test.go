package tracing_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/metrics"
	"github.com/solotick/solotick/scheduler/tracing"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
	"github.com/solotick/solotick/store/memstore"
)

// TestUnsampledCostsLittle: what a run costs where the sampler says no.
func TestUnsampledCostsLittle(t *testing.T) {
	tracer := tracing.New(tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	handler := tracer.Middleware()(func(context.Context, *scheduler.Run) error { return nil })
	now := time.Now()
	var started scheduler.Event = scheduler.RunStarted{
		Execution: store.Execution{Key: store.Key{Class: store.ClassCron, Job: "j", Tick: 1}, Attempt: 1, Started: 2},
		Gate:      scheduler.Interval{From: now, To: now}, Claim: scheduler.Interval{From: now, To: now},
	}
	var finished scheduler.Event = scheduler.RunFinished{Execution: started.(scheduler.RunStarted).Execution, State: store.StateSucceeded}
	n := testing.AllocsPerRun(100, func() {
		if name := tracer.TickTrace("n", started.(scheduler.RunStarted).Execution.Key, started.(scheduler.RunStarted).Gate); name != "" {
			t.Errorf("the row is given the trace %q, which nobody records", name)
		}
		ctx := tracer.RunContext(t.Context(), started.(scheduler.RunStarted))
		tracer.OnEvent(started)
		if err := handler(ctx, nil); err != nil {
			t.Error(err)
		}
		tracer.OnEvent(finished)
	})
	if n > 10 {
		t.Errorf("a run that is not sampled costs %v allocations", n)
	}
}

// sink takes lines and drops them, after they were made.
type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// The variable soakEnv makes the form of TestOverhead long, and resultEnv names the file
// of its figures.
const (
	soakEnv   = "SOLOTICK_SOAK"
	resultEnv = "SOLOTICK_SOAK_RESULT"
)

// load is how many jobs are due at once, each second, and for how many seconds a turn
// lasts.
type load struct{ jobs, seconds int }

func (l load) ticks() float64 { return float64(l.jobs * l.seconds) }

// cost of a tick.
type cost struct{ micros, allocations, octets float64 }

// spent is what this process has used: processor time in user and system mode, of all
// its threads, and memory.
func spent(t *testing.T) cost {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return cost{float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3, float64(m.Mallocs), float64(m.TotalAlloc)}
}

// worker lives in a bubble of virtual time: it does what it does in production, and does
// not wait for it. Its time passes only in its turns.
type worker struct {
	load
	seen  bool
	turns chan struct{} // closed: it stops
	costs chan cost
}

// newWorker makes a worker on a new store, with all that can be seen of it or without,
// and lets its first ticks pass.
func newWorker(t *testing.T, l load, seen bool, newStore func(*testing.T) store.Store) *worker {
	t.Helper()
	w := &worker{load: l, seen: seen, turns: make(chan struct{}), costs: make(chan cost)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(w.costs)
		synctest.Test(t, func(t *testing.T) { w.live(t, newStore(t)) })
	}()
	t.Cleanup(func() {
		close(w.turns)
		<-ended
	})
	if _, ok := <-w.costs; !ok {
		t.FailNow()
	}
	return w
}

// turn is what a tick costs while the worker's time passes.
func (w *worker) turn(t *testing.T) cost {
	t.Helper()
	runtime.GC()
	w.turns <- struct{}{}
	c, ok := <-w.costs
	if !ok {
		t.FailNow()
	}
	return c
}

func (w *worker) live(t *testing.T, st store.Store) {
	t.Helper()
	deps := scheduler.Deps{Store: st, Logger: slog.New(slog.DiscardHandler)}
	var m *metrics.Metrics
	var observer func(locks.Event)
	var err error
	if w.seen {
		if m, err = metrics.New(metrics.Config{}); err != nil {
			t.Fatal(err)
		}
		observer = m.Locks("memory")
		deps.Logger = slog.New(tracing.LogHandler(slog.NewJSONHandler(sink{}, nil)))
		deps.Listeners = append(deps.Listeners, m)
		provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		tracing.New(tracing.Config{Provider: provider}).Attach(&deps)
	}
	if deps.Locker, err = locks.New(memlock.NewDriver(new(memlock.Space)), locks.Config{Observer: observer}); err != nil {
		t.Fatal(err)
	}
	s, err := scheduler.New(scheduler.Config{Namespace: "bench"}, deps)
	if err != nil {
		t.Fatal(err)
	}
	if m != nil {
		m.Watch(s)
	}
	var runs atomic.Int64
	for i := range w.jobs {
		if err := s.Add(scheduler.Cron(fmt.Sprint("job-", i), "@every 1s", func(context.Context, *scheduler.Run) error {
			runs.Add(1)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// From the middle of a second to the middle of another: whole bursts of ticks.
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2500 * time.Millisecond)))
	synctest.Wait()
	w.costs <- cost{}
	for range w.turns { // of outside the bubble: its time stands still here
		ran, before := runs.Load(), spent(t)
		time.Sleep(time.Duration(w.seconds) * time.Second)
		synctest.Wait()
		after := spent(t)
		if ran = runs.Load() - ran; ran != int64(w.ticks()) {
			t.Errorf("%d runs, want %v", ran, w.ticks())
		}
		w.costs <- cost{
			(after.micros - before.micros) / w.ticks(), (after.allocations - before.allocations) / w.ticks(),
			(after.octets - before.octets) / w.ticks(),
		}
	}
	if err := errors.Join(s.Stop(context.Background()), deps.Locker.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
}

// onSQLite is the store of a worker without services.
func onSQLite(t *testing.T) store.Store {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "store.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	st, err := gormstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

// oneProcessor makes the count of allocations, and the processor time, that of the work.
func oneProcessor(t *testing.T) {
	t.Helper()
	was := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(was) })
}

// TestSeenTickAllocatesLittle: the share of the overhead that every machine counts
// alike. What a tick costs in time is TestOverhead's.
func TestSeenTickAllocatesLittle(t *testing.T) {
	oneProcessor(t)
	l := load{jobs: 100, seconds: 3}
	inMemory := func(*testing.T) store.Store { return memstore.New() }
	bare, seen := newWorker(t, l, false, inMemory).turn(t), newWorker(t, l, true, inMemory).turn(t)
	t.Logf("a tick: %+v, seen %+v", bare, seen)
	if n, octets := seen.allocations-bare.allocations, seen.octets-bare.octets; n > 10 || octets > 1000 {
		t.Errorf("metrics, traces that are not sampled and logs cost a tick %.1f allocations and %.0f bytes", n, octets)
	}
}

// quad is the mean of two turns of each of two workers.
type quad struct{ bare, seen cost }

func (q *quad) ratio() float64 { return q.seen.micros / q.bare.micros }

type overheadFigures struct {
	Quads int     `json:"comparisons"`
	Ticks float64 `json:"ticks_of_a_comparison_each"`
	Bare  float64 `json:"processor_us_per_tick_bare_median"`
	Seen  float64 `json:"processor_us_per_tick_seen_median"`
	// Of the ratios of the comparisons; Low and High bound the median with 95 %.
	Median      float64 `json:"overhead_percent_median"`
	Low         float64 `json:"overhead_percent_low"`
	High        float64 `json:"overhead_percent_high"`
	Allocations float64 `json:"allocations_per_tick_more"`
	Octets      float64 `json:"bytes_per_tick_more"`
}

// TestOverhead compares the processor time of a tick with metrics, traces that are not
// sampled and logs to that without. Two workers take turns, short ones, as bare, seen,
// seen, bare or the other way round, so that a machine that gets slower or faster does
// so for both. The figure is the median of the ratios.
//
// The long form is make soak AREA=overhead, with SOAK=200 comparisons for each load, and
// judges. The short form is one comparison, and judges nothing.
func TestOverhead(t *testing.T) {
	oneProcessor(t)
	n, loads := 1, map[string]load{"30 jobs due at once": {30, 2}}
	text := os.Getenv(soakEnv)
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("%s: %q is no number of comparisons", soakEnv, text)
		}
		loads = map[string]load{"1 job due at once": {1, 60}, "30 jobs due at once": {30, 5}, "300 jobs due at once": {300, 1}}
	}
	all := bench.Entry[overheadFigures]{
		Command: "make soak AREA=overhead SOAK=" + text, Seed: rand.Uint64(), Machine: bench.ThisMachine(), Load: bench.Load(),
		Began: time.Now().UTC().Truncate(time.Second), Figures: map[string]overheadFigures{},
		Verdict: "kept: 5 % at most",
	}
	toss := rand.New(rand.NewPCG(all.Seed, 0))
	for name, l := range loads {
		var quads []quad
		for len(quads) < n {
			t.Run(name, func(t *testing.T) { quads = append(quads, compare(t, l, min(n-len(quads), quadsOfWorkers), toss)...) })
			if len(quads) == 0 {
				return // it has said why
			}
		}
		f := figures(l, quads)
		t.Logf("%s: %+v", name, f)
		all.Figures[name] = f
		if text != "" && f.Median > 5 {
			all.Verdict = "BROKEN: 5 % at most"
			t.Errorf("%s: a tick that is seen costs %.1f %% more processor time (95 %%: %.1f to %.1f), want 5 %% at most", name, f.Median, f.Low, f.High)
		}
	}
	if path := os.Getenv(resultEnv); path != "" {
		all.Took = time.Since(all.Began).Round(time.Second).String()
		text, err := json.MarshalIndent(all, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// quadsOfWorkers is how often the same two workers are compared: what they were lucky
// with, such as where their memory lies, does not stay.
const quadsOfWorkers = 20

// compare makes two workers and compares them n times.
func compare(t *testing.T, l load, n int, toss *rand.Rand) (quads []quad) {
	t.Helper()
	bare, seen := newWorker(t, l, false, onSQLite), newWorker(t, l, true, onSQLite)
	for range n {
		var q quad
		first := toss.IntN(2) == 0
		for _, b := range []bool{first, !first, !first, first} {
			w, to := seen, &q.seen
			if b {
				w, to = bare, &q.bare
			}
			c := w.turn(t)
			to.micros, to.allocations, to.octets = to.micros+c.micros/2, to.allocations+c.allocations/2, to.octets+c.octets/2
		}
		quads = append(quads, q)
	}
	return quads
}

func figures(l load, quads []quad) overheadFigures {
	of := func(figure func(*quad) float64) []float64 {
		var out []float64
		for i := range quads {
			out = append(out, figure(&quads[i]))
		}
		slices.Sort(out)
		return out
	}
	median := func(figure func(*quad) float64) float64 {
		xs := of(figure)
		return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
	}
	ratios := of((*quad).ratio)
	low := rankOfMedian(len(ratios))
	percent := func(ratio float64) float64 { return 100 * (ratio - 1) }
	return overheadFigures{
		Quads: len(quads), Ticks: 2 * l.ticks(),
		Bare:   median(func(q *quad) float64 { return q.bare.micros }),
		Seen:   median(func(q *quad) float64 { return q.seen.micros }),
		Median: percent(median((*quad).ratio)), Low: percent(ratios[low]), High: percent(ratios[len(ratios)-1-low]),
		Allocations: median(func(q *quad) float64 { return q.seen.allocations - q.bare.allocations }),
		Octets:      median(func(q *quad) float64 { return q.seen.octets - q.bare.octets }),
	}
}

// rankOfMedian is the index of the value, of n in order, below which the median of what
// they are drawn from lies with 2.5 % at most: the sign test. Whatever the
// distribution.
func rankOfMedian(n int) int {
	below, p := 0.0, math.Pow(0.5, float64(n)) // p: exactly k of n are below it
	for k := range n {
		if below += p; below > 0.025 {
			return max(k-1, 0)
		}
		p *= float64(n-k) / float64(k+1)
	}
	return 0
}

func TestRankOfMedian(t *testing.T) {
	// From a table of the binomial distribution: of 10 the 2nd to the 9th, of 60 the 22nd to the 39th.
	for n, want := range map[int]int{1: 0, 5: 0, 10: 1, 20: 5, 60: 21} {
		if got := rankOfMedian(n); got != want {
			t.Errorf("of %d: %d, want %d", n, got, want)
		}
	}
}

// BenchmarkOverhead is TestOverhead with a hundred comparisons for each load, some
// minutes.
func BenchmarkOverhead(b *testing.B) {
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "result")
		cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestOverhead$")
		cmd.Env = append(os.Environ(), soakEnv+"=100", resultEnv+"="+path)
		out, failed := cmd.CombinedOutput()
		text, err := os.ReadFile(path)
		if err != nil {
			b.Fatalf("%v, %v: %s", err, failed, out)
		}
		var all bench.Entry[overheadFigures]
		if err := json.Unmarshal(text, &all); err != nil {
			b.Fatal(err)
		}
		for name, f := range all.Figures {
			b.Logf("%s: %.1f %% more processor time (95 %%: %.1f to %.1f), %.0f us instead of %.0f", name, f.Median, f.Low, f.High, f.Seen, f.Bare)
			b.ReportMetric(f.Median, "overhead-%/"+strings.Fields(name)[0])
		}
	}
	b.ReportMetric(0, "ns/op")
}
