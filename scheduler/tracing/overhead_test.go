package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/metrics"
	"github.com/solotick/solotick/scheduler/tracing"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
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
		ctx := tracer.RunContext(t.Context(), started.(scheduler.RunStarted))
		tracer.OnEvent(started)
		if err := handler(ctx, nil); err != nil {
			t.Error(err)
		}
		tracer.OnEvent(finished)
	})
	if n > 20 {
		t.Errorf("a run that is not sampled costs %v allocations", n)
	}
}

// sink takes lines and drops them, after they were made.
type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOverhead lets a worker on SQLite run some hundred jobs a second, in turns bare
// and with metrics, traces that are not sampled and logs, and reports the processor
// time of a tick: the median of the turns. One iteration is two turns of each, in the
// order that favours neither, and takes half a minute. More jobs a second would share
// the cost of a transaction, fewer would bear more of it.
func BenchmarkOverhead(b *testing.B) {
	var costs [2][]float64
	for b.Loop() {
		for _, observed := range []int{0, 1, 1, 0} {
			cpu, n := turn(b, observed == 1)
			costs[observed] = append(costs[observed], float64(cpu)/float64(n))
		}
	}
	median := func(all []float64) float64 {
		slices.Sort(all)
		n := len(all)
		return (all[(n-1)/2] + all[n/2]) / 2
	}
	bare, with := median(costs[0]), median(costs[1])
	b.ReportMetric(bare/1e3, "bare-us/tick")
	b.ReportMetric(with/1e3, "observed-us/tick")
	b.ReportMetric(100*(with/bare-1), "overhead-%")
	b.ReportMetric(0, "ns/op")
}

// turn runs a worker for some seconds and returns what its ticks cost.
func turn(b *testing.B, observed bool) (cpu time.Duration, ticks int) {
	b.Helper()
	const jobs, seconds = 300, 5
	db, err := sqlitedb.Open(filepath.Join(b.TempDir(), "store.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	st, err := gormstore.New(db)
	if err != nil {
		b.Fatal(err)
	}
	if err := st.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	deps := scheduler.Deps{Store: st, Logger: slog.New(slog.DiscardHandler)}
	var observer func(locks.Event)
	if observed {
		m, err := metrics.New(metrics.Config{})
		if err != nil {
			b.Fatal(err)
		}
		observer = m.Locks("memory")
		deps.Logger = slog.New(tracing.LogHandler(slog.NewJSONHandler(sink{}, nil)))
		deps.Listeners = append(deps.Listeners, m)
		provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		tracing.New(tracing.Config{Provider: provider}).Attach(&deps)
	}
	if deps.Locker, err = locks.New(memlock.NewDriver(new(memlock.Space)), locks.Config{Observer: observer}); err != nil {
		b.Fatal(err)
	}
	s, err := scheduler.New(scheduler.Config{Namespace: "bench"}, deps)
	if err != nil {
		b.Fatal(err)
	}
	for i := range jobs {
		if err := s.Add(scheduler.Cron(fmt.Sprint("job-", i), "@every 1s", func(context.Context, *scheduler.Run) error { return nil })); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	// From the middle of a second to the middle of another: whole bursts of ticks.
	half := time.Now().Truncate(time.Second).Add(2500 * time.Millisecond)
	<-time.After(time.Until(half))
	before := processorTime(b)
	<-time.After(time.Until(half.Add(seconds * time.Second)))
	cpu = processorTime(b) - before
	if err := errors.Join(s.Stop(context.Background()), deps.Locker.Close(context.Background())); err != nil {
		b.Fatal(err)
	}
	if err := sqlitedb.Close(db); err != nil {
		b.Fatal(err)
	}
	return cpu, jobs * seconds
}
