package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/solotick/solotick/store"
)

// Prune implements [store.Store]. All of a call is one transaction.
func (s *Store) Prune(ctx context.Context, r store.PruneRequest) (store.Pruned, error) {
	r, err := r.Checked()
	if err != nil {
		return store.Pruned{}, fmt.Errorf("memstore: prune: %w", err)
	}
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.Pruned{}, err
	}
	defer s.mu.Unlock()
	p := pruning{sp: sp, r: r, out: store.Pruned{Now: now}}
	wanted := setOf(r.Jobs)
	var old []*row
	for _, e := range sp.rows {
		if !e.State.Open() && (len(wanted) == 0 || wanted[e.Key.Job]) {
			old = append(old, e)
		}
	}
	slices.SortFunc(old, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.Finished, b.Finished), bytes.Compare(a.ID[:], b.ID[:]))
	})
	for _, e := range old {
		p.row(e)
	}
	for name, j := range sp.jobs {
		if len(wanted) == 0 || wanted[name] {
			j.ranges = slices.DeleteFunc(j.ranges, func(g store.TickRange) bool { return p.stretch(j, g) })
		}
	}
	return p.out, nil
}

// pruning is one call of Prune.
type pruning struct {
	sp  *space
	r   store.PruneRequest
	out store.Pruned
}

// full reports whether the limit is reached, and notes that there is more.
func (p *pruning) full() bool {
	if p.r.DryRun || p.out.Records() < p.r.Limit {
		return false
	}
	p.out.More = true
	return true
}

func (p *pruning) row(e *row) {
	old, key := due(e.Finished, p.out.Now, p.r.Retention.Of(e.State)), e.Key.Class == store.ClassKey
	kept := len(e.Args)+len(e.Result)+len(e.Checkpoint) > 0
	switch {
	case key && due(e.Finished, p.out.Now, p.r.Retention.Keys):
		if p.full() {
			return
		}
		p.out.Keys++
		p.forget(e)
	case key && old && kept:
		if p.full() {
			return
		}
		p.out.Emptied++
		if !p.r.DryRun {
			p.out.Attempts += len(e.history)
			e.Args, e.Result, e.Checkpoint, e.history = nil, nil, nil, nil
			e.Version++
		}
	case key || !old:
	case e.Key.Class != store.ClassCron:
		if !p.full() {
			p.out.Count(e.State, 1)
			p.forget(e)
		}
	default:
		j := p.sp.registered(e.Key.Job)
		if j == nil || e.Key.Tick > j.state.Settled || p.full() {
			return
		}
		p.out.Count(e.State, 1)
		if !p.r.DryRun {
			j.prune(e.Key.Tick)
		}
		p.forget(e)
	}
}

// stretch reports whether a range goes.
func (p *pruning) stretch(j *job, g store.TickRange) bool {
	if !due(g.Recorded, p.out.Now, p.r.Retention.Ranges) || g.To > j.state.Settled || p.full() {
		return false
	}
	p.out.Ranges++
	if p.r.DryRun {
		return false
	}
	j.prune(g.To)
	return true
}

// prune raises the watermark.
func (j *job) prune(to store.Millis) {
	if to > j.state.Pruned {
		j.state.Pruned = to
		j.state.Version++
	}
}

// forget removes the row and its places in the indexes.
func (p *pruning) forget(e *row) {
	if p.r.DryRun {
		return
	}
	p.out.Attempts += len(e.history)
	delete(p.sp.rows, e.ID)
	delete(p.sp.keys, e.Key.Hash())
	j := p.sp.job(e.Key.Job)
	same := func(o *row) bool { return o == e }
	j.live = slices.DeleteFunc(j.live, same)
	if e.Key.Class == store.ClassCron {
		j.ticks = slices.DeleteFunc(j.ticks, same)
	}
}

// due reports whether what ended at the instant has reached the age.
func due(ended, now store.Millis, age time.Duration) bool {
	return age > 0 && ended <= now.Add(-age)
}
