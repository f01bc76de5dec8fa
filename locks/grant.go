package locks

import (
	"context"
	"slices"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// grant is a key that this process holds, with all the Leases on it: the one that
// won it, and one more for each re-entry.
//
// A process may hold thousands, so what few of them need is set aside, and moments
// are counted from the birth of the Locker.
type grant struct {
	l      *Locker
	s      *slot
	token  driver.Token
	fence  int64
	t      *terms
	onLoss uint8 // a LossPolicy

	// The Locker's mu guards the rest.
	watchedAt uint8 // the place in watcher
	renewing  bool  // a renewal is under way
	inDo      bool  // Do works under it
	goesOn    bool  // lost, and the contexts were left as they are
	index     int32 // in Locker.grants; -1 if not there
	failures  int32 // of renewal, since the last that succeeded
	deadline  leaseclock.Deadline
	since     time.Duration // when the grant was taken
	proved    time.Duration // when the last request that the backend granted was sent
	due       time.Duration // when the next renewal is
	err       error         // how it ended
	watcher   *watcher      // waits for its loss, where the driver pushes that
	unwatch   func()        // ends that
	outer     Lease         // the outermost level
	aside     *aside        // nil where nothing of it is needed
}

// aside is what few grants need while they are held.
type aside struct {
	renewErr error         // of the last renewal
	idle     chan struct{} // closed when the renewal under way has ended; nil if nobody waits for it
	inner    []*Lease      // the levels above the outermost that have not been released

	released   chan struct{} // made when it begins to be given back, closed when that has ended
	releaseErr error
}

// terms are what grants have in common that were asked for alike.
type terms struct {
	timing
	asked time.Duration // the TTL
	label string
}

// newGrant is what the driver granted, to a request sent at sent.
func (l *Locker) newGrant(s *slot, req driver.Request, d driver.Grant, w wanted, sent leaseclock.Instant) *grant {
	ttl := w.t.ttl
	if d.TTL > 0 {
		ttl = d.TTL
	}
	t := &l.usual
	if ttl != t.ttl || req.TTL != t.asked || req.Label != t.label {
		t = &terms{l.cfg.timing(ttl), req.TTL, req.Label}
	}
	sent = begun(d, sent)
	g := &grant{
		l: l, s: s, token: req.Token, fence: d.Fence, t: t, onLoss: uint8(w.onLoss), index: -1,
		deadline: leaseclock.NewDeadline(sent, t.ttl, t.margin), proved: l.age(sent), since: l.age(sent),
		due: l.age(sent) + spread(t.interval),
	}
	g.outer.g = g
	return g
}

// age is how old the Locker was at i.
func (l *Locker) age(i leaseclock.Instant) time.Duration { return i.Time().Sub(l.born) }

// setAside returns what is set aside, to be added to. The caller holds mu.
func (g *grant) setAside() *aside {
	if g.aside == nil {
		g.aside = new(aside)
	}
	return g.aside
}

// inner are the levels above the outermost that have not been released. The caller
// holds mu.
func (g *grant) inner() []*Lease {
	if g.aside == nil {
		return nil
	}
	return g.aside.inner
}

// open is how many levels have not been released. The caller holds mu.
func (g *grant) open() int {
	n := len(g.inner())
	if !g.outer.gone {
		n++
	}
	return n
}

// closeLevel takes out a level that is released. The caller holds mu.
func (g *grant) closeLevel(e *Lease) {
	if i := slices.Index(g.inner(), e); i >= 0 {
		g.aside.inner = slices.Delete(g.aside.inner, i, i+1)
	}
}

// answered notes the answer to a renewal. The caller holds mu.
func (g *grant) answered(err error) {
	if err != nil || g.aside != nil {
		g.setAside().renewErr = err
	}
}

// renewErr is the error of the last renewal. The caller holds mu.
func (g *grant) renewErr() error {
	if g.aside == nil {
		return nil
	}
	return g.aside.renewErr
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

func (g *grant) hold() driver.Hold {
	return driver.Hold{Request: driver.Request{Key: g.s.key, Token: g.token, TTL: g.t.asked, Label: g.t.label}, Fence: g.fence}
}

// levels are the Leases that may have to be told something.
func (g *grant) levels() []*Lease { return append([]*Lease{&g.outer}, g.inner()...) }

// whenIdle is closed when the renewal under way has ended; nil if there is none.
// The caller holds mu.
func (g *grant) whenIdle() <-chan struct{} {
	if !g.renewing {
		return nil
	}
	aside := g.setAside()
	if aside.idle == nil {
		aside.idle = make(chan struct{})
	}
	return aside.idle
}

// tellIdle tells those who wait that the renewal has ended. The caller holds mu.
func (g *grant) tellIdle() {
	if g.aside != nil && g.aside.idle != nil {
		close(g.aside.idle)
		g.aside.idle = nil
	}
}

// cancels are the functions that cancel the contexts of all levels. The caller
// holds mu.
func (g *grant) cancels() (fs []context.CancelCauseFunc) {
	fs = g.outer.cancels()
	for _, e := range g.inner() {
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

// cancel cancels the contexts; a second call does nothing more.
func (n ending) cancel() {
	for _, cancel := range n.cancels {
		cancel(n.err)
	}
}

// tellAll tells the work of all to stop before an Observer hears of the first.
func tellAll(all []ending) {
	for _, n := range all {
		n.cancel()
	}
	for _, n := range all {
		n.tell()
	}
}

func (n ending) tell() {
	n.cancel()
	if n.unwatch != nil {
		n.unwatch()
	}
	if n.event != nil {
		n.l.observe(n.event)
	}
}

// end makes the grant end with err, unless it has ended, and takes it from guard and
// renewal. The caller holds mu, and calls tell on the result without it.
func (l *Locker) end(g *grant, err error) ending {
	if g.err != nil {
		return ending{}
	}
	g.err = err
	for _, e := range g.levels() {
		e.mark(err)
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
	n := l.end(g, &LostError{Key: g.s.key, Fence: g.fence, Reason: why, Err: g.renewErr()})
	if LossPolicy(g.onLoss) == Abort || why == ReasonAbandoned {
		n.cancels = g.cancels()
	} else {
		g.goesOn = true
		if len(g.cancels()) > 0 {
			l.adrift[g] = struct{}{}
		}
	}
	l.vacate(g)
	n.event = EventLost{Key: g.s.key, Fence: g.fence, Reason: why, Held: l.age(leaseclock.Now()) - g.since}
	return n
}
