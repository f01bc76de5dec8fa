package gormstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// statements are the fixed texts that take the most work to put together. They
// begin with the clock, and %s stands for the list of jobs.
type statements struct {
	due, overdue string

	lockOne, raiseOne string // of one job, bound
}

func newStatements(t tables, d *sqldialect.Dialect) statements {
	q := newLooks(t, d)
	q.lockOne = d.Bind(lockSQL(t, d, heldSQL(t, d, 1), 1))
	q.raiseOne = d.Bind("UPDATE " + t.jobs + " SET fence = ?, version = version + 1 WHERE ns = ? AND job = ?")
	return q
}

func newLooks(t tables, d *sqldialect.Dialect) statements {
	with, now := d.Clock()
	paused := "(SELECT p.job FROM " + t.jobs + " p WHERE p.ns = ? AND p.paused_ms <> 0 AND p.paused_ms <= " + now +
		" AND (p.paused_until_ms = 0 OR p.paused_until_ms > " + now + "))"
	open := func(alias string) string {
		return alias + ".ns = ? AND " + alias + ".state = 1 AND " + alias + ".run_at_ms <= " + now +
			" AND (" + alias + ".class = 2 OR " + alias + ".job NOT IN " + paused + ")"
	}
	// A row that has its key already waited for its retry: the lane is its own.
	due := open("e") + " AND (e.active_key IS NULL OR e.active_hash IS NOT NULL OR (" +
		"NOT EXISTS (SELECT 1 FROM " + t.executions + " a WHERE a.ns = e.ns AND a.active_hash = e.active_key)" +
		" AND e.id = (SELECT b.id FROM " + t.executions + " b WHERE " + open("b") +
		" AND b.active_key = e.active_key ORDER BY b.priority, b.run_at_ms, b.id LIMIT 1)))" +
		" AND e.job IN %s ORDER BY e.priority, e.run_at_ms, e.id LIMIT ?"
	overdue := "e.ns = ? AND e.state = 2 AND e.lease_until_ms < " + now +
		" AND e.job IN %s ORDER BY e.lease_until_ms, e.id LIMIT ?"
	if d.LockRows == "" {
		// The last row carries the clock, also when there is no other.
		look := func(where string) string {
			return with + "SELECT " + now + ", " + selected + " FROM (SELECT e.* FROM " + t.executions + " e WHERE " + where +
				") c UNION ALL SELECT " + now + ", " + nothing
		}
		return statements{due: look(due), overdue: look(overdue)}
	}
	lock := func(index, where string) string {
		return with + "SELECT " + now + ", " + selected + " FROM " + t.executions + " e" + t.by(index) + " WHERE " + where + d.SkipLocked
	}
	return statements{due: lock("due", due), overdue: lock("lease", overdue)}
}

// seize finds rows and gives those that it found, with the clock, to take, which
// changes them. On servers it is one transaction in which the rows are locked, and
// rows that others have locked are passed over. SQLite, which locks no rows, is
// asked without a transaction, so that nothing is written and no writer waits where
// nothing is found; others may then change the rows before take does. Alone tells
// which rows need no transaction around take there.
//
// Take may be called again, and must begin afresh. The answer is the clock.
func (s *Store) seize(ctx context.Context, query string, args []any, alone func([]row) bool,
	take func(c sqldialect.Conn, rows []row, now store.Millis) error,
) (store.Millis, error) {
	if s.conn.LockRows == "" {
		rows, now, err := s.look(ctx, s.conn, query, args)
		switch {
		case err != nil || len(rows) == 0:
		case alone(rows):
			err = s.conn.Retry(ctx, func() error { return take(s.conn, rows, now) })
		default:
			err = s.conn.Tx(ctx, func(tx sqldialect.Conn) error { return take(tx, rows, now) })
		}
		return now, err
	}
	var at store.Millis
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		rows, now, err := s.look(ctx, tx, query, args)
		if at = now; err == nil {
			err = take(tx, rows, now)
		}
		return err
	})
	return at, err
}

// look runs one of the statements and answers the clock, also when it finds nothing:
// then an instant not later than the one at which there was nothing.
func (s *Store) look(ctx context.Context, c sqldialect.Conn, query string, args []any) ([]row, store.Millis, error) {
	var rows []row
	var now store.Millis
	sent := time.Now()
	err := c.Query(ctx, query, args, func(from sqldialect.Rows) error {
		r, err := scan(from, &now)
		if r.Version != 0 { // not the row that only carries the clock
			rows = append(rows, r)
		}
		return err
	})
	if err == nil && now == 0 {
		var micros int64
		err = c.QueryRow(ctx, "SELECT "+c.NowMicros, nil, &micros)
		now = store.Millis((micros - time.Since(sent).Microseconds()) / 1000)
	}
	return rows, now, err
}

// update changes rows as they were seen, and answers those that still were: set is
// the assignments, args their values, and after does the same to a row in memory.
// Rows that are locked are all as they were seen.
func (s *Store) update(ctx context.Context, c sqldialect.Conn, ns string, rows []row, set string, args []any, after func(*row)) ([]row, error) {
	query := "UPDATE " + s.t.byID + " SET " + set + ", version = version + 1 WHERE " + s.t.ofNS + " AND id IN " + c.List(len(rows))
	args = append(args, ns)
	for i := range rows {
		args = append(args, rows[i].ID[:])
	}
	if !mutation.On("seen-version") {
		query += " AND (id, version) IN " + c.Tuples(len(rows), 2)
		for i := range rows {
			args = append(args, rows[i].ID[:], rows[i].Version)
		}
	}
	got := make(map[store.ID]bool, len(rows))
	if c.LockRows != "" {
		n, err := c.Exec(ctx, query, args...)
		if err == nil && n != int64(len(rows)) {
			err = fmt.Errorf("%d of %d rows changed although they were locked", n, len(rows))
		}
		if err != nil {
			return nil, err
		}
	} else {
		err := c.Query(ctx, query+" RETURNING id", args, func(from sqldialect.Rows) error {
			var id []byte
			err := from.Scan(&id)
			if err == nil {
				got[store.ID(id)] = true
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	out := make([]row, 0, len(rows))
	for _, r := range rows {
		if c.LockRows != "" || got[r.ID] {
			after(&r)
			r.Version++
			out = append(out, r)
		}
	}
	return out, nil
}

// start hands rows to the caller as a new attempt each, by one statement.
func (s *Store) start(ctx context.Context, c sqldialect.Conn, r store.FetchRequest, rows []row, now store.Millis, fences map[store.ID]int64) ([]row, error) {
	until := now.Add(r.Lease)
	args := []any{r.Owner[:], r.OwnerLabel, until, now, now}
	fence := "fence + 1"
	if len(fences) > 0 {
		cases := 0
		for i := range rows {
			if f, ok := fences[rows[i].ID]; ok {
				args = append(args, rows[i].ID[:], f)
				cases++
			}
		}
		if cases > 0 {
			fence = "CASE id" + strings.Repeat(" WHEN ? THEN ?", cases) + " ELSE fence + 1 END"
		}
	}
	// State comes last: MySQL assigns from left to right.
	set := "attempt = attempt + 1, owner = ?, owner_label = ?, lease_until_ms = ?, started_ms = ?," +
		" since_ms = CASE WHEN state = 1 THEN ? ELSE since_ms END, finished_ms = 0," +
		" active_hash = active_key, dedup_hash = NULL, fence = " + fence + ", state = 2"
	return s.update(ctx, c, r.Namespace, rows, set, args, func(x *row) {
		if x.State == store.StatePending {
			x.since = now
		}
		if f, ok := fences[x.ID]; ok {
			x.Fence = f
		} else {
			x.Fence++
		}
		x.State, x.Attempt, x.Dedup = store.StateRunning, x.Attempt+1, store.Hash{}
		x.Owner, x.OwnerLabel, x.LeaseUntil, x.Started, x.Finished = r.Owner, r.OwnerLabel, until, now, 0
	})
}

func checkFetch(r store.FetchRequest) error {
	if len(r.Jobs) == 0 {
		return errors.New("no Jobs: name those that the caller can run")
	}
	if r.Limit < 1 {
		return fmt.Errorf("a Limit of %d: ask for at least one row", r.Limit)
	}
	return hand{r.Owner, r.OwnerLabel, r.Lease}.check()
}

// forJobs completes a statement, and its values by the jobs and one row more than
// the limit, which tells that there are more.
func (s *Store) forJobs(query string, r store.FetchRequest, args []any) (string, []any) {
	for _, name := range r.Jobs {
		args = append(args, name)
	}
	return fmt.Sprintf(query, s.conn.List(len(r.Jobs))), append(args, r.Limit+1)
}

// plain reports whether the run excludes no other: its fence is its own.
func (r *row) plain() bool { return r.Key.Class == store.ClassKey && r.Active.IsZero() }

func executions(rows []row) []store.Execution {
	var out []store.Execution
	for i := range rows {
		out = append(out, rows[i].Execution)
	}
	return out
}
