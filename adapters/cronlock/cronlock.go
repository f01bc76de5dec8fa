package cronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks"
)

// Unavailable is what a tick does when the lock backend gives no clear answer.
type Unavailable int

const (
	// FailFast skips the tick. The default.
	FailFast Unavailable = iota
	// LocalMutex runs the job under a mutex of this process: then every replica that
	// cannot reach the backend runs it, beside one that can.
	LocalMutex
)

// Tick is what became of one tick on this replica.
type Tick struct {
	Key   string
	Ran   bool  // the job was started
	Fence int64 // of the run; 0 if it had no lock
	// Err is nil for a run that succeeded under its lock, or under the local mutex.
	// Otherwise it matches [locks.ErrHeld] for a tick that was skipped because a run
	// is going on here or elsewhere, [locks.ErrUnavailable] for one that was skipped
	// by [FailFast], [locks.ErrLost] for a run that lost its lock, also joined with
	// the job's own error, or the error of the context given to [New].
	Err error
}

// Option changes a [Lock].
type Option func(*Lock)

// HoldAtLeast keeps the key until d after the run began, also when the job is done
// sooner, so that replicas whose clocks or timers are behind by less than d find the
// key held and skip the tick. The job counts as running for that long. Choose d
// greater than the difference between any two replicas' clocks, and less than the
// period of the job minus that difference. Default: the key is given back at once.
//
// It does not help where a replica ends between its run and d: ending ctx cuts
// the time short, and a process that died frees the key with the TTL.
func HoldAtLeast(d time.Duration) Option { return func(k *Lock) { k.hold = d } }

// WhenUnavailable sets what a tick does when the backend gives no answer. Default
// [FailFast].
func WhenUnavailable(u Unavailable) Option { return func(k *Lock) { k.unavailable = u } }

// WithObserver sets who is told of every tick, at its end. It may be called from
// several goroutines at once. Default: ticks that were skipped because the key was
// held are logged as debug, other errors as error, with slog.Default().
func WithObserver(f func(Tick)) Option { return func(k *Lock) { k.observe = f } }

// WithLockOptions passes options to every acquire, such as [locks.WithTTL].
func WithLockOptions(opts ...locks.Option) Option {
	return func(k *Lock) { k.opts = append(k.opts, opts...) }
}

// Lock lets one run of a job at a time start, of all replicas. It is safe for
// concurrent use.
type Lock struct {
	ctx         context.Context
	locker      *locks.Locker
	key         string
	hold        time.Duration
	unavailable Unavailable
	observe     func(Tick)
	opts        []locks.Option

	local sync.Mutex // held by a run without a lock
}

// New returns the lock of the job whose key is key; build it with [locks.Key], and
// use one key a job. Runs get contexts that end with ctx, and no run starts after
// its end. To stop, end ctx or not, then wait for cron.Cron.Stop, then close the
// Locker: it would take the keys of jobs that still run.
func New(ctx context.Context, l *locks.Locker, key string, opts ...Option) (*Lock, error) {
	k := &Lock{ctx: ctx, locker: l, key: key, observe: logTick}
	for _, o := range opts {
		o(k)
	}
	switch {
	case ctx == nil:
		return nil, fmt.Errorf("cronlock: context: it is nil; pass the one that ends with the program")
	case l == nil:
		return nil, fmt.Errorf("cronlock: locker: it is nil; make one with a lock backend")
	case key == "":
		return nil, fmt.Errorf("cronlock: key: it is empty; build it with locks.Key")
	case k.hold < 0:
		return nil, fmt.Errorf("cronlock: hold_at_least: %v is negative; leave it out to give the key back at once", k.hold)
	case k.unavailable != FailFast && k.unavailable != LocalMutex:
		return nil, fmt.Errorf("cronlock: when_unavailable: %d is unknown; use FailFast or LocalMutex", k.unavailable)
	case k.observe == nil:
		return nil, fmt.Errorf("cronlock: observer: it is nil; leave it out to log")
	}
	return k, nil
}

// Job returns a job that runs under the lock. Its context ends when the lease is
// lost, or with that of [New]. Pass fence to the resource that the job changes,
// which refuses lower numbers than the highest it has seen; it is 0 in a run without
// a lock.
func (k *Lock) Job(run func(ctx context.Context, fence int64) error) cron.Job {
	return cron.FuncJob(func() { k.tick(run) })
}

// Wrap is a [cron.JobWrapper]: it makes j run under the lock. As a cron.Job takes no
// context, j goes on when the lease is lost, and the observer hears of it when it
// has returned. Use [Lock.Job] for what can be told.
func (k *Lock) Wrap(j cron.Job) cron.Job {
	return k.Job(func(context.Context, int64) error {
		j.Run()
		return nil
	})
}

var _ cron.JobWrapper = (*Lock)(nil).Wrap

func (k *Lock) tick(run func(context.Context, int64) error) {
	began := time.Now()
	lease, err := k.locker.TryAcquire(k.ctx, k.key, k.opts...)
	switch {
	case err == nil:
		k.locked(began, lease, run)
	case errors.Is(err, locks.ErrUnavailable) && k.unavailable == LocalMutex && k.ctx.Err() == nil:
		k.unlocked(run)
	default:
		k.observe(Tick{Key: k.key, Err: err})
	}
}

// locked runs the job under its lease. Also a job that panics gives it back.
func (k *Lock) locked(began time.Time, lease *locks.Lease, run func(context.Context, int64) error) {
	t := Tick{Key: k.key, Ran: true, Fence: lease.Fence(), Err: errPanicked}
	ctx, cancel := lease.Context(k.ctx)
	defer func() {
		if !mutation.On("cron-hold") {
			_ = backoff.Wait(ctx, k.hold-time.Since(began)) // cut short by the end of the lease or of the program
		}
		lost := lease.Err()
		cancel()
		if released := lease.Release(k.ctx); lost == nil {
			lost = released
		}
		t.Err = errors.Join(t.Err, lost)
		k.observe(t)
	}()
	t.Err = run(ctx, t.Fence)
}

// unlocked runs the job without a lock.
func (k *Lock) unlocked(run func(context.Context, int64) error) {
	if !k.local.TryLock() {
		k.observe(Tick{Key: k.key, Err: fmt.Errorf("cronlock: a run without a lock goes on in this process: %w", locks.ErrHeld)})
		return
	}
	t := Tick{Key: k.key, Ran: true, Err: errPanicked}
	defer func() {
		k.local.Unlock()
		k.observe(t)
	}()
	t.Err = run(k.ctx, 0)
}

// errPanicked stands until the job has returned.
var errPanicked = errors.New("cronlock: the job panicked")

func logTick(t Tick) {
	log := slog.Default().With("key", t.Key, "ran", t.Ran)
	switch {
	case t.Err == nil:
	case !t.Ran && errors.Is(t.Err, locks.ErrHeld):
		log.Debug("skipped a tick: another run holds the key")
	default:
		log.Error("a tick did not go well", "fence", t.Fence, "error", t.Err)
	}
}
