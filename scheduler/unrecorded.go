package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/journal"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

// StoreDown says what becomes of a job's ticks while the store cannot answer.
type StoreDown string

// The policies for a store that cannot answer.
const (
	// StoreDownWait runs nothing: no tick is consumed, and what was due is caught up by
	// the misfire policy. The default.
	StoreDownWait StoreDown = "wait"
	// StoreDownRun runs the ticks without a record, behind the gate alone, once the store
	// has been away for Degradation.After. Such a run is at-least-once: where the gate
	// cannot answer either, or lets two replicas in one after the other, each of them
	// runs the tick. It is kept in a journal file, see Config.Journal, and recorded when
	// the store is back. It has no ID and no fence, and an effect through
	// idempotent.Guard is refused.
	StoreDownRun StoreDown = "run"
)

// WhenStoreDown sets what becomes of a cron job's ticks while the store cannot answer.
// Default StoreDownWait.
func WhenStoreDown(p StoreDown) Option { return func(o *jobOptions) { o.storeDown = p } }

// checkStoreDown reports why a job cannot run without the store.
func (j *job) checkStoreDown(cfg Config) error {
	switch {
	case j.o.storeDown == "" || j.o.storeDown == StoreDownWait:
		return nil
	case j.o.storeDown != StoreDownRun:
		return fmt.Errorf("when_store_down %q is none of wait, run", j.o.storeDown)
	case j.kind != kindCron:
		return errors.New("when_store_down is for cron jobs: the rows of a queue are in the store")
	case j.o.guarantee != AtLeastOnce && j.o.guarantee != "":
		return fmt.Errorf("when_store_down: run is at-least-once, which contradicts %s: choose wait", j.o.guarantee)
	case cfg.Journal == "":
		return errors.New("when_store_down: run needs scheduler.journal: name a directory on this host's disk")
	}
	return nil
}

const (
	// gateHold is how long the gate of an unrecorded run is kept at least, so that a
	// replica whose clock is late finds it held; half a period where that is shorter.
	gateHold = time.Second
	// adoptEvery is how often the journals of dead processes are looked for when nothing
	// else makes the process look.
	adoptEvery = time.Minute
	// busyEvery is how long a run waits at most for another look whether its job runs: one
	// that runs most of the time leaves little time to record it.
	busyEvery = 2 * time.Second
)

// openJournal opens the journal where one is configured.
func (s *Scheduler) openJournal() (err error) {
	if s.cfg.Journal == "" {
		return nil
	}
	if s.journal, err = journal.Open(s.cfg.Journal, s.cfg.Namespace, s.owner.String()); err != nil {
		return fmt.Errorf("scheduler: journal: %w", err)
	}
	return nil
}

func (s *Scheduler) closeJournal() {
	if s.journal == nil {
		return
	}
	if n := len(s.journal.Entries()); n > 0 {
		s.log.Warn("runs are left in the journal: the next process on this host records them", "runs", n, "journal", s.cfg.Journal)
	}
	if err := s.journal.Close(); err != nil {
		s.log.Warn("journal not closed", "error", err)
	}
}

// runsUnrecorded reports whether the job's ticks run without the store now.
func (s *Scheduler) runsUnrecorded(j *job) bool {
	if j.o.storeDown != StoreDownRun || s.journal == nil {
		return false
	}
	after := s.switcher.after()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storeUp != nil && time.Since(s.storeTurned) >= after
}

// awaitsJournals reports whether ticks of the job without a record may be in a journal
// that is not settled yet, here or with another replica: while the store is away, and a
// little later, when others learn that it is back.
func (s *Scheduler) awaitsJournals(j *job) bool {
	if !s.mayBeInJournals(j) {
		return false
	}
	if s.journal.Has(j.name) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storeUp != nil || s.storeBroke && !s.storeWrote.IsZero() && time.Since(s.storeWrote) < s.othersLearn()
}

// mayBeInJournals reports whether the job's ticks can be run without a record.
func (s *Scheduler) mayBeInJournals(j *job) bool {
	return j.o.storeDown == StoreDownRun && s.journal != nil && !mutation.On("journal-first")
}

// othersLearn is how long after the return of the store other replicas may take to put
// their journals into it.
func (s *Scheduler) othersLearn() time.Duration { return 2*s.settings().PollInterval + time.Second }

// onlyTries reports whether a settlement that was sent at began, and is being carried
// out, only finds out that the store takes writes: it was away, and was only read since,
// or it is the first to get through. Then others have not recorded what they ran. Where
// one after the other is late the store is only slow.
func (s *Scheduler) onlyTries(j *job, began time.Time) bool {
	if !s.mayBeInJournals(j) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storeBroke && s.storeWrote.IsZero() {
		return true
	}
	if time.Since(began) <= settleTook {
		s.settledLate = time.Time{}
	} else if s.settledLate.IsZero() {
		s.settledLate = began
	}
	return s.settledLate.Equal(began)
}

// settleTook is for how long a settlement may have waited for the store and still be
// taken for one of a store that was there.
const settleTook = time.Second

// unrecordedEnd is what the journal keeps of a run's end.
type unrecordedEnd struct {
	State     store.State   `json:"state"`
	Delay     time.Duration `json:"delay,omitempty"`
	Reason    store.Reason  `json:"reason,omitempty"`
	Result    []byte        `json:"result,omitempty"`
	ErrorCode string        `json:"error_code,omitempty"`
	ErrorText string        `json:"error_text,omitempty"`
}

// startUnrecorded runs a tick that the store cannot record. One that falls into a run of
// the job in this process is left to the sweep: no active key keeps the two apart.
func (s *Scheduler) startUnrecorded(j *job, key store.Key, adm admission) {
	began := s.clock.now()
	exec := store.Execution{Namespace: s.cfg.Namespace, Key: key, Attempt: 1, State: store.StateRunning, Started: store.MillisOf(began), Owner: s.owner, OwnerLabel: s.cfg.Label, Mode: store.ModeStoreDown}
	a := &attempt{s: s, job: j, Run: s.newRun(exec, store.ModeStoreDown), unrecorded: true}
	if !j.beginAlone() {
		s.release(adm)
		return
	}
	if !s.enter() {
		j.endAlone()
		s.release(adm)
		return
	}
	if err := s.journal.Begin(key.Job, int64(key.Tick), int64(store.MillisOf(began))); err != nil {
		s.runWG.Done()
		j.endAlone()
		s.release(adm)
		if s.unwritten.begins.Add(1) == 1 {
			a.log().Error("ticks are not run: the store cannot answer, and the journal cannot be written", "error", err)
		}
		return
	}
	a.ctx, a.cancel = context.WithCancelCause(s.work)
	started := RunStarted{Execution: exec, Mode: store.ModeStoreDown, Gate: adm.asked}
	a.ctx = s.runContext(a.ctx, started)
	go func() {
		defer s.runWG.Done()
		unwatch, leave := adm.watch(context.WithoutCancel(s.alive), a.gateLost)
		began := time.Now()
		s.emit(started)
		err := s.call(a)
		end := finished{verdict: a.verdict(err), err: err, took: time.Since(began)}
		unwatch()
		v := end.verdict
		data, fail := json.Marshal(unrecordedEnd{v.State, v.Delay, v.Reason, v.Result, v.ErrorCode, v.ErrorText})
		if fail == nil {
			fail = s.journal.End(key.Job, int64(key.Tick), data)
		}
		if fail == nil {
			s.journalWritten()
		} else if s.unwritten.ends.Add(1) == 1 {
			a.log().Error("ends of unrecorded runs are not written to the journal", "error", fail)
		}
		a.cancel(context.Canceled)
		leave()
		j.endAlone()
		s.report(a, end)
		nudge(s.journalNow)
		s.holdGate(j, began)
		s.release(adm)
	}()
}

// unwritten counts what the journal did not take, since the last line about it.
type unwritten struct{ begins, ends atomic.Int64 }

// journalWritten tells what was lost while the journal could not be written, once it can
// be or is not needed any more.
func (s *Scheduler) journalWritten() {
	begins, ends := s.unwritten.begins.Swap(0), s.unwritten.ends.Swap(0)
	if begins > 0 || ends > 0 {
		s.log.Warn("the journal could not be written for a while", "ticks_not_run", begins, "ends_not_written", ends)
	}
}

// holdGate waits until a replica that ticks late has found the gate held.
func (s *Scheduler) holdGate(j *job, began time.Time) {
	if mutation.On("gate-hold") {
		return
	}
	hold := time.NewTimer(time.Until(began.Add(min(gateHold, j.spec.Period(began)/2))))
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-s.intake.Done():
	}
}

// journalLoop records what the journal has, as soon as the store takes it.
func (s *Scheduler) journalLoop() {
	if s.journal == nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for undone := 0; ; {
		select {
		case <-s.intake.Done():
			return
		case <-timer.C:
		case <-s.journalNow:
		}
		n, err := s.journal.Adopt()
		if n > 0 {
			s.log.Info("runs in the journals of dead processes taken over", "runs", n)
		}
		if err != nil {
			s.log.Error("journals of dead processes", "error", err)
		}
		wait := adoptEvery
		done, busy := s.settleJournal(undone == 0)
		switch {
		case done:
			undone = 0
		case busy:
			wait = backoff.Policy{Base: busyEvery, Max: busyEvery}.Delay(0)
			undone++
		default:
			wait = backoff.Policy{Base: time.Second, Max: adoptEvery}.Delay(undone)
			undone++
		}
		timer.Reset(wait)
	}
}

// settleJournal reports whether there is nothing left to do for now, and whether a job
// that runs is why there is. It writes a line for
// all that it recorded: an outage leaves any number of runs. Why one is not recorded
// is told the first time that something is left.
func (s *Scheduler) settleJournal(tell bool) (done, busy bool) {
	before := s.settled
	defer func() {
		n, twice := s.settled.runs-before.runs, s.settled.twice-before.twice
		if twice > 0 {
			s.log.Warn("runs of the journal recorded: some were run by others, too", "runs", n, "by_others_too", twice)
		} else if n > 0 {
			s.log.Info("runs of the journal recorded", "runs", n)
		}
		if away, _ := s.storeAway(); !away {
			s.journalWritten()
			nudge(s.sweepNow)
		}
	}()
	done = true
	for _, e := range s.journal.Entries() {
		if e.Alive {
			continue // its end nudges
		}
		away, readable := s.storeAway()
		if away && !readable {
			return true, false // its return nudges
		}
		settled, err := s.settleEntry(e)
		if away && errors.Is(err, store.ErrUnavailable) {
			return true, false // its next answer nudges
		}
		if err != nil && tell {
			s.log.Warn("run of the journal not recorded yet", "job", e.Job, "tick", store.Millis(e.Tick).String(), "error", err)
		}
		if !settled {
			done = false
			busy = busy || err == nil
			continue
		}
		if err := s.journal.Settled(e.Job, e.Tick); err != nil {
			s.log.Error("run of the journal is recorded, but stays in the journal", "job", e.Job, "error", err)
		}
	}
	return done, busy
}

// storeAway reports whether the store cannot answer, and whether it can still be read.
func (s *Scheduler) storeAway() (away, readable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storeUp != nil, s.readsOnly
}

// settleEntry makes a record of a run that had none. False means: try again later.
func (s *Scheduler) settleEntry(e journal.Entry) (settled bool, err error) {
	j := s.jobs.get(e.Job)
	tick := store.Millis(e.Tick)
	key := store.Key{Class: store.ClassCron, Job: e.Job, Tick: tick}
	// The job may have been removed meanwhile; what it did is recorded all the same.
	row := store.NewExecution{ID: store.NewID(store.MillisOf(time.Now())), Key: key, MaxAttempts: 1 + extraForCrashes, Active: store.ActiveCron(e.Job, 0)}
	known := j != nil && j.kind == kindCron
	if known {
		row = j.row(key)
	}
	end := unrecordedEnd{}
	if e.Result == nil {
		if !known || j.o.onCrash == store.CrashRerun {
			s.log.Warn("run without a record was cut off: its tick is owed again", "job", e.Job, "tick", tick.String())
			return true, nil
		}
		end.State, end.Reason = j.o.onCrash.End()
		end.ErrorText = "the process died in a run that the store could not record"
	} else if err := json.Unmarshal(e.Result, &end); err != nil {
		s.log.Error("run of the journal cannot be read: its tick is owed again", "job", e.Job, "tick", tick.String(), "error", err)
		return true, nil
	}
	row.SpecHash, row.Mode = "", store.ModeStoreDown
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	at := time.Now()
	claimed, err := s.deps.Store.Claim(ctx, store.ClaimRequest{
		Namespace: s.cfg.Namespace, Owner: s.owner, OwnerLabel: s.cfg.Label, Lease: s.cfg.Lease,
		Runs: []store.ClaimRun{{NewExecution: row, Busy: store.BusyRefuse}},
	})
	if err == nil || errors.Is(err, store.ErrUnavailable) { // a job that it does not know is an answer
		s.asked("claim", at, err)
	}
	if err != nil {
		return false, err
	}
	got := claimed.Runs[0]
	ours := got.Outcome == store.OutcomeStarted ||
		// A claim that was carried out although its answer did not come.
		got.Outcome == store.OutcomeDuplicate && got.Execution.State == store.StateRunning && got.Execution.Owner == s.owner
	switch {
	case ours:
	case got.Outcome == store.OutcomeBusy, got.Outcome == store.OutcomeEarly:
		return false, nil
	default:
		s.settledEntry(e, got.Execution.State, got.Outcome == store.OutcomeDuplicate)
		return true, nil
	}
	answers, err := s.deps.Store.Finish(ctx, []store.Finish{{
		Ref: got.Execution.Ref(), State: end.State, Delay: end.Delay, Reason: end.Reason, Mode: store.ModeStoreDown,
		Result: end.Result, ErrorCode: end.ErrorCode, ErrorText: end.ErrorText,
	}})
	if err == nil {
		err = answers[0]
	}
	switch {
	case errors.Is(err, store.ErrFenced):
		s.settledEntry(e, store.StateRunning, true)
		return true, nil
	case errors.Is(err, store.ErrCanceled):
		end.State, err = store.StateCanceled, nil
	}
	if err != nil {
		return false, err
	}
	s.settledEntry(e, end.State, false)
	if end.State == store.StatePending {
		s.fetchAfter(end.Delay)
	}
	return true, nil
}

// settledCount is of journalLoop.
type settledCount struct{ runs, twice int }

func (s *Scheduler) settledEntry(e journal.Entry, state store.State, twice bool) {
	s.settled.runs++
	if twice {
		s.settled.twice++
	}
	s.log.Debug("run of the journal recorded", "job", e.Job, "tick", store.Millis(e.Tick).String(), "state", state.String(), "by_others_too", twice)
	s.emit(JournalSettled{Job: e.Job, Tick: store.Millis(e.Tick), State: state, Twice: twice})
}
