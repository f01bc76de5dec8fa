package memlock

import (
	"context"
	"slices"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// waiter stands in line for a key.
type waiter struct {
	driver.Request
	granted chan driver.Grant // capacity 1
	first   chan struct{}     // capacity 1: it is first in line now
}

// grantNext gives a free key to the first in line, if there is one. The caller
// holds mu.
func (s *Space) grantNext(key string) bool {
	line := s.lines[key]
	if len(line) == 0 {
		return false
	}
	w := line[0]
	s.leave(w)
	rec := s.grant(w.Request)
	w.granted <- driver.Grant{Fence: rec.fence, From: rec.since}
	return true
}

// leave takes w out of its line. The caller holds mu.
func (s *Space) leave(w *waiter) {
	line := slices.DeleteFunc(s.lines[w.Key], func(o *waiter) bool { return o == w })
	if len(line) == 0 {
		delete(s.lines, w.Key)
		return
	}
	s.lines[w.Key] = line
	select {
	case line[0].first <- struct{}{}:
	default:
	}
}

// AcquireQueued implements [driver.Queuer].
func (d *memDriver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(err)
	}
	s := d.s
	s.mu.Lock()
	rec, ours := s.acquire(r)
	if ours {
		s.mu.Unlock()
		return driver.Grant{Fence: rec.fence}, nil
	}
	if s.lines == nil {
		s.lines = make(map[string][]*waiter)
	}
	w := &waiter{r, make(chan driver.Grant, 1), make(chan struct{}, 1)}
	s.lines[r.Key] = append(s.lines[r.Key], w)
	s.mu.Unlock()
	r.Tell(nil)

	for {
		// Nobody but the first notices that the time of a silent holder has passed.
		t := time.NewTimer(time.Until(rec.expires))
		select {
		case g := <-w.granted:
			t.Stop()
			return g, nil
		case <-t.C:
		case <-w.first:
		case <-ctx.Done():
			t.Stop()
			s.mu.Lock()
			defer s.mu.Unlock()
			select {
			case g := <-w.granted:
				return g, nil // it came first
			default:
			}
			s.leave(w)
			return driver.Grant{}, driver.NotApplied(ctx.Err())
		}
		t.Stop()
		s.mu.Lock()
		rec, _ = s.live(r.Key)
		s.mu.Unlock()
	}
}

// WatchLoss implements [driver.LossWatcher].
func (d *memDriver) WatchLoss(h driver.Hold) (<-chan struct{}, func()) {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, held := s.live(h.Key)
	if !held || rec.token != h.Token || rec.fence != h.Fence {
		over := make(chan struct{})
		close(over)
		return over, func() {}
	}
	if rec.lost == nil {
		rec.lost = make(chan struct{})
		s.records[h.Key] = rec
	}
	return rec.lost, func() {}
}
