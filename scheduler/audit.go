package scheduler

import (
	"context"
	"time"

	"github.com/solotick/solotick/store"
)

// auditMost bounds the ticks that one audit looks at.
const auditMost = 500

// audit counts a settled stretch of one job again, from the rows themselves: every
// expected tick must have one, or lie in a range.
func (s *Scheduler) audit(state store.JobState) {
	began := time.Now()
	j := s.jobs.get(state.Job)
	if j == nil || len(state.Revisions) == 0 {
		return
	}
	gap, err := s.gap(j, state)
	if err == nil && gap != 0 {
		// Records may have been pruned since the job was looked at: then count again,
		// from the watermark of now.
		if state, err = s.look(j.name); err == nil {
			gap, err = s.gap(j, state)
		}
	}
	s.asked("audit", began, err)
	if err != nil {
		return
	}
	if gap != 0 {
		s.log.Error("ledger gap: settled ticks without a record", "job", j.name, "ticks", gap)
	}
	s.emit(LedgerGap{Job: j.name, Gap: gap})
}

func (s *Scheduler) look(job string) (store.JobState, error) {
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	v, err := s.deps.Store.Survey(ctx, s.cfg.Namespace, []string{job})
	if err != nil || len(v.Jobs) != 1 {
		return store.JobState{}, err
	}
	return v.Jobs[0], nil
}

// gap is the number of settled ticks without a record in the job's latest stretch.
func (s *Scheduler) gap(j *job, state store.JobState) (gap int64, err error) {
	ctx, cancel := context.WithTimeout(s.intake, s.storeTimeout())
	defer cancel()
	ns := s.cfg.Namespace
	if len(state.Revisions) == 0 {
		return 0, nil
	}
	from := max(state.Revisions[0].From, state.Pruned, state.Settled.Add(-2*j.o.window))
	var expected []store.Millis
	for _, st := range j.stretches(state, from, state.Settled) {
		for at := st.from.Time(); len(expected) < auditMost; {
			next, ok := st.spec.Next(at)
			if !ok || store.MillisOf(next) > st.to {
				break
			}
			expected, at = append(expected, store.MillisOf(next)), next
		}
	}
	if len(expected) == 0 {
		return 0, nil
	}
	to := expected[len(expected)-1]
	ranges, err := s.deps.Store.Ranges(ctx, ns, j.name, from, to)
	if err != nil {
		return 0, err
	}
	rows, err := s.deps.Store.List(ctx, store.Filter{
		Namespace: ns, Jobs: []string{j.name}, Classes: []store.Class{store.ClassCron},
		From: expected[0], To: to, Limit: 2 * auditMost,
	})
	if err != nil {
		return 0, err
	}
	recorded := make(map[store.Millis]bool, len(rows))
	for _, r := range rows {
		recorded[r.Key.Tick] = true
	}
	for _, tick := range expected {
		if !recorded[tick] && !inRanges(ranges, tick) {
			gap++
		}
	}
	return gap, nil
}

func inRanges(ranges []store.TickRange, tick store.Millis) bool {
	for _, r := range ranges {
		if r.From <= tick && tick <= r.To {
			return true
		}
	}
	return false
}
