package idempotent

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

//go:embed migrations
var migrations embed.FS

// Effects makes effects happen once in a database that is not the store's: by a
// table of its own there, with one row per run that is done. Make one with
// NewEffects for each database. It is safe for concurrent use and needs no Close.
type Effects struct {
	db       *gorm.DB
	conn     sqldialect.Conn
	schema   *sqldialect.Set
	prefix   string
	patience time.Duration
}

// EffectsOption changes how NewEffects makes Effects.
type EffectsOption func(*Effects)

// WithTablePrefix sets the prefix of the tables: a lower-case letter, then letters,
// digits and underscores. Default [gormstore.DefaultPrefix].
func WithTablePrefix(prefix string) EffectsOption {
	return func(e *Effects) { e.prefix = prefix }
}

// NewEffects works on the user's open database: SQLite, PostgreSQL, MariaDB or
// MySQL. It sends nothing: call Migrate once, or run MigrationSQL by hand.
func NewEffects(db *gorm.DB, opts ...EffectsOption) (*Effects, error) {
	e := &Effects{db: db, prefix: gormstore.DefaultPrefix, patience: 10 * time.Second}
	for _, o := range opts {
		o(e)
	}
	var err error
	if e.conn, err = sqldialect.Pool(db); err != nil {
		return nil, fmt.Errorf("idempotent: %w", err)
	}
	if e.schema, err = sqldialect.LoadSet("effects", migrations, "migrations", e.prefix, e.conn.Dialect, nil); err != nil {
		return nil, fmt.Errorf("idempotent: %w", err)
	}
	return e, nil
}

// Migrate makes the tables <prefix>effects and <prefix>effect_fences, or brings them
// up to what this program needs; see [gormstore.Store.Migrate].
func (e *Effects) Migrate(ctx context.Context) error {
	return e.fail("migrate", e.schema.Up(ctx, e.conn))
}

// CheckSchema answers nil if the tables are what this program needs. Otherwise the
// error matches store.ErrSchema or store.ErrUnavailable.
func (e *Effects) CheckSchema(ctx context.Context) error {
	return e.fail("check the schema", e.schema.Check(ctx, e.conn))
}

// MigrationSQL is the schema as a script, for those who run migrations by hand.
func (e *Effects) MigrationSQL() string { return e.schema.SQL(e.conn.Dialect) }

func (e *Effects) fail(op string, err error) error {
	var schema *sqldialect.SchemaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &schema), e.conn.Classify(err) == sqldialect.Schema:
		return fmt.Errorf("idempotent: %s: %w: %w", op, store.ErrSchema, err)
	}
	return fmt.Errorf("idempotent: %s: %w", op, unavailable(e.conn.Dialect, err))
}

// Fence is the function [Fence] for this database.
func (e *Effects) Fence(tx *gorm.DB, resource string, n int64) error {
	return fenceIn(tx, e.prefix+"effect_fences", resource, n)
}

var errEffectDone = errors.New("idempotent: the effect is done")

// Do calls fn in a transaction of the user's database and commits its writes
// together with a row that says that the run's effect is done. Over all attempts and
// processes at most one call of fn for a run is committed. A nil error means that
// the effect is there, by this attempt or by an earlier one whose process died before
// its run was finished; fn was not called then, and the run's SetResult, if it has
// one, was given the result that was kept with the effect. Return nil from the
// handler afterwards: the scheduler records the success, in the store.
//
// An attempt that is not the latest which came here gets ErrFenced, and has written
// nothing. The other errors, the retries and what fn may do are as for [Guard.Do].
// What is weaker than there: that the run is recorded as succeeded comes a moment
// after the effect, so a run whose effect is done can be seen running, or failed if
// the handler returns an error after Do. Two statements more than Guard.Do.
func (e *Effects) Do(ctx context.Context, run KeyedRun, fn func(tx *gorm.DB) error) error {
	ref := run.Ref()
	id := store.HashOf("effects", ref.Namespace, run.Key().Hash().String())
	var kept []byte
	// The row names the attempt before it writes, so that an older one is fenced.
	err := e.conn.Retry(ctx, func() error {
		row, err := e.announce(ctx, id, ref)
		if row.done {
			kept, err = row.result, errEffectDone
		}
		return err
	})
	if err == nil {
		u := unit{
			db: e.db, patience: e.patience, fn: fn,
			before: func(ctx context.Context, tx *gorm.DB) error {
				c, err := sqldialect.Within(tx)
				if err != nil {
					return err
				}
				row, err := e.read(ctx, c, id)
				switch {
				case err != nil:
				case row.done:
					kept, err = row.result, errEffectDone
				case !row.of(ref):
					err = ErrFenced
				}
				return err
			},
			after: func(ctx context.Context, tx *gorm.DB) error { return e.complete(ctx, tx, id, ref, run) },
			fate: func(ctx context.Context) (fate, error) {
				row, err := e.read(ctx, e.conn, id)
				switch {
				case err != nil:
					return gone, err
				case row.of(ref) && row.done:
					return applied, nil
				case row.of(ref):
					return open, nil
				}
				return gone, nil
			},
		}
		err = u.commit(ctx)
	}
	if !errors.Is(err, errEffectDone) {
		return err
	}
	if r, ok := run.(interface{ SetResult(b []byte) }); ok && len(kept) > 0 {
		r.SetResult(kept)
	}
	return nil
}

// effectRow is a run in the table.
type effectRow struct {
	attempt int
	owner   []byte
	done    bool
	result  []byte
}

func (r effectRow) of(ref store.Ref) bool {
	return r.attempt == ref.Attempt && string(r.owner) == string(ref.Owner[:])
}

func (e *Effects) table() string { return e.prefix + "effects" }

// announce makes the attempt the run's latest, if it is.
func (e *Effects) announce(ctx context.Context, id store.Hash, ref store.Ref) (effectRow, error) {
	c := e.conn
	if _, err := c.Exec(ctx, "INSERT INTO "+e.table()+" (id, ns, attempt, owner, done, seen_ms, version) VALUES (?, ?, ?, ?, 0, "+c.NowMillis+", 1)"+c.InsertIgnore,
		id[:], ref.Namespace, ref.Attempt, ref.Owner[:]); err != nil {
		return effectRow{}, e.fail("announce the effect", err)
	}
	n, err := c.Exec(ctx, "UPDATE "+e.table()+" SET attempt = ?, owner = ?, seen_ms = "+c.NowMillis+", version = version + 1 WHERE id = ? AND done = 0 AND attempt <= ?",
		ref.Attempt, ref.Owner[:], id[:], ref.Attempt)
	if err != nil || n == 1 {
		return effectRow{}, e.fail("announce the effect", err)
	}
	row, err := e.read(ctx, c, id)
	if err == nil && !row.done {
		err = ErrFenced
	}
	return row, err
}

func (e *Effects) read(ctx context.Context, c sqldialect.Conn, id store.Hash) (effectRow, error) {
	var row effectRow
	found := false
	err := c.Query(ctx, "SELECT attempt, owner, done, result FROM "+e.table()+" WHERE id = ?", []any{id[:]}, func(from sqldialect.Rows) error {
		found = true
		return from.Scan(&row.attempt, &row.owner, &row.done, &row.result)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w (its effects row is gone)", ErrFenced)
	}
	if errors.Is(err, ErrFenced) {
		return row, err
	}
	return row, e.fail("read the effect", err)
}

// complete is the guard: it says done if the attempt is still the latest.
func (e *Effects) complete(ctx context.Context, tx *gorm.DB, id store.Hash, ref store.Ref, run KeyedRun) error {
	c, err := sqldialect.Within(tx)
	if err != nil {
		return err
	}
	var result any
	if r, ok := run.(interface{ Result() []byte }); ok {
		b := r.Result()
		if err := checkResult(b); err != nil {
			return err
		}
		if len(b) > 0 {
			result = b
		}
	}
	query := "UPDATE " + e.table() + " SET done = 1, result = ?, seen_ms = " + c.NowMillis + ", version = version + 1 WHERE id = ?"
	args := []any{result, id[:]}
	if !mutation.On("effects-attempt") {
		query += " AND done = 0 AND attempt = ? AND owner = ?"
		args = append(args, ref.Attempt, ref.Owner[:])
	}
	n, err := c.Exec(ctx, query, args...)
	switch {
	case err != nil:
		return e.fail("complete the effect", err)
	case n == 0:
		return ErrFenced
	}
	return nil
}

// Prune deletes rows of effects that were done longer ago than age, by the
// database's clock, at most limit of them, and answers how many. The age must be
// longer than any attempt of a run can come late: longer than the store keeps the
// run's record.
func (e *Effects) Prune(ctx context.Context, age time.Duration, limit int) (int64, error) {
	var n int64
	err := e.conn.Retry(ctx, func() error {
		var old []any
		err := e.conn.Query(ctx, "SELECT id FROM "+e.table()+" WHERE done = 1 AND seen_ms < "+e.conn.NowMillis+" - ? ORDER BY seen_ms LIMIT ?",
			[]any{age.Milliseconds(), limit}, func(from sqldialect.Rows) error {
				var id []byte
				err := from.Scan(&id)
				old = append(old, id)
				return err
			})
		if err != nil || len(old) == 0 {
			return err
		}
		n, err = e.conn.Exec(ctx, "DELETE FROM "+e.table()+" WHERE id IN "+e.conn.List(len(old)), old...)
		return err
	})
	return n, e.fail("prune effects", err)
}
