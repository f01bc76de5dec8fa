// Package postgres is package sqllock on PostgreSQL with pgx: it adds the plugin
// for configuration files and the wake-up of waiters by LISTEN and NOTIFY. What is
// guaranteed is told in package sqllock.
package postgres

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// Name is the plugin's name in configuration files.
const Name = "postgres"

// Config is the plugin's part of a configuration file.
type Config struct {
	// Server says how to reach the database.
	Server sqldialect.ServerConfig `yaml:",inline"`
	// Mode is lease, advisory or row. Default lease.
	Mode sqllock.Mode `yaml:"mode"`
	// TablePrefix begins the name of the table. Default solotick_.
	TablePrefix string `yaml:"table_prefix"`
	// Pooled says that a pooler in between shares connections between clients, as
	// PgBouncer does in transaction mode: then waiters poll. Default false.
	Pooled bool `yaml:"pooled"`
}

func (c Config) settings() sqllock.Settings {
	return sqllock.Settings{Mode: c.Mode, TablePrefix: c.TablePrefix, Pooled: c.Pooled}
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	if err := c.settings().Validate(); err != nil {
		return err
	}
	if _, err := postgresdb.Parse(c.Server); err != nil {
		return fmt.Errorf("sqllock: %w", err)
	}
	return nil
}

// leased and advised are the drivers with the wake-up.
type leased struct {
	*sqllock.Driver
	*listener
}

type advised struct {
	sqllock.Backend
	*listener
}

var (
	_ driver.Waker        = (*leased)(nil)
	_ driver.Queuer       = (*leased)(nil)
	_ driver.BatchRenewer = (*leased)(nil)
	_ driver.Waker        = (*advised)(nil)
	_ driver.Inspector    = (*advised)(nil)
)

// Wake implements [driver.Waker].
func (l *leased) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return l.listener.Wake(ctx, key)
}

// Serves implements [driver.Partial].
func (l *leased) Serves(iface any) bool { return wakes(iface) || l.Driver.Serves(iface) }

// Serves implements [driver.Partial].
func (a *advised) Serves(iface any) bool { return wakes(iface) || a.Backend.Serves(iface) }

// wakes tells of the one thing that the listener serves and what is below need not.
func wakes(iface any) bool {
	_, ok := iface.(*driver.Waker)
	return ok
}

// Close ends the listening and the waiting; the database stays open.
func (l *leased) Close() error {
	l.hints.Close()
	return l.Driver.Close()
}

// Close ends the listening and closes what is below.
func (a *advised) Close() error {
	a.hints.Close()
	return a.Backend.Close()
}

// NewDriver returns a driver of mode lease with wake-up on an open database whose
// connections are pgx's. While somebody waits it has a connection of its own
// beside the pool, made with the same settings. The db stays the caller's to
// close, after the driver.
func NewDriver(db *gorm.DB, opts ...sqllock.Option) (driver.Driver, error) {
	d, err := sqllock.NewDriver(db, opts...)
	if err != nil {
		return nil, err
	}
	l := newListener(db, d.Channel())
	d.WakeBy(l)
	return &leased{d, l}, nil
}

// New returns a Locker on an open database, as [sqllock.New] does, with wake-up.
func New(db *gorm.DB, cfg *locks.Config) (*locks.Locker, error) {
	d, err := NewDriver(db)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = new(locks.Config)
	}
	return locks.New(d, *cfg)
}

// Plugin returns the backend called "postgres". The driver has connections of its
// own, apart from those that carry the program's transactions. It opens also while
// the server is away; the table is made at the first use if it is missing.
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: Name,
		Open: func(_ context.Context, decode func(any) error) (driver.Driver, error) {
			var cfg Config
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			return Open(cfg)
		},
	}
}

// Open opens the database of a configuration and returns the driver on it, which
// closes it.
func Open(cfg Config) (driver.Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conn, err := postgresdb.Parse(cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	// A lock is looked for by its primary key alone, whatever the table holds. To plan
	// that anew each time would take longer than to do it.
	conn.RuntimeParams["plan_cache_mode"] = "auto"
	db, closer, err := postgresdb.Connect(conn, cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	if cfg.Mode == sqllock.ModeRow {
		// Every key held has a connection: the bound is the number of keys.
		if pool, err := db.DB(); err == nil && cfg.Server.MaxConns <= 0 {
			pool.SetMaxOpenConns(0)
		}
	}
	backend, err := sqllock.OpenBackend(db, cfg.settings(), closer)
	if err != nil {
		_ = closer() // the error that matters is the first
		return nil, err
	}
	if cfg.Pooled {
		return backend, nil // LISTEN is of no use there either
	}
	l := newListener(db, backend.Channel())
	switch b := backend.(type) {
	case waiting:
		b.WakeBy(l)
		return &lined{renewed{advised{b, l}, b}, b}, nil
	case driver.BatchRenewer:
		return &renewed{advised{backend, l}, b}, nil
	}
	return &advised{backend, l}, nil
}

// waiting is a backend of mode lease.
type waiting interface {
	sqllock.Backend
	driver.BatchRenewer
	driver.Queuer
	WakeBy(driver.Waker)
}

// renewed and lined are backends that can do more.
type renewed struct {
	advised
	driver.BatchRenewer
}

type lined struct {
	renewed
	driver.Queuer
}
