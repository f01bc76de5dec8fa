package sqldialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
)

// Conn runs our own fixed statements on the connection pool, or the transaction,
// behind a *gorm.DB: GORM's query builder costs several times the allocations and
// hides which statements run. Values always travel as parameters.
type Conn struct {
	*Dialect
	pool gorm.ConnPool
	tx   bool
}

// Retry bounds: a transaction that the database refuses as busy is tried again
// until it has been tried for this long, or the context ends.
const retryBudget = 10 * time.Second

var retryDelay = backoff.Policy{Base: 5 * time.Millisecond, Max: 250 * time.Millisecond}

// Pool is the connection pool of db. It refuses a db that is in a transaction:
// what is written through the pool must not depend on the caller's commit.
func Pool(db *gorm.DB) (Conn, error) {
	c, err := Within(db)
	if err != nil {
		return Conn{}, err
	}
	if c.tx {
		return Conn{}, errors.New("sqldialect: this *gorm.DB is in a transaction: pass the one from gorm.Open")
	}
	return c, nil
}

// Within is the transaction that db is in, or its pool if it is in none.
func Within(db *gorm.DB) (Conn, error) {
	d, err := For(db)
	if err != nil {
		return Conn{}, err
	}
	pool := db.ConnPool
	if db.Statement != nil && db.Statement.ConnPool != nil {
		pool = db.Statement.ConnPool
	}
	_, tx := pool.(gorm.TxCommitter)
	return Conn{Dialect: d, pool: pool, tx: tx}, nil
}

// InTx reports whether the statements are part of a transaction.
func (c Conn) InTx() bool { return c.tx }

// Exec runs a statement and returns the number of rows it changed. For INSERT the
// number decides nothing: drivers disagree about rows passed over (gorm#7393).
// For an UPDATE that always changes a column they agree.
func (c Conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := c.pool.ExecContext(ctx, c.Bind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query runs a statement and calls scan for each row. The rows are closed when
// it returns, so statements of one connection never overlap.
func (c Conn) Query(ctx context.Context, query string, args []any, scan func(Rows) error) (err error) {
	rows, err := c.pool.QueryContext(ctx, c.Bind(query), args...)
	if err != nil {
		return err
	}
	defer func() {
		if end := rows.Close(); err == nil {
			err = end
		}
	}()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// QueryRow scans the one row of a query, or returns sql.ErrNoRows.
func (c Conn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	found := false
	err := c.Query(ctx, query, args, func(rows Rows) error {
		found = true
		return rows.Scan(dest...)
	})
	if err == nil && !found {
		return sql.ErrNoRows
	}
	return err
}

// Retry calls fn until it returns something other than a busy error, with jitter
// between the tries, for at most 10 s or until ctx ends.
func (c Conn) Retry(ctx context.Context, fn func() error) error {
	give := time.Now().Add(retryBudget)
	for n := 0; ; n++ {
		err := fn()
		if c.Classify(err) != Busy || ctx.Err() != nil {
			return err
		}
		delay := retryDelay.Delay(n)
		if time.Now().Add(delay).After(give) {
			return err
		}
		if backoff.Wait(ctx, delay) != nil {
			return err
		}
	}
}

// Tx runs fn in a transaction of its own (see [Dialect.TxOptions]) and commits. The whole of it is retried
// when the database is busy, so fn may be called again and must begin afresh. An
// error of fn rolls back and is returned.
func (c Conn) Tx(ctx context.Context, fn func(Conn) error) error {
	if c.tx {
		return errors.New("sqldialect: a transaction within a transaction")
	}
	return c.Retry(ctx, func() error { return c.once(ctx, fn) })
}

func (c Conn) once(ctx context.Context, fn func(Conn) error) (err error) {
	end, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also when fn panics: an open transaction would block every writer
			err = errors.Join(err, rollback(end))
		}
	}()
	if err = fn(Conn{Dialect: c.Dialect, pool: end, tx: true}); err != nil {
		return err
	}
	done = true
	if err = end.Commit(); err != nil {
		return errors.Join(err, rollback(end))
	}
	return nil
}

// Tx is a transaction of any connection pool.
type Tx interface {
	gorm.ConnPool
	gorm.TxCommitter
}

// Begin begins a transaction (see [Dialect.TxOptions]), which the caller ends.
func (c Conn) Begin(ctx context.Context) (Tx, error) {
	var pool gorm.ConnPool
	var err error
	switch b := c.pool.(type) {
	case gorm.TxBeginner:
		var tx *sql.Tx
		if tx, err = b.BeginTx(ctx, c.TxOptions()); err == nil {
			pool = tx
		}
	case gorm.ConnPoolBeginner:
		pool, err = b.BeginTx(ctx, c.TxOptions())
	default:
		return nil, fmt.Errorf("sqldialect: connection pool %T cannot begin a transaction", c.pool)
	}
	if err != nil {
		return nil, err
	}
	tx, ok := pool.(Tx)
	if !ok {
		return nil, fmt.Errorf("sqldialect: transaction %T has no commit", pool)
	}
	return tx, nil
}

// rollback ends a transaction that failed. database/sql has ended it already when
// the context did, or when COMMIT failed.
func rollback(end gorm.TxCommitter) error {
	if err := end.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

// Rows is the current row of a query.
type Rows interface{ Scan(dest ...any) error }
