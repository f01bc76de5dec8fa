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
func (l *Locker) schedule(g *grant) {
	g.index = int32(len(l.grants))
	l.grants = append(l.grants, g)
	l.guardAt(g.deadline.Time())
	l.fireAt(l.born.Add(g.due))
}

// unschedule takes a lease out. The alarms stay set, and ring in vain once: to set
// them anew for each of many short leases would wake the runtime's poller each time.
// The caller holds mu.
func (l *Locker) unschedule(g *grant) {
	last := len(l.grants) - 1
	moved := l.grants[last]
	l.grants[g.index], l.grants[last] = moved, nil
	moved.index = g.index
	l.grants = l.grants[:last]
	g.index = -1
}

// fireAt makes the timer fire at t at the latest. The caller holds mu.
func (l *Locker) fireAt(t time.Time) {
	l.renewal.fireAt(t, l.round)
}

// plan sets the timer for the first lease that is due. The caller holds mu.
func (l *Locker) plan() {
	l.renewal.fired()
	var first *grant
	for _, g := range l.grants {
		if !g.renewing && (first == nil || g.due < first.due) {
			first = g
		}
	}
	if first != nil {
		l.fireAt(l.born.Add(first.due))
	}
}

// round renews what is due.
func (l *Locker) round() {
	now := leaseclock.Now()
	groups := make(map[int][]*grant)
	var lost []ending
	l.mu.Lock()
	for i := len(l.grants) - 1; i >= 0; i-- { //nolint:modernize // lose shortens the slice and moves the last one
		g := l.grants[i]
		if g.renewing || g.due-l.age(now) > g.t.interval/2 {
			continue
		}
		left := g.deadline.At(now)
		if left <= 0 {
			lost = append(lost, l.lose(g, ReasonUnavailable))
			continue
		}
		g.renewing = true
		// One that is close to its end has a short timeout, and must not cut
		// short the request of the others.
		class := bits.Len64(uint64(g.timeout(left)))
		groups[class] = append(groups[class], g)
	}
	l.plan()
	l.busy += len(groups)
	l.mu.Unlock()

	tellAll(lost)
	for _, group := range groups {
		go func() {
			defer l.done()
			l.renew(group)
		}()
	}
}

// timeout is that of one renewal when left is the rest of the lease: the lease
// then still has room for another try.
func (g *grant) timeout(left time.Duration) time.Duration { return min(g.t.request, left/2) }

func (l *Locker) renew(group []*grant) {
	if l.batch == nil && len(group) > 1 {
		l.renewEach(group)
		return
	}
	sent := leaseclock.Now()
	timeout, holds := l.holds(group, sent)
	call, cancel := context.WithTimeout(l.working, timeout)
	defer cancel()
	var errs []error
	from, ttl := sent, time.Duration(0)
	if l.batch != nil {
		errs = l.batch.RenewBatch(call, holds)
	} else {
		d, err := l.d.Renew(call, holds[0])
		from, ttl, errs = begun(d, sent), d.TTL, []error{err}
	}
	if len(errs) != len(holds) {
		err := fmt.Errorf("locks: the driver answered %d of %d renewals", len(errs), len(holds))
		errs = slices.Repeat([]error{err}, len(holds))
	}
	l.renewed(group, errs, sent, from, ttl)
}

// renewEach renews a group on a backend that takes one at a time, those that end
// first first.
func (l *Locker) renewEach(group []*grant) {
	now := leaseclock.Now()
	l.mu.Lock()
	slices.SortFunc(group, func(a, b *grant) int { return cmp.Compare(a.deadline.At(now), b.deadline.At(now)) })
	l.mu.Unlock()
	next := make(chan *grant)
	var wg sync.WaitGroup
	for range min(maxParallel, len(group)) {
		wg.Go(func() {
			for g := range next {
				l.renew([]*grant{g})
			}
		})
	}
	for _, g := range group {
		next <- g
	}
	close(next)
	wg.Wait()
}

// holds is what to send for a group, and for how long to wait.
func (l *Locker) holds(group []*grant, now leaseclock.Instant) (timeout time.Duration, holds []driver.Hold) {
	holds = make([]driver.Hold, len(group))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, g := range group {
		holds[i] = g.hold()
		if t := g.timeout(g.deadline.At(now)); i == 0 || t < timeout {
			timeout = t
		}
	}
	return timeout, holds
}

// renewed takes the answers to the renewals that were sent at sent, whose TTLs run
// from from on. A ttl that is not 0 is what the backend gave; it never makes a lease
// longer than it was granted.
func (l *Locker) renewed(group []*grant, errs []error, sent, from leaseclock.Instant, ttl time.Duration) {
	now := leaseclock.Now()
	var events []Event
	var lost []ending
	ok := 0
	// One spread for all, so that they stay together.
	next := spread(time.Second)

	l.mu.Lock()
	failures := 0
	for i, g := range group {
		if errs[i] != nil && !errors.Is(errs[i], driver.ErrNotOurs) {
			g.failures++
			failures = max(failures, int(g.failures))
		}
	}
	retry := backoff.Policy{Base: time.Second / 4, Max: time.Second}.Delay(failures - 1)
	for i, g := range group {
		g.renewing = false
		g.tellIdle()
		err := errs[i]
		if err == nil {
			ok++
		}
		if g.err != nil {
			continue // it ended meanwhile: an answer that comes late revives nothing
		}
		left := g.deadline.At(now)
		switch {
		case err == nil && left > 0:
			g.failures = 0
			g.answered(nil)
			g.proved = l.age(sent)
			t := g.t.timing
			if ttl > 0 && ttl < t.ttl {
				t = l.cfg.timing(ttl)
			}
			g.deadline = leaseclock.NewDeadline(from, t.ttl, t.margin)
			g.due = l.age(sent) + scale(t.interval, next)
		case errors.Is(err, driver.ErrNotOurs):
			g.answered(err)
			lost = append(lost, l.lose(g, ReasonNotOurs))
		case left <= 0:
			lost = append(lost, l.lose(g, ReasonUnavailable))
		default:
			g.answered(err)
			pause := min(scale(g.t.interval, retry), left/3)
			if mutation.On("renewal-stops-on-error") {
				pause = 1000 * time.Hour
			}
			g.due = l.age(now) + max(pause, g.t.ttl/200)
			if l.cfg.Observer != nil {
				events = append(events, EventUnknown{Key: g.s.key, Op: OpRenew, Err: err})
			}
		}
	}
	l.plan()
	l.mu.Unlock()

	tellAll(lost)
	for _, e := range events {
		l.observe(e)
	}
	l.observe(EventRenewed{Leases: ok, Failed: len(group) - ok, Took: now.Since(sent)})
}

// scale is the share of interval that part is of a second.
func scale(interval, part time.Duration) time.Duration {
	return time.Duration(float64(interval) * part.Seconds())
}
