package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/solotick/solotick/store"
)

// Register implements [store.Store].
func (s *Store) Register(ctx context.Context, ns string, jobs []store.JobSpec) (store.Registered, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return store.Registered{}, err
	}
	defer s.mu.Unlock()
	out := store.Registered{Now: now, Jobs: make([]store.JobState, 0, len(jobs))}
	for _, spec := range jobs {
		j := sp.job(spec.Job)
		if !j.registered {
			j.registered, j.state.Settled = true, now
			j.state.Version++
		}
		cur := j.state.Current()
		if n := len(j.state.Revisions); n > 0 && spec.Hash == cur.Hash && spec.Revision > cur.Number {
			j.state.Revisions[n-1].Number = spec.Revision
			j.state.Version++
		}
		if spec.Hash != cur.Hash && (len(j.state.Revisions) == 0 || spec.Revision >= cur.Number) {
			from := now
			if len(j.state.Revisions) > 0 {
				from = now.Add(store.EarlyTolerance)
			}
			j.state.Revisions = append(j.state.Revisions,
				store.Revision{Number: spec.Revision, Spec: spec.Spec, Hash: spec.Hash, From: from})
			j.state.Version++
		}
		out.Jobs = append(out.Jobs, j.view())
	}
	return out, nil
}

// Survey implements [store.Store].
func (s *Store) Survey(ctx context.Context, ns string, jobs []string) (store.Surveyed, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return store.Surveyed{}, err
	}
	defer s.mu.Unlock()
	out := store.Surveyed{Now: now}
	names := slices.Sorted(maps.Keys(sp.jobs))
	wanted := setOf(jobs)
	for _, name := range names {
		if j := sp.registered(name); j != nil && (len(jobs) == 0 || wanted[name]) {
			out.Jobs = append(out.Jobs, j.view())
		}
	}
	for _, r := range sp.open {
		if len(jobs) > 0 && !wanted[r.Key.Job] {
			continue
		}
		if r.State == store.StateRunning {
			out.NextLeaseEnd = earlier(out.NextLeaseEnd, r.LeaseUntil)
		} else {
			out.NextRunAt = earlier(out.NextRunAt, r.RunAt)
		}
	}
	return out, nil
}

// earlier is the lesser of two instants, where 0 means that there is none yet.
func earlier(a, b store.Millis) store.Millis {
	if a == 0 || b < a {
		return b
	}
	return a
}

// SetPause implements [store.Store].
func (s *Store) SetPause(ctx context.Context, p store.Pause) (store.JobState, error) {
	sp, now, err := s.begin(ctx, p.Namespace)
	if err != nil {
		return store.JobState{}, err
	}
	defer s.mu.Unlock()
	j := sp.registered(p.Job)
	if j == nil {
		return store.JobState{}, fmt.Errorf("memstore: pause %q: %w", p.Job, store.ErrNotFound)
	}
	st := &j.state
	st.Version++
	if p.Off {
		// The stretch stays known: a tick in it that has no record yet is still one that
		// fell into the pause.
		if st.PausedAt(now) {
			st.PausedUntil = now
		}
		return j.view(), nil
	}
	if !st.PausedAt(now) {
		st.Paused = now
	}
	st.PausedUntil, st.PausedBy, st.PauseReason = 0, p.By, p.Reason
	if p.For > 0 {
		st.PausedUntil = now.Add(max(p.For, time.Millisecond))
	}
	return j.view(), nil
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}
