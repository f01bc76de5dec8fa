package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/solotick/solotick/store"
)

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	sp, _, err := s.begin(ctx, ns)
	if err != nil {
		return store.Execution{}, err
	}
	defer s.mu.Unlock()
	if r := sp.rows[id]; r != nil {
		return r.view(), nil
	}
	return store.Execution{}, fmt.Errorf("memstore: execution %s: %w", id, store.ErrNotFound)
}

// Find implements [store.Store].
func (s *Store) Find(ctx context.Context, ns string, key store.Key) (store.Execution, error) {
	sp, _, err := s.begin(ctx, ns)
	if err != nil {
		return store.Execution{}, err
	}
	defer s.mu.Unlock()
	if r := sp.keys[key.Hash()]; r != nil {
		return r.view(), nil
	}
	return store.Execution{}, fmt.Errorf("memstore: run %s: %w", key, store.ErrNotFound)
}

// Attempts implements [store.Store].
func (s *Store) Attempts(ctx context.Context, ns string, id store.ID) ([]store.Attempt, error) {
	sp, _, err := s.begin(ctx, ns)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	r := sp.rows[id]
	if r == nil {
		return nil, fmt.Errorf("memstore: attempts of %s: %w", id, store.ErrNotFound)
	}
	return slices.Clone(r.history), nil
}

// Sizes implements [store.Store]. The numbers are exact, the names made up.
func (s *Store) Sizes(ctx context.Context) ([]store.TableSize, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows, attempts, ranges, jobs int64
	for _, sp := range s.spaces {
		rows += int64(len(sp.rows))
		for _, r := range sp.rows {
			attempts += int64(len(r.history))
		}
		for _, j := range sp.jobs {
			ranges += int64(len(j.ranges))
			if j.registered {
				jobs++
			}
		}
	}
	return []store.TableSize{
		{Name: "executions", Rows: rows}, {Name: "attempts", Rows: attempts}, {Name: "tick_ranges", Rows: ranges}, {Name: "job_state", Rows: jobs},
	}, nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Execution, error) {
	_, _, err := s.begin(ctx, f.Namespace)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var found []*row
	for name, sp := range s.spaces {
		if f.Namespace != "" && f.Namespace != name {
			continue
		}
		for _, r := range sp.rows {
			if matches(f, r) {
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.when(), a.when()), bytes.Compare(b.ID[:], a.ID[:]))
	})
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	var out []store.Execution
	for _, r := range found[:min(limit, len(found))] {
		out = append(out, r.view())
	}
	return out, nil
}

func matches(f store.Filter, r *row) bool {
	if f.From != 0 && r.when() < f.From || f.To != 0 && r.when() > f.To {
		return false
	}
	return oneOf(f.Jobs, r.Key.Job) && oneOf(f.Queues, r.Queue) && oneOf(f.Classes, r.Key.Class) && oneOf(f.States, r.State)
}

// oneOf reports whether v is in list; an empty list does not restrict.
func oneOf[T comparable](list []T, v T) bool { return len(list) == 0 || slices.Contains(list, v) }

// when is the instant that lists go by.
func (r *row) when() store.Millis {
	if r.Key.Tick != 0 {
		return r.Key.Tick
	}
	return r.RunAt
}
