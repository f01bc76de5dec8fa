package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

// Why a run's context ended. They are the context's cause, matched by errors.Is.
var (
	// ErrLeaseLost says that the run's lease in the store ended: another process may
	// take it over, and what this attempt still writes is refused.
	ErrLeaseLost = errors.New("scheduler: the lease of the run is lost")
	// ErrGateLost says that the lock or the leader's term was lost; the error also
	// matches what the gate says about it.
	ErrGateLost = errors.New("scheduler: the gate of the run is lost")
	// ErrTimeout says that the attempt took longer than the job's timeout.
	ErrTimeout = errors.New("scheduler: the attempt took longer than its timeout")
	// ErrDraining says that the process stops and the drain timeout is over.
	ErrDraining = errors.New("scheduler: the process is stopping")
	// ErrCancelRequested says that somebody asked for the run to be cancelled.
	ErrCancelRequested = errors.New("scheduler: the run was asked to end")
	// ErrAbandoned says that the handler did not return after its context had ended.
	ErrAbandoned = errors.New("scheduler: the handler did not return after its context ended")
)

const maxErrorText = 4 << 10

// start runs a claimed execution in the background. Sent is when the claim was
// sent: the lease is trusted from there. Done, if not nil, is called at the end.
func (s *Scheduler) start(j *job, exec store.Execution, sent leaseclock.Instant, adm admission, done func()) {
	a := &attempt{s: s, job: j, Run: s.newRun(exec, adm.mode)}
	a.ctx, a.cancel = context.WithCancelCause(s.work)
	started := RunStarted{Execution: exec, Mode: a.Mode(), Gate: adm.asked, Claim: adm.claimed}
	if j.spec != nil {
		started.Spec = j.spec.String()
	}
	entered := s.enter()
	if entered && !j.begin() {
		s.runWG.Done()
		entered = false
	}
	if !entered {
		// A stop, or a run without a record, came between question and answer: another
		// replica shall run it, now if the store takes this, else when the lease ends.
		if err, _ := s.finishes.ask(s.alive, store.Finish{Ref: exec.Ref(), State: store.StatePending, Unstarted: true}, nil); err != nil && !errors.Is(err, store.ErrCanceled) {
			a.log().Debug("run claimed and not started is not given back; it is taken over when its lease ends", "error", err)
		}
		a.cancel(ErrDraining)
		s.release(adm)
		if done != nil {
			done()
		}
		return
	}
	a.ctx = s.runContext(a.ctx, started)
	s.heart.add(a, sent)
	go func() {
		defer s.runWG.Done()
		if done != nil {
			defer done()
		}
		unwatch, leave := adm.watch(context.WithoutCancel(s.alive), a.gateLost)
		began := time.Now()
		s.emit(started)
		err := s.call(a)
		took := time.Since(began)
		unwatch() // before the release, which is no loss
		free := sync.OnceFunc(func() {
			s.release(adm)
			j.end()
		})
		end := finished{verdict: a.verdict(err), err: err, took: took, fenced: errors.Is(err, store.ErrFenced)}
		switch {
		case a.Settled():
			end.verdict.State, end.fenced = store.StateSucceeded, false
		case !end.fenced:
			began := time.Now()
			recorded := s.record(a, end.verdict, func() {
				// The next ticks run without the store: the work is over, its record may
				// be a long time coming.
				if s.runsUnrecorded(j) && !errors.Is(err, ErrAbandoned) {
					free()
				}
			})
			end.recording = since(began)
			if errors.Is(recorded, store.ErrCanceled) {
				end.verdict.State, recorded = store.StateCanceled, nil
			}
			end.fenced = errors.Is(recorded, store.ErrFenced)
			end.unrecorded = recorded != nil && !end.fenced
		}
		s.heart.remove(a)
		a.cancel(context.Canceled)
		leave()
		free()
		if s.journal != nil && s.journal.Has(j.name) {
			nudge(s.journalNow) // the job does not run for a moment
		}
		s.report(a, end)
		if end.verdict.State == store.StatePending && !end.fenced {
			s.fetchAfter(end.verdict.Delay)
		}
	}()
}

// runContext asks the listeners that have a say in it.
func (s *Scheduler) runContext(ctx context.Context, e RunStarted) context.Context {
	for _, l := range s.contexters {
		ctx = l.RunContext(ctx, e) //nolint:fatcontext // each listener adds to what the one before gave
	}
	return ctx
}

// enter counts a run in, unless the stop has begun.
func (s *Scheduler) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != phaseRunning || s.intake.Err() != nil {
		return false
	}
	s.runWG.Add(1)
	return true
}

// attempt is a run in progress in this process.
type attempt struct {
	*Run
	s      *Scheduler
	job    *job
	ctx    context.Context
	cancel context.CancelCauseFunc
	lease  lease
	// The store could not answer: there is no lease, and a journal in place of the record.
	unrecorded bool
}

// runFields name a run in full; every log line of a run has them.
func runFields(e *store.Execution) []any {
	fields := make([]any, 0, 12)
	fields = append(fields, "job", e.Key.Job)
	if e.Key.Tick != 0 {
		fields = append(fields, "tick", e.Key.Tick.String())
	}
	return append(fields, "run", e.ID.String(), "key", e.Key.String(), "attempt", e.Attempt, "fence", e.Fence)
}

// log is for the lines of the attempt; they are written under its context.
func (a *attempt) log() *slog.Logger { return a.s.log.With(runFields(&a.exec)...) }

// call runs the handler in a goroutine of its own, so that one that ignores the
// end of its context can be left behind.
func (s *Scheduler) call(a *attempt) error {
	timeout := a.job.o.timeout
	if row := a.exec.Timeout; row > 0 {
		timeout = min(timeout, row)
	}
	ctx, cancel := context.WithTimeoutCause(a.ctx, timeout, ErrTimeout)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- a.bounded(a.job.handler(runContext{ctx, a}, a.Run)) }()
	select {
	case err := <-returned:
		return causeOf(ctx, err)
	case <-ctx.Done():
	}
	grace := time.NewTimer(s.cfg.Lease)
	defer grace.Stop()
	select {
	case err := <-returned:
		return causeOf(ctx, err)
	case <-grace.C:
	case <-s.stopping: // the hard end of a drain
	}
	s.heart.abandon(1)
	go func() {
		//nolint:errcheck // its run is over, whatever it says
		<-returned
		s.heart.abandon(-1)
	}()
	a.log().ErrorContext(a.ctx, "handler ignores the end of its context and is left behind", "cause", context.Cause(ctx))
	s.emit(RunAbandoned{Execution: a.exec})
	return fmt.Errorf("%w (%w)", ErrAbandoned, context.Cause(ctx))
}

// runContext is the context that a handler gets. A process that was frozen may run
// its handler before its timers: asked for Err, the context looks at the clock.
type runContext struct {
	context.Context
	a *attempt
}

// Err is nil while the run's lease can be trusted and the context has not ended.
func (c runContext) Err() error {
	if !c.a.unrecorded {
		c.a.s.heart.check(c.a)
	}
	return c.Context.Err()
}

// causeOf puts the reason for which the context ended in the place of the bare
// context error that handlers return.
func causeOf(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, context.Cause(ctx)) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

// gateLost decides what a lost gate means for a run in progress: a gate given to
// somebody else ends it in every mode; one that cannot answer ends it in
// fail_fast, or with the switch off, only, since the store's own lease and active key still hold.
func (a *attempt) gateLost(cause error, unavailable bool) {
	if mode, goesOn := a.s.switcher.outlives(a.job); goesOn && (unavailable || mutation.On("gate-taken")) {
		if !a.unrecorded {
			a.degrade(mode)
		}
		a.log().WarnContext(a.ctx, "coordinator is unavailable; the run goes on under its lease in the store", "mode", mode)
		return
	}
	a.lose(fmt.Errorf("%w: %w", ErrGateLost, cause))
}

// lose ends the run's context with the reason.
func (a *attempt) lose(cause error) {
	if a.ctx.Err() != nil || a.Settled() {
		return // it is over, or its success is on record: there is nothing to lose
	}
	a.cancel(cause)
	a.s.emit(RunLost{Execution: a.exec, Cause: cause})
	a.log().WarnContext(a.ctx, "run lost", "cause", cause)
}

// verdict turns the handler's answer into the record's next state.
func (a *attempt) verdict(err error) store.Finish {
	f := store.Finish{Ref: a.Ref(), Mode: a.Mode(), State: store.StateSucceeded, Result: a.kept()}
	if err == nil {
		return f
	}
	f.ErrorCode, f.ErrorText = errorCode(err), clip(err.Error(), maxErrorText)
	cause, crash := context.Cause(a.ctx), a.exec.OnCrash.Stricter(a.job.o.onCrash)
	switch {
	case errors.Is(cause, ErrCancelRequested):
		f.State = store.StateCanceled
	case cause != nil && (crash != store.CrashRerun || !errors.Is(err, ErrAbandoned)):
		// Interrupted: to the record that is as if the owner had died here.
		f.State, f.Reason = crash.End()
	case errors.Is(err, store.ErrUnavailable) && !isPermanent(err) && a.Attempt() >= a.allowed():
		// A database could not take the effect (a full disk, a server gone), or did not
		// say whether it has: as with a dead owner, the run may have more attempts than
		// errors have, if it is to be run again at all.
		if f.State, f.Reason = crash.End(); f.State == store.StatePending && a.Attempt() >= a.most() {
			f.State = store.StateFailed
		}
		f.Delay = a.job.retryDelay(a.Attempt())
	case isPermanent(err) || a.Attempt() >= a.allowed():
		f.State = store.StateFailed
	default:
		f.State, f.Delay = store.StatePending, a.job.retryDelay(a.Attempt())
		var after interface{ RetryAfter() time.Duration }
		if errors.As(err, &after) { // the receiver knows better, within reason
			f.Delay = max(f.Delay, min(after.RetryAfter(), time.Hour))
		}
	}
	return f
}

// allowed is how many attempts errors may use up: the job's, or what a queue's row has
// in all where that is less. A row that names no bound has the store's, which is for
// dead owners and says nothing of errors.
func (a *attempt) allowed() int {
	if row := a.exec.MaxAttempts; row > 0 && row != store.DefaultMaxAttempts {
		return min(a.job.o.attempts, row)
	}
	return a.job.o.attempts
}

// most is how many attempts the run may have in all.
func (a *attempt) most() int {
	return cmp.Or(a.exec.MaxAttempts, a.job.o.attempts+extraForCrashes)
}

// retryDelay doubles from attempt to attempt, give or take a fifth.
func (j *job) retryDelay(attempt int) time.Duration {
	d := j.o.backoffBase
	for range attempt - 1 {
		if d *= 2; d >= j.o.backoffMax {
			break
		}
	}
	return backoff.Jitter(min(d, j.o.backoffMax), 0.2)
}

// errorCode is a word for programs.
func errorCode(err error) string {
	var coded interface{ ErrorCode() string }
	var panicked *PanicError
	switch {
	case errors.As(err, &coded):
		return clip(coded.ErrorCode(), 64)
	case errors.As(err, &panicked):
		return "panic"
	case errors.Is(err, ErrAbandoned):
		return "abandoned"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrGateLost), errors.Is(err, ErrDraining):
		return "interrupted"
	case isPermanent(err):
		return "permanent"
	}
	return "error"
}

// clip cuts s to at most n bytes of valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for !utf8.ValidString(s) && len(s) > n-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	return s
}

// record writes the end of an attempt, and repeats that until the store has
// taken or refused it: a run whose end is not recorded would be run again. Waiting is
// called each time that the store cannot answer.
func (s *Scheduler) record(a *attempt, f store.Finish, waiting func()) error {
	for try := 0; ; try++ {
		err, stopped := s.finishes.ask(s.alive, f, nil)
		if stopped != nil {
			return stopped
		}
		if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrCanceled) {
			return err
		}
		if !errors.Is(err, store.ErrUnavailable) {
			a.log().ErrorContext(a.ctx, "end of a run not recorded", "error", err)
			return err
		}
		waiting()
		if err := backoff.Wait(s.alive, backoff.Policy{Base: 50 * time.Millisecond, Max: 2 * time.Second}.Delay(try)); err != nil {
			return err
		}
	}
}

// finishBatch records all ends that are asked for together in one transaction. Where
// the store refuses it each is asked for alone: one that cannot be recorded must not
// cost the others their record.
func (s *Scheduler) finishBatch(rows []store.Finish) []error {
	answers, err := s.finish(rows)
	if err == nil {
		return answers
	}
	answers = make([]error, len(rows))
	for i := range rows {
		if len(rows) > 1 && !errors.Is(err, store.ErrUnavailable) {
			var one []error
			if one, err = s.finish(rows[i : i+1]); err == nil {
				answers[i] = one[0]
				continue
			}
		}
		answers[i] = err
	}
	return answers
}

func (s *Scheduler) finish(rows []store.Finish) ([]error, error) {
	ctx, cancel := context.WithTimeout(s.alive, s.storeTimeout())
	defer cancel()
	began := time.Now()
	answers, err := s.deps.Store.Finish(ctx, rows)
	s.asked("finish", began, err)
	return answers, err
}

// finished is how an attempt ended.
type finished struct {
	verdict    store.Finish
	err        error // of the handler
	took       time.Duration
	fenced     bool
	unrecorded bool
	recording  Interval
}

// report tells how an attempt ended.
func (s *Scheduler) report(a *attempt, f finished) {
	state, err := f.verdict.State, f.err
	s.emit(RunFinished{
		Execution: a.exec, State: state, Err: err, Fenced: f.fenced, Unrecorded: f.unrecorded, Took: f.took, Record: f.recording,
	})
	if err == nil && !f.unrecorded && !f.fenced && !s.log.Enabled(a.ctx, slog.LevelDebug) {
		return // the usual end costs no line
	}
	log := a.log().With("took", f.took.Round(time.Millisecond))
	if panicked, ok := errors.AsType[*PanicError](err); ok {
		log = log.With("stack", string(panicked.Stack))
	}
	switch {
	case f.unrecorded:
		s.mu.Lock()
		s.unrecorded = append(s.unrecorded, a.Key().String())
		s.mu.Unlock()
		log.ErrorContext(a.ctx, "end of the run not recorded: it is taken over when its lease ends", "state", state.String(), "error", err)
	case f.fenced:
		log.WarnContext(a.ctx, "run finished too late: the record refused it", "error", err)
	case err != nil && state == store.StateSucceeded:
		log.WarnContext(a.ctx, "run succeeded, and its handler failed after that", "error", err)
	case err == nil:
		log.DebugContext(a.ctx, "run succeeded")
	case state == store.StatePending:
		log.WarnContext(a.ctx, "run will be tried again", "error", err)
	default:
		log.ErrorContext(a.ctx, "run ended", "state", state.String(), "error", err)
	}
}

// lease is the process's view of a run's lease.
type lease struct {
	deadline leaseclock.Deadline
	guard    *time.Timer
}

func guarded() bool { return !mutation.On("run-guard-timer") }
