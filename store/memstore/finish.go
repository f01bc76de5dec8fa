package memstore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/solotick/solotick/store"
)

// Finish implements [store.Store].
func (s *Store) Finish(ctx context.Context, rows []store.Finish) ([]error, error) {
	out := make([]error, len(rows))
	if len(rows) == 0 {
		return out, nil
	}
	sp, now, err := s.begin(ctx, rows[0].Ref.Namespace)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for i := range rows {
		f := &rows[i]
		if f.Ref.Namespace != sp.name {
			if sp = s.spaces[f.Ref.Namespace]; sp == nil {
				sp = &space{name: f.Ref.Namespace}
			}
		}
		out[i] = sp.finish(f, now)
	}
	return out, nil
}

func (sp *space) finish(f *store.Finish, now store.Millis) error {
	if f.State < store.StatePending || f.State > store.StateIndeterminate || f.State == store.StateRunning {
		return fmt.Errorf("memstore: finish %s: State is %v: name the state that the run moves to", f.Ref.ID, f.State)
	}
	if f.Unstarted && f.State != store.StatePending {
		return fmt.Errorf("memstore: finish %s: Unstarted goes with State pending, not %v", f.Ref.ID, f.State)
	}
	r := sp.rows[f.Ref.ID]
	if r == nil || r.Owner != f.Ref.Owner {
		return store.ErrFenced
	}
	if r.State != store.StateRunning || r.Attempt != f.Ref.Attempt {
		return f.Applied(&r.Execution)
	}
	state := f.State
	if state == store.StatePending && r.CancelRequested {
		state = store.StateCanceled
	}
	sp.leave(r, state, f.Reason, now)
	if f.Mode != store.ModeNone {
		r.Mode = f.Mode
	}
	r.Result, r.ErrorCode, r.ErrorText = bytes.Clone(f.Result), f.ErrorCode, f.ErrorText
	if f.Unstarted {
		if r.Attempt--; r.Attempt == 0 {
			r.Started = 0
		}
	}
	if state != store.StatePending {
		if state != f.State {
			return store.ErrCanceled
		}
		return nil
	}
	r.RunAt = now.Add(f.Delay)
	if !f.Unstarted {
		r.supersede(store.EndRetry, now, "")
	}
	if r.Key.Class == store.ClassKey && r.LockKey != "" && !r.Active.IsZero() {
		sp.active[r.Active] = r // the order of the lock key outlives the wait
	}
	return nil
}

// Cancel implements [store.Store].
func (s *Store) Cancel(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return store.Execution{}, err
	}
	defer s.mu.Unlock()
	r := sp.rows[id]
	switch {
	case r == nil:
		return store.Execution{}, fmt.Errorf("memstore: cancel %s: %w", id, store.ErrNotFound)
	case r.State == store.StatePending:
		sp.leave(r, store.StateCanceled, store.ReasonNone, now)
	case r.State == store.StateRunning && !r.CancelRequested:
		r.CancelRequested = true
		r.Version++
	}
	return r.view(), nil
}

// Retry implements [store.Store].
func (s *Store) Retry(ctx context.Context, ns string, id store.ID, by string) (store.Execution, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return store.Execution{}, err
	}
	defer s.mu.Unlock()
	r := sp.rows[id]
	if r == nil {
		return store.Execution{}, fmt.Errorf("memstore: retry %s: %w", id, store.ErrNotFound)
	}
	if err := r.CheckRetry(); err != nil {
		return store.Execution{}, fmt.Errorf("memstore: retry %s: %w", id, err)
	}
	if r.State.Open() {
		return r.view(), nil
	}
	r.supersede(store.EndOf(r.State), r.Finished, store.RetryNote(by))
	sp.leave(r, store.StatePending, store.ReasonNone, now)
	r.Reason, r.RunAt, r.CancelRequested = store.ReasonNone, now, false
	if r.MaxAttempts > 0 {
		r.MaxAttempts = max(r.MaxAttempts, r.Attempt+1)
	}
	return r.view(), nil
}

// Revive implements [store.Store].
func (s *Store) Revive(ctx context.Context, q store.ReviveRequest) (int, error) {
	sp, now, err := s.begin(ctx, q.Namespace)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	j := sp.registered(q.Job)
	if j == nil {
		return 0, nil
	}
	revived, seen := 0, 0
	for i := len(j.ticks) - 1; i >= 0 && seen < q.Limit && j.ticks[i].Key.Tick >= q.Since; i-- {
		r := j.ticks[i]
		if r.Reason != store.ReasonDegraded {
			continue
		}
		seen++
		if r.State == store.StateSkipped {
			sp.leave(r, store.StatePending, store.ReasonNone, now)
			r.RunAt = r.Key.Tick
			revived++
		}
	}
	return revived, nil
}
