package cronspec

import "time"

// Instants are Unix seconds of the years 1 to 9999, the ones RFC 3339 can write.
var (
	minInstant = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	maxInstant = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
)

// span is a longest stretch of instants [start, end) under one UTC offset. Spans
// of real zones last at least three days and offsets change by at most one,
// so what a change of offset repeats or leaves out concerns its two neighbours only.
type span struct {
	start, end    int64 // minInstant and maxInstant+1 where there is no change
	offset        int64 // wall = instant + offset
	before, after int64 // offsets just before start and from end; equal to offset at an open end
}

// spanAt returns the span around an instant.
func (z *zone) spanAt(instant int64) span {
	if s := z.last.Load(); s != nil && s.start <= instant && instant < s.end {
		return *s
	}
	s := findSpan(z.loc, instant)
	z.last.Store(&s)
	return s
}

func findSpan(loc *time.Location, instant int64) span {
	s := span{start: instant, end: instant, offset: offsetAt(loc, instant)}
	for {
		if s.end = constantUntil(loc, s.end); s.end > maxInstant {
			s.end, s.after = maxInstant+1, s.offset
			break
		}
		if s.after = offsetAt(loc, s.end); s.after != s.offset {
			break
		}
	}
	for {
		if s.start = constantSince(loc, s.start, s.offset); s.start <= minInstant {
			s.start, s.before = minInstant, s.offset
			break
		}
		if s.before = offsetAt(loc, s.start-1); s.before != s.offset {
			break
		}
		s.start--
	}
	return s
}

func offsetAt(loc *time.Location, instant int64) int64 {
	_, offset := time.Unix(instant, 0).In(loc).Zone()
	return int64(offset)
}

// constantUntil returns an instant up to which the offset of the given one holds.
// It may hold longer: package time ends a zone's span also where only its name
// changes and, for years beyond its table, at the end of the year. That end comes
// a day early in leap years, on whose last day it lies in the past.
func constantUntil(loc *time.Location, instant int64) int64 {
	_, end := time.Unix(instant, 0).In(loc).ZoneBounds()
	if end.IsZero() {
		return maxInstant + 1
	}
	if end.Unix() <= instant {
		today, _ := split(instant)
		return (today + 1) * day
	}
	return end.Unix()
}

// constantSince returns an instant from which the offset holds until the given
// one, where it is known to be offset. The start that package time reports can
// lie before the true one, where its table ends in mid-year (America/Metlakatla
// 2019), so we walk from there by ends, which are right.
func constantSince(loc *time.Location, instant, offset int64) int64 {
	bound, _ := time.Unix(instant, 0).In(loc).ZoneBounds()
	if bound.IsZero() {
		return minInstant
	}
	since := bound.Unix()
	for at := since; at < instant; {
		until := constantUntil(loc, at)
		if offsetAt(loc, at) != offset {
			since = until
		}
		at = until
	}
	return since
}
