package cronspec

import "time"

// Next returns the first instant strictly after the given one, in UTC and whole
// seconds. It reports false only past the year 9999, or so close before its end
// that no instant is left.
func (s *Spec) Next(after time.Time) (time.Time, bool) {
	instant, ok := s.next(max(after.Unix(), minInstant-1) + 1)
	return answer(instant, ok)
}

// Last returns the latest instant in (from, atOrBefore], the one that a single
// run for everything missed in that time would carry, and false if there is none.
func (s *Spec) Last(atOrBefore, from time.Time) (time.Time, bool) {
	instant, ok := s.prev(min(atOrBefore.Unix(), maxInstant), max(from.Unix(), minInstant-1)+1)
	return answer(instant, ok)
}

// Period returns the distance from the last instant at or before t to the first
// after it. It is 0 outside the years 1 to 9999, and for @every always D.
func (s *Spec) Period(t time.Time) time.Duration {
	if s.every > 0 {
		return time.Duration(s.every) * time.Second
	}
	next, ok := s.Next(t)
	if !ok {
		return 0
	}
	last, ok := s.Last(t, time.Time{})
	if !ok {
		return 0
	}
	return next.Sub(last)
}

func answer(instant int64, ok bool) (time.Time, bool) {
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(instant, 0).UTC(), true
}

// next returns the first instant that is not before the given one.
func (s *Spec) next(instant int64) (int64, bool) {
	if s.every > 0 {
		at := s.everyBefore(instant-1) + s.every
		return at, at <= maxInstant
	}
	for instant <= maxInstant {
		st := s.stretchAt(instant)
		if at, ok := st.next(instant); ok {
			return at, true
		}
		instant = st.end
	}
	return 0, false
}

// prev returns the last instant that is neither after the given one nor before floor.
func (s *Spec) prev(instant, floor int64) (int64, bool) {
	if s.every > 0 {
		at := s.everyBefore(instant)
		return at, at >= floor
	}
	for instant >= floor {
		st := s.stretchAt(instant)
		if at, ok := st.prev(instant); ok {
			return at, at >= floor
		}
		instant = st.start - 1
	}
	return 0, false
}

// everyBefore returns the last instant of an @every that is not after the given one.
func (s *Spec) everyBefore(instant int64) int64 {
	return s.everyIndex(instant)*s.every + s.offset
}

// everyIndex numbers the instants of an @every; 0 is the one at the epoch.
func (s *Spec) everyIndex(instant int64) int64 {
	n := (instant - s.offset) / s.every
	if (instant-s.offset)%s.every < 0 {
		n--
	}
	return n
}
