package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/solotick/solotick/store"
)

// Settle implements [store.Store]. Decide runs under the store's lock: it must
// not call the store.
func (s *Store) Settle(ctx context.Context, r store.SettleRequest, decide func(store.TickView) store.Settlement) (store.SettleResult, error) {
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.SettleResult{}, err
	}
	defer s.mu.Unlock()
	out := store.SettleResult{Now: now}
	type decided struct {
		job  *job
		what store.Settlement
	}
	var all []decided
	asked := map[string]bool{}
	for _, q := range r.Jobs {
		j := sp.registered(q.Job)
		if j == nil || j.state.Settled != q.Seen || asked[q.Job] {
			out.Passed++
			continue
		}
		asked[q.Job] = true
		if q.To <= q.Seen {
			continue
		}
		what := decide(j.tickView(q, now))
		if what.To == 0 {
			what.To = q.To
		}
		if err := q.Check(what); err != nil {
			return store.SettleResult{}, fmt.Errorf("memstore: settle: %w", err)
		}
		all = append(all, decided{j, what})
	}
	for _, d := range all {
		out.Pending += sp.settle(d.job, d.what, now)
		out.Settled++
	}
	return out, nil
}

func (j *job) tickView(q store.SettleJob, now store.Millis) store.TickView {
	v := store.TickView{SettleJob: q, Now: now, State: j.view()}
	for _, r := range j.between(q.Seen, q.To) {
		v.Recorded = append(v.Recorded, store.TickRecord{Tick: r.Key.Tick, State: r.State})
	}
	for i := len(j.ticks) - 1; i >= 0 && v.LastRun == 0; i-- {
		if st := j.ticks[i].State; st.Open() || st.Ran() {
			v.LastRun = j.ticks[i].Key.Tick
		}
	}
	for _, r := range j.live {
		if r.State != store.StatePending && (r.Finished == 0 || r.Finished >= q.Seen) {
			v.Runs = append(v.Runs, store.Span{From: r.since, To: r.Finished})
		}
	}
	slices.SortStableFunc(v.Runs, func(a, b store.Span) int { return cmp.Compare(a.From, b.From) })
	return v
}

// between returns the rows with a tick in (from, to].
func (j *job) between(from, to store.Millis) []*row {
	after := func(t store.Millis) int {
		at, _ := slices.BinarySearchFunc(j.ticks, t, func(r *row, t store.Millis) int {
			if r.Key.Tick <= t {
				return -1
			}
			return 1
		})
		return at
	}
	return j.ticks[after(from):max(after(from), after(to))]
}

// settle writes the settlement and answers how many rows are pending by it.
func (sp *space) settle(j *job, what store.Settlement, now store.Millis) int {
	pending := 0
	for i := range what.Ticks {
		t := what.Ticks[i]
		if sp.keys[t.Key.Hash()] != nil {
			continue
		}
		if t.State == store.StatePending && sp.dedup[t.Dedup] != nil {
			t.State, t.Reason = store.StateSkipped, store.ReasonOverlap // the slot is taken, and a tick needs a record
		}
		if t.State == store.StatePending {
			pending++
		}
		sp.insert(&t.NewExecution, t.State, t.Reason, now)
	}
	ranges := slices.SortedFunc(slices.Values(what.Ranges), func(a, b store.TickRange) int { return cmp.Compare(a.From, b.From) })
	for _, g := range ranges {
		g.Job, g.Recorded = j.state.Job, now
		if last := len(j.ranges) - 1; last >= 0 && j.joins(j.ranges[last], g) {
			j.ranges[last].To, j.ranges[last].Recorded = g.To, now
			j.ranges[last].Count += g.Count
			continue
		}
		j.ranges = append(j.ranges, g)
	}
	j.state.Settled = what.To
	j.state.Version++
	j.live = slices.DeleteFunc(j.live, func(r *row) bool { return r.Finished != 0 && r.Finished < what.To })
	return pending
}

// joins reports whether b continues a: every expected tick has a record, so where
// nothing is recorded between them nothing was expected.
//
// Between the last range and the prune watermark a record may be gone.
func (j *job) joins(a, b store.TickRange) bool {
	return a.To >= j.state.Pruned && a.State == b.State && a.Reason == b.Reason && len(j.between(a.To, b.From)) == 0
}

// Ranges implements [store.Store].
func (s *Store) Ranges(ctx context.Context, ns, name string, from, to store.Millis) ([]store.TickRange, error) {
	sp, _, err := s.begin(ctx, ns)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var out []store.TickRange
	if j := sp.jobs[name]; j != nil {
		for _, g := range j.ranges {
			if g.From <= to && g.To >= from {
				out = append(out, g)
			}
		}
	}
	return out, nil
}

// Ledger implements [store.Store].
func (s *Store) Ledger(ctx context.Context, ns, name string, from, to store.Millis) (store.Ledger, error) {
	sp, _, err := s.begin(ctx, ns)
	if err != nil {
		return store.Ledger{}, err
	}
	defer s.mu.Unlock()
	var out store.Ledger
	j := sp.jobs[name]
	if j == nil {
		return out, nil
	}
	if j.state.Pruned > from {
		from = j.state.Pruned
		out.Pruned = from
	}
	count := func(st store.State, n int64) {
		switch st {
		case store.StatePending:
			out.Pending += n
		case store.StateRunning:
			out.Running += n
		case store.StateSkipped:
			out.Skipped += n
		case store.StateMissed:
			out.Missed += n
		case store.StateSucceeded, store.StateFailed, store.StateCanceled, store.StateIndeterminate:
			out.Ran += n
		}
	}
	for _, r := range j.between(from, to) {
		count(r.State, 1)
	}
	for _, g := range j.ranges {
		if from < g.To && g.To <= to {
			count(g.State, g.Count)
		}
	}
	return out, nil
}
