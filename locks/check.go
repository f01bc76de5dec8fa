package locks

import (
	"context"
	"errors"

	"github.com/solotick/solotick/internal/leaseclock"
)

// Check asks the backend whether the lease is still held, by a renewal, and looks at
// both clocks. A nil error means that the backend held it for this lease at some
// moment after Check was called, and that it had not ended when the answer came.
//
// Otherwise the error matches [ErrLost], [ErrReleased], [ErrUnavailable] or the error
// of ctx. After ErrUnavailable nothing is known but that the lease is valid until
// [Lease.ValidUntil]. Nil is no promise for the next instant: only the check of the
// fence at the resource is (M. Kleppmann, "How to do distributed locking", 2016).
//
// It costs at most one request, bounded by Config.RequestTimeout; calls that wait
// for each other share one.
func (e *Lease) Check(ctx context.Context) error {
	g, l := e.g, e.g.l
	called := leaseclock.Now()
	for {
		if ctx.Err() != nil {
			return l.unavailable(ctx, ctx, OpRenew, g.s.key, ctxError(ctx))
		}
		var n ending
		l.mu.Lock()
		if g.err == nil && g.deadline.Expired() {
			n = l.lose(g, ReasonUnavailable)
		}
		if err := e.err; err != nil {
			l.mu.Unlock()
			n.tell()
			return err
		}
		if g.proved > l.age(called) {
			l.mu.Unlock()
			return nil // by a renewal that was sent since
		}
		idle := g.whenIdle()
		if idle == nil {
			g.renewing = true
			l.busy++
		}
		l.mu.Unlock()
		if idle == nil {
			return l.checkNow(ctx, e)
		}
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
}

func (l *Locker) checkNow(ctx context.Context, e *Lease) error {
	defer l.done()
	g := e.g
	sent := leaseclock.Now()
	timeout, holds := l.holds([]*grant{g}, sent)
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(l.working, cancel)()
	d, err := l.d.Renew(call, holds[0])
	l.renewed([]*grant{g}, []error{err}, sent, begun(d, sent), d.TTL)

	l.mu.Lock()
	ended, deadline := e.err, g.deadline
	l.mu.Unlock()
	switch {
	case ended != nil:
		return ended
	case err != nil:
		return l.unavailable(ctx, call, OpRenew, g.s.key, err)
	case deadline.Expired():
		return l.unavailable(ctx, call, OpRenew, g.s.key, errors.New("the answer came when the lease had ended"))
	}
	return nil
}
