package tracing_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/tracing"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// world is a traced scheduler on stores in memory.
type world struct {
	*scheduler.Scheduler
	provider *sdktrace.TracerProvider
	spans    *tracetest.SpanRecorder
	store    *memstore.Store
	logs     bytes.Buffer
}

func newWorld(t *testing.T, sampler sdktrace.Sampler, jobs ...scheduler.Job) *world {
	t.Helper()
	return newWorldOn(t, memstore.New(), sampler, jobs...)
}

func newWorldOn(t *testing.T, s *memstore.Store, sampler sdktrace.Sampler, jobs ...scheduler.Job) *world {
	t.Helper()
	w := &world{spans: tracetest.NewSpanRecorder(), store: s}
	w.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans), sdktrace.WithSampler(sampler))
	locker, err := locks.New(memlock.NewDriver(new(memlock.Space)), locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	deps := scheduler.Deps{
		Store: w.store, Locker: locker,
		Logger: slog.New(tracing.LogHandler(slog.NewJSONHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))),
	}
	tracing.New(tracing.Config{Provider: w.provider}).Attach(&deps)
	if w.Scheduler, err = scheduler.New(scheduler.Config{Namespace: "test", Label: "w1"}, deps); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Add(jobs...), w.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.Stop(context.Background()), locker.Close(context.Background())); err != nil {
			t.Error(err)
		}
		if n := len(w.spans.Started()) - len(w.spans.Ended()); n != 0 {
			t.Errorf("%d spans are open", n)
		}
	})
	return w
}

// named returns the ended spans of a name, in the order of their ends.
func (w *world) named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range w.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

func attrs(all []attribute.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

// TestTick: one run is one trace, told in the order in which it happened.
func TestTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sdktrace.AlwaysSample(), scheduler.Cron("report", "@every 1m", func(ctx context.Context, _ *scheduler.Run) error {
			_, inner := trace.SpanFromContext(ctx).TracerProvider().Tracer("user").Start(ctx, "query")
			defer inner.End()
			time.Sleep(2 * time.Second)
			return nil
		}))
		tick := time.Now().Truncate(time.Minute).Add(time.Minute)
		time.Sleep(time.Until(tick) + 10*time.Second)

		roots := w.named("report")
		if len(roots) != 1 {
			t.Fatalf("%d roots", len(roots))
		}
		root := roots[0]
		if root.Parent().IsValid() || root.SpanKind() != trace.SpanKindInternal || len(root.Links()) != 0 || root.Status().Code != codes.Unset {
			t.Errorf("root: parent %v, kind %v, links %v, status %v", root.Parent(), root.SpanKind(), root.Links(), root.Status())
		}
		if took := root.EndTime().Sub(root.StartTime()); !root.StartTime().Equal(tick) || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("root: from %v, %v long", root.StartTime(), took)
		}
		got := attrs(root.Attributes())
		at := store.MillisOf(tick).String()
		for key, want := range map[string]string{
			"job.system": "solotick", "job.name": "report", "job.namespace": "test", "job.tick": at, "job.attempt": "1", "job.kind": "cron",
			"job.worker": "w1", "job.state": "succeeded", "faas.trigger": "timer", "faas.time": at, "faas.cron": "@every 1m",
			"job.run_id": got["faas.invocation_id"],
		} {
			if got[key] != want || want == "" {
				t.Errorf("%s: %q, want %q", key, got[key], want)
			}
		}
		if got["job.fencing_token"] == "" || got["job.fencing_token"] == "0" {
			t.Error("there is no fence")
		}
		parent := root
		for _, name := range []string{"acquire", "claim", "handler", "query", "finish"} {
			found := w.named(name)
			if len(found) != 1 {
				t.Fatalf("%d spans %s", len(found), name)
			}
			s := found[0]
			if s.Parent().SpanID() != parent.SpanContext().SpanID() || s.SpanContext().TraceID() != root.SpanContext().TraceID() {
				t.Errorf("%s is not below %s", name, parent.Name())
			}
			if s.StartTime().Before(root.StartTime()) || s.EndTime().After(root.EndTime()) {
				t.Errorf("%s lies outside of its run", name)
			}
			parent = root
			if name == "handler" {
				parent = s
			}
		}
	})
}

// TestAttempts: a retry is a trace of its own, linked to the attempt before; nothing is
// open between.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sdktrace.AlwaysSample(), scheduler.Cron("report", "@every 10m", func(_ context.Context, run *scheduler.Run) error {
			if run.Attempt() < 3 {
				return errors.New("not yet " + strings.Repeat("ä", 2000))
			}
			return nil
		}, scheduler.Retry(3, time.Minute, time.Minute)))
		time.Sleep(time.Until(time.Now().Truncate(10*time.Minute).Add(10*time.Minute)) + 30*time.Second)
		if open := len(w.spans.Started()) - len(w.spans.Ended()); open != 0 || len(w.named("report")) != 1 {
			t.Errorf("%d spans are open while the run waits for its retry, %d ended", open, len(w.named("report")))
		}
		time.Sleep(4 * time.Minute)
		roots := w.named("report")
		if len(roots) != 3 {
			t.Fatalf("%d attempts", len(roots))
		}
		for i, r := range roots {
			if r.Parent().IsValid() || i > 0 && r.SpanContext().TraceID() == roots[0].SpanContext().TraceID() {
				t.Errorf("attempt %d is no trace of its own", i+1)
			}
			if a := attrs(r.Attributes()); a["job.run_id"] != attrs(roots[0].Attributes())["job.run_id"] || a["job.attempt"] != string(rune('1'+i)) {
				t.Errorf("attempt %d: %v", i+1, a)
			}
			if i == 2 {
				if r.Status().Code == codes.Error {
					t.Errorf("the last: %v", r.Status())
				}
			} else if s := r.Status(); s.Code != codes.Error || !strings.HasPrefix(s.Description, "not yet ä") || len(s.Description) > 1024 {
				t.Errorf("attempt %d: %v, %d bytes", i+1, s.Code, len(s.Description))
			}
			if i > 0 {
				l := r.Links()
				if len(l) != 1 || l[0].SpanContext.SpanID() != roots[i-1].SpanContext().SpanID() || attrs(l[0].Attributes)["job.relation"] != "retry" {
					t.Errorf("attempt %d: links %v", i+1, l)
				}
			}
		}
	})
}

// TestAttemptElsewhere: another process links its attempts to the first one, whose trace
// stands in the row.
func TestAttemptElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := scheduler.Cron("report", "@every 10m", func(context.Context, *scheduler.Run) error { return errors.New("not yet") },
			scheduler.Retry(3, time.Minute, time.Minute))
		first := newWorld(t, sdktrace.AlwaysSample(), job)
		time.Sleep(time.Until(time.Now().Truncate(10*time.Minute).Add(10*time.Minute)) + 30*time.Second)
		if err := first.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := newWorldOn(t, first.store, sdktrace.AlwaysSample(), job)
		time.Sleep(4 * time.Minute)
		begun, roots := first.named("report"), second.named("report")
		if len(begun) != 1 || len(roots) != 2 {
			t.Fatalf("%d and %d attempts, want 1 and 2", len(begun), len(roots))
		}
		for i, want := range []map[string]trace.SpanID{
			{"retry": begun[0].SpanContext().SpanID()},
			{"retry": roots[0].SpanContext().SpanID()},
		} {
			got := map[string]trace.SpanID{}
			for _, l := range roots[i].Links() {
				got[attrs(l.Attributes)["job.relation"]] = l.SpanContext.SpanID()
			}
			if !maps.Equal(got, want) {
				t.Errorf("attempt %d is linked to %v, want %v", i+2, got, want)
			}
		}
	})
}

// TestTickOfAnother: of a span that was made for a claim which another process got,
// nothing is told, and it is not kept for a later run.
func TestTickOfAnother(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := tracing.New(tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})
	key := store.Key{Class: store.ClassCron, Job: "j", Tick: 1000}
	name := tracer.TickTrace("test", key, scheduler.Interval{From: time.Now(), To: time.Now()})
	tracer.OnEvent(scheduler.TickClaimed{Job: "j", Tick: 1000, Outcome: store.OutcomeDuplicate})
	x := store.Execution{ID: store.NewID(1), Key: key, Attempt: 1, Started: 1001, TraceParent: name}
	tracer.RunContext(t.Context(), scheduler.RunStarted{Execution: x})
	tracer.OnEvent(scheduler.RunFinished{Execution: x, State: store.StateSucceeded})
	ended := spans.Ended()
	if len(ended) != 1 || name == "" || strings.Contains(name, ended[0].SpanContext().TraceID().String()) {
		t.Errorf("%d spans were told for the trace %q", len(ended), name)
	}
}

// TestProducer: a queue run is linked to whoever enqueued it.
func TestProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sdktrace.AlwaysSample(), scheduler.QueueFunc("mail", func(context.Context, *scheduler.Run) error { return nil }))
		ctx, producer := w.provider.Tracer("user").Start(t.Context(), "order")
		rows := []store.NewExecution{
			{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "1"}, TraceParent: tracing.TraceParent(ctx)},
			{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "2"}, TraceParent: "00-nonsense"},
			{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "3"}, TraceParent: tracing.TraceParent(t.Context())},
		}
		if _, err := w.store.Enqueue(ctx, "test", rows); err != nil {
			t.Fatal(err)
		}
		producer.End()
		time.Sleep(10 * time.Second)
		roots := w.named("mail")
		if len(roots) != 3 {
			t.Fatalf("%d runs", len(roots))
		}
		linked := 0
		for _, r := range roots {
			if r.SpanKind() != trace.SpanKindConsumer || r.Parent().IsValid() || attrs(r.Attributes())["faas.trigger"] != "pubsub" {
				t.Errorf("kind %v, parent %v", r.SpanKind(), r.Parent())
			}
			for _, l := range r.Links() {
				linked++
				if l.SpanContext.SpanID() != producer.SpanContext().SpanID() || attrs(l.Attributes)["job.relation"] != "producer" {
					t.Errorf("link to %v", l)
				}
			}
		}
		if linked != 1 {
			t.Errorf("%d links, want one to the only producer with a span", linked)
		}
	})
}

// TestNoArgumentsInSpans: what a job is given and what it gives is nowhere in its spans
// and log lines, whatever becomes of it; an error's text is.
func TestNoArgumentsInSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const canary = "canary-7f3a"
		w := newWorld(t, sdktrace.AlwaysSample(), scheduler.QueueFunc("mail", func(_ context.Context, run *scheduler.Run) error {
			if !strings.Contains(string(run.Args()), canary) {
				t.Errorf("the job was given %q", run.Args())
			}
			run.SetResult([]byte(canary))
			switch run.Key().Name {
			case "fails":
				return errors.New("no such mailbox")
			case "panics":
				panic("gone")
			}
			return nil
		}))
		var rows []store.NewExecution
		for _, name := range []string{"succeeds", "fails", "panics"} {
			rows = append(rows, store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: name}, Args: []byte(canary), MaxAttempts: 1})
		}
		if _, err := w.store.Enqueue(t.Context(), "test", rows); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		told := w.logs.String()
		for _, s := range w.spans.Ended() {
			told += fmt.Sprintf("%+v\n", tracetest.SpanStubFromReadOnlySpan(s))
		}
		if roots := w.named("mail"); len(roots) < len(rows) || !strings.Contains(told, "no such mailbox") {
			t.Errorf("%d attempts, want 3 and more, and the error's text in\n%s", len(roots), told)
		}
		if strings.Contains(told, canary) {
			t.Errorf("the arguments or the result are in\n%s", told)
		}
	})
}

// TestUnrecorded: runs that no store has given an ID are told apart.
func TestUnrecorded(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := tracing.New(tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})
	var runs []store.Execution
	for _, job := range []string{"a", "b"} {
		x := store.Execution{Key: store.Key{Class: store.ClassCron, Job: job, Tick: 1000}, Attempt: 1, Started: 1001, Mode: store.ModeStoreDown}
		runs = append(runs, x)
		tracer.RunContext(t.Context(), scheduler.RunStarted{Execution: x, Mode: x.Mode})
	}
	for _, x := range runs {
		tracer.OnEvent(scheduler.RunFinished{Execution: x, State: store.StateSucceeded})
	}
	if len(spans.Ended()) != 2 || attrs(spans.Ended()[1].Attributes())["job.degraded_mode"] != string(store.ModeStoreDown) {
		t.Errorf("%d spans ended, want two", len(spans.Ended()))
	}
}

// TestEnds: however a run ends, its spans do, and say how.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		w := newWorld(t, sdktrace.AlwaysSample(),
			scheduler.Cron("mad", "@every 10m", func(context.Context, *scheduler.Run) error { panic("no") }),
			scheduler.Cron("deaf", "@every 10m", func(context.Context, *scheduler.Run) error { <-stuck; return nil }, scheduler.Timeout(time.Second)))
		time.Sleep(time.Until(time.Now().Truncate(10*time.Minute).Add(10*time.Minute)) + time.Minute)
		for _, name := range []string{"mad", "deaf"} {
			if r := w.named(name); len(r) != 1 || r[0].Status().Code != codes.Error || attrs(r[0].Attributes())["job.state"] != "failed" {
				t.Errorf("%s: %v", name, r)
			}
		}
		if !slices.ContainsFunc(w.named("deaf")[0].Events(), func(e sdktrace.Event) bool { return e.Name == "abandoned" }) {
			t.Error("nothing tells that the handler was left behind")
		}
		close(stuck)
		synctest.Wait()
	})
}

// TestLogs: lines of a run carry its trace, sampled or not, and name it in full.
func TestLogs(t *testing.T) {
	for name, sampler := range map[string]sdktrace.Sampler{"sampled": sdktrace.AlwaysSample(), "not sampled": sdktrace.NeverSample()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, sampler, scheduler.Cron("report", "@every 1m", func(context.Context, *scheduler.Run) error { return errors.New("no") }))
				time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)) + 10*time.Second)
				if err := w.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				lines := 0
				for d := json.NewDecoder(&w.logs); ; {
					var line map[string]any
					if err := d.Decode(&line); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					if line["run"] == nil {
						if line["trace_id"] != nil {
							t.Errorf("a trace on a line of no run: %v", line)
						}
						continue
					}
					lines++
					for _, key := range []string{"namespace", "owner", "job", "tick", "run", "key", "attempt", "fence", "trace_id", "span_id"} {
						if line[key] == nil {
							t.Errorf("no %s in %v", key, line)
						}
					}
				}
				if lines != 1 {
					t.Errorf("%d lines of the run, want one", lines)
				}
				if n := len(w.spans.Ended()); name == "not sampled" && n != 0 {
					t.Errorf("%d spans recorded", n)
				}
			})
		})
	}
}
