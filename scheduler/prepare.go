package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// job is a job at work in this process.
type job struct {
	Job
	given      Job    // as it was defined
	hash       string // of the schedule
	marshalled string // schedule as every replica can read it
	handler    Handler
	elector    *leader.Elector // of gate leader

	*work
	reign *reign
}

// work is what goes on under a job's name in this process, whichever definition it
// began with.
type work struct {
	mu      sync.Mutex // guards what the job has of reign, too
	running int        // runs of it in progress here
	alone   bool       // one of them has no record
	local   sync.Mutex // mode local_mutex
	giveUp  func()     // ends the wait of the tick that waits for the gate
	asking  map[store.Millis]int
	turn    chan struct{} // capacity 1: held by the tick that asks the gate
	drop    func()        // drops its question
	version int64         // of the state that was learned last
}

func newWork() *work {
	return &work{asking: map[store.Millis]int{}, turn: make(chan struct{}, 1)}
}

// reign is the time in which a job's schedule is in force, by the store: the ticks
// in (from, until] are its own.
type reign struct {
	from  store.Millis
	until store.Millis // 0 while no other schedule is in force
	floor store.Millis // this process plans the ticks after it; those before are the sweep's
	told  bool         // that another is in force
}

// Defaults and bounds of jobs.
const (
	defaultTimeout  = time.Hour
	defaultCatchUp  = 100
	defaultBase     = time.Second
	defaultMost     = 10 * time.Minute
	queueAttempts   = 25
	maxAttempts     = 10_000 // years of retries; the sums and columns that they go into hold it
	extraForCrashes = 9      // attempts beyond a job's own that dead owners may use up
	minWindow       = time.Minute
	maxWindow       = time.Hour
)

// CheckJob reports what Add refuses of the job, where the scheduler has what the gate
// needs. It opens and asks nothing. Where it is about one option the text names it as a
// file does, after the package: "scheduler: retry.attempts: ...".
func (c Config) CheckJob(job Job) error {
	if job.err != nil {
		return job.err
	}
	c = c.withDefaults()
	if _, err := prepare(&c, job); err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	return nil
}

// prepare checks a job against what was given in code, too, and lets it take part.
func (s *Scheduler) prepare(cfg *Config, given Job) (*job, error) {
	if given.err != nil {
		return nil, given.err
	}
	j, err := prepare(cfg, given)
	switch {
	case err != nil:
	case j.o.gate == GateLock && s.deps.Locker == nil:
		err = errors.New("gate lock needs Deps.Locker: give a locker, or choose gate none (the store alone keeps it to one run per tick)")
	case j.o.gate == GateLeader && !s.lead.given():
		err = errors.New("gate leader needs Deps.Elector: give an elector, such as leader.FromLocks(locker, key, leader.Config{}), or Deps.Shares")
	}
	if err != nil {
		return nil, fmt.Errorf("scheduler: job %q: %w", given.name, err)
	}
	j.elector = s.lead.of(j.name)
	// Recovery stands on both sides: a panic in a middleware ends the run, too.
	j.handler = recovered(chain(recovered(given.handler), s.deps.Middleware))
	return j, nil
}

// prepare checks a job and fills in what it leaves to the configuration. All that a
// configuration alone can tell is here, so that a check of a file finds it.
func prepare(cfg *Config, given Job) (*job, error) {
	j := &job{Job: given, given: given, work: newWork(), reign: new(reign)}
	o := &j.o
	bad := func(format string, args ...any) (*job, error) {
		return nil, fmt.Errorf(format, args...)
	}
	if j.kind == kindCron {
		setDefault(&o.gate, cfg.Gate)
		setDefault(&o.zone, cfg.TimeZone)
		setDefault(&o.misfire, MisfireFireOnce)
		setDefault(&o.overlap, OverlapSkip)
		setDefault(&o.maxCatchup, defaultCatchUp)
		setDefault(&o.attempts, 1)
		if err := j.parse(cfg); err != nil {
			return nil, err
		}
	} else {
		if o.gate != "" && o.gate != GateNone {
			return bad("gate %s: a queue job takes no gate, each of its rows is claimed by one process", o.gate)
		}
		if o.zone != "" || o.misfire != "" || o.overlap != "" || o.window != 0 {
			return bad("time zone, misfire, overlap and catch-up are for cron jobs")
		}
		o.gate = GateNone
		setDefault(&o.attempts, queueAttempts)
	}
	setDefault(&o.timeout, defaultTimeout)
	setDefault(&o.backoffBase, defaultBase)
	setDefault(&o.backoffMax, max(defaultMost, o.backoffBase))
	if err := j.checkStoreDown(*cfg); err != nil {
		return nil, err
	}
	if o.storeDown == StoreDownRun {
		o.guarantee = AtLeastOnce
	}
	if o.guarantee == "" {
		o.guarantee = AtLeastOnce
		if o.onCrash != store.CrashRerun && o.attempts == 1 {
			o.guarantee = AtMostOnce
		}
	}
	switch {
	case !slices.Contains([]Gate{GateLock, GateLeader, GateNone}, o.gate):
		return bad("gate %q is none of lock, leader, none", o.gate)
	case j.kind == kindCron && !slices.Contains([]Misfire{MisfireFireOnce, MisfireFireAll, MisfireSkip}, o.misfire):
		return bad("misfire %q is none of fire_once, fire_all, skip", o.misfire)
	case j.kind == kindCron && !slices.Contains([]Overlap{OverlapSkip, OverlapBufferAll}, o.overlap):
		return bad("overlap %q is none of skip, buffer_all", o.overlap)
	case !slices.Contains([]Guarantee{ExactlyOnce, EffectivelyOnce, AtLeastOnce, AtMostOnce}, o.guarantee):
		return bad("guarantee %q is none of exactly-once, effectively-once, at-least-once, at-most-once", o.guarantee)
	case o.guarantee == AtMostOnce && (o.attempts > 1 || o.onCrash == store.CrashRerun):
		return bad("at-most-once contradicts %d attempts and the policy for a dead owner: allow one attempt and do not rerun", o.attempts)
	case o.onCrash < store.CrashRerun || o.onCrash > store.CrashIndeterminate:
		return bad("on_crash: policy %d is none of store.CrashRerun, CrashFail, CrashNextTick, CrashIndeterminate", o.onCrash)
	case o.mode != "" && !slices.Contains(Modes(), o.mode):
		return bad("degraded mode %q is none of fail_fast, local_mutex, store_only", o.mode)
	case o.timeout < 0:
		return bad("timeout %v is negative", o.timeout)
	case o.attempts > maxAttempts:
		return bad("retry.attempts: %d is over %d: write no more, or leave it out for the default", o.attempts, maxAttempts)
	case o.attempts < 0 || o.backoffBase < 0 || o.backoffMax < o.backoffBase:
		return bad("retry: %d attempts from %v to %v make no sense", o.attempts, o.backoffBase, o.backoffMax)
	case o.window < 0 || o.maxCatchup < 0:
		return bad("catch-up: a window of %v and %d ticks make no sense", o.window, o.maxCatchup)
	case j.kind == kindCron && o.window < leastWindow(cfg):
		return bad("catch_up.window: %v is below %v: a tick whose owner died is found up to a lease (%v) and %v after it, so a shorter window would miss it: lengthen the window, or shorten the lease",
			o.window, leastWindow(cfg), cfg.Lease, leastWindow(cfg)-cfg.Lease)
	}
	return j, cfg.Retention.keeps(j)
}

func (j *job) parse(cfg *Config) error {
	opts := cronspec.Options{Zone: j.o.zone, Gap: j.o.gap, Fold: j.o.fold}
	if strings.HasPrefix(j.expr, "TZ=") || strings.HasPrefix(j.expr, "CRON_TZ=") {
		opts.Zone = "" // the spec names its own; Config.TimeZone is only a default
		if j.o.zoneGiven {
			opts.Zone = j.o.zone // and the parser says that this is one too many
		}
	}
	spec, err := cronspec.Parse(j.expr, opts)
	if err != nil {
		return err
	}
	if j.o.spread {
		every, ok := spec.Every()
		if !ok {
			return fmt.Errorf("spread moves @every schedules only, not %q", j.expr)
		}
		opts.Offset = cronspec.SpreadOffset(cfg.Namespace, j.name, every)
		if spec, err = cronspec.Parse(j.expr, opts); err != nil {
			return err
		}
	}
	j.spec, j.hash, j.marshalled = spec, spec.Hash(), spec.Marshal()
	setDefault(&j.o.window, max(min(max(spec.Period(time.Now()), minWindow), maxWindow), leastWindow(cfg)))
	return nil
}

// leastWindow is the shortest catch-up window that can be kept: at that age the sweep
// has looked, of which one is a lease and its jitter after the other, and has asked the
// store.
func leastWindow(cfg *Config) time.Duration {
	const asked = 500 * time.Millisecond
	return cfg.Lease + settleGrace + sweepJitter + asked
}

// learn takes over what the store says of the job, unless more recent is known.
func (j *job) learn(s *Scheduler, state store.JobState) {
	if j.kind != kindCron {
		return
	}
	current := state.Current()
	j.mu.Lock()
	if state.Version < j.version {
		j.mu.Unlock()
		return
	}
	j.version = state.Version
	superseded := j.reign.learn(state.Revisions, j.hash)
	// A definition that this process is about to replace, or has, needs no word.
	now := s.jobs.get(j.name)
	tell := superseded && !j.reign.told && !s.replacing.Load() && (now == nil || now.reign == j.reign)
	j.reign.told = superseded && (j.reign.told || tell)
	j.mu.Unlock()
	if tell {
		s.log.Warn("another schedule is in force; this process does not fire the job", "job", j.name, "mine", j.spec.String(), "in_force", current.Spec)
		s.emit(JobSuperseded{Job: j.name, Spec: current.Spec})
	}
}

// learn reports whether another schedule is in force.
func (r *reign) learn(revisions []store.Revision, hash string) (superseded bool) {
	r.until = 1 // a schedule that the store did not take owns no tick
	for i, rev := range slices.Backward(revisions) {
		if rev.Hash != hash {
			continue
		}
		r.from, r.until = rev.From, 0
		if i+1 < len(revisions) {
			r.until = revisions[i+1].From
		}
		break
	}
	return r.until != 0
}

func (j *job) isSuperseded() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.reign.until != 0
}

// owns reports whether the tick is the schedule's of this process.
func (j *job) owns(tick store.Millis) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return tick > j.reign.from && (j.reign.until == 0 || tick <= j.reign.until)
}

// plansFrom lets this process fire the ticks after the instant, as far as they are
// the schedule's.
func (j *job) plansFrom(at store.Millis) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.reign.floor = max(at, j.reign.from)
}

func (j *job) floor() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.reign.floor.Time()
}

// begin and end count the runs in progress in this process. False: there is one without
// a record, which no active key keeps apart from others.
func (j *job) begin() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.alone && !mutation.On("busy-alone") {
		return false
	}
	j.running++
	return true
}

// beginAlone counts a run without a record in, unless there is a run.
func (j *job) beginAlone() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.running > 0 && !mutation.On("busy-here") {
		return false
	}
	j.running++
	j.alone = true
	return true
}

func (j *job) endAlone() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running--
	j.alone = false
}

// busyAlone reports whether a run without a record is in progress here: no active key
// keeps another one out, not even when the store is back.
func (j *job) busyAlone() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.alone && !mutation.On("busy-alone")
}

func (j *job) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running--
}

func (j *job) busyHere() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running > 0
}

// ask notes that the tick waits for the gate's answer, until done.
func (j *job) ask(tick store.Millis) (done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asking[tick]++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.asking[tick]--; j.asking[tick] == 0 {
			delete(j.asking, tick)
		}
	}
}

// question is put with the context, which dropQuestion ends too. The caller has the
// turn, and end gives it to the next.
func (j *job) question(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(parent)
	j.mu.Lock()
	j.drop = cancel
	j.mu.Unlock()
	return ctx, func() { cancel(); <-j.turn }
}

// dropQuestion ends the question that waits for the gate's answer, if there is one.
func (j *job) dropQuestion() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.drop != nil {
		j.drop()
	}
}

// beforeAsking is the instant up to which no tick waits for the gate's answer here,
// to at most. What waits is not the sweep's yet; what came before it is.
func (j *job) beforeAsking(to store.Millis) store.Millis {
	j.mu.Lock()
	defer j.mu.Unlock()
	for tick := range j.asking {
		to = min(to, tick-1)
	}
	return to
}

// row is the record of one occurrence of the job, before it exists.
func (j *job) row(key store.Key) store.NewExecution {
	r := store.NewExecution{
		ID: store.NewID(store.MillisOf(time.Now())), Key: key, MaxAttempts: j.o.attempts + extraForCrashes,
		OnCrash: j.o.onCrash,
	}
	if j.kind == kindCron {
		r.Active, r.Zone, r.SpecHash = store.ActiveCron(j.name, 0), j.spec.Zone(), j.hash
	}
	return r
}

func (j *job) tickKey(tick store.Millis) store.Key {
	return store.Key{Class: store.ClassCron, Job: j.name, Tick: tick}
}
