package locks

import (
	"context"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// grant is a key that this process holds, with all the Leases on it: the one that
// won it, and one more for each re-entry.
type grant struct {
	l      *Locker
	s      *slot
	req    driver.Request
	fence  int64
	t      timing
	onLoss LossPolicy

	// The Locker's mu guards the rest.
	deadline leaseclock.Deadline
	proved   leaseclock.Instant // when the last request that the backend granted was sent
	guard    *time.Timer
	due      time.Time     // of the next renewal
	index    int           // in Locker.grants; -1 if not there
	failures int           // of renewal, since the last that succeeded
	renewErr error         // the last of them
	renewing bool          // a renewal is under way
	idle     chan struct{} // closed when that has ended; nil if nobody waits for it
	err      error         // how it ended
	inDo     bool          // Do works under it
	goesOn   bool          // lost, and the contexts were left as they are
	watch    lossWatch     // of its loss, where the driver pushes that

	released   chan struct{} // made when it begins to be given back, closed when that has ended
	releaseErr error

	outer Lease    // the outermost level
	inner []*Lease // the levels above it that have not been released
	open  int      // how many levels have not been released, the outermost included
}

// newGrant is what the driver granted, to a request sent at sent.
func (l *Locker) newGrant(s *slot, req driver.Request, d driver.Grant, w wanted, sent leaseclock.Instant) *grant {
	t := w.t
	if d.TTL > 0 {
		t = l.cfg.timing(d.TTL)
	}
	sent = begun(d, sent)
	g := &grant{
		l: l, s: s, req: req, fence: d.Fence, t: t, onLoss: w.onLoss, open: 1, index: -1,
		deadline: leaseclock.NewDeadline(sent, t.ttl, t.margin), proved: sent,
		due: sent.Time().Add(spread(t.interval)),
	}
	g.outer.g = g
	return g
}

// begun is the instant from which a grant counts that was asked for at sent. It
// keeps the reading of sent of the clock that counts suspension: a suspension since
// then may have come after the instant too.
func begun(d driver.Grant, sent leaseclock.Instant) leaseclock.Instant {
	if d.From.IsZero() {
		return sent
	}
	return sent.Add(min(d.From.Sub(sent.Time()), time.Since(sent.Time())))
}

func (g *grant) hold() driver.Hold { return driver.Hold{Request: g.req, Fence: g.fence} }

// levels are the Leases that may have to be told something.
func (g *grant) levels() []*Lease { return append([]*Lease{&g.outer}, g.inner...) }

// whenIdle is closed when the renewal under way has ended; nil if there is none.
// The caller holds mu.
func (g *grant) whenIdle() <-chan struct{} {
	if !g.renewing {
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	return g.idle
}

// cancels are the functions that cancel the contexts of all levels. The caller
// holds mu.
func (g *grant) cancels() (fs []context.CancelCauseFunc) {
	fs = g.outer.cancels()
	for _, e := range g.inner {
		fs = append(fs, e.cancels()...)
	}
	return fs
}

// ending is what to tell whom about the end of a lease, once mu is not held.
type ending struct {
	l       *Locker
	err     error
	cancels []context.CancelCauseFunc
	unwatch func()
	event   Event
}

func (n ending) tell() {
	for _, cancel := range n.cancels {
		cancel(n.err)
	}
	if n.unwatch != nil {
		n.unwatch()
	}
	if n.event != nil {
		n.l.observe(n.event)
	}
}

// end makes the grant end with err, unless it has ended, and stops its guard and
// its renewal. The caller holds mu, and calls tell on the result without it.
func (l *Locker) end(g *grant, err error) ending {
	if g.err != nil {
		return ending{}
	}
	g.err = err
	for _, e := range g.levels() {
		e.mark(err)
	}
	if g.guard != nil {
		g.guard.Stop()
	}
	l.unschedule(g)
	n := ending{l: l, err: err, unwatch: l.unwatch(g)}
	l.checkSettled()
	return n
}

// lose ends a grant that was not released. The key is free for others of this
// process at once, as it is for other processes. The caller holds mu, and calls
// tell on the result without it.
func (l *Locker) lose(g *grant, why Reason) ending {
	if g.err != nil {
		return ending{}
	}
	n := l.end(g, &LostError{Key: g.req.Key, Fence: g.fence, Reason: why, Err: g.renewErr})
	if g.onLoss == Abort || why == ReasonAbandoned {
		n.cancels = g.cancels()
	} else {
		g.goesOn = true
		if len(g.cancels()) > 0 {
			l.adrift[g] = struct{}{}
		}
	}
	l.vacate(g)
	n.event = EventLost{Key: g.req.Key, Fence: g.fence, Reason: why}
	return n
}

// armGuard starts the timer that ends the grant at its deadline whatever its
// renewal is doing: a runtime timer, which waits for no goroutine of ours and for
// no I/O. The caller holds mu.
func (g *grant) armGuard() {
	if mutation.On("lock-guard-timer") {
		return
	}
	g.guard = time.AfterFunc(time.Until(g.deadline.Time()), g.guardFired)
}

func (g *grant) guardFired() {
	l := g.l
	l.mu.Lock()
	if g.err != nil {
		l.mu.Unlock()
		return
	}
	if left := g.deadline.Remaining(); left > 0 {
		g.guard.Reset(left) // renewed while the timer fired
		l.mu.Unlock()
		return
	}
	n := l.lose(g, ReasonUnavailable)
	l.mu.Unlock()
	n.tell()
}
