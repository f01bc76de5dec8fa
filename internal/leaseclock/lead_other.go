//go:build !linux

package leaseclock

import "time"

// lead is how far the wall clock is ahead of the monotonic clock, up to a
// constant: the only clock that counts suspension on every system.
func lead(at time.Time) time.Duration {
	return at.Round(0).Sub(origin.Round(0)) - at.Sub(origin)
}

var origin = time.Now()

func recentLead(time.Time) (time.Duration, bool) { return 0, false }
