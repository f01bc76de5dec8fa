package gormstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// candidate is a row that Fetch or TakeOver has seen and wants.
type candidate struct {
	id       store.ID
	job      string
	class    store.Class
	locked   bool // has a lock key
	active   store.Hash
	attempt  int
	onCrash  store.OnCrash
	attempts int // allowed
}

// plain reports whether the run excludes no other: its fence is its own.
func (c *candidate) plain() bool { return c.class == store.ClassKey && c.active.IsZero() }

// statements are the fixed texts that take the most work to put together.
type statements struct {
	candidate, sentinel string
	due, overdue        string
}

func newStatements(t tables, d *sqldialect.Dialect) statements {
	paused := "(SELECT p.job FROM " + t.jobs + " p WHERE p.ns = ? AND p.paused_ms <> 0 AND p.paused_ms <= " + d.NowMillis +
		" AND (p.paused_until_ms = 0 OR p.paused_until_ms > " + d.NowMillis + "))"
	open := func(alias string) string {
		return alias + ".ns = ? AND " + alias + ".state = 1 AND " + alias + ".run_at_ms <= " + d.NowMillis +
			" AND (" + alias + ".class = 2 OR " + alias + ".job NOT IN " + paused + ")"
	}
	const columns = "id, job, class, lock_key, active_key, attempt, on_crash, max_attempts"
	return statements{
		candidate: "SELECT 0, " + columns + " FROM (SELECT e.* FROM " + t.executions + " e WHERE ",
		// The last row carries the clock, also when there is no other.
		sentinel: ") c UNION ALL SELECT " + d.NowMillis + ", NULL, '', 0, '', NULL, 0, 0, 0",
		// A row that has its key already waited for its retry: the lane is its own.
		due: open("e") + " AND (e.active_key IS NULL OR e.active_hash IS NOT NULL OR (" +
			"NOT EXISTS (SELECT 1 FROM " + t.executions + " a WHERE a.ns = e.ns AND a.active_hash = e.active_key)" +
			" AND NOT EXISTS (SELECT 1 FROM " + t.executions + " b WHERE " + open("b") +
			" AND b.active_key = e.active_key AND (b.priority, b.run_at_ms, b.id) < (e.priority, e.run_at_ms, e.id))))" +
			" AND e.job IN %s ORDER BY e.priority, e.run_at_ms, e.id LIMIT ?",
		overdue: "e.ns = ? AND e.state = 2 AND e.lease_until_ms < " + d.NowMillis +
			" AND e.job IN %s ORDER BY e.lease_until_ms, e.id LIMIT ?",
	}
}

// candidates reads rows without a lock. Where nothing is found, nothing is
// written and no writer waits.
func (s *Store) candidates(ctx context.Context, where string, r store.FetchRequest, args []any) ([]candidate, store.Millis, error) {
	for _, name := range r.Jobs {
		args = append(args, name)
	}
	args = append(args, r.Limit+1)
	var out []candidate
	var now store.Millis
	query := s.q.candidate + fmt.Sprintf(where, s.conn.List(len(r.Jobs))) + s.q.sentinel
	err := s.conn.Query(ctx, query, args, func(from sqldialect.Rows) error {
		var c candidate
		var id, active []byte
		var lockKey string
		var at store.Millis
		if err := from.Scan(&at, &id, &c.job, &c.class, &lockKey, &active, &c.attempt, &c.onCrash, &c.attempts); err != nil {
			return err
		}
		if id == nil {
			now = at
			return nil
		}
		c.id, c.locked = store.ID(id), lockKey != ""
		copy(c.active[:], active)
		out = append(out, c)
		return nil
	})
	return out, now, err
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

// Fetch implements [store.Store]: one statement that finds candidates, and one
// that takes those that are still pending. Where some of them exclude others, the
// second is a transaction that draws their fences as well.
func (s *Store) Fetch(ctx context.Context, r store.FetchRequest) (store.Fetched, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := checkFetch(r); err != nil {
		return store.Fetched{}, s.fail("fetch", err)
	}
	r.Limit = min(r.Limit, guardedMax)
	due, now, err := s.candidates(ctx, s.q.due, r, []any{r.Namespace, r.Namespace, r.Namespace, r.Namespace})
	if err != nil {
		return store.Fetched{}, s.fail("fetch", err)
	}
	out := store.Fetched{Now: now, More: len(due) > r.Limit}
	due = due[:min(len(due), r.Limit)]
	if len(due) == 0 {
		return out, nil
	}
	var rows []row
	if !slices.ContainsFunc(due, func(c candidate) bool { return !c.plain() }) {
		err = s.conn.Retry(ctx, func() error {
			rows, err = s.start(ctx, s.conn, r, due, nil, "state = 1")
			return err
		})
	} else {
		err = s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
			fences, err := s.drawFences(ctx, tx, r.Namespace, due)
			if err != nil {
				return err
			}
			rows, err = s.start(ctx, tx, r, due, fences, "state = 1")
			if tx.Classify(err) != sqldialect.Unique {
				return err
			}
			// Another process took the key of one of them since they were read.
			rows, err = s.startEach(ctx, tx, r, due, fences)
			return err
		})
	}
	if err != nil {
		return store.Fetched{}, s.fail("fetch", err)
	}
	out.Runs = inOrder(rows, due)
	for i := range rows {
		out.Now = max(out.Now, rows[i].Started)
	}
	return out, nil
}

// start hands rows to the caller as a new attempt each, by one statement. Rows
// that are no longer as they were seen are left out.
func (s *Store) start(ctx context.Context, c sqldialect.Conn, r store.FetchRequest, rows []candidate, fences map[store.ID]int64, guard string) ([]row, error) {
	args := []any{r.Owner[:], r.OwnerLabel, r.Lease.Milliseconds()}
	fence := "fence + 1"
	if len(fences) > 0 {
		fence = "CASE id" + strings.Repeat(" WHEN ? THEN ?", len(fences)) + " ELSE fence + 1 END"
		for i := range rows {
			if f, ok := fences[rows[i].id]; ok {
				args = append(args, rows[i].id[:], f)
			}
		}
	}
	args = attemptArgs(append(args, r.Namespace), len(rows), func(i int) (*store.ID, int) { return &rows[i].id, rows[i].attempt })
	return rowsOf(ctx, c, "UPDATE "+s.t.executions+" SET attempt = attempt + 1, owner = ?, owner_label = ?,"+
		" lease_until_ms = "+c.NowMillis+" + ?, started_ms = "+c.NowMillis+","+
		" since_ms = CASE WHEN state = 1 THEN "+c.NowMillis+" ELSE since_ms END, finished_ms = 0,"+
		" active_hash = active_key, dedup_hash = NULL, version = version + 1, fence = "+fence+", state = 2"+
		" WHERE ns = ? AND "+atAttempts(c.Dialect, len(rows))+" AND "+guard+" RETURNING "+selected, args)
}

// startEach is start row by row, passing over those whose active key is held. A
// statement that fails leaves the transaction as it was before it.
func (s *Store) startEach(ctx context.Context, tx sqldialect.Conn, r store.FetchRequest, rows []candidate, fences map[store.ID]int64) ([]row, error) {
	var out []row
	for i := range rows {
		one := rows[i : i+1]
		var mine map[store.ID]int64
		if f, ok := fences[one[0].id]; ok {
			mine = map[store.ID]int64{one[0].id: f}
		}
		got, err := s.start(ctx, tx, r, one, mine, "state = 1")
		switch {
		case tx.Classify(err) == sqldialect.Unique:
		case err != nil:
			return nil, err
		default:
			out = append(out, got...)
		}
	}
	return out, nil
}

// inOrder puts rows, which a database returns in any order, into that of seen.
func inOrder(rows []row, seen []candidate) []store.Execution {
	at := make(map[store.ID]int, len(seen))
	for i := range seen {
		at[seen[i].id] = i
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(at[a.ID], at[b.ID]), bytes.Compare(a.ID[:], b.ID[:])) })
	var out []store.Execution
	for i := range rows {
		out = append(out, rows[i].Execution)
	}
	return out
}

// TakeOver implements [store.Store].
func (s *Store) TakeOver(ctx context.Context, r store.FetchRequest) (store.TakenOver, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := checkFetch(r); err != nil {
		return store.TakenOver{}, s.fail("take over", err)
	}
	r.Limit = min(r.Limit, guardedMax)
	dead, now, err := s.candidates(ctx, s.q.overdue, r, []any{r.Namespace})
	if err != nil {
		return store.TakenOver{}, s.fail("take over", err)
	}
	out := store.TakenOver{Now: now, More: len(dead) > r.Limit}
	dead = dead[:min(len(dead), r.Limit)]
	if len(dead) == 0 {
		return out, nil
	}
	var rerun []candidate
	ends := map[end][]candidate{}
	for _, c := range dead {
		if e := crashEnd(&c); e.state != 0 {
			ends[e] = append(ends[e], c)
		} else {
			rerun = append(rerun, c)
		}
	}
	var started, settled []row
	err = s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		started, settled = nil, nil
		if len(rerun) > 0 {
			fences, err := s.drawFences(ctx, tx, r.Namespace, rerun)
			if err != nil {
				return err
			}
			// The key stays the row's own, so no other can hold it.
			if started, err = s.start(ctx, tx, r, rerun, fences, "state = 2 AND lease_until_ms < "+tx.NowMillis); err != nil {
				return err
			}
		}
		for e, rows := range ends {
			got, err := s.settleDead(ctx, tx, r.Namespace, e, rows)
			if err != nil {
				return err
			}
			settled = append(settled, got...)
		}
		return nil
	})
	if err != nil {
		return store.TakenOver{}, s.fail("take over", err)
	}
	out.Runs, out.Settled = inOrder(started, dead), inOrder(settled, dead)
	return out, nil
}

// end is what becomes of a dead owner's run that is not rerun.
type end struct {
	state  store.State
	reason store.Reason
	text   string
}

func crashEnd(c *candidate) end {
	switch c.onCrash {
	case store.CrashFail:
		return end{state: store.StateFailed, reason: store.ReasonLost}
	case store.CrashNextTick:
		return end{state: store.StateMissed, reason: store.ReasonLost}
	case store.CrashIndeterminate:
		return end{state: store.StateIndeterminate, reason: store.ReasonLost}
	case store.CrashRerun:
	}
	if c.attempts > 0 && c.attempt >= c.attempts {
		return end{store.StateFailed, store.ReasonPoison, fmt.Sprintf("lease lost on attempt %d of %d", c.attempt, c.attempts)}
	}
	return end{}
}

func (s *Store) settleDead(ctx context.Context, tx sqldialect.Conn, ns string, e end, rows []candidate) ([]row, error) {
	args := attemptArgs([]any{e.reason, e.text, e.text, e.state, ns}, len(rows),
		func(i int) (*store.ID, int) { return &rows[i].id, rows[i].attempt })
	return rowsOf(ctx, tx, "UPDATE "+s.t.executions+" SET version = version + 1, reason = ?, error_text = CASE WHEN ? = '' THEN error_text ELSE ? END,"+
		" lease_until_ms = 0, finished_ms = "+tx.NowMillis+", active_hash = NULL, dedup_hash = NULL, state = ?"+
		" WHERE ns = ? AND "+atAttempts(tx.Dialect, len(rows))+" AND state = 2 AND lease_until_ms < "+tx.NowMillis+" RETURNING "+selected, args)
}
