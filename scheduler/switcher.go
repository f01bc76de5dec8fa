package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/store"
)

// switcher is the degradation switch. It learns from every question put to a
// coordinator, and asks on its own while one is in doubt. Held is an answer; only
// unavailable counts against a coordinator.
type switcher struct {
	s *Scheduler

	mu     sync.Mutex
	cfg    Degradation
	coords map[Gate]*coordinator
	notify chan struct{} // closed and replaced at every change
}

// coordinator is what is known of a gate's backend.
type coordinator struct {
	known    bool      // it has answered at least once
	failing  time.Time // unavailable since; zero when it answers
	healthy  time.Time // answering again since, while degraded
	degraded bool
	err      error
}

func newSwitcher(s *Scheduler) *switcher {
	return &switcher{
		s: s, cfg: s.cfg.Degradation, notify: make(chan struct{}),
		coords: map[Gate]*coordinator{GateLock: {}, GateLeader: {}},
	}
}

// changes is closed at the next change of anything here.
func (w *switcher) changes() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notify
}

// changedLocked wakes everybody who waits for a change.
func (w *switcher) changedLocked() {
	close(w.notify)
	w.notify = make(chan struct{})
}

func (w *switcher) modeOf(j *job) store.Mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.modeLocked(j)
}

// modeLocked: what an operator wrote for the job, then what its code says, then
// the general mode.
func (w *switcher) modeLocked(j *job) store.Mode {
	if m, ok := w.cfg.Jobs[j.name]; ok {
		return m
	}
	if j.o.mode != "" {
		return j.o.mode
	}
	return w.cfg.Mode
}

// degraded reports whether the job's coordinator is given up for now, and the
// mode that takes its place.
func (w *switcher) degraded(j *job) (store.Mode, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[j.o.gate]
	if c == nil || !c.degraded {
		return store.ModeNone, false
	}
	return w.modeLocked(j), true
}

// failsFast reports whether the job must not start now.
func (w *switcher) failsFast(j *job) bool {
	mode, degraded := w.degraded(j)
	return degraded && mode == store.ModeFailFast
}

// doubtful reports whether the job's coordinator cannot answer and no mode is
// taken yet: its ticks wait unrecorded.
func (w *switcher) doubtful(j *job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[j.o.gate]
	return c != nil && !c.failing.IsZero() && !c.degraded
}

// answered says that the coordinator gave an answer, whichever.
func (w *switcher) answered(g Gate) {
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
	if c.degraded {
		c.healthy = time.Now()
	}
	w.changedLocked()
}

// failed says that the coordinator could not answer.
func (w *switcher) failed(g Gate, err error) {
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

func (w *switcher) configure(d Degradation) {
	w.mu.Lock()
	from := w.cfg
	w.cfg = d
	w.changedLocked()
	w.mu.Unlock()
	w.s.log.Info("degradation switch configured", "mode", d.Mode, "after", d.After, "recover_after", d.RecoverAfter, "jobs", d.Jobs)
	w.s.emit(DegradationChanged{From: from, To: d})
	nudge(w.s.sweepNow)
	nudge(w.s.fetchNow)
}

// settle takes or leaves the mode where its time has come, and returns how long
// until the next such time (0: none in sight) and which gates want to be asked.
func (w *switcher) settle() (next time.Duration, doubt []Gate) {
	var events []Degraded
	w.mu.Lock()
	now := time.Now()
	for g, c := range w.coords {
		switch {
		case !c.failing.IsZero() && !c.degraded && now.Sub(c.failing) >= w.cfg.After:
			c.degraded = true
			events = append(events, Degraded{Coordinator: string(g), On: true, Mode: w.cfg.Mode})
		case c.degraded && !c.healthy.IsZero() && now.Sub(c.healthy) >= w.cfg.RecoverAfter:
			c.degraded, c.healthy = false, time.Time{}
			events = append(events, Degraded{Coordinator: string(g), On: false, Mode: w.cfg.Mode})
		}
		var at time.Time
		switch {
		case !c.failing.IsZero() && !c.degraded:
			at = c.failing.Add(w.cfg.After)
		case c.degraded && !c.healthy.IsZero():
			at = c.healthy.Add(w.cfg.RecoverAfter)
		}
		if !at.IsZero() && (next == 0 || time.Until(at) < next) {
			next = max(time.Until(at), time.Millisecond)
		}
		if !c.failing.IsZero() || c.degraded {
			doubt = append(doubt, g)
		}
	}
	if len(events) > 0 {
		w.changedLocked()
	}
	w.mu.Unlock()
	for _, e := range events {
		if e.On {
			w.s.log.Warn("coordinator is unavailable; degradation mode taken", "coordinator", e.Coordinator, "mode", e.Mode)
		} else {
			w.s.log.Info("coordinator is back; degradation mode left", "coordinator", e.Coordinator)
			w.s.taking(func() { w.s.revive(Gate(e.Coordinator)) })
		}
		w.s.emit(e)
		nudge(w.s.sweepNow)
		nudge(w.s.fetchNow)
	}
	return next, doubt
}

// loop turns the switch in time and asks coordinators in doubt.
func (w *switcher) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := w.changes()
		next, doubt := w.settle()
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
				w.probe(g)
			}
		}
	}
}

// probe asks a coordinator in doubt. The lock backend is asked for a key of this
// process's own, since a backend that can read but not write is of no use.
func (w *switcher) probe(g Gate) {
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

func (w *switcher) health(h *Health) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.Coordinator, h.Mode = "none", w.cfg.Mode
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
