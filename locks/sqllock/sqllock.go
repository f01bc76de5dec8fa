package sqllock

import (
	"cmp"
	"context"
	"embed"
	"fmt"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

//go:embed migrations
var migrations embed.FS

// DefaultPrefix begins the name of the table.
const DefaultPrefix = "solotick_"

// SchemaStatus tells which migrations are applied.
type SchemaStatus = sqldialect.Status

// Option changes how NewDriver makes a Driver.
type Option func(*options)

type options struct {
	prefix string
	pooled bool
}

// Pooled says that the connections go through a pooler that shares them between
// clients, as PgBouncer does in transaction mode. Then nobody stands in line, and
// waiters poll.
func Pooled() Option {
	return func(o *options) { o.pooled = true }
}

// WithPrefix sets the prefix of the table names: a lower-case letter, then
// letters, digits and underscores. Empty stands for the default, [DefaultPrefix].
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = cmp.Or(prefix, DefaultPrefix) }
}

// New returns a Locker on an open database, with tables of the default prefix. A
// nil cfg is the zero Config. It sends nothing; the table is made at the first
// use if it is missing. The db stays the caller's to close, after the Locker.
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

// NewDriver returns a driver on an open database. The db must not be in a
// transaction: a lock that were rolled back with its caller's work would have two
// holders.
func NewDriver(db *gorm.DB, opts ...Option) (*Driver, error) {
	d := &Driver{}
	if err := d.open(db, opts); err != nil {
		return nil, err
	}
	if pool, err := db.DB(); err == nil && !apply(opts).pooled {
		d.lines.open(&d.rows, pool)
	}
	if d.conn.Dialect == sqldialect.SQLite() {
		d.files = newFileWaker(&d.rows)
	}
	return d, nil
}

func apply(opts []Option) options {
	o := options{prefix: DefaultPrefix}
	for _, set := range opts {
		set(&o)
	}
	return o
}

func (r *rows) open(db *gorm.DB, opts []Option) error {
	o := apply(opts)
	var err error
	if r.conn, err = sqldialect.Pool(db); err != nil {
		return fmt.Errorf("sqllock: %w", err)
	}
	if r.schema, err = sqldialect.LoadSet("locks", migrations, "migrations", o.prefix, r.conn.Dialect, nil); err != nil {
		return fmt.Errorf("sqllock: %w", err)
	}
	r.table = o.prefix + "locks"
	r.channel = r.table
	return nil
}

// Migrate makes the table, or brings it up to date. Calling it is needed only
// where the program may not create tables when it first uses a lock.
func (r *rows) Migrate(ctx context.Context) error {
	if err := r.schema.Up(ctx, r.conn); err != nil {
		return fmt.Errorf("sqllock: migrate: %w", err)
	}
	return nil
}

// MigrationStatus tells which migrations are applied and which are pending.
func (r *rows) MigrationStatus(ctx context.Context) (SchemaStatus, error) {
	st, err := r.schema.Status(ctx, r.conn)
	if err != nil {
		return st, fmt.Errorf("sqllock: migration status: %w", err)
	}
	return st, nil
}

// MigrationSQL is the schema as a script, for those who run migrations by hand.
func (r *rows) MigrationSQL() string { return r.schema.SQL(r.conn.Dialect) }

// PluginConfig is the plugin's part of a configuration file.
type PluginConfig struct {
	// DSN names the database: for SQLite the path of a file. Required.
	DSN string `yaml:"dsn"`
	// TablePrefix begins the name of the table. Default solotick_.
	TablePrefix string `yaml:"table_prefix"`
}

// Validate reports the first setting that cannot work.
func (c PluginConfig) Validate() error {
	if c.DSN == "" {
		return fmt.Errorf("sqllock: dsn: it is empty; name the database (for SQLite the path of a file)")
	}
	return Settings{TablePrefix: c.TablePrefix}.Validate()
}

// Opener opens a database and tells how to close it. The program passes it in, so
// that this package links no database driver.
type Opener func(ctx context.Context, dsn string) (db *gorm.DB, closer func() error, err error)

// Plugin returns the backend called name, such as "sqlite", over open. Each driver
// has its own connection, apart from those that carry the program's transactions.
func Plugin(name string, open Opener) locks.Plugin {
	return locks.Plugin{
		Name: name,
		Open: func(ctx context.Context, decode func(any) error) (driver.Driver, error) {
			var cfg PluginConfig
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			if err := cfg.Validate(); err != nil {
				return nil, err
			}
			db, closer, err := open(ctx, cfg.DSN)
			if err != nil {
				return nil, fmt.Errorf("sqllock: %w", err)
			}
			d, err := OpenBackend(db, Settings{TablePrefix: cfg.TablePrefix}, closer)
			if err == nil {
				err = d.Migrate(ctx)
			}
			if err != nil {
				_ = closer() // the error that matters is the first
				return nil, err
			}
			return d, nil
		},
	}
}
