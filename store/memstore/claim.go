package memstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/solotick/solotick/store"
)

// Claim implements [store.Store].
func (s *Store) Claim(ctx context.Context, r store.ClaimRequest) (store.Claimed, error) {
	h := hand{r.Owner, r.OwnerLabel, r.Lease}
	if err := h.check(); err != nil {
		return store.Claimed{}, err
	}
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.Claimed{}, err
	}
	defer s.mu.Unlock()
	var news []*store.NewExecution
	for i := range r.Runs {
		n := &r.Runs[i].NewExecution
		if sp.registered(n.Key.Job) == nil {
			return store.Claimed{}, fmt.Errorf("memstore: claim %s: job %q is not registered: %w", n.Key, n.Key.Job, store.ErrNotFound)
		}
		news = append(news, n)
	}
	if err := sp.checkNew(news); err != nil {
		return store.Claimed{}, err
	}
	out := store.Claimed{Now: now, Runs: make([]store.ClaimedRun, len(r.Runs))}
	for i := range r.Runs {
		out.Runs[i] = sp.claim(&r.Runs[i], h, now)
	}
	return out, nil
}

// checkNew refuses rows before any of them is written.
func (sp *space) checkNew(rows []*store.NewExecution) error {
	ids := make(map[store.ID]store.Key, len(rows))
	for _, n := range rows {
		if c := n.Key.Class; c < store.ClassCron || c > store.ClassKey {
			return fmt.Errorf("memstore: %s: Key.Class is %v: use one of the classes", n.Key, c)
		}
		if n.ID == (store.ID{}) {
			continue
		}
		key, taken := ids[n.ID]
		if r := sp.rows[n.ID]; r != nil {
			key, taken = r.Key, true
		}
		if taken && key != n.Key {
			return fmt.Errorf("memstore: %s: ID %s belongs to %s", n.Key, n.ID, key)
		}
		ids[n.ID] = n.Key
	}
	return nil
}

func (sp *space) claim(c *store.ClaimRun, h hand, now store.Millis) store.ClaimedRun {
	j := sp.job(c.Key.Job)
	if r := sp.keys[c.Key.Hash()]; r != nil {
		o := repeated(r, c, h)
		if o == store.OutcomeStarted { // the caller counts its lease from this request on
			r.LeaseUntil = now.Add(h.lease)
			r.Version++
		}
		return store.ClaimedRun{Outcome: o, Execution: r.view()}
	}
	switch {
	case c.Key.Tick > now.Add(store.EarlyTolerance):
		return store.ClaimedRun{Outcome: store.OutcomeEarly, Wait: c.Key.Tick.Sub(now)}
	case c.SpecHash != "" && !j.owns(c.SpecHash, c.Key):
		return store.ClaimedRun{Outcome: store.OutcomeSuperseded}
	case j.accounted(c.Key):
		return store.ClaimedRun{Outcome: store.OutcomeDuplicate}
	}
	recorded := func(o store.Outcome, st store.State, why store.Reason) store.ClaimedRun {
		r := sp.insert(&c.NewExecution, st, why, now)
		r.claimed = o
		return store.ClaimedRun{Outcome: o, Execution: r.view()}
	}
	if c.Key.Class == store.ClassCron && j.state.PausedAt(c.Key.Tick) {
		return recorded(store.OutcomeSkipped, store.StateSkipped, store.ReasonPaused)
	}
	if c.Skip != store.ReasonNone {
		return recorded(store.OutcomeSkipped, store.StateSkipped, c.Skip)
	}
	if d := sp.dedup[c.Dedup]; d != nil {
		return store.ClaimedRun{Outcome: store.OutcomeDuplicate, Execution: d.view()}
	}
	if sp.active[c.Active] != nil {
		switch c.Busy {
		case store.BusyBuffer:
			return recorded(store.OutcomeBusy, store.StatePending, store.ReasonNone)
		case store.BusyRefuse:
			return store.ClaimedRun{Outcome: store.OutcomeBusy}
		case store.BusySkip:
		}
		return recorded(store.OutcomeBusy, store.StateSkipped, store.ReasonOverlap)
	}
	r := sp.insert(&c.NewExecution, store.StatePending, store.ReasonNone, now)
	sp.start(r, h, now)
	r.claimed, r.Version = store.OutcomeStarted, 1
	return store.ClaimedRun{Outcome: store.OutcomeStarted, Execution: r.view()}
}

// owns reports whether a run may be claimed under the schedule: it is in force, or was
// at the tick.
func (j *job) owns(hash string, k store.Key) bool {
	return hash == j.state.Current().Hash || k.Class == store.ClassCron && hash == j.state.At(k.Tick).Hash
}

// accounted reports whether the tick is one that the watermarks close, so that
// no record of it may be made any more.
func (j *job) accounted(k store.Key) bool {
	return k.Class == store.ClassCron && k.Tick <= max(j.state.Settled, j.state.Pruned)
}

// repeated is the outcome of a claim whose key has a record: what it was if the
// record is the caller's own, by the ID it made.
func repeated(r *row, c *store.ClaimRun, h hand) store.Outcome {
	switch {
	case c.ID == (store.ID{}) || r.ID != c.ID || r.claimed == 0:
		return store.OutcomeDuplicate
	case r.claimed != store.OutcomeStarted:
		return r.claimed
	case r.State == store.StateRunning && r.Attempt == 1 && r.Owner == h.owner && r.Started == r.Created:
		return store.OutcomeStarted
	}
	return store.OutcomeDuplicate
}

// Enqueue implements [store.Store].
func (s *Store) Enqueue(ctx context.Context, ns string, rows []store.NewExecution) ([]store.Enqueued, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	news := make([]*store.NewExecution, len(rows))
	for i := range rows {
		row := rows[i]
		row.MaxAttempts = cmp.Or(row.MaxAttempts, store.DefaultMaxAttempts)
		news[i] = &row
	}
	if err := sp.checkNew(news); err != nil {
		return nil, err
	}
	out := make([]store.Enqueued, len(rows))
	for i, n := range news {
		out[i] = sp.enqueue(n, now)
	}
	return out, nil
}

func (sp *space) enqueue(n *store.NewExecution, now store.Millis) store.Enqueued {
	if r := sp.keys[n.Key.Hash()]; r != nil {
		if r.ID == n.ID {
			return store.Enqueued{Outcome: store.OutcomeEnqueued, Execution: r.view()}
		}
		return store.Enqueued{Outcome: store.OutcomeDuplicate, Execution: r.view()}
	}
	if j := sp.registered(n.Key.Job); j != nil && j.accounted(n.Key) {
		return store.Enqueued{Outcome: store.OutcomeDuplicate}
	}
	if d := sp.dedup[n.Dedup]; d != nil {
		return store.Enqueued{Outcome: store.OutcomeDuplicate, Execution: d.view()}
	}
	return store.Enqueued{Outcome: store.OutcomeEnqueued, Execution: sp.insert(n, store.StatePending, store.ReasonNone, now).view()}
}
