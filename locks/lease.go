package locks

import (
	"context"
	"slices"
	"time"
)

// Lease is the right to a key until [Lease.ValidUntil], which renewal moves on
// until the lease is released or lost. Key, token and fence never change. It is
// safe for concurrent use.
//
// A re-entry (see [ContextWith]) gives a Lease of its own on the same grant, with
// the same key, token and fence. All of them are lost together.
type Lease struct {
	g *grant

	// The Locker's mu guards the rest.
	err  error     // how this level ended
	told *audience // nil where nobody asked
	gone bool      // Release was called
}

// audience is who is told that a level has ended.
type audience struct {
	done     chan struct{}   // closed then; nil where nobody asked
	contexts []*leaseContext // to cancel then
}

type leaseContext struct{ cancel context.CancelCauseFunc }

// Key is the key that is held.
func (e *Lease) Key() string { return e.g.s.key }

// Fence is the number of this grant: greater than that of every earlier grant of
// the key. Pass it to the resource, which refuses numbers lower than the highest
// it has seen.
func (e *Lease) Fence() int64 { return e.g.fence }

// Token is the random identity of this grant, 32 hexadecimal digits.
func (e *Lease) Token() string { return e.g.token.String() }

// ValidUntil is when the lease ends if it is not renewed and the machine is not
// suspended. It lies before the moment at which the backend can give the key to
// another.
func (e *Lease) ValidUntil() time.Time {
	e.g.l.mu.Lock()
	defer e.g.l.mu.Unlock()
	return e.g.deadline.Time()
}

// Valid reports whether the lease is held at this instant, by the monotonic clock
// and by the one that counts suspension. Ask it just before an effect: after a
// suspended machine has woken, the guard timer needs a moment to fire.
func (e *Lease) Valid() bool {
	e.g.l.mu.Lock()
	ended, deadline := e.err != nil, e.g.deadline
	e.g.l.mu.Unlock()
	return !ended && !deadline.Expired()
}

// Done returns a channel that is closed when the lease has ended: lost, or on its
// way to be released.
func (e *Lease) Done() <-chan struct{} {
	e.g.l.mu.Lock()
	defer e.g.l.mu.Unlock()
	told := e.audience()
	if told.done == nil {
		told.done = make(chan struct{})
		if e.err != nil {
			close(told.done)
		}
	}
	return told.done
}

// Err is nil while the lease is held, a *[LostError] once it is lost, and
// [ErrReleased] once it is released. The first end counts.
func (e *Lease) Err() error {
	e.g.l.mu.Lock()
	defer e.g.l.mu.Unlock()
	return e.err
}

// Context returns a child of parent that is cancelled when the lease ends, with
// the lease's error as [context.Cause], and when its Locker closes, with
// [ErrClosed]. Under the policies [Continue] and [Checkpoint] a loss does not
// cancel it; the release does. Call the function when the work has ended.
func (e *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	lc := &leaseContext{cancel}
	l := e.g.l
	l.mu.Lock()
	ended := e.err
	switch {
	case ended != nil && (!e.g.goesOn || e.gone):
	case l.closed != nil:
		ended = ErrClosed
	default:
		if ended != nil {
			l.adrift[e.g] = struct{}{}
		}
		told := e.audience()
		told.contexts, ended = append(told.contexts, lc), nil
	}
	l.mu.Unlock()
	if ended != nil {
		cancel(ended)
	}
	return ctx, func() {
		l.mu.Lock()
		if told := e.told; told != nil {
			told.remove(lc)
		}
		if e.g.goesOn && len(e.g.cancels()) == 0 {
			delete(l.adrift, e.g)
		}
		l.mu.Unlock()
		cancel(context.Canceled)
	}
}

// audience returns who is to be told, to be added to. The caller holds mu.
func (e *Lease) audience() *audience {
	if e.told == nil {
		e.told = new(audience)
	}
	return e.told
}

// inherit makes the contexts of other end with this level too. The caller holds mu.
func (e *Lease) inherit(other *Lease) {
	if other != e && other.told != nil {
		told := e.audience()
		told.contexts = append(told.contexts, other.told.contexts...)
	}
}

func (a *audience) remove(lc *leaseContext) {
	if i := slices.Index(a.contexts, lc); i >= 0 {
		last := len(a.contexts) - 1
		a.contexts[i], a.contexts[last] = a.contexts[last], nil
		a.contexts = a.contexts[:last]
	}
}

// mark ends this level. The caller holds mu.
func (e *Lease) mark(err error) {
	if e.err != nil {
		return
	}
	e.err = err
	if e.told != nil && e.told.done != nil {
		close(e.told.done)
	}
}

// cancels are the functions that cancel this level's contexts, for the last time.
// The caller holds mu.
func (e *Lease) cancels() []context.CancelCauseFunc {
	if e.told == nil || len(e.told.contexts) == 0 {
		return nil
	}
	fs := make([]context.CancelCauseFunc, len(e.told.contexts))
	for i, c := range e.told.contexts {
		fs[i] = c.cancel
	}
	return fs
}
