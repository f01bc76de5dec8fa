package gormstore

import (
	"context"
	"slices"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// TakeOver implements [store.Store].
func (s *Store) TakeOver(ctx context.Context, r store.FetchRequest) (store.TakenOver, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := checkFetch(r); err != nil {
		return store.TakenOver{}, s.fail("take over", err)
	}
	r.Limit = min(r.Limit, guardedMax)
	var out store.TakenOver
	query, args := s.forJobs(s.q.overdue, r, []any{r.Namespace})
	never := func([]row) bool { return false }
	now, err := s.seize(ctx, query, args, never, func(tx sqldialect.Conn, dead []row, now store.Millis) error {
		out = store.TakenOver{More: len(dead) > r.Limit}
		return s.bury(ctx, tx, r, dead[:min(len(dead), r.Limit)], now, &out)
	})
	if err != nil {
		return store.TakenOver{}, s.fail("take over", err)
	}
	out.Now = now
	return out, nil
}

// bury hands the runs of dead owners to the caller, or settles them.
func (s *Store) bury(ctx context.Context, tx sqldialect.Conn, r store.FetchRequest, dead []row, now store.Millis, out *store.TakenOver) error {
	var rerun []row
	ends := map[store.CrashEnd][]row{}
	var order []store.CrashEnd
	for _, x := range dead {
		e := x.CrashEnd(r.OnCrash[x.Key.Job])
		if e == (store.CrashEnd{}) {
			rerun = append(rerun, x)
			continue
		}
		if ends[e] == nil {
			order = append(order, e)
		}
		ends[e] = append(ends[e], x)
	}
	if len(rerun) > 0 {
		fences, err := s.drawFences(ctx, tx, r.Namespace, rerun)
		if err != nil {
			return err
		}
		// The key stays the row's own, so no other can hold it.
		rows, err := s.start(ctx, tx, r, rerun, now, fences)
		if err != nil {
			return err
		}
		out.Runs = executions(rows)
		if err := s.keepLost(ctx, tx, taken(rerun, rows)); err != nil {
			return err
		}
	}
	for _, e := range order {
		rows, err := s.settleDead(ctx, tx, r.Namespace, e, ends[e], now)
		if err != nil {
			return err
		}
		out.Settled = append(out.Settled, executions(rows)...)
	}
	at := make(map[store.ID]int, len(dead))
	for i := range dead {
		at[dead[i].ID] = i
	}
	slices.SortFunc(out.Settled, func(a, b store.Execution) int { return at[a.ID] - at[b.ID] })
	return nil
}

// taken are the rows, as they were, that another statement has changed since.
func taken(rows, changed []row) []row {
	if len(rows) == len(changed) {
		return rows
	}
	var out []row
	for i := range rows {
		if slices.ContainsFunc(changed, func(x row) bool { return x.ID == rows[i].ID }) {
			out = append(out, rows[i])
		}
	}
	return out
}

func (s *Store) settleDead(ctx context.Context, tx sqldialect.Conn, ns string, e store.CrashEnd, rows []row, now store.Millis) ([]row, error) {
	set, args := "reason = ?, lease_until_ms = 0, finished_ms = ?, active_hash = NULL, dedup_hash = NULL, state = ?", []any{e.Reason, now, e.State}
	if e.Text != "" {
		set, args = "error_text = ?, "+set, append([]any{e.Text}, args...)
	}
	return s.update(ctx, tx, ns, rows, set, args, func(x *row) {
		x.State, x.Reason, x.LeaseUntil, x.Finished, x.Dedup = e.State, e.Reason, 0, now, store.Hash{}
		if e.Text != "" {
			x.ErrorText = e.Text
		}
	})
}
