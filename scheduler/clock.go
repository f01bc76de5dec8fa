package scheduler

import (
	"sync"
	"time"

	"github.com/solotick/solotick/store"
)

// clock is this process's wall clock, corrected towards the store's, which is
// the one that all replicas share. The correction changes when a tick fires
// here, never which ticks there are.
type clock struct {
	offset time.Duration // Config.ClockOffset
	fixed  bool          // no correction

	mu         sync.Mutex
	correction time.Duration
}

func (c *clock) raw() time.Time { return time.Now().Add(c.offset) }

// now is the corrected time.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw().Add(c.correction)
}

// observe learns from an answer that carried the store's time: it was read
// somewhere between sent and now, so only an offset outside of that span is
// evidence (the interval method of Marzullo's algorithm, with one source).
func (c *clock) observe(sent time.Time, at store.Millis) {
	if at == 0 || c.fixed {
		return
	}
	received := time.Now()
	if received.Sub(sent) > time.Second {
		return // too slow an answer to learn from
	}
	sent, received = sent.Add(c.offset), received.Add(c.offset)
	low := at.Time().Sub(received)
	high := at.Add(time.Millisecond).Time().Sub(sent) // the store's time is cut to the millisecond
	c.mu.Lock()
	defer c.mu.Unlock()
	c.correction = min(max(c.correction, low), high)
}

// skew is how far this process's clock is ahead of the store's.
func (c *clock) skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return -c.correction
}
