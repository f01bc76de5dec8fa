package leaseclock

import (
	"time"

	"golang.org/x/sys/unix"
)

// lead is how far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC: the time this
// machine has been suspended since boot.
func lead(time.Time) time.Duration {
	// A preemption between the readings looks like suspension; bracket the one
	// that matters and read again when the bracket is wide.
	var best, width time.Duration
	for try := range 4 {
		before, boot, after := read(unix.CLOCK_MONOTONIC), read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_MONOTONIC)
		if w := after - before; try == 0 || w < width {
			best, width = boot-before-w/2, w
		}
		if width < noise/4 {
			break
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
