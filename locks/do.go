package locks

import (
	"context"
	"errors"
	"time"
)

// Do waits for key, runs fn under the lease, and gives the key back when fn has
// returned, also if it panics. fn's context is a child of ctx that is cancelled,
// with the cause, when the lease is lost (unless [OnLoss] says otherwise) or the
// Locker closes. It carries the lease only if fn asks for that with [ContextWith].
//
// When ctx ends, the lease is renewed until fn has returned, for at most
// Config.DrainTimeout; nobody else starts before that. The error is that of
// [Locker.Acquire], or fn's own, joined with one that matches [ErrLost] if the
// lease was lost before fn returned: a nil error means that fn succeeded and the
// lease was held until then.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context, lease *Lease) error, opts ...Option) error {
	lease, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	closing := l.closed != nil
	if lease == &lease.g.outer {
		lease.g.inDo = !closing
	}
	l.mu.Unlock()
	if closing {
		return errors.Join(ErrClosed, lease.Release(ctx))
	}
	return l.do(ctx, lease, fn)
}

func (l *Locker) do(ctx context.Context, lease *Lease, fn func(context.Context, *Lease) error) (err error) {
	work, cancel := lease.Context(ctx)
	limit := make(chan *time.Timer, 1)
	undrain := context.AfterFunc(work, func() {
		limit <- time.AfterFunc(l.cfg.DrainTimeout, func() {
			l.mu.Lock()
			n := l.lose(lease.g, ReasonAbandoned)
			l.mu.Unlock()
			n.tell()
		})
	})
	defer func() {
		if !undrain() {
			(<-limit).Stop()
		}
		lost := lease.Err()
		released := lease.Release(ctx)
		cancel()
		if lost == nil && errors.Is(released, ErrLost) {
			lost = released
		}
		if lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return fn(work, lease)
}
