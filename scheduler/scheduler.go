package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/journal"
	"github.com/solotick/solotick/store"
)

// Scheduler runs jobs. Make one with New, give it jobs with Add, then call Run,
// or Start and Stop. Its methods are safe for concurrent use.
type Scheduler struct {
	cfg   Config
	deps  Deps
	lead  leadership
	log   *slog.Logger
	owner store.Owner
	clock clock
	live  atomic.Pointer[Config] // cfg with the settings that were changed since
	jobs  jobTable

	changing   chan struct{} // capacity 1: held by who changes or registers jobs, and guards
	registered bool          // the jobs are known to the store
	doubtful   map[string]bool
	replacing  atomic.Bool // definitions are about to be replaced

	switcher   *Switch
	heart      *heart
	claims     batcher[claimAsk, claimAnswer]
	finishes   batcher[store.Finish, error]
	journal    *journal.Journal // nil where none is configured
	settled    settledCount     // what became of it; of journalLoop
	unwritten  unwritten
	fetchNow   chan struct{}
	sweepNow   chan struct{}
	pruneNow   chan struct{}
	replan     chan struct{}
	journalNow chan struct{}
	inFlight   atomic.Int64 // fetched runs, bounded by Config.Concurrency

	mu          sync.Mutex
	phase       phase
	started     bool
	leading     bool // the elector was started
	failure     error
	storeUp     error     // last answer of the store, nil for a good one
	storeTurned time.Time // when that turned from good to bad or back
	storeBroke  bool      // it was bad at least once
	storeWrote  time.Time // when it took a write for the first time since
	settledLate time.Time // when the first of the settlements was sent that came late since one in time
	writeFailed time.Time // when a write had no answer last; zero since one had
	readsOnly   bool      // it answers what reads, and was not seen to take a write since

	// Three contexts end one after the other: intake when a stop begins, work when
	// the drain timeout is over, alive when everything is recorded.
	intake, work, alive     context.Context
	endIntake               context.CancelFunc
	endWork                 context.CancelCauseFunc
	endAlive                context.CancelFunc
	intakeWG, runWG, backWG sync.WaitGroup

	contexters []RunContexter // of the listeners

	stopping chan struct{} // closed at the hard end of a drain
	finished chan struct{} // closed when the scheduler ends by itself
	stopOnce sync.Once
	stopErr  error

	unrecorded []string // runs whose end the store did not take
}

type phase int

const (
	phaseNew phase = iota
	phaseRunning
	phaseStopped
)

// New checks the configuration and the dependencies. It connects to nothing.
func New(cfg Config, deps Deps) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Store == nil {
		return nil, errors.New("scheduler: Deps.Store is nil: give a store, such as gormstore.New(db) or memstore.New()")
	}
	if err := checkLeadership(cfg, deps); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Label == "" {
		host, _ := os.Hostname() // a label: without a name the process id is enough
		cfg.Label = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	s := &Scheduler{
		cfg: cfg, deps: deps, lead: leadership{deps.Elector, deps.Shares}, log: deps.Logger, owner: store.NewOwner(),
		clock:    clock{offset: cfg.ClockOffset, fixed: cfg.uncorrected},
		fetchNow: make(chan struct{}, 1), sweepNow: make(chan struct{}, 1), journalNow: make(chan struct{}, 1),
		pruneNow: make(chan struct{}, 1), replan: make(chan struct{}, 1),
		changing: make(chan struct{}, 1), doubtful: map[string]bool{},
		stopping: make(chan struct{}), finished: make(chan struct{}),
	}
	s.live.Store(&s.cfg)
	s.jobs.Store(newJobSet(nil))
	if s.log == nil {
		s.log = slog.Default()
	}
	s.log = s.log.With("namespace", cfg.Namespace, "owner", cfg.Label)
	s.switcher = newSwitch(s)
	s.heart = newHeart(s)
	s.claims = batcher[claimAsk, claimAnswer]{do: s.claimBatch, max: 500}
	s.finishes = batcher[store.Finish, error]{do: s.finishBatch, max: 500}
	for _, l := range deps.Listeners {
		if c, ok := l.(RunContexter); ok {
			s.contexters = append(s.contexters, c)
		}
	}
	return s, nil
}

// Add registers jobs. It reports every job that cannot work, by name, and then
// adds none of them. It is refused once the scheduler has started: see Apply.
func (s *Scheduler) Add(jobs ...Job) error {
	s.changing <- struct{}{}
	defer func() { <-s.changing }()
	if s.atPhase() != phaseNew {
		return errors.New("scheduler: jobs are added before the start: call Apply with the whole set after it")
	}
	old := s.jobs.Load()
	defs := make([]Job, 0, len(old.sorted)+len(jobs))
	for _, j := range old.sorted {
		defs = append(defs, j.given)
	}
	set, err := s.build(s.settings(), append(defs, jobs...), old)
	if err != nil {
		return err
	}
	s.jobs.Store(set)
	return nil
}

// sorted returns the jobs in the order of their names. The slice is shared.
func (s *Scheduler) sorted() []*job { return s.jobs.Load().sorted }

func (s *Scheduler) atPhase() phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase
}

// Run starts the scheduler and blocks until ctx ends, then drains. The error is
// nil after a clean stop; else it names what was abandoned, or why the scheduler
// could not go on.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-s.finished:
	}
	return errors.Join(s.Err(), s.Stop(context.WithoutCancel(ctx)))
}

// Start begins to work in the background and returns at once; ctx bounds the
// call only. A store that cannot be reached is not an error: the scheduler waits
// for it. A scheduler starts once.
func (s *Scheduler) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.phase != phaseNew {
		return errors.New("scheduler: a scheduler starts once: make another with New")
	}
	if err := s.checkOverrides(s.cfg.Degradation); err != nil {
		return err
	}
	if err := s.openJournal(); err != nil {
		return err
	}
	s.phase, s.started = phaseRunning, true
	base := context.WithoutCancel(ctx)
	s.intake, s.endIntake = context.WithCancel(base)
	s.work, s.endWork = context.WithCancelCause(base)
	s.alive, s.endAlive = context.WithCancel(base)

	s.log.Info("scheduler starts", "jobs", s.names(), "gate", s.cfg.Gate)
	s.leadLocked()
	s.background(s.heart.loop)
	s.background(s.switcher.auditLoop)
	s.taking(s.main)
	return nil
}

// main registers the jobs and then lets the services run.
func (s *Scheduler) main() {
	if err := s.register(); err != nil {
		return
	}
	s.taking(s.switcher.loop)
	s.taking(s.tick)
	s.taking(s.fetchLoop)
	s.taking(s.sweepLoop)
	s.taking(s.pruneLoop)
	s.taking(s.journalLoop)
}

// taking runs a service that ends when the intake does.
func (s *Scheduler) taking(f func()) { s.intakeWG.Go(f) }

// enterIntake counts a caller in among the services, unless the stop has begun.
func (s *Scheduler) enterIntake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != phaseRunning || s.intake.Err() != nil {
		return false
	}
	s.intakeWG.Add(1)
	return true
}

// background runs a service that ends when everything is recorded.
func (s *Scheduler) background(f func()) { s.backWG.Go(f) }

// register makes the jobs known to the store, however long that takes.
func (s *Scheduler) register() error {
	for try := 0; ; try++ {
		err := s.registerOnce()
		if err == nil {
			return nil
		}
		if errors.Is(err, store.ErrSchema) {
			s.fail(err)
			return err
		}
		if err := backoff.Wait(s.intake, enrolPause.Delay(try)); err != nil {
			return err
		}
	}
}

// registerOnce registers the jobs of now: they may change while the store is away.
func (s *Scheduler) registerOnce() error {
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-s.intake.Done():
		return s.intake.Err()
	}
	set := s.jobs.Load()
	err := s.enrol(s.intake, s.settings(), set.sorted, set)
	s.registered = err == nil
	return err
}

// fail ends the scheduler: what went wrong cannot mend itself.
func (s *Scheduler) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		s.failure = err
		s.log.Error("scheduler cannot go on", "error", err)
		close(s.finished)
	}
}

// Done is closed when the scheduler has come to its end by itself; Err tells why.
func (s *Scheduler) Done() <-chan struct{} { return s.finished }

// Err is why the scheduler ended by itself, nil while it has not.
func (s *Scheduler) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// SetDegradation configures the switch anew, live; what was set for the process or
// the fleet stays in force over it, see [Switch]. A value that does not validate
// changes nothing.
func (s *Scheduler) SetDegradation(d Degradation) error {
	if err := errors.Join(d.Validate(), s.checkOverrides(d)); err != nil {
		return err
	}
	s.switcher.configure(d.withDefaults())
	return nil
}

// checkOverrides reports modes that are set for jobs which do not exist.
func (s *Scheduler) checkOverrides(d Degradation) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(d.Jobs)) {
		if s.jobs.get(name) == nil {
			errs = append(errs, fmt.Errorf("scheduler: degradation.jobs.%s: there is no job of that name", name))
		}
	}
	return errors.Join(errs...)
}

// Wake makes the scheduler look for pending rows now, after an enqueue in this
// process.
func (s *Scheduler) Wake() { nudge(s.fetchNow) }

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// storeTimeout bounds one call of the store, so that a stalled connection cannot
// hold up a service for ever.
func (s *Scheduler) storeTimeout() time.Duration { return max(s.cfg.Lease/2, 2*time.Second) }

// asked tells of a request to the store that was sent at the time, and keeps the
// store's health.
func (s *Scheduler) asked(op string, sent time.Time, err error) {
	if !errors.Is(err, context.Canceled) {
		s.emit(StoreAnswered{Op: op, Took: time.Since(sent), Err: err})
	}
	s.storeAnswered(op, err)
}

// storeAnswered keeps the store's health, and tells of its first failure and its
// first answer after one.
func (s *Scheduler) storeAnswered(op string, err error) {
	if errors.Is(err, context.Canceled) {
		return // we ended the call
	}
	s.mu.Lock()
	was := s.storeUp
	// A takeover may find nothing to write; one that fails is asked for only where there is.
	reads := op == "survey" || op == "fetch" || op == "audit" || op == "take over" && err == nil
	switch {
	case err != nil && !reads:
		s.writeFailed = time.Now()
	case err == nil && !reads:
		s.writeFailed = time.Time{}
	case err == nil && !s.writeFailed.IsZero() && time.Since(s.writeFailed) < 2*s.storeTimeout():
		// It can be read and not written, as far as is known: that is not back yet.
		// What waits in the journal finds out.
		s.readsOnly = true
		s.mu.Unlock()
		nudge(s.journalNow)
		return
	}
	s.readsOnly = false
	s.storeUp = err
	switch {
	case err != nil:
		s.storeWrote = time.Time{}
	case !reads && s.storeWrote.IsZero():
		s.storeWrote = time.Now()
	}
	if (was == nil) != (err == nil) {
		s.storeTurned, s.storeBroke = time.Now(), true
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		s.emit(StoreUnavailable{Op: op, Err: err})
		if was == nil {
			s.log.Warn("store cannot answer", "op", op, "error", err)
		}
	case was != nil:
		s.log.Info("store answers again", "op", op)
		nudge(s.journalNow)
	}
}

func (s *Scheduler) emit(e Event) {
	for _, l := range s.deps.Listeners {
		l.OnEvent(e)
	}
}

// weigh lets the shares be even in the number of jobs.
func (s *Scheduler) weigh() {
	if s.lead.shares == nil {
		return
	}
	var names []string
	for _, j := range s.sorted() {
		if j.kind == kindCron && j.o.gate == GateLeader {
			names = append(names, j.name)
		}
	}
	s.lead.shares.Weigh(names)
}

func (s *Scheduler) usesGate(g Gate) bool {
	for _, j := range s.sorted() {
		if j.kind == kindCron && j.o.gate == g {
			return true
		}
	}
	return false
}
