package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/scheduler/sqljob"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

const (
	// lookTimeout bounds a look at the tables of a store that is opened.
	lookTimeout = 15 * time.Second
	// migrateTimeout bounds what may build an index over many rows.
	migrateTimeout = 10 * time.Minute
	// lockConns bounds the connections of locks that are kept on the store's server.
	// They are apart from those of transactions: a renewal must not stand in line
	// behind them.
	lockConns = 4
)

// serverBackend is a kind of database server that this program is linked with.
type serverBackend struct {
	drivers []string // its names in a file
	sql     sqljob.Dialect
	nowhere string // an address that is good and never dialled
	check   func(sqldialect.ServerConfig) error
	open    func(sqldialect.ServerConfig) (*gorm.DB, func() error, error)
	locks   func(c sqldialect.ServerConfig, prefix string) (driver.Driver, error)
}

func serverBackends() []serverBackend {
	return []serverBackend{
		{
			drivers: []string{"postgres"}, sql: sqljob.Postgres, nowhere: "postgres://localhost/nowhere",
			check: func(c sqldialect.ServerConfig) error { _, err := postgresdb.Parse(c); return err },
			open:  postgresdb.Open,
			locks: func(c sqldialect.ServerConfig, prefix string) (driver.Driver, error) {
				return postgres.Open(postgres.Config{Server: c, TablePrefix: prefix})
			},
		},
		{
			drivers: []string{"mariadb", "mysql"}, sql: sqljob.MySQL, nowhere: "nobody@tcp(localhost)/nowhere",
			check: func(c sqldialect.ServerConfig) error { _, err := mysqldb.Parse(c); return err },
			open:  mysqldb.Open,
			locks: func(c sqldialect.ServerConfig, prefix string) (driver.Driver, error) {
				return mysql.Open(mysql.Config{Server: c, TablePrefix: prefix})
			},
		},
	}
}

// storeDrivers are the names that store.driver can have.
func storeDrivers() []string {
	names := []string{sqliteDriver}
	for _, b := range serverBackends() {
		names = append(names, b.drivers...)
	}
	return names
}

// serverOf is what opens the driver of that name, and whether it is on a server.
func serverOf(name string) (serverBackend, bool) {
	all := serverBackends()
	i := slices.IndexFunc(all, func(b serverBackend) bool { return slices.Contains(b.drivers, name) })
	if i < 0 {
		return serverBackend{}, false
	}
	return all[i], true
}

// checkStore is what the loader asks about a store on a server.
func checkStore(s configs.Store) error {
	b, ok := serverOf(s.Driver)
	if !ok {
		return nil // the loader knows that there is none
	}
	if err := b.check(serverConfig(s)); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// serverConfig is the store's part of the file as the drivers want it.
func serverConfig(s configs.Store) sqldialect.ServerConfig {
	return sqldialect.ServerConfig{
		DSN: s.DSN, Password: s.Password, TLS: s.TLS, AllowPlaintext: s.AllowPlaintext,
		MaxConns: s.MaxConns, ConnectTimeout: s.ConnectTimeout,
	}
}

// sqlRules are the rules for jobs of kind sql on the store's database.
func (s *site) sqlRules() sqljob.Dialect {
	if b, ok := serverOf(s.loaded.Store.Driver); ok {
		return b.sql
	}
	return sqljob.SQLite
}

// openServer opens the store's database on a server. It sends nothing.
func (s *site) openServer(b serverBackend) (*gorm.DB, error) {
	db, closer, err := b.open(serverConfig(s.loaded.Store))
	if err != nil {
		return nil, usageError(err)
	}
	s.closed = append(s.closed, closer)
	return db, nil
}

// serverLocks is the driver that keeps its locks on the store's server. It sends
// nothing.
func (s *site) serverLocks(b serverBackend) (driver.Driver, error) {
	c := serverConfig(s.loaded.Store)
	c.MaxConns = min(c.Defaults().MaxConns, lockConns)
	return b.locks(c, s.loaded.Store.TablePrefix)
}

// prepare sees that the tables are what this program needs, and makes or upgrades
// them where the file allows that.
func (s *site) prepare(ctx context.Context, st *gormstore.Store) error {
	err := look(ctx, st)
	if !s.loaded.Store.Migrate() || !errors.Is(err, store.ErrSchema) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	return explainMigration(st.Migrate(ctx))
}

// look sees whether the tables are what this program needs.
func look(ctx context.Context, st *gormstore.Store) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return st.CheckSchema(ctx)
}

// explainMigration says what to do where the user may not make tables.
func explainMigration(err error) error {
	if err == nil || errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w; where this user may not make tables, let one who may run 'solotick migrate up', and write store.auto_migrate: false", err)
}
