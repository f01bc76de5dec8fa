package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/store"
)

// admission is what a run was let in by, to be given back after it.
type admission struct {
	mode  store.Mode // degradation mode, when the gate could not answer
	lease *locks.Lease
	term  *leader.Term
	local *sync.Mutex

	asked   Interval // of the gate
	claimed Interval // of the claim
}

// LockKey is the name of the lock that a cron job's ticks take.
func LockKey(namespace, job string) string { return locks.Key(namespace, "cron", job) }

// release gives the gate back, with a time limit of its own: the caller's
// context may be dead.
func (s *Scheduler) release(adm admission) {
	if adm.local != nil {
		adm.local.Unlock()
	}
	if adm.lease == nil {
		return
	}
	if err := adm.lease.Release(context.WithoutCancel(s.alive)); err != nil && !errors.Is(err, locks.ErrLost) {
		s.log.Debug("lock not released; it ends with its TTL", "key", adm.lease.Key(), "error", err)
	}
}

// admit brings a tick through its gate. It is false when the tick is not this
// process's: another one holds the gate, or the mode is to fail fast. While the
// coordinator cannot answer and no mode is taken yet, it waits, until a newer
// tick of the job comes to wait in its place. The answer to a question is waited for
// until a mode is taken, also when a newer tick has come: with answers that take
// longer than the time between two ticks, none would come otherwise.
func (s *Scheduler) admit(j *job, tick store.Millis) (admission, bool) {
	ctx, done := j.latest(s.intake)
	defer done()
	defer j.ask(tick)()
	began := time.Now()
	for try := 0; ; try++ {
		changed := s.switcher.changes()
		if mode, degraded := s.switcher.degraded(j); degraded {
			return s.admitDegraded(j, mode)
		}
		select {
		case j.turn <- struct{}{}:
		case <-changed:
			continue
		case <-ctx.Done():
			return admission{}, false
		}
		asking, end := j.question(s.intake)
		if _, degraded := s.switcher.degraded(j); degraded {
			end()
			continue
		}
		adm, verdict := s.ask(asking, j, tick)
		dropped := asking.Err() != nil && s.intake.Err() == nil
		end()
		if dropped && verdict == gateHeld {
			continue // a mode is taken
		}
		switch verdict {
		case gateOpen:
			if j.o.gate != GateNone {
				adm.asked = since(began)
			}
			return adm, true
		case gateHeld:
			return admission{}, false
		case gateUnavailable:
			changed = s.switcher.changes()
			if _, degraded := s.switcher.degraded(j); degraded {
				continue
			}
			wait := time.NewTimer(backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}.Delay(try))
			select {
			case <-ctx.Done():
				wait.Stop()
				return admission{}, false
			case <-changed:
				wait.Stop()
			case <-wait.C:
			}
		}
	}
}

func (s *Scheduler) admitDegraded(j *job, mode store.Mode) (admission, bool) {
	switch mode {
	case store.ModeLocalMutex:
		if !j.local.TryLock() {
			return admission{}, false
		}
		return admission{mode: mode, local: &j.local}, true
	case store.ModeStoreOnly:
		return admission{mode: mode}, true
	default:
		return admission{}, false // the sweep records it as skipped(degraded)
	}
}

type gateVerdict int

const (
	gateOpen gateVerdict = iota
	gateHeld
	gateUnavailable
)

// ask asks the job's coordinator once and tells the switch how that went.
func (s *Scheduler) ask(ctx context.Context, j *job, tick store.Millis) (admission, gateVerdict) {
	switch j.o.gate {
	case GateLock:
		lease, err := s.deps.Locker.TryAcquire(ctx, LockKey(s.cfg.Namespace, j.name))
		var held *locks.HeldError
		switch {
		case err == nil:
			s.switcher.answered(GateLock)
			return admission{lease: lease}, gateOpen
		case errors.As(err, &held):
			s.switcher.answered(GateLock)
			s.emit(TickHeld{Job: j.name, Tick: tick, Holder: held.Holder.Label})
			return admission{}, gateHeld
		case ctx.Err() != nil:
			return admission{}, gateHeld
		default:
			s.switcher.failed(GateLock, err)
			s.emit(GateUnavailable{Job: j.name, Err: err})
			return admission{}, gateUnavailable
		}
	case GateLeader:
		if term := j.elector.Term(); term != nil {
			s.switcher.answered(GateLeader)
			return admission{term: term}, gateOpen
		}
		if err := j.elector.Err(); err != nil {
			s.switcher.failed(GateLeader, err)
			s.emit(GateUnavailable{Job: j.name, Err: err})
			return admission{}, gateUnavailable
		}
		s.switcher.answered(GateLeader)
		s.emit(TickHeld{Job: j.name, Tick: tick})
		return admission{}, gateHeld
	default:
		return admission{}, gateOpen
	}
}

// watch calls lost when the gate that let the run in is lost, with whether the
// coordinator was unavailable, as opposed to: gave it to somebody else. Stop ends
// the watch; leave says that the work is over and recorded, which is what a
// leader that resigns waits for.
func (adm admission) watch(parent context.Context, lost func(cause error, unavailable bool)) (stop, leave func()) {
	var ctx context.Context
	var cancel context.CancelFunc
	switch {
	case adm.lease != nil:
		ctx, cancel = adm.lease.Context(parent)
	case adm.term != nil:
		ctx, cancel = adm.term.Context(parent)
	default:
		return func() {}, func() {}
	}
	unregister := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		var end *locks.LostError
		lost(cause, errors.Is(cause, locks.ErrUnavailable) || errors.As(cause, &end) && end.Reason == locks.ReasonUnavailable)
	})
	return func() { unregister() }, cancel
}
