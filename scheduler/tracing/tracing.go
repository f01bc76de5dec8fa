package tracing

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// Config of the tracing. The zero value works.
type Config struct {
	// Provider makes the tracer. Default otel.GetTracerProvider(), as it is when New is
	// called or becomes later.
	Provider trace.TracerProvider
}

const (
	scope      = "github.com/solotick/solotick/scheduler/tracing"
	maxText    = 1 << 10
	maxEarlier = 1000 // attempts that are remembered for a link, and jobs with their attributes
)

// Options that never change, made once: a run that is not sampled should cost little.
var (
	newRoot  = trace.WithNewRoot()
	internal = trace.WithSpanKind(trace.SpanKindInternal)
	consumer = trace.WithSpanKind(trace.SpanKindConsumer)
)

// Tracer makes the spans. It is a scheduler.Listener with a say in the context of
// runs. Its methods are safe for concurrent use.
type Tracer struct {
	tracer  trace.Tracer
	claims  table[tick, run] // made for ticks that are being claimed
	open    table[attempt, run]
	earlier table[store.ID, trace.SpanContext]
	taken   table[attempt, struct{}] // taken over from a dead owner
	names   sync.Map                 // job name -> named, at its last first attempt
	named   atomic.Int64             // how many
}

// named is the attributes of a naming, made once.
type named struct {
	naming
	option trace.SpanStartOption
}

// naming is what runs of a job have in common.
type naming struct {
	namespace, job string
	class          store.Class
	attempt        int
}

func (n naming) option() trace.SpanStartOption {
	return trace.WithAttributes(
		attribute.String("job.system", "solotick"),
		attribute.String("job.namespace", n.namespace),
		attribute.String("job.name", n.job),
		attribute.String("job.kind", n.class.String()),
		attribute.Int("job.attempt", n.attempt),
		attribute.String("faas.trigger", trigger(n.class)),
	)
}

// run is an attempt in progress, with the context that children are made in.
type run struct {
	ctx  context.Context
	span trace.Span
}

// tick names one of a job.
type tick struct {
	job string
	at  store.Millis
}

var (
	_ scheduler.RunContexter = (*Tracer)(nil)
	_ scheduler.TickTracer   = (*Tracer)(nil)
)

// New makes a tracer.
func New(cfg Config) *Tracer {
	if cfg.Provider == nil {
		cfg.Provider = otel.GetTracerProvider()
	}
	t := &Tracer{tracer: cfg.Provider.Tracer(scope)}
	t.earlier.most, t.taken.most, t.claims.most = maxEarlier, maxEarlier, maxEarlier
	return t
}

// Attach adds the tracer to what a scheduler is made with: as a listener, and as the
// outermost middleware.
func (t *Tracer) Attach(d *scheduler.Deps) {
	d.Listeners = append(d.Listeners, t)
	d.Middleware = append([]scheduler.Middleware{t.Middleware()}, d.Middleware...)
}

// TickTrace implements scheduler.TickTracer: it makes the span of the run that the tick
// will be if the claim gets it. A span of which nothing comes is never ended, and so
// never told to anybody.
func (t *Tracer) TickTrace(namespace string, key store.Key, gate scheduler.Interval) string {
	x := store.Execution{Namespace: namespace, Key: key, Attempt: 1}
	ctx, span := t.tracer.Start(context.Background(), key.Job, internal, trace.WithTimestamp(gate.From), t.naming(&x)) //nolint:forbidigo // a root: nothing of the process is above a run
	t.claims.put(tick{key.Job, key.Tick}, run{ctx, span})
	if !span.IsRecording() {
		return ""
	}
	return TraceParent(ctx)
}

// RunContext implements scheduler.RunContexter: it makes the span of the run, or takes
// the one that was made for the claim.
func (t *Tracer) RunContext(ctx context.Context, e scheduler.RunStarted) context.Context {
	x := &e.Execution
	root, span := t.root(ctx, &e)
	if !span.IsRecording() {
		return root // the rest is not for samplers
	}
	span.SetAttributes(attributes(&e)...)
	if !e.Gate.From.IsZero() {
		t.past(root, "acquire", e.Gate)
	}
	t.past(root, "claim", e.Claim)
	if x.Key.Tick != 0 {
		span.AddEvent("due", trace.WithTimestamp(x.Key.Tick.Time()),
			trace.WithAttributes(attribute.Float64("job.lateness_seconds", x.Started.Sub(x.Key.Tick).Seconds())))
	}
	t.open.put(attemptOf(x), run{root, span})
	return root
}

func (t *Tracer) root(ctx context.Context, e *scheduler.RunStarted) (context.Context, trace.Span) {
	x := &e.Execution
	if x.Attempt == 1 && x.Key.Class == store.ClassCron {
		if r, ok := t.claims.take(tick{x.Key.Job, x.Key.Tick}); ok {
			return trace.ContextWithSpan(ctx, r.span), r.span
		}
	}
	began := e.Gate.From
	if began.IsZero() {
		began = e.Claim.From
	}
	if began.IsZero() {
		began = time.Now()
	}
	kind := internal
	if x.Key.Class == store.ClassKey {
		kind = consumer
	}
	opts := append(make([]trace.SpanStartOption, 0, 5), kind, trace.WithTimestamp(began), t.naming(x))
	if trace.SpanContextFromContext(ctx).IsValid() {
		opts = append(opts, newRoot)
	}
	if links := t.links(ctx, x); len(links) > 0 {
		opts = append(opts, trace.WithLinks(links...))
	}
	return t.tracer.Start(ctx, x.Key.Job, opts...)
}

// naming is the attributes that samplers see.
func (t *Tracer) naming(x *store.Execution) trace.SpanStartOption {
	n := naming{x.Namespace, x.Key.Job, x.Key.Class, x.Attempt}
	known, ok := t.names.Load(n.job)
	if ok && known.(*named).naming == n {
		return known.(*named).option
	}
	option := n.option()
	if n.attempt == 1 && (ok || t.named.Add(1) <= maxEarlier) {
		t.names.Store(n.job, &named{n, option})
	}
	return option
}

// past makes a span of something that is over.
func (t *Tracer) past(ctx context.Context, name string, i scheduler.Interval) {
	if i.From.IsZero() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(i.From), trace.WithSpanKind(trace.SpanKindClient))
	span.End(trace.WithTimestamp(i.To))
}

// attempt names one, also while it has no record and so no ID.
type attempt struct {
	id     store.ID
	number int
	job    string
	tick   store.Millis
}

func attemptOf(x *store.Execution) attempt { return attempt{x.ID, x.Attempt, x.Key.Job, x.Key.Tick} }

// links lead to the producer and to the attempt before.
func (t *Tracer) links(ctx context.Context, x *store.Execution) []trace.Link {
	var links []trace.Link
	link := func(to trace.SpanContext, relation string) {
		if to.IsValid() {
			links = append(links, trace.Link{SpanContext: to, Attributes: []attribute.KeyValue{attribute.String("job.relation", relation)}})
		}
	}
	_, takenOver := t.taken.take(attemptOf(x))
	// The row of a tick names the trace of its first attempt, any other its producer.
	var first trace.SpanContext
	switch {
	case x.TraceParent == "":
	case x.Key.Class == store.ClassCron:
		first = parse(ctx, x.TraceParent)
	default:
		link(parse(ctx, x.TraceParent), "producer")
	}
	if x.Attempt > 1 {
		relation := "retry"
		if takenOver {
			relation = "takeover"
		}
		before, _ := t.earlier.take(x.ID)
		switch {
		case before.IsValid():
		case x.Attempt == 2:
			before = first
		default:
			relation, before = "first attempt", first
		}
		link(before, relation)
	}
	return links
}

func trigger(c store.Class) string {
	switch c {
	case store.ClassCron:
		return "timer"
	case store.ClassKey:
		return "pubsub"
	default:
		return "other"
	}
}

// attributes are those that no sampler is likely to ask for.
func attributes(e *scheduler.RunStarted) []attribute.KeyValue {
	x := &e.Execution
	all := make([]attribute.KeyValue, 0, 12)
	all = append(all,
		attribute.String("job.run_id", x.ID.String()),
		attribute.Int64("job.fencing_token", x.Fence),
		attribute.String("job.worker", x.OwnerLabel),
		attribute.String("faas.invocation_id", x.ID.String()),
	)
	if x.Key.Tick != 0 {
		tick := x.Key.Tick.String()
		all = append(all, attribute.String("job.tick", tick), attribute.String("faas.time", tick))
	}
	if x.Key.Class == store.ClassCron {
		all = append(all, attribute.String("faas.cron", e.Spec))
	}
	if e.Mode != store.ModeNone {
		all = append(all, attribute.String("job.degraded_mode", string(e.Mode)))
	}
	return all
}

// OnEvent implements scheduler.Listener.
func (t *Tracer) OnEvent(e scheduler.Event) {
	switch e := e.(type) {
	case scheduler.TickClaimed:
		t.claims.take(tick{e.Job, e.Tick}) // it is not ours
	case scheduler.RunTakenOver:
		if e.Execution.State == store.StateRunning {
			t.taken.put(attemptOf(&e.Execution), struct{}{})
		}
	case scheduler.RunLost:
		t.note(&e.Execution, "lost", attribute.String("job.cause", clip(e.Cause.Error())))
	case scheduler.RunAbandoned:
		t.note(&e.Execution, "abandoned")
	case scheduler.RunFinished:
		t.finished(&e)
	}
}

// note adds an event to the span of a run.
func (t *Tracer) note(x *store.Execution, name string, attrs ...attribute.KeyValue) {
	if r, ok := t.open.get(attemptOf(x)); ok {
		r.span.AddEvent(name, trace.WithAttributes(attrs...))
	}
}

func (t *Tracer) finished(e *scheduler.RunFinished) {
	x := &e.Execution
	r, ok := t.open.take(attemptOf(x))
	if !ok {
		return
	}
	t.past(r.ctx, "finish", e.Record)
	span := r.span
	span.SetAttributes(attribute.String("job.state", e.State.String()))
	switch {
	case e.Fenced:
		span.SetStatus(codes.Error, "fenced: another attempt had the run")
	case e.Unrecorded:
		span.SetStatus(codes.Error, "unrecorded: the store did not take the end")
	case e.Err != nil:
		span.SetStatus(codes.Error, clip(e.Err.Error()))
	}
	if e.Fenced || e.Unrecorded || e.State == store.StatePending || e.State == store.StateFailed {
		t.earlier.put(x.ID, span.SpanContext()) // another attempt may follow
	}
	span.End()
}

// Middleware makes the span of the handler, in the handler's context. Attach puts it
// in its place.
func (t *Tracer) Middleware() scheduler.Middleware {
	return func(next scheduler.Handler) scheduler.Handler {
		return func(ctx context.Context, run *scheduler.Run) error {
			if !trace.SpanFromContext(ctx).IsRecording() {
				return next(ctx, run)
			}
			ctx, span := t.tracer.Start(ctx, "handler")
			defer span.End() // also of a panic
			err := next(ctx, run)
			if err != nil {
				span.SetStatus(codes.Error, clip(err.Error()))
			}
			return err
		}
	}
}

// clip bounds a text.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "")
}

// TraceParent is the span of ctx in the form of a W3C traceparent header, empty if
// there is none. Whoever enqueues a row puts it into store.NewExecution.TraceParent,
// and the run is linked to the span.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// parse reads what TraceParent wrote; what it cannot read is no span.
func parse(ctx context.Context, traceParent string) trace.SpanContext {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceParent})
	if span := trace.SpanContextFromContext(ctx); span.IsRemote() {
		return span
	}
	return trace.SpanContext{}
}
