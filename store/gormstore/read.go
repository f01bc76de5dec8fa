package gormstore

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	e, err := s.get(ctx, s.conn, ns, id)
	return e, s.fail("get", err)
}

func (s *Store) get(ctx context.Context, c sqldialect.Conn, ns string, id store.ID) (store.Execution, error) {
	rows, err := rowsOf(ctx, c, "SELECT "+selected+" FROM "+s.t.executions+" WHERE id = ? AND ns = ?", []any{id[:], ns})
	if err != nil {
		return store.Execution{}, err
	}
	if len(rows) == 0 {
		return store.Execution{}, fmt.Errorf("execution %s: %w", id, store.ErrNotFound)
	}
	return rows[0].Execution, nil
}

// Find implements [store.Store].
func (s *Store) Find(ctx context.Context, ns string, key store.Key) (store.Execution, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	h := key.Hash()
	found, err := byHash(ctx, s.conn, s.t, ns, []store.Hash{h}, "")
	if err != nil {
		return store.Execution{}, s.fail("find", err)
	}
	r, ok := found[h]
	if !ok {
		return store.Execution{}, s.fail("find", fmt.Errorf("run %s: %w", key, store.ErrNotFound))
	}
	return r.Execution, nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Execution, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	const at = "CASE WHEN tick_ms <> 0 THEN tick_ms ELSE run_at_ms END"
	query := "SELECT " + selected + " FROM " + s.t.executions + " WHERE 1 = 1"
	var args []any
	where := func(text string, values ...any) {
		query += " AND " + text
		args = append(args, values...)
	}
	if f.Namespace != "" {
		where("ns = ?", f.Namespace)
	}
	if n := len(f.Jobs); n > 0 {
		where("job IN "+s.conn.List(n), anys(f.Jobs)...)
	}
	if n := len(f.Queues); n > 0 {
		where("queue IN "+s.conn.List(n), anys(f.Queues)...)
	}
	if n := len(f.Classes); n > 0 {
		where("class IN "+s.conn.List(n), anys(f.Classes)...)
	}
	if n := len(f.States); n > 0 {
		where("state IN "+s.conn.List(n), anys(f.States)...)
	}
	if f.From != 0 {
		where(at+" >= ?", f.From)
	}
	if f.To != 0 {
		where(at+" <= ?", f.To)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := rowsOf(ctx, s.conn, query+" ORDER BY "+at+" DESC, id DESC LIMIT ?", append(args, limit))
	if err != nil {
		return nil, s.fail("list", err)
	}
	var out []store.Execution
	for i := range rows {
		out = append(out, rows[i].Execution)
	}
	return out, nil
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

// Ranges implements [store.Store].
func (s *Store) Ranges(ctx context.Context, ns, job string, from, to store.Millis) ([]store.TickRange, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out []store.TickRange
	err := s.conn.Query(ctx, "SELECT job, from_ms, to_ms, ticks, state, reason, recorded_ms FROM "+s.t.ranges+
		" WHERE ns = ? AND job = ? AND from_ms <= ? AND to_ms >= ? ORDER BY from_ms", []any{ns, job, to, from},
		func(row sqldialect.Rows) error {
			var g store.TickRange
			err := row.Scan(&g.Job, &g.From, &g.To, &g.Count, &g.State, &g.Reason, &g.Recorded)
			out = append(out, g)
			return err
		})
	return out, s.fail("ranges", err)
}

// Ledger implements [store.Store]. Rows and ranges are counted by one statement,
// so that a sweep cannot come between them.
func (s *Store) Ledger(ctx context.Context, ns, job string, from, to store.Millis) (store.Ledger, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out store.Ledger
	pruned := "COALESCE((SELECT p.pruned_ms FROM " + s.t.jobs + " p WHERE p.ns = ? AND p.job = ?), 0)"
	err := s.conn.Query(ctx, "SELECT state, COUNT(*) FROM "+s.t.executions+
		" WHERE ns = ? AND job = ? AND class = 1 AND tick_ms > ? AND tick_ms <= ? AND tick_ms > "+pruned+" GROUP BY state"+
		" UNION ALL SELECT state, SUM(ticks) FROM "+s.t.ranges+" WHERE ns = ? AND job = ? AND to_ms > ? AND to_ms <= ? AND to_ms > "+pruned+" GROUP BY state"+
		" UNION ALL SELECT 0, "+pruned,
		[]any{ns, job, from, to, ns, job, ns, job, from, to, ns, job, ns, job}, func(row sqldialect.Rows) error {
			var st store.State
			var n int64
			if err := row.Scan(&st, &n); err != nil {
				return err
			}
			switch st {
			case 0: // not a state: the watermark
				if mark := store.Millis(n); mark > from {
					out.Pruned = mark
				}
			case store.StatePending:
				out.Pending += n
			case store.StateRunning:
				out.Running += n
			case store.StateSkipped:
				out.Skipped += n
			case store.StateMissed:
				out.Missed += n
			default:
				out.Ran += n
			}
			return nil
		})
	return out, s.fail("ledger", err)
}
