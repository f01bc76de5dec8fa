package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks"
)

// coordinator is what is known of a gate's backend.
type coordinator struct {
	known    bool      // it has answered at least once
	failing  time.Time // unavailable since; zero when it answers
	healthy  time.Time // answering again since, while degraded
	away     bool      // unavailable for long enough, by the rules of SwitchAuto
	degraded bool      // the mode is taken, by whichever position of the switch
	waits    bool      // away with the switch off, which was told
	probing  bool
	err      error
}

// answered says that the coordinator gave an answer, whichever.
func (w *Switch) answered(g Gate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[g]
	if !c.known {
		// What was skipped for want of it before this process began is owed, too.
		c.known = true
		if !c.degraded {
			w.s.taking(func() { w.s.revive(g) })
		}
	}
	if c.failing.IsZero() {
		return
	}
	c.failing, c.err = time.Time{}, nil
	if c.away {
		c.healthy = time.Now()
	}
	w.changedLocked()
}

// failed says that the coordinator could not answer.
func (w *Switch) failed(g Gate, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[g]
	c.err = err
	if !c.failing.IsZero() {
		return
	}
	c.failing, c.healthy = time.Now(), time.Time{}
	w.changedLocked()
}

// waitingLocked returns what is to be told of ticks that wait because no mode may be taken, or
// do so no more, nil for nothing: nothing else would tell why nothing runs.
func (w *Switch) waitingLocked(g Gate, c *coordinator) (tell func()) {
	waits := c.away && w.now.at == SwitchOff
	if waits == c.waits {
		return nil
	}
	c.waits = waits
	err := c.err
	switch {
	case waits:
		return func() {
			w.s.log.Warn("coordinator is unavailable; ticks wait: the switch is off", "coordinator", g, "error", err)
		}
	case !c.away:
		return func() { w.s.log.Info("coordinator answers again", "coordinator", g) }
	default:
		return nil // the switch was thrown, and that is told
	}
}

// settleNow takes or leaves the mode before whoever threw the switch is answered. One
// who is told of another change meanwhile leaves that to the loop.
func (w *Switch) settleNow() {
	w.mu.Lock()
	looping := w.looping
	w.mu.Unlock()
	if !looping || !w.s.enterIntake() {
		return
	}
	defer w.s.intakeWG.Done()
	if w.settling.TryLock() {
		defer w.settling.Unlock()
		w.settleLocked()
	}
}

// jobsChanged takes a forced mode for a gate that has its first job now, and leaves that
// of one that has none any more.
func (w *Switch) jobsChanged() {
	w.mu.Lock()
	w.changedLocked() // for the loop, where that is just looking at the jobs that were
	w.mu.Unlock()
	w.settleNow()
}

// settle takes or leaves the mode where its time has come, and returns how long
// until the next such time (0: none in sight) and which gates want to be asked.
func (w *Switch) settle() (next time.Duration, doubt []Gate) {
	w.settling.Lock()
	defer w.settling.Unlock()
	return w.settleLocked()
}

func (w *Switch) settleLocked() (next time.Duration, doubt []Gate) {
	var events []Degraded
	sooner := func(d time.Duration) {
		if next == 0 || d < next {
			next = max(d, time.Millisecond)
		}
	}
	w.mu.Lock()
	now := time.Now()
	for _, g := range []Gate{GateLock, GateLeader} {
		c := w.coords[g]
		switch {
		case !c.failing.IsZero() && !c.away:
			if left := w.cfg.After - now.Sub(c.failing); left > 0 {
				sooner(left)
			} else {
				c.away = true
			}
		case c.away && !c.healthy.IsZero():
			if left := w.cfg.RecoverAfter - now.Sub(c.healthy); left > 0 {
				sooner(left)
			} else {
				c.away, c.healthy = false, time.Time{}
			}
		}
		forced := w.now.at == SwitchForced && w.s.usesGate(g)
		if taken := forced || w.now.at == SwitchAuto && c.away; taken != c.degraded {
			c.degraded = taken
			events = append(events, Degraded{Coordinator: string(g), On: taken, Mode: w.now.mode, Forced: forced})
		}
		if tell := w.waitingLocked(g, c); tell != nil {
			defer tell()
		}
		// Also while the mode is forced: whoever looks wants to know whether to end that.
		if !c.failing.IsZero() || c.away || forced {
			doubt = append(doubt, g)
		}
	}
	if len(events) > 0 {
		w.changedLocked()
	}
	w.mu.Unlock()
	for _, e := range events {
		switch {
		case e.On && e.Forced:
			w.s.log.Warn("degradation mode taken: the switch is forced", "coordinator", e.Coordinator, "mode", e.Mode)
		case e.On:
			w.s.log.Warn("coordinator is unavailable; degradation mode taken", "coordinator", e.Coordinator, "mode", e.Mode)
		default:
			w.s.log.Info("degradation mode left", "coordinator", e.Coordinator)
			w.s.taking(func() { w.s.revive(Gate(e.Coordinator)) })
		}
		if e.On {
			for _, j := range w.s.sorted() {
				if j.o.gate == Gate(e.Coordinator) {
					j.dropQuestion()
				}
			}
		}
		w.s.emit(e)
		nudge(w.s.sweepNow)
		nudge(w.s.fetchNow)
	}
	return next, doubt
}

// loop turns the switch in time and asks coordinators in doubt.
func (w *Switch) loop() {
	w.mu.Lock()
	w.looping = true
	w.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := w.changes()
		ends := w.expire()
		next, doubt := w.settle()
		if ends > 0 && (next == 0 || ends < next) {
			next = ends
		}
		var fire <-chan time.Time
		if len(doubt) > 0 {
			w.mu.Lock()
			every := min(max(min(w.cfg.After, w.cfg.RecoverAfter)/5, 100*time.Millisecond), 2*time.Second)
			w.mu.Unlock()
			if wait := backoff.Jitter(every, 0.2); next == 0 || wait < next {
				next = wait
			}
		}
		if next > 0 {
			timer.Reset(next)
			fire = timer.C
		}
		select {
		case <-w.s.intake.Done():
			return
		case <-changed:
		case <-fire:
			for _, g := range doubt {
				w.askAlone(g)
			}
		}
	}
}

// askAlone probes a coordinator beside the loop, which has settings to end meanwhile,
// unless the last probe still waits for its answer.
func (w *Switch) askAlone(g Gate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.coords[g]; !c.probing {
		c.probing = true
		w.s.taking(func() {
			w.probe(g)
			w.mu.Lock()
			defer w.mu.Unlock()
			c.probing = false
		})
	}
}

// probe asks a coordinator in doubt. The lock backend is asked for a key of this
// process's own, since a backend that can read but not write is of no use.
func (w *Switch) probe(g Gate) {
	var err error
	switch g {
	case GateLock:
		ctx, cancel := context.WithTimeout(w.s.intake, 2*time.Second)
		defer cancel()
		var lease *locks.Lease
		lease, err = w.s.deps.Locker.TryAcquire(ctx, locks.Key(w.s.cfg.Namespace, "probe", w.s.owner.String()))
		if err == nil {
			err = lease.Release(ctx)
		} else if errors.Is(err, locks.ErrHeld) {
			err = nil
		}
	case GateLeader:
		err = w.s.lead.err()
	case GateNone: // has no coordinator
	}
	switch {
	case err == nil:
		w.answered(g)
	case w.s.intake.Err() == nil:
		w.failed(g, err)
	}
}

func (w *Switch) health(h *Health) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.Coordinator, h.Mode, h.Switch = "none", w.now.mode, w.now.at
	for _, g := range []Gate{GateLock, GateLeader} {
		if !w.s.usesGate(g) {
			continue
		}
		c := w.coords[g]
		h.Degraded = h.Degraded || c.degraded
		switch {
		case c.err != nil:
			h.Coordinator = c.err.Error()
		case h.Coordinator == "none":
			h.Coordinator = "ok"
		}
	}
}
