package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/libtnb/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
	lockpostgres "github.com/solotick/solotick/locks/sqllock/postgres"
)

var (
	postgresContenders = []contender{
		{name: "bare SQL", bare: true, in: []string{cycle}, open: openReplay(openPostgres)},
		{name: "pg_advisory_lock", bare: true, in: []string{handOver}, open: openAdvisory(openPostgres, postgresAdvisory)},
		{name: "solotick", ours: true, open: openRow(openPostgres)},
		{name: "solotick, advisory", in: []string{cycle}, open: openAdvisoryMode(openPostgres)},
		{name: "pg_advisory_lock", in: []string{cycle}, open: openAdvisory(openPostgres, postgresAdvisory)},
	}
	mariadbContenders = []contender{
		{name: "bare SQL", bare: true, in: []string{cycle}, open: openReplay(openMariaDB)},
		{name: "GET_LOCK", bare: true, in: []string{handOver}, open: openAdvisory(openMariaDB, mariadbAdvisory)},
		{name: "solotick", ours: true, open: openRow(openMariaDB)},
		{name: "solotick, advisory", in: []string{cycle}, open: openAdvisoryMode(openMariaDB)},
		{name: "GET_LOCK", in: []string{cycle}, open: openAdvisory(openMariaDB, mariadbAdvisory)},
	}
	sqliteContenders = []contender{
		{name: "bare SQL", bare: true, in: []string{cycle}, open: openReplay(openSQLite)},
		{name: "solotick", ours: true, in: []string{cycle, memory}, open: openRow(openSQLite)},
	}
)

// pool is a database whose statements are, while listening is on, remembered, and on
// SQLite counted.
type pool struct {
	*sql.DB
	sent *atomic.Int64 // nil where it is counted below

	mu       sync.Mutex
	listener func(s statement)
}

type statement struct {
	text string
	args []any
	rows bool // it answers with rows
}

func (p *pool) note(s statement) {
	if p.sent != nil {
		p.sent.Add(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		s.args = slices.Clone(s.args)
		p.listener(s)
	}
}

func (p *pool) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	p.note(statement{text, args, false})
	return p.DB.ExecContext(ctx, text, args...)
}

func (p *pool) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	p.note(statement{text, args, true})
	return p.DB.QueryContext(ctx, text, args...)
}

func (p *pool) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	p.note(statement{text, args, true})
	return p.DB.QueryRowContext(ctx, text, args...)
}

// GetDBConn is how GORM's users reach what is below.
func (p *pool) GetDBConn() (*sql.DB, error) { return p.DB, nil }

func open(dialector gorm.Dialector, sent *atomic.Int64) (*gorm.DB, *pool, error) {
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, SkipDefaultTransaction: true})
	if err != nil {
		return nil, nil, err
	}
	below, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	below.SetMaxIdleConns(4)
	p := &pool{DB: below, sent: sent}
	db.ConnPool, db.Statement.ConnPool = p, p
	return db, p, nil
}

type opener func(e *env, sent *atomic.Int64) (*gorm.DB, *pool, error)

// openPostgres counts what is written to the connections, for not all statements go
// through the pool: those who wait in line have connections of their own.
func openPostgres(e *env, sent *atomic.Int64) (*gorm.DB, *pool, error) {
	cfg, err := pgx.ParseConfig(e.postgres())
	if err != nil {
		return nil, nil, err
	}
	cfg.DialFunc = dial(sent)
	return open(postgres.New(postgres.Config{Conn: stdlib.OpenDB(*cfg)}), nil)
}

// openMariaDB has the driver put values into the texts, as solotick's plugin does:
// else each statement would be prepared, run and closed.
func openMariaDB(e *env, sent *atomic.Int64) (*gorm.DB, *pool, error) {
	cfg, err := mysqldriver.ParseDSN(e.mariadb() + "&interpolateParams=true")
	if err != nil {
		return nil, nil, err
	}
	connect, network := dial(sent), fmt.Sprintf("counted-%p", sent)
	mysqldriver.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) { return connect(ctx, "tcp", addr) })
	cfg.Net = network
	connector, err := mysqldriver.NewConnector(cfg)
	if err != nil {
		return nil, nil, err
	}
	return open(mysql.New(mysql.Config{Conn: sql.OpenDB(connector)}), nil)
}

func openSQLite(e *env, sent *atomic.Int64) (*gorm.DB, *pool, error) {
	return open(sqlite.Open("file:"+e.sqlite()+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(NORMAL)&_txlock=immediate"), sent)
}

func openRow(connect opener) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		db, p, err := connect(e, sent)
		if err != nil {
			return process{}, err
		}
		l, err := rowLocker(db, name)
		if err != nil {
			return process{}, errors.Join(err, p.Close())
		}
		return ofLocker(l, p.Close), nil
	}
}

func rowLocker(db *gorm.DB, name string) (*locks.Locker, error) {
	prefix := sqllock.WithPrefix(name + "_")
	var d driver.Driver
	var err error
	if db.Name() == "postgres" {
		d, err = lockpostgres.NewDriver(db, prefix)
	} else {
		d, err = sqllock.NewDriver(db, prefix)
	}
	if err != nil {
		return nil, err
	}
	return locks.New(d, locks.Config{TTL: ttl})
}

func openAdvisoryMode(connect opener) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		db, p, err := connect(e, sent)
		if err != nil {
			return process{}, err
		}
		d, err := sqllock.NewAdvisory(db, sqllock.WithPrefix(name+"_"))
		if err != nil {
			return process{}, errors.Join(err, p.Close())
		}
		l, err := locks.New(d, locks.Config{TTL: ttl})
		if err != nil {
			return process{}, errors.Join(err, p.Close())
		}
		return ofLocker(l, p.Close), nil
	}
}

// replay is the bare protocol of a row lease: the very statements that solotick sends,
// without solotick. They are overheard from one cycle of it, and sent again with the
// same values but for the fence, which the database raises.
type replay struct {
	p                *pool
	acquire, release statement
	fence            int64 // as overheard, which a release names
}

func openReplay(connect opener) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		db, p, err := connect(e, sent)
		if err != nil {
			return process{}, err
		}
		r, err := overhear(ctx, db, p, name)
		if err != nil {
			return process{}, errors.Join(err, p.Close())
		}
		return process{try: r.try, wait: r.try, close: closing(p.Close)}, nil
	}
}

func overhear(ctx context.Context, db *gorm.DB, p *pool, name string) (r *replay, err error) {
	l, err := rowLocker(db, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	r = &replay{p: p}
	once := func(overheard func(statement)) (fence int64, err error) {
		lease, err := l.TryAcquire(ctx, "replay")
		if err != nil {
			return 0, err
		}
		p.mu.Lock()
		p.listener = overheard
		p.mu.Unlock()
		if err := lease.Release(ctx); err != nil {
			return 0, err
		}
		return lease.Fence(), nil
	}
	if _, err := once(nil); err != nil { // makes the table
		return nil, err
	}
	p.mu.Lock()
	p.listener = func(s statement) { r.acquire = s }
	p.mu.Unlock()
	if r.fence, err = once(func(s statement) { r.release = s }); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.listener = nil
	p.mu.Unlock()
	if !strings.Contains(r.acquire.text, "INSERT INTO") || !strings.Contains(r.release.text, "UPDATE") || !r.acquire.rows {
		return nil, fmt.Errorf("an acquire and a release are no longer one statement each: %q, %q", r.acquire.text, r.release.text)
	}
	return r, nil
}

func (r *replay) try(ctx context.Context, _ string) (release, error) {
	var token []byte
	var label string
	var fence, since, left int64
	n, err := r.query(ctx, r.acquire.text, r.acquire.args, &token, &fence, &label, &since, &left)
	if err == nil && n == 0 {
		err = errHeld
	}
	if err != nil {
		return nil, err
	}
	args := slices.Clone(r.release.args)
	for i := range args {
		if args[i] == any(r.fence) {
			args[i] = fence
		}
	}
	return func(ctx context.Context) error {
		if !r.release.rows {
			done, err := r.p.ExecContext(ctx, r.release.text, args...)
			if err != nil {
				return err
			}
			return freed(done.RowsAffected())
		}
		return freed(r.query(ctx, r.release.text, args))
	}, nil
}

// query counts the rows of an answer, and scans them where there is something to scan
// into.
func (r *replay) query(ctx context.Context, text string, args []any, into ...any) (n int64, err error) {
	rows, err := r.p.QueryContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for ; rows.Next(); n++ {
		if len(into) == 0 {
			continue
		}
		if err := rows.Scan(into...); err != nil {
			return n, err
		}
	}
	return n, rows.Err()
}

func freed(n int64, err error) error {
	if err == nil && n != 1 {
		err = fmt.Errorf("a release freed %d rows", n)
	}
	return err
}

// advisory are the statements of a session lock.
type advisory struct{ try, wait, free string }

var (
	postgresAdvisory = advisory{
		"SELECT pg_try_advisory_lock(hashtextextended($1, 0))", "SELECT pg_advisory_lock(hashtextextended($1, 0)) IS NOT NULL",
		"SELECT pg_advisory_unlock(hashtextextended($1, 0))",
	}
	mariadbAdvisory = advisory{"SELECT GET_LOCK(?, 0)", "SELECT GET_LOCK(?, 120)", "SELECT RELEASE_LOCK(?)"}
)

// openAdvisory holds session locks, each on a connection of its own, as it takes when
// another part of the program could use or end the connection.
func openAdvisory(connect opener, q advisory) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		_, p, err := connect(e, sent)
		if err != nil {
			return process{}, err
		}
		ask := func(ctx context.Context, conn *sql.Conn, text, key string) error {
			var ok bool
			err := conn.QueryRowContext(ctx, text, key).Scan(&ok)
			if err == nil && !ok {
				err = errHeld
			}
			return err
		}
		take := func(text string) func(context.Context, string) (release, error) {
			return func(ctx context.Context, key string) (release, error) {
				key = name + ":" + key
				conn, err := p.Conn(ctx)
				if err != nil {
					return nil, err
				}
				if err := ask(ctx, conn, text, key); err != nil {
					return nil, errors.Join(err, conn.Close())
				}
				return func(ctx context.Context) error { return errors.Join(ask(ctx, conn, q.free, key), conn.Close()) }, nil
			}
		}
		return process{try: take(q.try), wait: take(q.wait), close: closing(p.Close)}, nil
	}
}
