package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"testing" //nolint:depguard // the servers are those of the tests

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv" //nolint:depguard // the servers are those of the tests
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// The databases.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
	mariadb  = "mariadb"
)

var databaseNames = []string{sqlite, postgres, mariadb}

// database is one that was started for the program.
type database struct {
	tb     testing.TB
	name   string
	dsn    string // of a server
	tables int    // sets of tables so far
}

func start(tb testing.TB, name string) *database {
	d := &database{tb: tb, name: name}
	var memory []string
	_, large := tb.(*bench.Host)
	switch name {
	case postgres:
		if large {
			memory = []string{"-c", "shared_buffers=512MB"}
		}
		d.dsn = testenv.Postgres(tb, memory...).DSN()
	case mariadb:
		if large {
			memory = []string{"--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M"}
		}
		d.dsn = testenv.MariaDB(tb, memory...).DSN()
	}
	return d
}

// place is a set of tables of one contender's own: on SQLite a file, on servers a
// prefix.
type place struct {
	*database
	prefix string
	path   string // of the SQLite file
}

func (d *database) place() place {
	d.tables++
	p := place{database: d, prefix: fmt.Sprintf("b%d_", d.tables)}
	if d.name == sqlite {
		p.path = filepath.Join(d.tb.TempDir(), "store.db")
	}
	return p
}

// gorm opens the place as the binary does.
func (p place) gorm(conns int) (*gorm.DB, func() error, error) {
	c := sqldialect.ServerConfig{DSN: secret.New(p.dsn), MaxConns: conns}
	switch p.name {
	case postgres:
		return postgresdb.Open(c)
	case mariadb:
		return mysqldb.Open(c)
	}
	db, err := sqlitedb.Open(p.path, nil)
	if err != nil {
		return nil, nil, err
	}
	return db, func() error { return sqlitedb.Close(db) }, nil
}

// bare opens the place by the driver alone, with the same settings and as many
// connections: on SQLite one, which writes, as there can be no second one.
func (p place) bare(conns int) (*sql.DB, error) {
	c := sqldialect.ServerConfig{DSN: secret.New(p.dsn)}
	var pool *sql.DB
	switch p.name {
	case postgres:
		cfg, err := postgresdb.Parse(c)
		if err != nil {
			return nil, err
		}
		pool = sql.OpenDB(stdlib.GetConnector(*cfg))
	case mariadb:
		cfg, err := mysqldb.Parse(c)
		if err != nil {
			return nil, err
		}
		connector, err := mysqldriver.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		pool = sql.OpenDB(connector)
	default:
		dsn := "file:" + (&url.URL{Path: p.path}).EscapedPath() +
			"?_txlock=immediate&_busy_timeout=5000&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
		var err error
		if pool, err = sql.Open("sqlite", dsn); err != nil {
			return nil, err
		}
		conns = 1
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return pool, nil
}

// opened is a place with the tables of the store, opened through GORM.
type opened struct {
	place
	db    *gorm.DB
	store *gormstore.Store
	close func() error
}

func (p place) open(ctx context.Context, conns int) (*opened, error) {
	db, closer, err := p.gorm(conns)
	if err != nil {
		return nil, err
	}
	s, err := gormstore.New(db, gormstore.WithPrefix(p.prefix))
	if err == nil {
		err = s.Migrate(ctx)
	}
	if err == nil {
		err = db.WithContext(ctx).Exec("CREATE TABLE " + p.effects() + " (id " + p.idType() + " NOT NULL, note VARCHAR(100) NOT NULL)").Error
	}
	if err != nil {
		return nil, errors.Join(err, closer())
	}
	return &opened{p, db, s, closer}, nil
}

// effects is the table of the user's.
func (p place) effects() string { return p.prefix + "effects" }

func (p place) idType() string {
	switch p.name {
	case postgres:
		return "BYTEA"
	case mariadb:
		return "BINARY(16)"
	}
	return "BLOB"
}

func (p place) dialect() *sqldialect.Dialect {
	switch p.name {
	case postgres:
		return sqldialect.Postgres()
	case mariadb:
		return sqldialect.MySQL()
	}
	return sqldialect.SQLite()
}
