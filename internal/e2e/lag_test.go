package e2e

import (
	"sync/atomic"
	"testing"
	"time"
)

// lag measures how late this machine wakes a sleeper at worst, so that a bound on
// real time can tell a slow machine from a slow scheduler.
type lag struct{ worst atomic.Int64 }

// measureLag measures until the test has ended.
func measureLag(t *testing.T) *lag {
	t.Helper()
	const every = 10 * time.Millisecond
	l, stop, stopped := &lag{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			due := time.Now().Add(every)
			timer := time.NewTimer(every)
			select {
			case <-timer.C:
				l.worst.Store(max(l.worst.Load(), int64(time.Since(due))))
			case <-stop:
				timer.Stop()
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return l
}

// allow is a bound for a chain of about ten steps, each of which may be as late as
// the worst that was measured.
func (l *lag) allow(bound time.Duration) time.Duration {
	return bound + 10*time.Duration(l.worst.Load())
}
