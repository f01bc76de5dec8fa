// Package mysql is package sqllock on MariaDB and MySQL with go-sql-driver: it adds
// the plugins for configuration files. What is guaranteed is told in package
// sqllock. It is tested on MariaDB 10.11; nothing was run on MySQL itself.
package mysql

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// The names in configuration files. Both open the same driver, which finds out by
// itself what the server is.
const (
	Name        = "mysql"
	NameMariaDB = "mariadb"
)

// Config is the plugin's part of a configuration file.
type Config struct {
	// Server says how to reach the database.
	Server sqldialect.ServerConfig `yaml:",inline"`
	// Mode is lease, advisory or row. Default lease.
	Mode sqllock.Mode `yaml:"mode"`
	// TablePrefix begins the name of the table. Default solotick_.
	TablePrefix string `yaml:"table_prefix"`
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	if err := (sqllock.Settings{Mode: c.Mode, TablePrefix: c.TablePrefix}).Validate(); err != nil {
		return err
	}
	if _, err := mysqldb.Parse(c.Server); err != nil {
		return fmt.Errorf("sqllock: %w", err)
	}
	return nil
}

// Plugins returns the backends called "mysql" and "mariadb". The driver has
// connections of its own, apart from those that carry the program's transactions.
// It opens also while the server is away; the table is made at the first use if it
// is missing.
func Plugins() []locks.Plugin {
	open := func(_ context.Context, decode func(any) error) (driver.Driver, error) {
		var cfg Config
		if err := decode(&cfg); err != nil {
			return nil, err
		}
		return Open(cfg)
	}
	return []locks.Plugin{{Name: Name, Open: open}, {Name: NameMariaDB, Open: open}}
}

// Open opens the database of a configuration and returns the driver on it, which
// closes it.
func Open(cfg Config) (driver.Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, closer, err := mysqldb.Open(cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	if cfg.Mode == sqllock.ModeRow {
		// Every key held has a connection: the bound is the number of keys.
		if pool, err := db.DB(); err == nil && cfg.Server.MaxConns <= 0 {
			pool.SetMaxOpenConns(0)
		}
	}
	b, err := sqllock.OpenBackend(db, sqllock.Settings{Mode: cfg.Mode, TablePrefix: cfg.TablePrefix}, closer)
	if err != nil {
		_ = closer() // the error that matters is the first
		return nil, err
	}
	return b, nil
}
