package gormstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Enqueue inserts pending rows in the caller's transaction: they are there if
// and only if it commits. The same key again is store.OutcomeDuplicate. It costs
// one statement, or two on MySQL, and works on a db outside of a transaction as well. It is for
// tables of the default prefix; see [Store.EnqueueTx].
func Enqueue(tx *gorm.DB, ns string, rows ...store.NewExecution) ([]store.Enqueued, error) {
	c, err := sqldialect.Within(tx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bound(tx.Statement.Context)
	defer cancel()
	out, err := enqueue(ctx, c, defaultTables(c.Dialect), ns, rows)
	return out, fail(c.Dialect, "enqueue", err)
}

// EnqueueTx is [Enqueue] for the tables of this store.
func (s *Store) EnqueueTx(ctx context.Context, tx *gorm.DB, ns string, rows ...store.NewExecution) ([]store.Enqueued, error) {
	c, err := sqldialect.Within(tx)
	if err != nil {
		return nil, s.fail("enqueue", err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	out, err := enqueue(ctx, c, s.t, ns, rows)
	return out, s.fail("enqueue", err)
}

// Enqueue implements [store.Store].
func (s *Store) Enqueue(ctx context.Context, ns string, rows []store.NewExecution) ([]store.Enqueued, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out []store.Enqueued
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		var err error
		out, err = enqueue(ctx, tx, s.t, ns, rows)
		return err
	})
	return out, s.fail("enqueue", err)
}

func enqueue(ctx context.Context, c sqldialect.Conn, t tables, ns string, rows []store.NewExecution) ([]store.Enqueued, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].MaxAttempts = cmp.Or(rows[i].MaxAttempts, store.DefaultMaxAttempts)
	}
	if err := checkNew(rows); err != nil {
		return nil, err
	}
	closed, err := accounted(ctx, c, t, ns, rows)
	if err != nil {
		return nil, err
	}
	news := make([]*fresh, 0, len(rows))
	hashes := make([]store.Hash, len(rows))
	for i := range rows {
		f := newRow(ns, &rows[i], store.StatePending, store.ReasonNone, 0)
		hashes[i] = f.hash
		if !closed(rows[i].Key) {
			news = append(news, &f)
		}
	}
	found, err := insertAndRead(ctx, c, t, ns, news, hashes, c.ReadLatest)
	if err != nil {
		return nil, err
	}
	blocked, err := byDedup(ctx, c, t, ns, missing(rows, hashes, found), c.ReadLatest)
	if err != nil {
		return nil, err
	}
	out := make([]store.Enqueued, len(rows))
	for i := range rows {
		r, exists := found[hashes[i]]
		switch {
		case exists && r.ID == rows[i].ID:
			out[i] = store.Enqueued{Outcome: store.OutcomeEnqueued, Execution: r.Execution}
		case exists:
			out[i] = store.Enqueued{Outcome: store.OutcomeDuplicate, Execution: r.Execution}
		case closed(rows[i].Key):
			out[i] = store.Enqueued{Outcome: store.OutcomeDuplicate}
		default:
			r, exists := blocked[rows[i].Dedup]
			if !exists {
				return nil, errIDTaken(&rows[i])
			}
			out[i] = store.Enqueued{Outcome: store.OutcomeDuplicate, Execution: r.Execution}
		}
	}
	return out, nil
}

// missing are the dedup hashes of rows that were passed over.
func missing(rows []store.NewExecution, hashes []store.Hash, found map[store.Hash]*row) []store.Hash {
	var out []store.Hash
	for i := range rows {
		if _, ok := found[hashes[i]]; !ok && !rows[i].Dedup.IsZero() {
			out = append(out, rows[i].Dedup)
		}
	}
	return out
}

// accounted tells which keys are ticks that the watermarks close, so that no
// record of them may be made any more. Only class cron has any.
func accounted(ctx context.Context, c sqldialect.Conn, t tables, ns string, rows []store.NewExecution) (func(store.Key) bool, error) {
	jobs := map[string]int64{}
	for i := range rows {
		if rows[i].Key.Class == store.ClassCron {
			jobs[rows[i].Key.Job] = 0
		}
	}
	if len(jobs) == 0 {
		return func(store.Key) bool { return false }, nil
	}
	args := []any{ns}
	for _, name := range sortedKeys(jobs) {
		args = append(args, name)
	}
	err := c.Query(ctx, "SELECT job, settled_ms, pruned_ms FROM "+t.jobs+" WHERE ns = ? AND job IN "+c.List(len(jobs))+" ORDER BY job"+c.LockRows,
		args, func(from sqldialect.Rows) error {
			var name string
			var settled, pruned int64
			err := from.Scan(&name, &settled, &pruned)
			jobs[name] = max(settled, pruned)
			return err
		})
	return func(k store.Key) bool {
		mark := jobs[k.Job]
		return k.Class == store.ClassCron && mark != 0 && int64(k.Tick) <= mark
	}, err
}

var errNoTx = errors.New("this *gorm.DB is not in a transaction: pass the one given to db.Transaction's function")
