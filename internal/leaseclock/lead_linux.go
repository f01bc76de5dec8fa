package leaseclock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// known is the lead as last measured well. It spares a system call, since a plain
// reading that agrees with it needs no bracket.
var known atomic.Int64

// measured is when known was last seen to be right, by CLOCK_MONOTONIC.
var measured atomic.Int64

func recentLead(at time.Time) (time.Duration, bool) {
	if inBubble(at) {
		return 0, false
	}
	// In this order: known is at least as new as measured.
	age := monotonic(at) - time.Duration(measured.Load())
	return time.Duration(known.Load()), age >= 0 && age < recent
}

// lead is how far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC: the time this
// machine has been suspended since boot.
func lead(at time.Time) time.Duration {
	before := monotonic(at)
	boot := read(unix.CLOCK_BOOTTIME)
	last := time.Duration(known.Load())
	if off := boot - before - last; off > -noise/4 && off < noise/4 {
		measured.Store(int64(before))
		return last
	}
	// Suspended since, or preempted between the readings, which looks the same.
	var best, width time.Duration
	for try := range 4 {
		before, boot, after := read(unix.CLOCK_MONOTONIC), read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_MONOTONIC)
		if w := after - before; try == 0 || w < width {
			best, width = boot-before-w/2, w
		}
		if width < noise/4 {
			known.Store(int64(best))
			measured.Store(int64(before))
			break
		}
	}
	return best
}

// monotonic is what CLOCK_MONOTONIC showed at at. Go's own reading of it spares the
// system call.
func monotonic(at time.Time) time.Duration {
	if inBubble(at) {
		return read(unix.CLOCK_MONOTONIC)
	}
	return origin.reading + at.Sub(origin.at)
}

// inBubble tells whether at is of a synctest bubble, whose time begins in the year 2000
// and whose clock is another one. Where a machine has lost the date, it does no harm to
// say so too: it costs a system call.
func inBubble(at time.Time) bool {
	// wall clock: only tells the two kinds of time apart
	return at.Unix() < 1_500_000_000
}

// origin ties Go's monotonic clock to the system's.
var origin = tie()

type tied struct {
	at      time.Time
	reading time.Duration
}

func tie() (best tied) {
	var width time.Duration
	for try := range 4 {
		before, at, after := read(unix.CLOCK_MONOTONIC), time.Now(), read(unix.CLOCK_MONOTONIC)
		if w := after - before; try == 0 || w < width {
			best, width = tied{at, before + w/2}, w
		}
	}
	return best
}

func read(clock int32) time.Duration {
	var ts unix.Timespec
	// Both clocks exist since Linux 2.6.39; where a sandbox refuses one of them
	// the reading is 0 each time and the lead stays what it is.
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
