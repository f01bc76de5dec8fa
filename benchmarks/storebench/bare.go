package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// byHand is what a careful user writes without a library, for the same guarantees on
// the same tables: the claim in a transaction that locks the job and reads back whose
// the row is, and the effect in one whose last statement is the guarded finish.
type byHand struct {
	p     place
	db    *sql.DB
	first store.Millis
	owner store.Owner

	lock, insert, readBack, raise *sql.Stmt
	check, effect, finish         *sql.Stmt
	texts                         map[**sql.Stmt]string
}

func openBare(ctx context.Context, p place, callers int) (_ *side, err error) {
	o, first, err := prepare(ctx, p, callers)
	if err == nil {
		err = o.close()
	}
	if err != nil {
		return nil, err
	}
	db, err := p.bare(callers)
	if err != nil {
		return nil, err
	}
	b := &byHand{p: p, db: db, first: first, owner: store.NewOwner()}
	b.write()
	if p.name == sqlite {
		for stmt, text := range b.texts {
			if *stmt, err = db.PrepareContext(ctx, text); err != nil { //nolint:sqlclosecheck // the pool's end is theirs
				return nil, errors.Join(err, db.Close())
			}
		}
	}
	return &side{p, b.cycle, db.Close}, nil
}

// write puts the statements together.
func (b *byHand) write() {
	d := b.p.dialect()
	executions, jobs := b.p.prefix+"executions", b.p.prefix+"job_state"
	b.texts = map[**sql.Stmt]string{}
	for stmt, text := range map[**sql.Stmt]string{
		&b.lock: "SELECT settled_ms, pruned_ms, fence, paused_ms, paused_until_ms, spec_hash, " + d.NowMillis +
			" FROM " + jobs + " WHERE ns = ? AND job = ?" + d.LockRows,
		&b.insert: "INSERT INTO " + executions + " (id, ns, queue, job, class, tick_ms, run_hash, active_key, active_hash, zone, spec_hash, state," +
			" attempt, owner, owner_label, lease_until_ms, fence, run_at_ms, created_ms, started_ms, since_ms, claimed) VALUES " + d.List(22) + d.InsertIgnore,
		&b.readBack: "SELECT id FROM " + executions + " WHERE ns = ? AND run_hash = ?",
		&b.raise:    "UPDATE " + jobs + " SET fence = ?, version = version + 1 WHERE ns = ? AND job = ?",
		&b.check:    "SELECT 1 FROM " + executions + " WHERE id = ? AND ns = ? AND state = 2 AND attempt = ? AND owner = ?",
		&b.effect:   "INSERT INTO " + b.p.effects() + " (note, id) VALUES (?, ?)",
		&b.finish: "UPDATE " + executions + " SET version = version + 1, lease_until_ms = 0, result = ?, finished_ms = " + d.NowMillis +
			", active_hash = NULL, dedup_hash = NULL, state = 3 WHERE id = ? AND ns = ? AND state = 2 AND attempt = ? AND owner = ?",
	} {
		b.texts[stmt] = d.Bind(text)
	}
}

// exec runs a statement, which on SQLite is prepared: the other drivers do as well
// without.
func (b *byHand) exec(ctx context.Context, tx *sql.Tx, stmt **sql.Stmt, args ...any) (sql.Result, error) {
	if *stmt != nil {
		return tx.StmtContext(ctx, *stmt).ExecContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return tx.ExecContext(ctx, b.texts[stmt], args...)
}

func (b *byHand) row(ctx context.Context, tx *sql.Tx, stmt **sql.Stmt, args ...any) *sql.Row {
	if *stmt != nil {
		return tx.StmtContext(ctx, *stmt).QueryRowContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return tx.QueryRowContext(ctx, b.texts[stmt], args...)
}

// in runs f in a transaction, again where the database refuses it as deadlocked or busy.
func (b *byHand) in(ctx context.Context, f func(tx *sql.Tx) error) error {
	d := b.p.dialect()
	for n := 0; ; n++ {
		err := b.once(ctx, d.TxOptions(), f)
		if d.Classify(err) != sqldialect.Busy || n == 20 {
			return err
		}
		if err := backoff.Wait(ctx, backoff.Policy{Base: 5 * time.Millisecond, Max: 250 * time.Millisecond}.Delay(n)); err != nil {
			return err
		}
	}
}

func (b *byHand) once(ctx context.Context, o *sql.TxOptions, f func(tx *sql.Tx) error) error {
	tx, err := b.db.BeginTx(ctx, o)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (b *byHand) cycle(ctx context.Context, job string, n store.Millis) error {
	tick := b.first + n
	key := store.Key{Class: store.ClassCron, Job: job, Tick: tick}
	var id store.ID
	const attempt = 1
	err := b.in(ctx, func(tx *sql.Tx) error {
		var settled, pruned, paused, pausedUntil, now store.Millis
		var fence int64
		var spec string
		if err := b.row(ctx, tx, &b.lock, space, job).Scan(&settled, &pruned, &fence, &paused, &pausedUntil, &spec, &now); err != nil {
			return err
		}
		if tick <= max(settled, pruned) || tick > now.Add(store.EarlyTolerance) || spec != hash || paused != 0 && paused <= tick && (pausedUntil == 0 || tick < pausedUntil) {
			return fmt.Errorf("tick %d cannot be claimed", n)
		}
		fence++
		id = store.NewID(now)
		runHash, active := key.Hash(), store.ActiveCron(job, 0)
		if _, err := b.exec(ctx, tx, &b.insert, id[:], space, "default", job, store.ClassCron, tick, runHash[:], active[:], active[:], "UTC", hash, store.StateRunning,
			attempt, b.owner[:], label, now.Add(lease), fence, now, now, now, now, store.OutcomeStarted); err != nil {
			return err
		}
		var there []byte
		if err := b.row(ctx, tx, &b.readBack, space, runHash[:]).Scan(&there); err != nil {
			return err
		}
		if store.ID(there) != id {
			return fmt.Errorf("tick %d is another's", n)
		}
		_, err := b.exec(ctx, tx, &b.raise, fence, space, job)
		return err
	})
	if err != nil {
		return err
	}
	return b.in(ctx, func(tx *sql.Tx) error {
		var one int
		if err := b.row(ctx, tx, &b.check, id[:], space, attempt, b.owner[:]).Scan(&one); err != nil {
			return err
		}
		if _, err := b.exec(ctx, tx, &b.effect, job, id[:]); err != nil {
			return err
		}
		res, err := b.exec(ctx, tx, &b.finish, nil, id[:], space, attempt, b.owner[:])
		if err != nil {
			return err
		}
		if changed, err := res.RowsAffected(); err != nil || changed != 1 {
			return errors.Join(store.ErrFenced, err)
		}
		return nil
	})
}
