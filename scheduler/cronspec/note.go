package cronspec

import (
	"fmt"
	"time"
)

// Note says in a few words what a clock change has to do with an instant of the
// spec: that it was moved out of a gap, or which of two equal local times it is.
// It is empty for any other instant.
func (s *Spec) Note(t time.Time) string {
	instant := t.Unix()
	if instant < minInstant || instant > maxInstant {
		return ""
	}
	st := s.stretchAt(instant)
	if note := st.gapNote(instant); note != "" {
		return note
	}
	wall := instant + st.offset
	switch {
	case wall < st.start+st.before:
		return "second of two " + clockText(wall) + " (clocks go back)"
	case wall >= st.end+st.after:
		return "first of two " + clockText(wall) + " (clocks go back)"
	}
	return ""
}

func (st *stretch) gapNote(instant int64) string {
	if at, ok := st.nextMoved(instant); !ok || at != instant {
		return ""
	}
	first, last := instant+st.before, instant+st.before
	if st.spec.gap == GapNextValid {
		first, _ = st.nextOwed(st.lostLo)
		last, _ = st.prevOwed(st.lostHi - 1)
	}
	what, verb := clockText(first), "does"
	if last != first {
		what, verb = what+" to "+clockText(last), "do"
	}
	where := "on this day"
	firstDay, _ := split(first)
	if today, _ := split(instant + st.offset); firstDay != today {
		where = "on " + time.Unix(first, 0).UTC().Format(time.DateOnly)
	}
	if st.spec.cal.matches(instant + st.offset) {
		return fmt.Sprintf("also for %s, which %s not exist %s (clocks go forward)", what, verb, where)
	}
	return fmt.Sprintf("moved: %s %s not exist %s (clocks go forward)", what, verb, where)
}

// clockText shows a wall's time of day, with seconds if it has any.
func clockText(wall int64) string {
	layout := "15:04"
	if wall%60 != 0 {
		layout = time.TimeOnly
	}
	return time.Unix(wall, 0).UTC().Format(layout)
}
