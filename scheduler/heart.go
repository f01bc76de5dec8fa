package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// heart keeps the leases of all runs in progress in this process: one request a
// beat for all of them. Apart from it, each run has a timer that ends its context
// before the lease can end, whatever becomes of the beats.
type heart struct {
	s *Scheduler

	mu        sync.Mutex
	runs      map[store.Beat]*attempt
	abandoned int
	added     chan struct{}
}

func newHeart(s *Scheduler) *heart {
	return &heart{s: s, runs: map[store.Beat]*attempt{}, added: make(chan struct{}, 1)}
}

func (a *attempt) beat() store.Beat { return store.Beat{ID: a.exec.ID, Attempt: a.exec.Attempt} }

func (h *heart) add(a *attempt, sent leaseclock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.lease.deadline = h.deadline(sent)
	a.lease.guard = time.AfterFunc(a.lease.deadline.Remaining(), func() { h.guard(a) })
	h.runs[a.beat()] = a
	nudge(h.added)
}

// deadline trusts a lease from the moment before it was asked for, less a fifth.
func (h *heart) deadline(sent leaseclock.Instant) leaseclock.Deadline {
	return leaseclock.NewDeadline(sent, h.s.cfg.Lease, h.s.cfg.Lease/5)
}

// guard ends a run whose lease may end soon. It is called by a timer of its own.
func (h *heart) guard(a *attempt) {
	h.mu.Lock()
	left := a.lease.deadline.Remaining()
	if left > 0 {
		a.lease.guard.Reset(left)
	}
	h.mu.Unlock()
	if left <= 0 && guarded() {
		a.lose(fmt.Errorf("%w: not renewed in time", ErrLeaseLost))
	}
}

// check ends a run whose lease may have ended, at a time at which that matters.
func (h *heart) check(a *attempt) {
	h.mu.Lock()
	expired := a.lease.deadline.Expired()
	h.mu.Unlock()
	if expired {
		a.lose(fmt.Errorf("%w: not renewed in time", ErrLeaseLost))
	}
}

func (h *heart) remove(a *attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.lease.guard.Stop()
	delete(h.runs, a.beat())
}

func (h *heart) abandon(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.abandoned += n
}

func (h *heart) counts() (running, abandoned int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs), h.abandoned
}

// loop beats every third of the lease while there is something to keep.
func (h *heart) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	timer.Stop()
	fails := 0
	for {
		h.mu.Lock()
		idle := len(h.runs) == 0
		h.mu.Unlock()
		if idle {
			select {
			case <-h.s.alive.Done():
				return
			case <-h.added:
			}
		}
		wait := backoff.Jitter(h.s.cfg.Lease/3, 0.1)
		if fails > 0 {
			wait = backoff.Policy{Base: h.s.cfg.Lease / 50, Max: h.s.cfg.Lease / 6}.Delay(fails)
		}
		timer.Reset(wait)
		select {
		case <-h.s.alive.Done():
			return
		case <-timer.C:
		}
		if err := h.beatOnce(); err != nil {
			fails++
		} else {
			fails = 0
		}
	}
}

// beatOnce renews all leases with one request. A beat that fails decides nothing:
// the guards do.
func (h *heart) beatOnce() error {
	h.mu.Lock()
	runs := make([]*attempt, 0, len(h.runs))
	req := store.HeartbeatRequest{Namespace: h.s.cfg.Namespace, Owner: h.s.owner, Lease: h.s.cfg.Lease}
	for beat, a := range h.runs {
		if a.Settled() {
			continue
		}
		runs = append(runs, a)
		req.Beats = append(req.Beats, beat)
	}
	h.mu.Unlock()
	if len(runs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.s.alive, max(h.s.cfg.Lease/4, 250*time.Millisecond))
	defer cancel()
	sent, at := leaseclock.Now(), time.Now()
	answer, err := h.s.deps.Store.Heartbeat(ctx, req)
	h.s.asked("heartbeat", at, err)
	if err != nil {
		return err
	}
	h.s.clock.observe(at, answer.Now)
	for i, b := range answer.Beats {
		switch {
		case b.Lost:
			runs[i].lose(fmt.Errorf("%w: another attempt or owner has the run", ErrLeaseLost))
		case b.CancelRequested:
			h.renewed(runs[i], sent)
			runs[i].lose(ErrCancelRequested)
		default:
			h.renewed(runs[i], sent)
		}
	}
	return nil
}

func (h *heart) renewed(a *attempt, sent leaseclock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.runs[a.beat()]; !ok {
		return
	}
	a.lease.deadline = h.deadline(sent)
	a.lease.guard.Reset(max(a.lease.deadline.Remaining(), 0))
}
