package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// Handler does the work of a run. Its context ends when the run's right to go on
// may have ended (the cause names why), when the job's timeout is over and when
// the process has drained for too long. An error makes the run fail or, while
// attempts are left, be tried again.
type Handler func(ctx context.Context, run *Run) error

// Misfire says what happens to ticks that were not run in time.
type Misfire string

// The misfire policies.
const (
	MisfireFireOnce Misfire = "fire_once" // the latest of them runs and stands for the others
	MisfireFireAll  Misfire = "fire_all"  // each runs, oldest first, one at a time
	MisfireSkip     Misfire = "skip"      // none runs
)

// Overlap says what happens to a tick while an earlier run of the job is in
// progress, anywhere in the cluster.
type Overlap string

// The overlap policies.
const (
	OverlapSkip      Overlap = "skip"       // the tick is recorded as skipped(overlap)
	OverlapBufferAll Overlap = "buffer_all" // the tick waits and runs when its turn comes
)

// Guarantee is what a job promises about its effect, as the API, the command
// line and the metrics show it.
type Guarantee string

// The guarantees.
const (
	ExactlyOnce     Guarantee = "exactly-once"     // effect and completion are one transaction
	EffectivelyOnce Guarantee = "effectively-once" // repeated, but the receiver drops repeats
	AtLeastOnce     Guarantee = "at-least-once"    // a run whose owner dies is run again
	AtMostOnce      Guarantee = "at-most-once"     // a run whose owner dies is not run again
)

// Job is a named definition: what runs, when, and under which policies. Make one
// with Cron, Queue or QueueFunc; mistakes are reported by Scheduler.Add.
type Job struct {
	name    string
	kind    jobKind
	handler Handler
	expr    string
	spec    *cronspec.Spec // set by Add
	o       jobOptions
	err     error
}

type jobKind int

const (
	kindCron jobKind = iota + 1
	kindQueue
)

type jobOptions struct {
	zone        string
	zoneGiven   bool
	gap         cronspec.GapPolicy
	fold        cronspec.FoldPolicy
	spread      bool
	gate        Gate
	misfire     Misfire
	window      time.Duration
	maxCatchup  int
	overlap     Overlap
	timeout     time.Duration
	attempts    int
	backoffBase time.Duration
	backoffMax  time.Duration
	onCrash     store.OnCrash
	mode        store.Mode
	storeDown   StoreDown
	guarantee   Guarantee
	paused      bool
	pauseReason string
	description string
}

// Name of the job, or kind of its queue rows.
func (j Job) Name() string { return j.name }

// Option adjusts a job.
type Option func(*jobOptions)

// Cron defines a job that runs on a schedule: five fields, six with leading
// seconds, a descriptor such as @daily, or "@every 30s", which is aligned to the
// Unix epoch so that all replicas tick together.
func Cron(name, spec string, h Handler, opts ...Option) Job {
	return newJob(name, kindCron, spec, h, opts)
}

// QueueFunc defines the handler of a kind of queue job whose arguments are raw
// bytes, see Run.Args.
func QueueFunc(kind string, h Handler, opts ...Option) Job {
	return newJob(kind, kindQueue, "", h, opts)
}

// Queue defines the handler of the queue jobs whose arguments are a T, kept as
// JSON. The kind is what T's method Kind() string returns, or else T's name in
// snake case. Arguments that do not decode fail the run for good.
func Queue[T any](h func(ctx context.Context, run *Run, args T) error, opts ...Option) Job {
	return newJob(KindOf[T](), kindQueue, "", func(ctx context.Context, run *Run) error {
		var args T
		d := json.NewDecoder(bytes.NewReader(run.Args()))
		d.DisallowUnknownFields()
		if err := d.Decode(&args); err != nil {
			return Permanent(fmt.Errorf("scheduler: arguments of %s do not decode: %w", run.Job(), err))
		}
		return h(ctx, run, args)
	}, opts)
}

// KindOf is the kind of the queue jobs whose arguments are a T.
func KindOf[T any]() string {
	var args T
	if k, ok := any(args).(interface{ Kind() string }); ok {
		return k.Kind()
	}
	var b strings.Builder
	for i, r := range reflect.TypeFor[T]().Name() {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func newJob(name string, kind jobKind, expr string, h Handler, opts []Option) Job {
	j := Job{name: name, kind: kind, expr: expr, handler: h}
	if err := ValidateName(name); err != nil {
		j.err = fmt.Errorf("scheduler: job name %w", err)
		return j
	}
	if h == nil {
		j.err = fmt.Errorf("scheduler: job %q has no handler", name)
	}
	for _, opt := range opts {
		opt(&j.o)
	}
	return j
}

// TimeZone is the zone in which the schedule is read. Default: Config.TimeZone.
func TimeZone(zone string) Option {
	return func(o *jobOptions) { o.zone, o.zoneGiven = zone, zone != "" }
}

// DaylightSaving says what becomes of fixed times that do not exist on a day
// (gap) or exist twice (fold). Default: next valid instant, first of the two.
func DaylightSaving(gap cronspec.GapPolicy, fold cronspec.FoldPolicy) Option {
	return func(o *jobOptions) { o.gap, o.fold = gap, fold }
}

// Spread moves an "@every" schedule by an offset that depends on namespace and
// name only, so that jobs with one period do not all start at once.
func Spread() Option { return func(o *jobOptions) { o.spread = true } }

// WithGate overrides Config.Gate. Queue jobs take no gate.
func WithGate(g Gate) Option { return func(o *jobOptions) { o.gate = g } }

// OnMisfire sets the misfire policy. Default fire_once.
func OnMisfire(m Misfire) Option { return func(o *jobOptions) { o.misfire = m } }

// CatchUp bounds what the misfire policy runs: ticks older than window, and all
// but the latest most, are missed. A window below lease + 2 s is refused: a tick whose
// owner died may be found as late as that. Defaults: the job's period, at least a minute
// and at most an hour, or lease + 2 s where that is more; 100 ticks.
func CatchUp(window time.Duration, most int) Option {
	return func(o *jobOptions) { o.window, o.maxCatchup = window, most }
}

// OnOverlap sets the overlap policy. Default skip.
func OnOverlap(v Overlap) Option { return func(o *jobOptions) { o.overlap = v } }

// Timeout bounds one attempt; a queue's row may have a shorter one
// (store.NewExecution.Timeout). Default one hour; there is no way to have none.
func Timeout(d time.Duration) Option { return func(o *jobOptions) { o.timeout = d } }

// Retry allows that many attempts in all, with a backoff between them that
// doubles from base to most, jittered. Default: one attempt for cron jobs, 25 for
// queue jobs, from 1s to 10m. Attempts whose owner died count. The most is 10,000. A queue's row may
// have less (store.NewExecution.MaxAttempts). An error that is store.ErrUnavailable is
// tried again nine times more, or as the row has it, unless WhenOwnerDies says otherwise.
func Retry(attempts int, base, most time.Duration) Option {
	return func(o *jobOptions) { o.attempts, o.backoffBase, o.backoffMax = attempts, base, most }
}

// WhenOwnerDies sets what becomes of a run whose process died, or had to stop before
// the run was over. Of the job's policy and that of a queue's row
// (store.NewExecution.OnCrash) the stricter counts. Default: run it again.
func WhenOwnerDies(p store.OnCrash) Option { return func(o *jobOptions) { o.onCrash = p } }

// WhenDegraded overrides Degradation.Mode for this job; Degradation.Jobs, which
// an operator writes, overrides both.
func WhenDegraded(m store.Mode) Option { return func(o *jobOptions) { o.mode = m } }

// Promise states the guarantee that the handler gives for its effect. Default:
// at-least-once, or at-most-once where a dead owner's run is not repeated.
func Promise(g Guarantee) Option { return func(o *jobOptions) { o.guarantee = g } }

// Paused pauses the job on all replicas when it is registered, for the reason: its
// ticks are skipped(paused) and not made up for, its rows wait, and runs in progress go
// on. A definition without it ends that pause, and no other. Where replicas disagree the
// one that registered last has its way.
func Paused(reason string) Option {
	return func(o *jobOptions) { o.paused, o.pauseReason = true, reason }
}

// Describe adds a line for people.
func Describe(text string) Option { return func(o *jobOptions) { o.description = text } }

// Permanent marks an error after which no further attempt is made.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p) || errors.Is(err, store.ErrTooLarge)
}
