package idempotent_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

var (
	_ idempotent.Run = (*scheduler.Run)(nil)
	_ idempotent.Run = (*run)(nil)
)

const ns = "test"

// run stands for *scheduler.Run.
type run struct {
	exec    store.Execution
	settled atomic.Bool
	result  []byte
}

func (r *run) Ref() store.Ref   { return r.exec.Ref() }
func (r *run) MarkSettled()     { r.settled.Store(true) }
func (r *run) Mode() store.Mode { return store.ModeNone }
func (r *run) Settled() bool    { return r.settled.Load() }
func (r *run) Result() []byte   { return r.result }

// effect is what the tests' handlers write.
type effect struct {
	ID      int64
	Attempt int
	Note    string
}

// world is a database with a store, a table of effects, and a guard whose way to
// the database is a line that fails on command.
type world struct {
	*testing.T
	kind  string // of the database, for openDB
	dsn   string
	db    *gorm.DB // past the line
	store *gormstore.Store
	line  *line
	guard *idempotent.Guard
	ticks store.Millis
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldAt(t, "sqlite", filepath.Join(t.TempDir(), "store.db"))
}

// everywhere runs a test on SQLite and on servers.
func everywhere(t *testing.T, run func(w *world)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { run(newWorld(t)) })
	onServers(t, run)
}

// onServers runs a test on servers whose transactions are snapshots by default.
func onServers(t *testing.T, run func(w *world)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		run(worldAt(t, "postgres", testenv.SharedPostgres(t).DSN()+"&default_transaction_isolation=repeatable%20read"))
	})
	t.Run("mariadb", func(t *testing.T) {
		run(worldAt(t, "mariadb", testenv.SharedMySQL(t).DSN()+"&innodb_snapshot_isolation=ON"))
	})
}

// openDB opens a database by the name of its kind and its DSN, which is a path for SQLite.
func openDB(kind, dsn string) (*gorm.DB, func() error, error) {
	switch kind {
	case "postgres":
		return postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(dsn)})
	case "mariadb":
		return mysqldb.Open(sqldialect.ServerConfig{DSN: secret.New(dsn)})
	}
	db, err := sqlitedb.Open(dsn, nil)
	return db, func() error { return sqlitedb.Close(db) }, err
}

func worldAt(t *testing.T, kind, dsn string) *world {
	t.Helper()
	db, closer, err := openDB(kind, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	})
	w := worldOn(t, db)
	w.kind, w.dsn = kind, dsn
	return w
}

func worldOn(t *testing.T, db *gorm.DB) *world {
	t.Helper()
	w := &world{T: t, db: db, line: &line{ConnPool: db.ConnPool}}
	var err error
	if w.store, err = gormstore.New(db); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.AutoMigrate(&effect{}); err != nil {
		t.Fatal(err)
	}
	wired := db.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	wired.ConnPool = w.line
	wired.Statement.ConnPool = w.line
	behind, err := gormstore.New(wired)
	if err != nil {
		t.Fatal(err)
	}
	w.guard = idempotent.New(behind)
	w.guard.SetPatience(2 * time.Second)
	now, err := w.store.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.ticks = now - 1000
	reg, err := w.store.Register(t.Context(), ns, []store.JobSpec{{Job: "report"}})
	if err != nil || len(reg.Jobs) != 1 {
		t.Fatalf("Register = %+v, %v", reg, err)
	}
	return w
}

// effectsBehindTheLine are Effects whose way to the database is the line.
func (w *world) effectsBehindTheLine() *idempotent.Effects {
	w.Helper()
	wired := w.db.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	wired.ConnPool = w.line
	wired.Statement.ConnPool = w.line
	e, err := idempotent.NewEffects(wired)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// claim starts a run, as a process of its own.
func (w *world) claim() *run {
	w.Helper()
	w.ticks++
	got, err := w.store.Claim(w.Context(), store.ClaimRequest{
		Namespace: ns, Owner: store.NewOwner(), Lease: time.Minute,
		Runs: []store.ClaimRun{{NewExecution: store.NewExecution{
			Key: store.Key{Class: store.ClassManual, Job: "report", Request: w.ticks.String()}, MaxAttempts: 10,
		}}},
	})
	if err != nil || got.Runs[0].Outcome != store.OutcomeStarted {
		w.Fatalf("Claim = %+v, %v", got, err)
	}
	return &run{exec: got.Runs[0].Execution}
}

// takeOver hands the run to another process, as if its owner had been silent for
// longer than its lease.
func (w *world) takeOver(r *run) *run {
	w.Helper()
	if err := w.db.Exec("UPDATE solotick_executions SET lease_until_ms = 1 WHERE id = ?", r.exec.ID[:]).Error; err != nil {
		w.Fatal(err)
	}
	got, err := w.store.TakeOver(w.Context(), store.FetchRequest{
		Namespace: ns, Owner: store.NewOwner(), Lease: time.Minute, Jobs: []string{"report"}, Limit: 10,
	})
	if err != nil || len(got.Runs) != 1 || got.Runs[0].Attempt != r.exec.Attempt+1 {
		w.Fatalf("TakeOver = %+v, %v", got, err)
	}
	return &run{exec: got.Runs[0]}
}

// write is a handler's effect.
func write(r *run, calls *int) func(tx *gorm.DB) error {
	return func(tx *gorm.DB) error {
		*calls++
		return tx.Create(&effect{Attempt: r.exec.Attempt}).Error
	}
}

// want checks the effects, by the attempts that wrote them, and the record.
func (w *world) want(r *run, state store.State, attempts ...int) {
	w.Helper()
	var found []effect
	if err := w.db.Order("id").Find(&found).Error; err != nil {
		w.Fatal(err)
	}
	ok := len(found) == len(attempts)
	for i := 0; ok && i < len(found); i++ {
		ok = found[i].Attempt == attempts[i]
	}
	if !ok {
		w.Errorf("the effects are %+v, want those of attempts %v", found, attempts)
	}
	e, err := w.store.Get(w.Context(), ns, r.exec.ID)
	if err != nil || e.State != state {
		w.Errorf("the record is %v, %v, want %v", e.State, err, state)
	}
}

// line is a connection pool whose commits go wrong on command.
type line struct {
	gorm.ConnPool
	mu         sync.Mutex
	commit     func(tx gorm.Tx) error // nil: commits
	begin      func()                 // before each begin
	query      error                  // of reads outside of transactions
	statements []string               // in transactions
}

var errCut = &sqliteError{code: 10} // an I/O error: perhaps applied

type sqliteError struct{ code int }

func (e *sqliteError) Error() string { return "made up for the test" }
func (e *sqliteError) Code() int     { return e.code }

func (l *line) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if l.begin != nil {
		l.begin()
	}
	if b, ok := l.ConnPool.(gorm.TxBeginner); ok { // a server's pool
		tx, err := b.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		return &lineTx{tx, l}, nil
	}
	pool, err := l.ConnPool.(gorm.ConnPoolBeginner).BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &lineTx{pool.(gorm.Tx), l}, nil
}

func (l *line) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if l.query != nil {
		return nil, l.query
	}
	return l.ConnPool.QueryContext(ctx, query, args...)
}

type lineTx struct {
	gorm.Tx
	line *line
}

func (t *lineTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.line.note(query)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *lineTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.line.note(query)
	return t.Tx.QueryContext(ctx, query, args...)
}

func (l *line) note(query string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statements = append(l.statements, query)
}

func (t *lineTx) Commit() error {
	if t.line.commit != nil {
		return t.line.commit(t.Tx)
	}
	return t.Tx.Commit()
}

// once makes the first commit go as told, and the others well.
func (l *line) once(commit func(tx gorm.Tx) error) {
	l.commit = func(tx gorm.Tx) error {
		l.commit = nil
		return commit(tx)
	}
}

func cutAfter(tx gorm.Tx) error  { return errors.Join(tx.Commit(), errCut) }
func cutBefore(tx gorm.Tx) error { return errors.Join(tx.Rollback(), errCut) }
