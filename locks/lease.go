package locks

import (
	"context"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// Lease is the right to a key until [Lease.ValidUntil], which renewal moves on
// until the lease is released or lost. Key, token and fence never change. It is
// safe for concurrent use.
type Lease struct {
	l     *Locker
	s     *slot
	req   driver.Request
	fence int64
	t     timing

	// The Locker's mu guards the rest.
	deadline leaseclock.Deadline
	guard    *time.Timer
	due      time.Time       // of the next renewal
	index    int             // in Locker.leases; -1 if not there
	failures int             // of renewal, since the last that succeeded
	renewErr error           // the last of them
	renewing bool            // a renewal is under way
	idle     chan struct{}   // closed when that has ended; nil if nobody waits for it
	err      error           // how the lease ended
	done     chan struct{}   // closed when the lease ends; made when asked for
	contexts []*leaseContext // to cancel when the lease ends
	inDo     bool            // Do works under it

	released   chan struct{} // made when a release begins, closed when it has ended
	releaseErr error
}

type leaseContext struct{ cancel context.CancelCauseFunc }

// Key is the key that is held.
func (e *Lease) Key() string { return e.req.Key }

// Fence is the number of this grant: greater than that of every earlier grant of
// the key. Pass it to the resource, which refuses numbers lower than the highest
// it has seen.
func (e *Lease) Fence() int64 { return e.fence }

// Token is the random identity of this grant, 32 hexadecimal digits.
func (e *Lease) Token() string { return e.req.Token.String() }

// ValidUntil is when the lease ends if it is not renewed and the machine is not
// suspended. It lies before the moment at which the backend can give the key to
// another.
func (e *Lease) ValidUntil() time.Time {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.deadline.Time()
}

// Valid reports whether the lease is held at this instant, by the monotonic clock
// and by the one that counts suspension. Ask it just before an effect: after a
// suspended machine has woken, the guard timer needs a moment to fire.
func (e *Lease) Valid() bool {
	e.l.mu.Lock()
	ended, deadline := e.err != nil, e.deadline
	e.l.mu.Unlock()
	return !ended && !deadline.Expired()
}

// Done returns a channel that is closed when the lease has ended: lost, or on its
// way to be released.
func (e *Lease) Done() <-chan struct{} {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.done == nil {
		e.done = make(chan struct{})
		if e.err != nil {
			close(e.done)
		}
	}
	return e.done
}

// Err is nil while the lease is held, a *[LostError] once it is lost, and
// [ErrReleased] once it is released. The first end counts.
func (e *Lease) Err() error {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.err
}

// Context returns a child of parent that is cancelled when the lease ends, with
// the lease's error as [context.Cause], and when its Locker closes, with
// [ErrClosed]. Call the function when the work has ended.
func (e *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	lc := &leaseContext{cancel}
	e.l.mu.Lock()
	ended := e.err
	if ended == nil {
		e.contexts = append(e.contexts, lc)
	}
	e.l.mu.Unlock()
	if ended != nil {
		cancel(ended)
	}
	return ctx, func() {
		e.l.mu.Lock()
		for i, c := range e.contexts {
			if c == lc {
				last := len(e.contexts) - 1
				e.contexts[i], e.contexts[last] = e.contexts[last], nil
				e.contexts = e.contexts[:last]
				break
			}
		}
		e.l.mu.Unlock()
		cancel(context.Canceled)
	}
}

func (e *Lease) hold() driver.Hold { return driver.Hold{Request: e.req, Fence: e.fence} }

// cancels are the functions that cancel the lease's contexts. The caller holds mu.
func (e *Lease) cancels() []context.CancelCauseFunc {
	if len(e.contexts) == 0 {
		return nil
	}
	fs := make([]context.CancelCauseFunc, len(e.contexts))
	for i, c := range e.contexts {
		fs[i] = c.cancel
	}
	return fs
}

// ending is what to tell whom about the end of a lease, once mu is not held.
type ending struct {
	l       *Locker
	err     error
	cancels []context.CancelCauseFunc
	event   Event
}

func (n ending) tell() {
	for _, cancel := range n.cancels {
		cancel(n.err)
	}
	if n.event != nil {
		n.l.observe(n.event)
	}
}

// end makes the lease end with err, unless it has ended, and stops its guard and
// its renewal. The caller holds mu, and calls tell on the result without it.
func (l *Locker) end(e *Lease, err error) ending {
	if e.err != nil {
		return ending{}
	}
	e.err = err
	if e.done != nil {
		close(e.done)
	}
	n := ending{l: l, err: err, cancels: e.cancels()}
	e.contexts = nil
	if e.guard != nil {
		e.guard.Stop()
	}
	l.unschedule(e)
	l.checkSettled()
	return n
}

// lose ends a lease that was not released. The key is free for others of this
// process at once, as it is for other processes. The caller holds mu, and calls
// tell on the result without it.
func (l *Locker) lose(e *Lease, why Reason) ending {
	if e.err != nil {
		return ending{}
	}
	n := l.end(e, &LostError{Key: e.req.Key, Fence: e.fence, Reason: why, Err: e.renewErr})
	l.vacate(e)
	n.event = EventLost{Key: e.req.Key, Fence: e.fence, Reason: why}
	return n
}

// armGuard starts the timer that ends the lease at its deadline whatever its
// renewal is doing: a runtime timer, which waits for no goroutine of ours and for
// no I/O. The caller holds mu.
func (e *Lease) armGuard() {
	if mutation.On("lock-guard-timer") {
		return
	}
	e.guard = time.AfterFunc(time.Until(e.deadline.Time()), e.guardFired)
}

func (e *Lease) guardFired() {
	l := e.l
	l.mu.Lock()
	if e.err != nil {
		l.mu.Unlock()
		return
	}
	if left := e.deadline.Remaining(); left > 0 {
		e.guard.Reset(left) // renewed while the timer fired
		l.mu.Unlock()
		return
	}
	n := l.lose(e, ReasonUnavailable)
	l.mu.Unlock()
	n.tell()
}
