// Package sqlcount counts the statements and transactions that go through a
// *gorm.DB, for tests: a promise such as "one statement" is only as good as the
// count that backs it.
//
// It counts what is sent to the connection, whoever sends it. BEGIN, COMMIT and
// ROLLBACK are counted as a transaction and not as statements.
package sqlcount

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"

	"gorm.io/gorm"
)

// Counter holds what was counted. It is safe for concurrent use.
type Counter struct {
	mu    sync.Mutex
	calls []Call
	txs   int
	hook  func(query string) error
	edit  func(query string) string
}

// Call is a statement that was sent, with its values.
type Call struct {
	Query string
	Args  []any
}

// Wrap returns a *gorm.DB on the same database whose statements are counted.
func Wrap(db *gorm.DB) (*gorm.DB, *Counter) {
	c := &Counter{}
	counted := db.Session(&gorm.Session{NewDB: true, Context: db.Statement.Context})
	p := &pool{db.ConnPool, c}
	counted.Config.ConnPool = p
	counted.Statement.ConnPool = p
	return counted, c
}

// Calls are the statements since the last reset, in order.
func (c *Counter) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Queries are the texts of Calls.
func (c *Counter) Queries() []string {
	var out []string
	for _, one := range c.Calls() {
		out = append(out, one.Query)
	}
	return out
}

// Statements is the number of statements since the last reset.
func (c *Counter) Statements() int { return len(c.Calls()) }

// Transactions is the number of transactions begun since the last reset.
func (c *Counter) Transactions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.txs
}

// Reset begins to count anew.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.txs = nil, 0
}

// Before has f called before every statement; its error is the statement's, which
// is then not sent. The ends of a transaction are "BEGIN" and "COMMIT". Nil ends it.
func (c *Counter) Before(f func(query string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = f
}

// Edit has every statement replaced by what f makes of it, such as one that another
// version of the server would have understood. Nil ends it.
func (c *Counter) Edit(f func(query string) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.edit = f
}

// sent counts a statement and answers its text.
func (c *Counter) sent(query string, args []any) (string, error) {
	c.mu.Lock()
	if c.edit != nil {
		query = c.edit(query)
	}
	c.calls = append(c.calls, Call{query, args})
	c.mu.Unlock()
	return query, c.ask(query)
}

// ask calls the hook.
func (c *Counter) ask(query string) error {
	c.mu.Lock()
	hook := c.hook
	c.mu.Unlock()
	if hook != nil {
		return hook(query)
	}
	return nil
}

type pool struct {
	gorm.ConnPool
	c *Counter
}

func (p *pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, err := p.c.sent(query, args)
	if err != nil {
		return nil, err
	}
	return p.ConnPool.ExecContext(ctx, query, args...)
}

func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, err := p.c.sent(query, args)
	if err != nil {
		return nil, err
	}
	return p.ConnPool.QueryContext(ctx, query, args...)
}

// QueryRowContext cannot fail by the hook: a *sql.Row is not ours to make.
func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, _ = p.c.sent(query, args)
	return p.ConnPool.QueryRowContext(ctx, query, args...)
}

// GetDBConn implements gorm.GetDBConnector.
func (p *pool) GetDBConn() (*sql.DB, error) {
	switch inner := p.ConnPool.(type) {
	case *sql.DB:
		return inner, nil
	case gorm.GetDBConnector:
		return inner.GetDBConn()
	}
	return nil, gorm.ErrInvalidDB
}

// BeginTx implements gorm.ConnPoolBeginner.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	p.c.mu.Lock()
	p.c.txs++
	p.c.mu.Unlock()
	if err := p.c.ask("BEGIN"); err != nil {
		return nil, err
	}
	var inner gorm.ConnPool
	var err error
	switch b := p.ConnPool.(type) {
	case gorm.TxBeginner:
		inner, err = b.BeginTx(ctx, opts)
	case gorm.ConnPoolBeginner:
		inner, err = b.BeginTx(ctx, opts)
	default:
		err = gorm.ErrInvalidTransaction
	}
	if err != nil {
		return nil, err
	}
	end, ok := inner.(gorm.TxCommitter)
	if !ok {
		return nil, errors.New("sqlcount: the transaction has no commit")
	}
	return &txn{pool{inner, p.c}, end}, nil
}

// txn is a transaction; it begins no other.
type txn struct {
	p   pool
	end gorm.TxCommitter
}

func (t *txn) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.p.PrepareContext(ctx, query)
}

func (t *txn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.p.ExecContext(ctx, query, args...)
}

func (t *txn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.p.QueryContext(ctx, query, args...)
}

func (t *txn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.p.QueryRowContext(ctx, query, args...)
}

func (t *txn) GetDBConn() (*sql.DB, error) { return t.p.GetDBConn() }

func (t *txn) Commit() error {
	if err := t.p.c.ask("COMMIT"); err != nil {
		return errors.Join(err, t.end.Rollback())
	}
	return t.end.Commit()
}

func (t *txn) Rollback() error { return t.end.Rollback() }
