package gormstore

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

const attemptColumns = "attempt, owner_label, started_ms, ended_ms, ended_as, reason, mode, fence, error_code, error_text, note"

// keptOnce ends an INSERT into the attempts: one that is kept stays as it is.
func (s *Store) keptOnce(c sqldialect.Conn) string {
	return c.OnConflict("execution_id, attempt") + "fence = " + s.t.attempts + ".fence"
}

// keepFailed keeps the attempts that a finish has just sent back to wait for the
// next one, by one statement.
func (s *Store) keepFailed(ctx context.Context, c sqldialect.Conn, refs []store.Ref) error {
	query := "INSERT INTO " + s.t.attempts + " (execution_id, " + attemptColumns + ") SELECT e.id, e.attempt, e.owner_label, e.started_ms, " +
		c.NowMillis + ", ?, e.reason, e.mode, e.fence, e.error_code, e.error_text, '' FROM " + s.t.executions +
		" e WHERE " + s.t.ofNS + " AND e.state = 1 AND e.owner = ? AND e.id IN " + c.List(len(refs)) +
		" AND (e.id, e.attempt) IN " + c.Tuples(len(refs), 2) + s.keptOnce(c)
	args := []any{store.EndRetry, refs[0].Namespace, refs[0].Owner[:]}
	for i := range refs {
		args = append(args, refs[i].ID[:])
	}
	for i := range refs {
		args = append(args, refs[i].ID[:], refs[i].Attempt)
	}
	_, err := c.Exec(ctx, query, args...)
	return err
}

// keepLost keeps the attempts whose owners let their leases end. The rows are as
// they were before the next attempt took them. What they tell of an error is the
// attempt's before.
func (s *Store) keepLost(ctx context.Context, c sqldialect.Conn, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	args := make([]any, 0, 12*len(rows))
	for i := range rows {
		x := &rows[i]
		args = append(args, x.ID[:], x.Attempt, x.OwnerLabel, x.Started, x.LeaseUntil, store.EndLost, x.Reason, x.Mode, x.Fence, "", "", "")
	}
	return s.keep(ctx, c, len(rows), args)
}

func (s *Store) keep(ctx context.Context, c sqldialect.Conn, n int, args []any) error {
	_, err := c.Exec(ctx, "INSERT INTO "+s.t.attempts+" (execution_id, "+attemptColumns+") VALUES "+c.Values(n, c.List(12))+s.keptOnce(c), args...)
	return err
}

// Attempts implements [store.Store].
func (s *Store) Attempts(ctx context.Context, ns string, id store.ID) ([]store.Attempt, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out []store.Attempt
	// The row that every execution has tells one without attempts from none.
	known := false
	err := s.conn.Query(ctx, "SELECT 0, '', 0, 0, '', '', '', 0, '', '', '' FROM "+s.t.executions+" WHERE id = ? AND ns = ?"+
		" UNION ALL SELECT "+attemptColumns+" FROM "+s.t.attempts+" WHERE execution_id = ? ORDER BY 1", []any{id[:], ns, id[:]},
		func(from sqldialect.Rows) error {
			var a store.Attempt
			if err := from.Scan(&a.Number, &a.OwnerLabel, &a.Started, &a.Ended, &a.End, &a.Reason, &a.Mode, &a.Fence,
				&a.ErrorCode, &a.ErrorText, &a.Note); err != nil {
				return err
			}
			if a.Number == 0 {
				known = true
			} else if known {
				out = append(out, a)
			}
			return nil
		})
	if err == nil && !known {
		err = fmt.Errorf("execution %s: %w", id, store.ErrNotFound)
	}
	return out, s.fail("attempts", err)
}

// Retry implements [store.Store].
func (s *Store) Retry(ctx context.Context, ns string, id store.ID, by string) (store.Execution, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out store.Execution
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		rows, err := rowsOf(ctx, tx, "SELECT "+selected+" FROM "+s.t.executions+" WHERE id = ? AND ns = ?"+tx.LockRows, []any{id[:], ns})
		switch {
		case err != nil:
			return err
		case len(rows) == 0:
			return fmt.Errorf("execution %s: %w", id, store.ErrNotFound)
		}
		out = rows[0].Execution
		if err := out.CheckRetry(); err != nil || out.State.Open() {
			return err
		}
		out, err = s.again(ctx, tx, rows[0], store.RetryNote(by))
		return err
	})
	return out, s.fail("retry", err)
}

// again lets a run that has ended, whose row is locked, wait for an attempt more, due
// now. The attempt that ended is kept with the note.
func (s *Store) again(ctx context.Context, tx sqldialect.Conn, x row, note string) (store.Execution, error) {
	var now store.Millis
	if err := tx.QueryRow(ctx, "SELECT "+tx.NowMillis, nil, &now); err != nil {
		return store.Execution{}, err
	}
	if x.Attempt > 0 {
		err := s.keep(ctx, tx, 1, []any{
			x.ID[:], x.Attempt, x.OwnerLabel, x.Started, x.Finished, store.EndOf(x.State), x.Reason, x.Mode, x.Fence,
			x.ErrorCode, x.ErrorText, text(note),
		})
		if err != nil {
			return store.Execution{}, err
		}
	}
	most := x.MaxAttempts
	if most > 0 {
		most = max(most, x.Attempt+1)
	}
	rows, err := s.update(ctx, tx, x.Namespace, []row{x}, "reason = '', cancel_requested = 0, finished_ms = 0, run_at_ms = ?, max_attempts = ?, state = 1",
		[]any{now, most}, func(x *row) {
			x.State, x.Reason, x.CancelRequested, x.Finished = store.StatePending, store.ReasonNone, false, 0
			x.RunAt, x.MaxAttempts = now, most
		})
	if err != nil {
		return store.Execution{}, err
	}
	if len(rows) != 1 {
		return store.Execution{}, fmt.Errorf("execution %s changed although it was locked", x.ID)
	}
	return rows[0].Execution, nil
}
