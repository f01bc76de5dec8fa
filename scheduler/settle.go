package scheduler

import (
	"slices"
	"sort"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// stretch is a part of a job's time line with one schedule.
type stretch struct {
	spec     *cronspec.Spec
	from, to store.Millis // (from, to]
}

// stretches cuts (from, to] by the schedules that were in force in it. A stored
// schedule that this build cannot read owes nothing that it could know of.
func (j *job) stretches(state store.JobState, from, to store.Millis) []stretch {
	var out []stretch
	for i, r := range state.Revisions {
		begin, end := max(r.From, from), to
		if i == 0 {
			begin = from
		}
		if i+1 < len(state.Revisions) {
			end = min(state.Revisions[i+1].From, to)
		}
		if begin >= end || r.Spec == "" {
			continue
		}
		spec := j.spec
		if r.Hash != j.hash {
			old, err := cronspec.Unmarshal(r.Spec)
			if err != nil {
				continue
			}
			spec = old
		}
		out = append(out, stretch{spec, begin, end})
	}
	return out
}

// owes reports whether a tick is expected between the job's watermark and to.
func (j *job) owes(state store.JobState, to store.Millis) bool {
	for _, st := range j.stretches(state, state.Settled, to) {
		if next, ok := st.spec.Next(st.from.Time()); ok && store.MillisOf(next) <= st.to {
			return true
		}
	}
	return false
}

// line is one expected tick, or a stretch of them, without a record.
type line struct {
	from, to store.Millis
	count    int64
	state    store.State // 0: a misfire, to be decided
	reason   store.Reason
	apart    bool // something with a record of its own lies before it
}

// settle decides what becomes of the job's expected ticks that have no record.
// It is pure. The tick is, in this order:
//
//	older than the catch-up window   missed(window)
//	paused then                      skipped(paused)
//	during a run of the job          skipped(overlap), or waits (buffer_all)
//	failing fast                     skipped(degraded), revived at recovery
//	else a misfire                   what the misfire policy says
func (j *job) settle(v store.TickView, failsFast bool) store.Settlement {
	recorded := make(map[store.Millis]bool, len(v.Recorded))
	marks := make([]store.Millis, 0, len(v.Recorded))
	for _, r := range v.Recorded {
		recorded[r.Tick] = true
		marks = append(marks, r.Tick)
	}
	horizon := j.horizon(v)
	b := settlementBuilder{j: j}
	var misfires []store.Millis
	for _, st := range j.stretches(v.State, v.Seen, v.To) {
		b.old(st.spec, st.from, min(st.to, horizon), marks)
		at := max(st.from, horizon).Time()
		for {
			next, ok := st.spec.Next(at)
			tick := store.MillisOf(next)
			if !ok || tick > st.to {
				break
			}
			at = next
			switch {
			case recorded[tick]:
				b.close()
			case v.State.PausedAt(tick):
				b.ranged(tick, store.StateSkipped, store.ReasonPaused)
			case during(v.Runs, tick):
				if j.o.overlap == OverlapBufferAll {
					b.row(tick, store.StatePending, store.ReasonNone, 0)
				} else {
					b.ranged(tick, store.StateSkipped, store.ReasonOverlap)
				}
			case failsFast:
				b.row(tick, store.StateSkipped, store.ReasonDegraded, 0)
			default:
				misfires = append(misfires, tick)
				b.misfire(tick)
			}
		}
	}
	b.decide(misfires, v.LastRun)
	return b.build(v)
}

// settleTicks bounds the ticks that are looked at one by one: however long the
// window, what lies further back is over its cap.
const settleTicks = 10_000

// horizon is where the catch-up window begins.
func (j *job) horizon(v store.TickView) store.Millis {
	from := max(v.Now.Add(-j.o.window), v.Seen)
	count := func(from store.Millis) (n int64) {
		for _, st := range j.stretches(v.State, from, v.To) {
			n += st.spec.Count(st.from.Time(), st.to.Time())
		}
		return n
	}
	if count(from) <= settleTicks {
		return from
	}
	back := sort.Search(int(v.To-from), func(back int) bool { return count(v.To-store.Millis(back)) > settleTicks })
	return v.To - store.Millis(back) + 1
}

// during reports whether a run of the job was in progress at the tick.
func during(runs []store.Span, tick store.Millis) bool {
	for _, r := range runs {
		if r.From < tick && (r.To == 0 || r.To > tick) {
			return true
		}
	}
	return false
}

// settlementBuilder collects a settlement in the order of the ticks, so that
// consecutive ticks of one fate become one range.
type settlementBuilder struct {
	j     *job
	lines []line
	rows  []store.SettleTick
	apart bool // the next line does not continue the last
	run   map[store.Millis]int
	lost  map[store.Millis]store.Reason
}

// close ends the present line: something with a record of its own follows.
func (b *settlementBuilder) close() { b.apart = true }

func (b *settlementBuilder) add(l line) {
	l.apart = l.apart || b.apart
	b.apart = false
	if n := len(b.lines); n > 0 && !l.apart {
		last := &b.lines[n-1]
		if last.state != 0 && last.state == l.state && last.reason == l.reason {
			last.to, last.count = l.to, last.count+l.count
			return
		}
	}
	b.lines = append(b.lines, l)
}

func (b *settlementBuilder) ranged(tick store.Millis, s store.State, r store.Reason) {
	b.add(line{from: tick, to: tick, count: 1, state: s, reason: r})
}

// misfire keeps the tick's place until decide knows what becomes of it.
func (b *settlementBuilder) misfire(tick store.Millis) {
	b.add(line{from: tick, to: tick, count: 1})
}

// row records the tick by a row of its own. One that is to run is due at its
// tick, so that ticks made up for run in their order.
func (b *settlementBuilder) row(tick store.Millis, s store.State, r store.Reason, missed int) {
	b.close()
	row := b.j.row(b.j.tickKey(tick))
	row.RunAt, row.MissedCount = tick, missed
	b.rows = append(b.rows, store.SettleTick{NewExecution: row, State: s, Reason: r})
}

// old accounts for ticks beyond the window without looking at each: a job that
// was away for a year costs as much as one that was away for an hour.
func (b *settlementBuilder) old(spec *cronspec.Spec, from, to store.Millis, marks []store.Millis) {
	for _, m := range append(slices.Clip(marks), to+1) {
		if m <= from {
			continue
		}
		end := min(m-1, to)
		if first, ok := spec.Next(from.Time()); ok && store.MillisOf(first) <= end {
			last, _ := spec.Last(end.Time(), from.Time())
			b.add(line{
				from: store.MillisOf(first), to: store.MillisOf(last), count: spec.Count(from.Time(), end.Time()),
				state: store.StateMissed, reason: store.ReasonWindow,
			})
		}
		if m > to {
			return
		}
		b.close()
		from = m
	}
}

// decide applies the misfire policy: run holds the ticks that run, with the
// number of others that they stand for; the rest is lost for a reason.
func (b *settlementBuilder) decide(misfires []store.Millis, lastRun store.Millis) {
	b.run, b.lost = map[store.Millis]int{}, map[store.Millis]store.Reason{}
	n := len(misfires)
	if n == 0 {
		return
	}
	switch b.j.o.misfire {
	case MisfireFireAll:
		cut := max(n-b.j.o.maxCatchup, 0)
		for _, t := range misfires[:cut] {
			b.lost[t] = store.ReasonWindow
		}
		for _, t := range misfires[cut:] {
			b.run[t] = 0
		}
	case MisfireSkip:
		for _, t := range misfires {
			b.lost[t] = store.ReasonMisfire
		}
	default: // fire_once
		for _, t := range misfires {
			b.lost[t] = store.ReasonSuperseded
		}
		if latest := misfires[n-1]; lastRun < latest {
			delete(b.lost, latest)
			b.run[latest] = n - 1
		}
	}
}

// build turns the lines into what is to be written.
func (b *settlementBuilder) build(v store.TickView) store.Settlement {
	lines := b.lines
	b.lines, b.apart = nil, false
	for _, l := range lines {
		if l.state == 0 {
			if missed, ok := b.run[l.from]; ok {
				b.row(l.from, store.StatePending, store.ReasonNone, missed)
				continue
			}
			l.state, l.reason = store.StateMissed, b.lost[l.from]
		}
		b.add(l)
	}
	out := store.Settlement{Ticks: b.rows}
	for _, l := range b.lines {
		out.Ranges = append(out.Ranges, store.TickRange{
			Job: b.j.name, From: l.from, To: l.to, Count: l.count, State: l.state, Reason: l.reason, Recorded: v.Now,
		})
	}
	return out
}
