package cronspec

// stretch is a span as one spec sees it. Its instants are the ordinary ones,
// which are the matching walls less those that the other pass of a fold has, and
// the moved ones, which make up for walls that the gap at its start left out.
type stretch struct {
	span
	spec           *Spec
	dropLo, dropHi int64 // walls [dropLo, dropHi) belong to the other pass
	lostLo, lostHi int64 // walls [lostLo, lostHi) do not exist and may be owed
}

func (s *Spec) stretchAt(instant int64) stretch {
	st := stretch{span: s.zone.spanAt(instant), spec: s}
	if s.fixedTime {
		switch {
		case s.fold == FoldFirst && st.before > st.offset:
			st.dropLo, st.dropHi = st.start+st.offset, st.start+st.before
		case s.fold == FoldLast && st.after < st.offset:
			st.dropLo, st.dropHi = st.end+st.after, st.end+st.offset
		}
	}
	if s.fixedHour && s.gap != GapSkip && st.before < st.offset {
		st.lostLo, st.lostHi = st.start+st.before, st.start+st.offset
	}
	return st
}

func (st *stretch) dropped(wall int64) bool { return st.dropLo <= wall && wall < st.dropHi }

// next returns the first instant of the stretch that is not before the given one.
func (st *stretch) next(instant int64) (int64, bool) {
	ordinary, ok := st.nextOrdinary(instant)
	moved, ok2 := st.nextMoved(instant)
	if ok2 && (!ok || moved < ordinary) {
		return moved, true
	}
	return ordinary, ok
}

// prev returns the last instant of the stretch that is not after the given one.
func (st *stretch) prev(instant int64) (int64, bool) {
	ordinary, ok := st.prevOrdinary(instant)
	moved, ok2 := st.prevMoved(instant)
	if ok2 && (!ok || moved > ordinary) {
		return moved, true
	}
	return ordinary, ok
}

// count returns the number of instants in [from, to), which lies in the stretch.
func (st *stretch) count(from, to int64) int64 {
	cal := &st.spec.cal
	lo, hi := from+st.offset, to+st.offset
	n := cal.count(lo, hi) - cal.count(max(lo, st.dropLo), min(hi, st.dropHi))
	// Moved instants are few, one for a gap or, shifted, as many as it has walls.
	for m, ok := st.nextMoved(from); ok && m < to; m, ok = st.nextMoved(m + 1) {
		if !cal.matches(m + st.offset) {
			n++
		}
	}
	return n
}

func (st *stretch) nextOrdinary(instant int64) (int64, bool) {
	wall, ok := st.spec.cal.next(instant + st.offset)
	if ok && st.dropped(wall) {
		wall, ok = st.spec.cal.next(st.dropHi)
	}
	at := wall - st.offset
	return at, ok && at < st.end
}

func (st *stretch) prevOrdinary(instant int64) (int64, bool) {
	wall, ok := st.spec.cal.prev(instant + st.offset)
	if ok && st.dropped(wall) {
		wall, ok = st.spec.cal.prev(st.dropLo - 1)
	}
	at := wall - st.offset
	return at, ok && at >= st.start
}

func (st *stretch) nextMoved(instant int64) (int64, bool) {
	if st.spec.gap == GapNextValid {
		if instant > st.start {
			return 0, false
		}
		_, ok := st.nextOwed(st.lostLo)
		return st.start, ok
	}
	wall, ok := st.nextOwed(max(instant+st.before, st.lostLo))
	return wall - st.before, ok
}

func (st *stretch) prevMoved(instant int64) (int64, bool) {
	if st.spec.gap == GapNextValid {
		_, ok := st.nextOwed(st.lostLo)
		return st.start, ok
	}
	wall, ok := st.prevOwed(min(instant+st.before, st.lostHi-1))
	return wall - st.before, ok
}

// nextOwed returns the first wall in the gap, not before the given one, that a
// moved instant stands for.
func (st *stretch) nextOwed(wall int64) (int64, bool) {
	for wall < st.lostHi {
		w, ok := st.spec.cal.next(wall)
		if !ok || w >= st.lostHi {
			break
		}
		d, _ := split(w)
		switch {
		case !st.owesDay(d):
			wall = (d + 1) * day
		case !st.landsWell(w, d):
			wall = w + 1
		default:
			return w, true
		}
	}
	return 0, false
}

// prevOwed is nextOwed backwards.
func (st *stretch) prevOwed(wall int64) (int64, bool) {
	for wall >= st.lostLo && st.lostLo < st.lostHi {
		w, ok := st.spec.cal.prev(wall)
		if !ok || w < st.lostLo {
			break
		}
		d, _ := split(w)
		switch {
		case !st.owesDay(d):
			wall = d*day - 1
		case !st.landsWell(w, d):
			wall = w - 1
		default:
			return w, true
		}
	}
	return 0, false
}

// owesDay reports whether a matching day's walls in the gap are made up for: the
// day must exist in part, and an interval must have no wall of that day left.
func (st *stretch) owesDay(d int64) bool {
	start := d * day
	if start >= st.lostLo && start+day <= st.lostHi {
		return false
	}
	cal := &st.spec.cal
	return st.spec.fixedTime || start+cal.firstTime() >= st.lostLo && start+cal.lastTime() < st.lostHi
}

// landsWell reports whether the run for a wall in the gap comes to lie on a day
// that matches.
func (st *stretch) landsWell(wall, d int64) bool {
	landing := st.lostHi
	if st.spec.gap == GapShift {
		landing = wall + st.offset - st.before
	}
	landingDay, _ := split(landing)
	return landingDay == d || st.spec.cal.matchesDay(landingDay)
}
