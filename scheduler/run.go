package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/store"
)

// Run is one attempt of one due occurrence, as its handler sees it. Its methods
// may be called from any goroutine.
type Run struct {
	exec    store.Execution
	lease   time.Duration
	settled atomic.Bool
	mu      sync.Mutex
	mode    store.Mode
	result  []byte
}

func (s *Scheduler) newRun(exec store.Execution, mode store.Mode) *Run {
	if mode == store.ModeNone {
		mode = exec.Mode
	}
	return &Run{exec: exec, lease: s.cfg.Lease, mode: mode}
}

// ID of the stored execution.
func (r *Run) ID() store.ID { return r.exec.ID }

// Job is the name of the job, or the kind of the queue job.
func (r *Run) Job() string { return r.exec.Key.Job }

// Key is the run's identity, the same on every replica and for every attempt.
func (r *Run) Key() store.Key { return r.exec.Key }

// Tick is the scheduled instant, UTC; zero for queue jobs.
func (r *Run) Tick() time.Time {
	if r.exec.Key.Tick == 0 {
		return time.Time{}
	}
	return r.exec.Key.Tick.Time()
}

// Attempt counts from 1.
func (r *Run) Attempt() int { return r.exec.Attempt }

// Fence is the number of this attempt's claim: higher than that of every earlier
// claim of the job (or lock key). A resource that remembers the highest it has
// seen can refuse a process that woke too late.
func (r *Run) Fence() int64 { return r.exec.Fence }

// Lease is Config.Lease. A handler that has not returned so long after its context has
// ended is left behind, and the next run of the job may begin beside it.
func (r *Run) Lease() time.Duration { return r.lease }

// Mode is the degradation mode the run is made under, empty while it holds its
// gate.
func (r *Run) Mode() store.Mode {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mode
}

func (r *Run) degrade(m store.Mode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = m
}

// MissedCount is the number of missed ticks that this catch-up run stands for,
// itself not counted.
func (r *Run) MissedCount() int { return r.exec.MissedCount }

// Args are the arguments of a queue job.
func (r *Run) Args() []byte { return r.exec.Args }

// Ref proves the right to finish this attempt; package idempotent writes it.
func (r *Run) Ref() store.Ref { return r.exec.Ref() }

// EffectKey is the same for every attempt of this run and differs between steps:
// the idempotency key for a receiver that drops repeats.
func (r *Run) EffectKey(step string) string {
	h := store.HashOf("effect", r.exec.Namespace, r.exec.Key.Hash().String(), step)
	return h.String()[:32]
}

// SetResult keeps a copy of b with the run's record, in place of an earlier result. It
// may have store.MaxResult bytes, 64 KiB. With more the run fails for good, with
// store.ErrTooLarge: half a result is none, and a repeat would have the same. What
// idempotent.Guard.Do was to commit is rolled back then. An attempt that fails by
// itself is judged by its own error, and loses such a result.
func (r *Run) SetResult(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result = bytes.Clone(b)
}

// Result is what SetResult was given last.
func (r *Run) Result() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}

// kept is the result as the record gets it.
func (r *Run) kept() []byte {
	if b := r.Result(); len(b) <= store.MaxResult {
		return b
	}
	return nil
}

// bounded is the handler's answer, where the result is not too large to be kept.
func (r *Run) bounded(err error) error {
	n := len(r.Result())
	switch {
	case n <= store.MaxResult || r.Settled() || errors.Is(err, store.ErrTooLarge):
		return err
	case err == nil:
		return fmt.Errorf("%w (%d bytes, the most is %d)", store.ErrTooLarge, n, store.MaxResult)
	}
	return fmt.Errorf("%w (its result is not kept: %d bytes, the most is %d)", err, n, store.MaxResult)
}

// MarkSettled says that the record of success was committed with the effect, so
// the scheduler has nothing left to write. Package idempotent calls it.
func (r *Run) MarkSettled() { r.settled.Store(true) }

// Settled reports whether MarkSettled was called.
func (r *Run) Settled() bool { return r.settled.Load() }
