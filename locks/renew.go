package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// One timer fires when the first lease is due. It starts a round, which renews
// all leases that are due within half their interval, so that leases taken at any
// times soon share their requests: at most two rounds an interval, and mostly one.
// Rounds may overlap; a lease is in one of them at a time.

func spread(interval time.Duration) time.Duration { return backoff.Jitter(interval, renewJitter) }

// schedule adds a lease to those to renew. The caller holds mu.
func (l *Locker) schedule(e *Lease) {
	e.index = len(l.leases)
	l.leases = append(l.leases, e)
	l.fireAt(e.due)
}

// unschedule takes a lease out. The caller holds mu.
func (l *Locker) unschedule(e *Lease) {
	last := len(l.leases) - 1
	moved := l.leases[last]
	l.leases[e.index], l.leases[last] = moved, nil
	moved.index = e.index
	l.leases = l.leases[:last]
	e.index = -1
	if last == 0 && l.renewal != nil {
		l.renewal.Stop()
		l.renewAt = time.Time{}
	}
}

// fireAt makes the timer fire at t at the latest. The caller holds mu.
func (l *Locker) fireAt(t time.Time) {
	if !l.renewAt.IsZero() && !t.Before(l.renewAt) {
		return
	}
	l.renewAt = t
	if l.renewal == nil {
		l.renewal = time.AfterFunc(time.Until(t), l.round)
	} else {
		l.renewal.Reset(time.Until(t))
	}
}

// plan sets the timer for the first lease that is due. The caller holds mu.
func (l *Locker) plan() {
	l.renewAt = time.Time{}
	var first *Lease
	for _, e := range l.leases {
		if !e.renewing && (first == nil || e.due.Before(first.due)) {
			first = e
		}
	}
	if first != nil {
		l.fireAt(first.due)
	}
}

// round renews what is due.
func (l *Locker) round() {
	now := leaseclock.Now()
	groups := make(map[int][]*Lease)
	var lost []ending
	l.mu.Lock()
	for i := len(l.leases) - 1; i >= 0; i-- { // backwards: lose moves the last one
		e := l.leases[i]
		if e.renewing || e.due.Sub(now.Time()) > e.t.interval/2 {
			continue
		}
		left := e.deadline.At(now)
		if left <= 0 {
			lost = append(lost, l.lose(e, ReasonUnavailable))
			continue
		}
		e.renewing = true
		// One that is close to its end has a short timeout, and must not cut
		// short the request of the others.
		class := bits.Len64(uint64(e.timeout(left)))
		groups[class] = append(groups[class], e)
	}
	l.plan()
	l.busy += len(groups)
	l.mu.Unlock()

	for _, n := range lost {
		n.tell()
	}
	for _, group := range groups {
		go func() {
			defer l.done()
			l.renew(group)
		}()
	}
}

// timeout is that of one renewal when left is the rest of the lease: the lease
// then still has room for another try.
func (e *Lease) timeout(left time.Duration) time.Duration { return min(e.t.request, left/2) }

func (l *Locker) renew(group []*Lease) {
	if l.batch == nil && len(group) > 1 {
		l.renewEach(group)
		return
	}
	sent := leaseclock.Now()
	timeout, holds := l.holds(group, sent)
	call, cancel := context.WithTimeout(l.working, timeout)
	defer cancel()
	var errs []error
	if l.batch != nil {
		errs = l.batch.RenewBatch(call, holds)
	} else {
		_, err := l.d.Renew(call, holds[0])
		errs = []error{err}
	}
	if len(errs) != len(holds) {
		err := fmt.Errorf("locks: the driver answered %d of %d renewals", len(errs), len(holds))
		errs = slices.Repeat([]error{err}, len(holds))
	}
	l.renewed(group, errs, sent)
}

// renewEach renews a group on a backend that takes one at a time, those that end
// first first.
func (l *Locker) renewEach(group []*Lease) {
	now := leaseclock.Now()
	l.mu.Lock()
	slices.SortFunc(group, func(a, b *Lease) int { return cmp.Compare(a.deadline.At(now), b.deadline.At(now)) })
	l.mu.Unlock()
	next := make(chan *Lease)
	var wg sync.WaitGroup
	for range min(maxParallel, len(group)) {
		wg.Go(func() {
			for e := range next {
				l.renew([]*Lease{e})
			}
		})
	}
	for _, e := range group {
		next <- e
	}
	close(next)
	wg.Wait()
}

// holds is what to send for a group, and for how long to wait.
func (l *Locker) holds(group []*Lease, now leaseclock.Instant) (timeout time.Duration, holds []driver.Hold) {
	holds = make([]driver.Hold, len(group))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range group {
		holds[i] = e.hold()
		if t := e.timeout(e.deadline.At(now)); i == 0 || t < timeout {
			timeout = t
		}
	}
	return timeout, holds
}

// renewed takes the answers to the renewals that were sent at sent.
func (l *Locker) renewed(group []*Lease, errs []error, sent leaseclock.Instant) {
	now := leaseclock.Now()
	var events []Event
	var lost []ending
	ok := 0
	// One spread for all, so that they stay together.
	next := spread(time.Second)

	l.mu.Lock()
	failures := 0
	for i, e := range group {
		if errs[i] != nil && !errors.Is(errs[i], driver.ErrNotOurs) {
			e.failures++
			failures = max(failures, e.failures)
		}
	}
	retry := backoff.Policy{Base: time.Second / 4, Max: time.Second}.Delay(failures - 1)
	for i, e := range group {
		e.renewing = false
		if e.idle != nil {
			close(e.idle)
			e.idle = nil
		}
		err := errs[i]
		if err == nil {
			ok++
		}
		if e.err != nil {
			continue // it ended meanwhile: an answer that comes late revives nothing
		}
		left := e.deadline.At(now)
		switch {
		case err == nil && left > 0:
			e.failures, e.renewErr = 0, nil
			e.deadline = leaseclock.NewDeadline(sent, e.t.ttl, e.t.margin)
			if e.guard != nil {
				e.guard.Reset(time.Until(e.deadline.Time()))
			}
			e.due = sent.Time().Add(scale(e.t.interval, next))
		case errors.Is(err, driver.ErrNotOurs):
			e.renewErr = err
			lost = append(lost, l.lose(e, ReasonNotOurs))
		case left <= 0:
			lost = append(lost, l.lose(e, ReasonUnavailable))
		default:
			e.renewErr = err
			pause := min(scale(e.t.interval, retry), left/3)
			if mutation.On("renewal-stops-on-error") {
				pause = 1000 * time.Hour
			}
			e.due = now.Time().Add(max(pause, e.t.ttl/200))
			if l.cfg.Observer != nil {
				events = append(events, EventUnknown{Key: e.req.Key, Op: OpRenew, Err: err})
			}
		}
	}
	l.plan()
	l.mu.Unlock()

	for _, n := range lost {
		n.tell()
	}
	for _, e := range events {
		l.observe(e)
	}
	l.observe(EventRenewed{Leases: ok, Failed: len(group) - ok, Took: now.Since(sent)})
}

// scale is the share of interval that part is of a second.
func scale(interval, part time.Duration) time.Duration {
	return time.Duration(float64(interval) * part.Seconds())
}
