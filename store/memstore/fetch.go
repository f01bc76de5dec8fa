package memstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/solotick/solotick/store"
)

// Fetch implements [store.Store].
func (s *Store) Fetch(ctx context.Context, r store.FetchRequest) (store.Fetched, error) {
	if err := checkFetch(r); err != nil {
		return store.Fetched{}, err
	}
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.Fetched{}, err
	}
	defer s.mu.Unlock()
	type lane struct{ job, key string }
	lanes := map[lane]bool{} // lock keys with a run in progress
	wanted := setOf(r.Jobs)
	var due []*row
	for _, e := range sp.open {
		switch {
		case e.State == store.StateRunning:
			if e.LockKey != "" {
				lanes[lane{e.Key.Job, e.LockKey}] = true
			}
		case wanted[e.Key.Job] && e.RunAt <= now:
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.RunAt, b.RunAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	out := store.Fetched{Now: now}
	for _, e := range due {
		// A row that holds its key has waited for its retry: its lane is its own.
		if sp.held(e) || (e.LockKey != "" && lanes[lane{e.Key.Job, e.LockKey}]) {
			continue
		}
		if e.Key.Class != store.ClassManual && sp.job(e.Key.Job).state.PausedAt(now) {
			continue
		}
		if len(out.Runs) == r.Limit {
			out.More = true
			break
		}
		sp.start(e, hand{r.Owner, r.OwnerLabel, r.Lease}, now)
		if e.LockKey != "" {
			lanes[lane{e.Key.Job, e.LockKey}] = true
		}
		out.Runs = append(out.Runs, e.view())
	}
	return out, nil
}

func checkFetch(r store.FetchRequest) error {
	if len(r.Jobs) == 0 {
		return errors.New("memstore: Jobs is empty: name the jobs that the caller can run")
	}
	if r.Limit < 1 {
		return fmt.Errorf("memstore: Limit is %d: ask for at least one row", r.Limit)
	}
	return hand{r.Owner, r.OwnerLabel, r.Lease}.check()
}

// TakeOver implements [store.Store].
func (s *Store) TakeOver(ctx context.Context, r store.FetchRequest) (store.TakenOver, error) {
	if err := checkFetch(r); err != nil {
		return store.TakenOver{}, err
	}
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.TakenOver{}, err
	}
	defer s.mu.Unlock()
	wanted := setOf(r.Jobs)
	var dead []*row
	for _, e := range sp.open {
		if e.State == store.StateRunning && e.LeaseUntil < now && wanted[e.Key.Job] {
			dead = append(dead, e)
		}
	}
	slices.SortFunc(dead, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.LeaseUntil, b.LeaseUntil), bytes.Compare(a.ID[:], b.ID[:]))
	})
	out := store.TakenOver{Now: now}
	if len(dead) > r.Limit {
		dead, out.More = dead[:r.Limit], true
	}
	for _, e := range dead {
		end := e.CrashEnd(r.OnCrash[e.Key.Job])
		if end == (store.CrashEnd{}) {
			sp.start(e, hand{r.Owner, r.OwnerLabel, r.Lease}, now)
			out.Runs = append(out.Runs, e.view())
			continue
		}
		sp.leave(e, end.State, end.Reason, now)
		e.ErrorText = cmp.Or(end.Text, e.ErrorText)
		out.Settled = append(out.Settled, e.view())
	}
	return out, nil
}

// Heartbeat implements [store.Store].
func (s *Store) Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error) {
	if err := (hand{r.Owner, "", r.Lease}).check(); err != nil {
		return store.Heartbeats{}, err
	}
	sp, now, err := s.begin(ctx, r.Namespace)
	if err != nil {
		return store.Heartbeats{}, err
	}
	defer s.mu.Unlock()
	out := store.Heartbeats{Now: now, Beats: make([]store.BeatAnswer, len(r.Beats))}
	for i, b := range r.Beats {
		e := sp.open[b.ID]
		if e == nil || e.State != store.StateRunning || e.Attempt != b.Attempt || e.Owner != r.Owner {
			out.Beats[i].Lost = true
			continue
		}
		e.LeaseUntil = now.Add(r.Lease)
		e.Version++
		out.Beats[i].CancelRequested = e.CancelRequested
	}
	return out, nil
}
