package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/lazyctx"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// Release gives the key back. Call it when the work under the lease has returned:
// the next holder may start at once. It ends the lease's contexts, waits for a
// renewal under way, and sends the release, also where ctx has ended; ctx gives
// only its values. It takes at most Config.ReleaseTimeout.
//
// A nil error means that the key was given back. Otherwise it is a
// *[ReleaseError]. A lease that was lost may be released too: that costs one
// request, and frees the key if the backend still thought it ours. Calling Release
// again sends nothing and returns the same answer.
//
// Where a key was taken again through its context ([ContextWith]), Release ends one
// level and the last level gives the key back. A level that is not the last sends
// nothing; its error is nil, or the *[LostError] of the lease. Only once can a level
// of re-entry be released: again is refused with [ErrReleased].
func (e *Lease) Release(ctx context.Context) error {
	g, l := e.g, e.g.l
	l.mu.Lock()
	switch {
	case e.gone && e != &g.outer:
		l.mu.Unlock()
		return fmt.Errorf("locks: release %q (fence %d): this level of re-entry: %w", g.s.key, g.fence, ErrReleased)
	case e.gone && g.open() > 0:
		l.mu.Unlock()
		return nil
	case e.gone:
		l.mu.Unlock()
		return l.giveUp(ctx, g)
	}
	e.gone = true
	g.closeLevel(e)
	if g.open() == 0 {
		g.outer.inherit(e) // they end with the grant
		l.mu.Unlock()
		return l.giveUp(ctx, g)
	}
	e.mark(ErrReleased)
	err, cancels := e.err, e.cancels()
	l.mu.Unlock()
	for _, cancel := range cancels {
		cancel(err)
	}
	if errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// giveUp gives the key back, whatever levels there are.
func (l *Locker) giveUp(ctx context.Context, g *grant) error {
	ctx = context.WithoutCancel(ctx)
	start := time.Now()

	l.mu.Lock()
	aside := g.setAside()
	if released := aside.released; released != nil {
		l.mu.Unlock()
		<-released // bounded: it has a timeout of its own
		return aside.releaseErr
	}
	aside.released = make(chan struct{})
	lost := g.err
	var had time.Duration
	if lost == nil {
		had = max(start.Sub(l.born)-g.since, 1)
	}
	n := l.end(g, ErrReleased)
	n.err, n.cancels = g.err, g.cancels()
	delete(l.adrift, g)
	idle := g.whenIdle()
	l.busy++
	l.mu.Unlock()
	defer l.done()
	n.tell()

	out, err := l.sendRelease(ctx, start.Add(l.cfg.ReleaseTimeout), g, lost, idle)
	if err != nil || out != driver.ReleasedOK {
		aside.releaseErr = &ReleaseError{Key: g.s.key, Fence: g.fence, Outcome: out, Err: err}
	}
	l.mu.Lock()
	if out == 0 && !isNotOurs(lost) {
		l.adopt(g.s, g.hold(), g.t.timing)
	}
	l.vacate(g)
	l.mu.Unlock()
	close(aside.released)
	if l.cfg.Observer != nil {
		l.observe(EventReleased{Key: g.s.key, Fence: g.fence, Outcome: out, Took: time.Since(start), Held: had})
	}
	return aside.releaseErr
}

// sendRelease returns the outcome, or 0 and why it is unknown.
func (l *Locker) sendRelease(ctx context.Context, end time.Time, g *grant, lost error, idle <-chan struct{}) (driver.Released, error) {
	if l.working.Err() != nil {
		return 0, ErrClosed
	}
	if idle != nil {
		wait, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		select {
		case <-idle:
		case <-wait.Done():
			return 0, &UnavailableError{Key: g.s.key, Op: OpRenew, Err: context.Cause(wait)}
		}
	}
	l.mu.Lock()
	held := lost == nil && time.Now().Before(g.deadline.Time())
	l.mu.Unlock()
	timeout := min(g.t.request, l.cfg.ReleaseTimeout/2)
	retry := backoff.Policy{Base: timeout / 20, Max: timeout}
	applied := false
	for try := 0; ; try++ {
		call := lazyctx.WithDeadline(ctx, earlier(time.Now().Add(timeout), end))
		out, err := l.d.Release(call, g.hold())
		call.Cancel()
		if err == nil {
			if applied && held {
				// Held when first sent, and that was perhaps applied: then it is
				// this release which ended the lease, not somebody else.
				out = driver.ReleasedOK
			}
			return out, nil
		}
		l.observe(EventUnknown{Key: g.s.key, Op: OpRelease, Err: err})
		applied = applied || !driver.IsNotApplied(err)
		pause := retry.Delay(try)
		if lost != nil || time.Until(end) <= pause || backoff.Wait(ctx, pause) != nil {
			return 0, err
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func isNotOurs(err error) bool {
	var lost *LostError
	return errors.As(err, &lost) && lost.Reason == ReasonNotOurs
}

// orphan is a grant that nobody in this process holds and that the backend may
// have: an acquire or a release of unknown outcome. It is released until the
// answer is clear or its TTL has passed.
type orphan struct {
	s     *slot
	hold  driver.Hold
	until leaseclock.Deadline
	tries int
	next  time.Time
}

// adopt hands a grant to the reaper. The caller holds mu.
func (l *Locker) adopt(s *slot, h driver.Hold, t timing) {
	if l.working.Err() != nil {
		return
	}
	if now := l.slots[s.key]; now != nil {
		s = now
	} else {
		l.slots[s.key] = s // a lost grant has given up its use of it
	}
	o := &orphan{s: s, hold: h, until: leaseclock.NewDeadline(leaseclock.Now(), t.ttl+t.margin, 0), next: time.Now()}
	s.refs++
	s.orphans++
	l.orphans = append(l.orphans, o)
	if !l.reaping {
		l.reaping = true
		l.busy++
		go func() {
			defer l.done()
			l.reap()
		}()
	}
}

// forget ends the care for an orphan. The caller holds mu.
func (l *Locker) forget(o *orphan) {
	i := slices.Index(l.orphans, o)
	if i < 0 {
		return // settled twice at once
	}
	l.orphans = slices.Delete(l.orphans, i, i+1)
	o.s.orphans--
	l.drop(o.s)
}

// reap settles orphans until there are none. It runs only then.
func (l *Locker) reap() {
	for {
		l.mu.Lock()
		var first *orphan
		for _, o := range slices.Clone(l.orphans) {
			switch {
			case o.until.Expired():
				l.forget(o)
			case first == nil || o.next.Before(first.next):
				first = o
			}
		}
		if first == nil || l.working.Err() != nil {
			l.reaping = false
			l.mu.Unlock()
			return
		}
		pause := min(time.Until(first.next), first.until.Remaining())
		l.mu.Unlock()
		if backoff.Wait(l.working, pause) != nil {
			continue
		}
		_ = l.releaseOrphan(l.working, first) // it keeps the orphan for another try by itself
	}
}

func (l *Locker) releaseOrphan(ctx context.Context, o *orphan) error {
	t := l.cfg.timing(o.hold.TTL)
	call, cancel := context.WithTimeout(ctx, t.request)
	defer cancel()
	_, err := l.d.Release(call, o.hold)
	l.mu.Lock()
	if err == nil {
		l.forget(o)
	} else {
		o.next = time.Now().Add(backoff.Policy{Base: t.request / 10, Max: t.interval}.Delay(o.tries))
		o.tries++
	}
	l.mu.Unlock()
	if err != nil {
		err = l.unavailable(ctx, call, OpRelease, o.hold.Key, err)
		l.observe(EventUnknown{Key: o.hold.Key, Op: OpRelease, Err: err})
	}
	return err
}

// settle ends the orphans of a key before it is asked for anew, so that this
// process is not refused by its own ghost.
func (l *Locker) settle(ctx context.Context, s *slot) error {
	var orphans []*orphan
	l.mu.Lock()
	if s.orphans > 0 {
		for _, o := range l.orphans {
			if o.s == s {
				orphans = append(orphans, o)
			}
		}
	}
	l.mu.Unlock()
	for _, o := range orphans {
		if err := l.releaseOrphan(ctx, o); err != nil {
			return err
		}
	}
	return nil
}
