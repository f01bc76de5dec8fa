package gormstore

import (
	"context"
	"slices"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Fetch implements [store.Store]: one statement that finds rows, and one that takes
// them. Where some of them exclude others, their fences are drawn in between, in the
// same transaction.
func (s *Store) Fetch(ctx context.Context, r store.FetchRequest) (store.Fetched, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := checkFetch(r); err != nil {
		return store.Fetched{}, s.fail("fetch", err)
	}
	r.Limit = min(r.Limit, guardedMax)
	out, err := s.fetch(ctx, r, s.start)
	if s.conn.Classify(err) == sqldialect.Unique {
		// Another process took the key of one of them since they were looked at.
		out, err = s.fetch(ctx, r, s.startEach)
	}
	if err != nil {
		return store.Fetched{}, s.fail("fetch", err)
	}
	return out, nil
}

// starter hands rows to the caller.
type starter func(ctx context.Context, c sqldialect.Conn, r store.FetchRequest, rows []row, now store.Millis, fences map[store.ID]int64) ([]row, error)

func (s *Store) fetch(ctx context.Context, r store.FetchRequest, start starter) (store.Fetched, error) {
	var out store.Fetched
	query, args := s.forJobs(s.q.due, r, []any{r.Namespace, r.Namespace, r.Namespace, r.Namespace})
	alone := func(rows []row) bool { return !slices.ContainsFunc(rows, func(x row) bool { return !x.plain() }) }
	now, err := s.seize(ctx, query, args, alone, func(c sqldialect.Conn, due []row, now store.Millis) error {
		out = store.Fetched{More: len(due) > r.Limit}
		due = due[:min(len(due), r.Limit)]
		if len(due) == 0 {
			return nil
		}
		fences, err := s.drawFences(ctx, c, r.Namespace, due)
		if err != nil {
			return err
		}
		rows, err := start(ctx, c, r, due, now, fences)
		out.Runs = executions(rows)
		return err
	})
	out.Now = now
	return out, err
}

// startEach is start row by row, passing over those whose active key is held.
// PostgreSQL gives up a transaction in which a statement failed, but for a savepoint.
func (s *Store) startEach(ctx context.Context, c sqldialect.Conn, r store.FetchRequest, rows []row, now store.Millis, fences map[store.ID]int64) ([]row, error) {
	var out []row
	for i := range rows {
		if !c.InTx() { // only SQLite, and only for rows that hold no key
			return s.start(ctx, c, r, rows, now, fences)
		}
		if _, err := c.Exec(ctx, "SAVEPOINT one_row"); err != nil {
			return nil, err
		}
		got, err := s.start(ctx, c, r, rows[i:i+1], now, fences)
		end := "RELEASE SAVEPOINT one_row"
		switch {
		case c.Classify(err) == sqldialect.Unique:
			end = "ROLLBACK TO SAVEPOINT one_row"
		case err != nil:
			return nil, err
		default:
			out = append(out, got...)
		}
		if _, err := c.Exec(ctx, end); err != nil {
			return nil, err
		}
	}
	return out, nil
}
