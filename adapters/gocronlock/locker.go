package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/solotick/solotick/locks"
)

// ErrNoLock is the error of a [Locker.Task] that gocron started without the lock of
// its name.
var ErrNoLock = errors.New("gocronlock: the job runs without its lock")

// Option changes a [Locker].
type Option func(*Locker)

// HoldAtLeast keeps the lock until d after it was taken, also when the job is done
// sooner, so that replicas whose clocks or timers are behind by less than d find it
// held and skip the tick. The job counts as running for that long, for gocron's
// singleton mode and limits too. Choose d greater than the difference between any
// two replicas' clocks, and less than the period of the job minus that difference.
// Default: the lock is given back at once.
//
// It does not help where a replica ends between its run and d: shutting the scheduler
// down cuts the time short, and a process that died frees the key with the TTL.
func HoldAtLeast(d time.Duration) Option { return func(k *Locker) { k.hold = d } }

// RunUnlocked lets jobs run without a lock when the backend gives no clear answer, at
// most one run of a name at a time in this process. Every replica that cannot reach
// the backend runs them then. Default: they are skipped.
func RunUnlocked() Option { return func(k *Locker) { k.runUnlocked = true } }

// OnUnlock sets who is told of the end of every lock: nil when it was given back,
// else an error that matches [locks.ErrLost] or [locks.ErrUnavailable], which gocron
// drops. It may be called from several goroutines at once. Default: errors are
// logged with slog.Default().
func OnUnlock(f func(job string, err error)) Option { return func(k *Locker) { k.onUnlock = f } }

// WithLockOptions passes options to every acquire, such as [locks.WithTTL].
func WithLockOptions(opts ...locks.Option) Option {
	return func(k *Locker) { k.opts = append(k.opts, opts...) }
}

// Locker is a [gocron.Locker], for gocron.WithDistributedLocker and, with settings of
// its own, gocron.WithDistributedJobLocker. It is safe for concurrent use.
type Locker struct {
	locker      *locks.Locker
	namespace   string
	hold        time.Duration
	runUnlocked bool
	onUnlock    func(job string, err error)
	opts        []locks.Option

	mu   sync.Mutex
	held map[string]*lock // by name of the job
}

var (
	_ gocron.Locker = (*Locker)(nil)
	_ gocron.Lock   = (*lock)(nil)
)

// NewLocker returns a Locker on l. A job called NAME holds the key
// locks.Key(namespace, "cron", NAME): give every job a name with gocron.WithName, as
// the default is that of its function. Close l after gocron's Shutdown has returned.
func NewLocker(l *locks.Locker, namespace string, opts ...Option) (*Locker, error) {
	k := &Locker{locker: l, namespace: namespace, onUnlock: logUnlock, held: map[string]*lock{}}
	for _, o := range opts {
		o(k)
	}
	switch {
	case l == nil:
		return nil, errors.New("gocronlock: locker: it is nil; make one with a lock backend")
	case namespace == "":
		return nil, errors.New("gocronlock: namespace: it is empty; name the application, so that others on the same backend have other keys")
	case k.hold < 0:
		return nil, fmt.Errorf("gocronlock: hold_at_least: %v is negative; leave it out to give the lock back at once", k.hold)
	case k.onUnlock == nil:
		return nil, errors.New("gocronlock: on_unlock: it is nil; leave it out to log")
	}
	return k, nil
}

// Lock implements [gocron.Locker]. It asks once and does not wait; errors are those
// of locks.Locker.TryAcquire.
func (k *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	h := &lock{k: k, job: job, began: time.Now()}
	lease, err := k.locker.TryAcquire(ctx, locks.Key(k.namespace, "cron", job), k.opts...)
	switch {
	case err == nil:
		h.lease = lease
	case !k.runUnlocked || !errors.Is(err, locks.ErrUnavailable) || ctx.Err() != nil:
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if other := k.held[job]; other != nil && lease == nil {
		return nil, fmt.Errorf("gocronlock: a run of %q goes on in this process: %w", job, locks.ErrHeld)
	}
	k.held[job] = h
	return h, nil
}

// Task is a gocron.Task for the job of this name, to be given to NewJob together with
// gocron.WithName(job). The context of run ends when the lock is lost, with the loss
// as its cause, and when gocron stops the job. Pass fence to the resource that the
// job changes, which refuses lower numbers than the highest it has seen; it is 0 in
// a run without a lock (see [RunUnlocked]). A job that gocron starts without this
// Locker, or under another name, fails with [ErrNoLock].
func (k *Locker) Task(job string, run func(ctx context.Context, fence int64) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		k.mu.Lock()
		h := k.held[job]
		k.mu.Unlock()
		switch {
		case h == nil:
			return fmt.Errorf("%w: give it the name %q by gocron.WithName, and its scheduler this Locker", ErrNoLock, job)
		case h.lease == nil:
			return run(ctx, 0)
		}
		ctx, cancel := h.lease.Context(ctx)
		defer cancel()
		return run(ctx, h.lease.Fence())
	})
}

type lock struct {
	k     *Locker
	job   string
	began time.Time
	lease *locks.Lease // nil for a run without a lock
}

// Unlock implements [gocron.Lock]. It waits until the lock has been held for as long
// as it is to be, or ctx or the lease ends.
func (h *lock) Unlock(ctx context.Context) error {
	var err error
	if h.lease != nil {
		h.wait(ctx)
		lost := h.lease.Err()
		if err = h.lease.Release(ctx); lost != nil {
			err = lost
		}
	}
	h.k.mu.Lock()
	if h.k.held[h.job] == h { // a run that lost its lock may have been followed by another
		delete(h.k.held, h.job)
	}
	h.k.mu.Unlock()
	h.k.onUnlock(h.job, err)
	return err
}

func (h *lock) wait(ctx context.Context) {
	left := h.k.hold - time.Since(h.began)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-h.lease.Done():
	}
}

func logUnlock(job string, err error) {
	if err != nil {
		slog.Default().Error("the lock of a job did not end well", "job", job, "error", err)
	}
}
