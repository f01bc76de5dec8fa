package sqlitedb

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/gorm"
)

// pool is a gorm.ConnPool over one writing connection and several reading ones.
type pool struct {
	writer, readers *sql.DB
	write, read     *prepared
}

var (
	_ gorm.ConnPool         = (*pool)(nil)
	_ gorm.ConnPoolBeginner = (*pool)(nil)
	_ gorm.GetDBConnector   = (*pool)(nil)
	_ gorm.Tx               = (*txn)(nil)
)

func newPool(writer, readers *sql.DB) *pool {
	return &pool{writer: writer, readers: readers, write: newPrepared(writer), read: newPrepared(readers)}
}

func (p *pool) close() error {
	return errors.Join(p.write.close(), p.read.close(), p.readers.Close(), p.writer.Close())
}

// GetDBConn is the writing connection: what is not known to be a read is a write.
func (p *pool) GetDBConn() (*sql.DB, error) { return p.writer, nil }

func (p *pool) side(query string) *prepared {
	if verb(query) == "SELECT" {
		return p.read
	}
	return p.write
}

// PrepareContext implements gorm.ConnPool.
func (p *pool) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return p.side(query).db.PrepareContext(ctx, query)
}

// ExecContext implements gorm.ConnPool.
func (p *pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if s := p.write.stmt(ctx, query); s != nil { //nolint:sqlclosecheck // kept for the next call
		return s.ExecContext(ctx, args...)
	}
	return p.writer.ExecContext(ctx, query, args...)
}

// QueryContext implements gorm.ConnPool.
func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	side := p.side(query)
	if s := side.stmt(ctx, query); s != nil { //nolint:sqlclosecheck // kept for the next call
		return s.QueryContext(ctx, args...)
	}
	return side.db.QueryContext(ctx, query, args...)
}

// QueryRowContext implements gorm.ConnPool.
func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	side := p.side(query)
	if s := side.stmt(ctx, query); s != nil { //nolint:sqlclosecheck // kept for the next call
		return s.QueryRowContext(ctx, args...)
	}
	return side.db.QueryRowContext(ctx, query, args...)
}

// BeginTx begins a transaction that holds the write lock from the start; one that
// is read-only runs on a reading connection.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	side := p.write
	if opts != nil && opts.ReadOnly {
		side = p.read
	}
	side.catchUp(ctx)
	tx, err := side.db.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &txn{Tx: tx, pool: p, side: side}, nil
}

// txn is a transaction that uses the prepared statements of its connection.
type txn struct {
	*sql.Tx
	pool *pool
	side *prepared
}

// GetDBConn is the pool's, so that (*gorm.DB).DB works within a transaction.
func (t *txn) GetDBConn() (*sql.DB, error) { return t.pool.GetDBConn() }

func (t *txn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if s := t.side.known(query); s != nil {
		return t.StmtContext(ctx, s).ExecContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *txn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if s := t.side.known(query); s != nil {
		return t.StmtContext(ctx, s).QueryContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t *txn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if s := t.side.known(query); s != nil {
		return t.StmtContext(ctx, s).QueryRowContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}
