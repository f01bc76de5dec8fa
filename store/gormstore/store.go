package gormstore

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

//go:embed migrations
var migrations embed.FS

// DefaultPrefix begins the names of all tables.
const DefaultPrefix = "solotick_"

// callTimeout bounds calls whose context has no deadline.
const callTimeout = 30 * time.Second

// Store keeps executions in a SQL database. It is safe for concurrent use. It
// holds nothing but the *gorm.DB, which its maker closes.
type Store struct {
	db     *gorm.DB
	conn   sqldialect.Conn
	schema *sqldialect.Set
	prefix string
	t      tables
	q      statements
}

var _ store.Store = (*Store)(nil)

// tables are the names of the tables.
type tables struct {
	executions, ranges, jobs, fences, attempts, marks string

	insertOne, insertLean inserts

	byID  string // the executions, in an UPDATE by their IDs
	ofNS  string // the term that names their namespace there
	hints bool   // see by
}

func tablesOf(prefix string, d *sqldialect.Dialect) tables {
	t := tables{
		executions: prefix + "executions", ranges: prefix + "tick_ranges", jobs: prefix + "job_state", fences: prefix + "fences",
		attempts: prefix + "attempts", marks: prefix + "prune_marks",
	}
	t.byID, t.ofNS = t.executions, "ns = ?"
	if d == sqldialect.SQLite() {
		// It takes any namespace to have about ten rows, and would rather read all of
		// them than look for five IDs.
		t.ofNS = "+ns = ?"
	}
	if d == sqldialect.MySQL() {
		// InnoDB locks what it scans: the choice of the index must not depend on its
		// idea of how many rows there are.
		t.hints = true
		t.byID += " FORCE INDEX (PRIMARY)"
	}
	t.insertOne, t.insertLean = newInserts(t, d, false), newInserts(t, d, true)
	return t
}

var tablesByDefault sync.Map // *sqldialect.Dialect: tables

func defaultTables(d *sqldialect.Dialect) tables {
	t, ok := tablesByDefault.Load(d)
	if !ok {
		t, _ = tablesByDefault.LoadOrStore(d, tablesOf(DefaultPrefix, d))
	}
	return t.(tables)
}

// by names the index of the executions that a locking SELECT must go by, where the
// database has to be told.
func (t tables) by(index string) string {
	if !t.hints {
		return ""
	}
	return " FORCE INDEX (" + t.executions + "_" + index + ")"
}

// Option changes how New makes a Store.
type Option func(*Store)

// WithPrefix sets the prefix of the table names: a lower-case letter, then
// letters, digits and underscores. Empty stands for the default, [DefaultPrefix].
func WithPrefix(prefix string) Option {
	return func(s *Store) { s.prefix = cmp.Or(prefix, DefaultPrefix) }
}

// New makes a store on an open database. It sends nothing: call [Store.Migrate]
// once before the first use. The db must not be in a transaction. Supported are
// the databases SQLite, PostgreSQL, MariaDB and MySQL.
func New(db *gorm.DB, opts ...Option) (*Store, error) {
	s := &Store{db: db, prefix: DefaultPrefix}
	for _, o := range opts {
		o(s)
	}
	var err error
	if s.conn, err = sqldialect.Pool(db); err != nil {
		return nil, fmt.Errorf("gormstore: %w", err)
	}
	if s.schema, err = sqldialect.LoadSet("store", migrations, "migrations", s.prefix, s.conn.Dialect, brokenIndex); err != nil {
		return nil, fmt.Errorf("gormstore: %w", err)
	}
	s.t = tablesOf(s.prefix, s.conn.Dialect)
	s.q = newStatements(s.t, s.conn.Dialect)
	return s, nil
}

// DB is the database that the store was made on. Transactions begun on it can be
// given to [Store.FinishTx].
func (s *Store) DB() *gorm.DB { return s.db }

// brokenIndex leaves a unique index out in mutation builds.
func brokenIndex(guard string) bool {
	return guard == "unique-run-index" && mutation.On("unique-run-index") ||
		guard == "unique-active-index" && mutation.On("unique-active-index")
}

// Migrate brings the tables up to what this program needs, in one transaction:
// of several processes that start at once one does it. Tables of a newer program
// are refused with an error that matches store.ErrSchema; nothing is changed then.
func (s *Store) Migrate(ctx context.Context) error {
	return s.fail("migrate", s.schema.Up(ctx, s.conn))
}

// CheckSchema answers nil if the tables are what this program needs, and changes
// nothing. Otherwise the error matches store.ErrSchema or store.ErrUnavailable.
func (s *Store) CheckSchema(ctx context.Context) error {
	return s.fail("check the schema", s.schema.Check(ctx, s.conn))
}

// MigrationStatus tells which migrations are applied and which are pending.
func (s *Store) MigrationStatus(ctx context.Context) (sqldialect.Status, error) {
	st, err := s.schema.Status(ctx, s.conn)
	return st, s.fail("migration status", err)
}

// MigrationSQL is the schema as a script, for those who run migrations by hand.
func (s *Store) MigrationSQL() string { return s.schema.SQL(s.conn.Dialect) }

// Now implements [store.Store].
func (s *Store) Now(ctx context.Context) (store.Millis, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var now store.Millis
	err := s.conn.QueryRow(ctx, "SELECT "+s.conn.NowMillis, nil, &now)
	return now, s.fail("now", err)
}

func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// fail puts err into the words of package store.
func (s *Store) fail(op string, err error) error { return fail(s.conn.Dialect, op, err) }

func fail(d *sqldialect.Dialect, op string, err error) error {
	var schema *sqldialect.SchemaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &schema):
		return fmt.Errorf("gormstore: %s: %w: %w", op, store.ErrSchema, err)
	}
	switch d.Classify(err) {
	case sqldialect.Schema:
		return fmt.Errorf("gormstore: %s: %w: tables are missing or old: run the migrations (solotick migrate up): %w", op, store.ErrSchema, err)
	case sqldialect.Busy, sqldialect.Full, sqldialect.ReadOnly, sqldialect.Corrupt, sqldialect.Unavailable:
		return fmt.Errorf("gormstore: %s: %w: %w", op, store.ErrUnavailable, d.Explain(err))
	default:
		return fmt.Errorf("gormstore: %s: %w", op, err)
	}
}
