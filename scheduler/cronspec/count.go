package cronspec

import "time"

// Count returns the number of instants in (from, to], 0 if to is not after from.
// It does not step through them: a schedule of every second over a year costs
// microseconds. Instants outside the years 1 to 9999 do not count.
func (s *Spec) Count(from, to time.Time) int64 {
	lo, hi := max(from.Unix(), minInstant-1)+1, min(to.Unix(), maxInstant)
	if lo > hi {
		return 0
	}
	if s.every > 0 {
		return s.everyIndex(hi) - s.everyIndex(lo-1)
	}
	var n int64
	for lo <= hi {
		st := s.stretchAt(lo)
		end := min(hi+1, st.end)
		n += st.count(lo, end)
		lo = end
	}
	return n
}
