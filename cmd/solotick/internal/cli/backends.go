package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/locks/zklock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

const (
	closeTimeout = 2 * time.Second
	memoryDriver = "memory"
	sqliteDriver = "sqlite"
	defaultTTL   = 10 * time.Second // of locks.Config
)

// backend is a lock backend that this program is linked with.
type backend struct {
	locks.Plugin
	// check tells what is wrong with the backend's own part of a file. It connects to
	// nothing.
	check func(decode func(into any) error) error
}

// lockBackends are those that "locks.driver" can name, beside the one that keeps its
// locks in the store's database.
func lockBackends() []backend {
	all := []backend{
		{memlock.Plugin(nil), checkPart(noTLS[nothing])},
		{sqllock.Plugin(sqliteDriver, openSQLite), checkPart(noTLS[sqllock.PluginConfig])},
		{redislock.Plugin(), checkPart(func(c redislock.PluginConfig) transport.TLS { return c.TLS })},
		{redlock.Plugin(), checkPart(func(c redlock.PluginConfig) transport.TLS { return c.TLS })},
		{etcdlock.Plugin(), checkPart(func(c etcdlock.PluginConfig) transport.TLS { return c.TLS })},
		{zklock.Plugin(), checkPart(func(c zklock.PluginConfig) transport.TLS { return c.TLS })},
		{postgres.Plugin(), checkPart(noTLS[postgres.Config])}, // its Validate reads the files of TLS
	}
	for _, p := range mysql.Plugins() {
		all = append(all, backend{p, checkPart(noTLS[mysql.Config])})
	}
	return all
}

// part is a backend's own part of a file.
type part interface{ Validate() error }

// nothing is the part of a backend that has no settings.
type nothing struct{}

func (nothing) Validate() error { return nil }

func noTLS[P part](P) transport.TLS { return transport.TLS{} }

// checkPart decodes a part and checks it, with the files of TLS.
func checkPart[P part](tls func(P) transport.TLS) func(decode func(into any) error) error {
	return func(decode func(into any) error) error {
		var p P
		if err := decode(&p); err != nil {
			return err
		}
		if err := p.Validate(); err != nil {
			return err
		}
		if _, err := tls(p).Config(""); err != nil {
			return fmt.Errorf("transport: %w", err)
		}
		return nil
	}
}

func openSQLite(_ context.Context, dsn string) (*gorm.DB, func() error, error) {
	db, err := sqlitedb.Open(dsn, nil) //nolint:contextcheck // Open bounds itself
	if err != nil {
		return nil, nil, err
	}
	return db, func() error { return sqlitedb.Close(db) }, nil
}

func lockPlugins() (*locks.Registry, error) {
	var plugins []locks.Plugin
	for _, b := range lockBackends() {
		plugins = append(plugins, b.Plugin)
	}
	return locks.NewRegistry(plugins...)
}

func lockDrivers() []string {
	r, err := lockPlugins()
	if err != nil {
		panic(err) // two plugins of one name: a mistake in this package
	}
	return r.Names()
}

// checkLocks is what the loader asks about the chosen driver's part.
func checkLocks(name string, decode func(into any) error) error {
	for _, b := range lockBackends() {
		if b.Name == name {
			return b.check(decode)
		}
	}
	return nil // the loader knows that there is none
}

// openLocker opens the lock backend of the file, for leases as the file wants them.
func (s *site) openLocker(ctx context.Context) (*locks.Locker, error) {
	return s.openLockerWith(ctx, s.loaded.Locks.Config)
}

func (s *site) openLockerWith(ctx context.Context, cfg locks.Config) (*locks.Locker, error) {
	if s.locker != nil {
		return s.locker, nil
	}
	d, err := s.openLockDriver(ctx)
	if err != nil {
		return nil, err
	}
	cfg.Observer = s.observer
	locker, err := locks.New(d, cfg)
	if err != nil {
		if c, ok := d.(io.Closer); ok {
			_ = c.Close() // the error that matters is the first
		}
		return nil, usageError(err)
	}
	s.locker = locker
	s.closed = append(s.closed, func() error {
		// What the backend does not take back in this time ends with its TTL.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return locker.Close(ctx)
	})
	return locker, nil
}

func (s *site) openLockDriver(ctx context.Context) (driver.Driver, error) {
	if s.loaded.Locks.Driver != configs.LocksInStore {
		r, err := lockPlugins()
		if err != nil {
			return nil, err
		}
		d, err := r.Open(ctx, s.loaded.Locks.Driver, s.decodeLocks)
		if errors.Is(err, locks.ErrInvalid) {
			err = usageError(err)
		}
		return d, err
	}
	d, err := s.storeLocks(ctx)
	if err != nil {
		return nil, err
	}
	if s.loaded.Store.Migrate() {
		if err := s.migrateLocks(ctx, d); err != nil {
			return nil, err
		}
	}
	if b, ok := serverOf(s.loaded.Store.Driver); ok {
		return s.serverLocks(b)
	}
	return d, nil
}

func (s *site) migrateLocks(ctx context.Context, d *sqllock.Driver) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	err := d.Migrate(ctx)
	dialect, unknown := sqldialect.For(s.db)
	if unknown == nil && dialect.Classify(err) == sqldialect.Unavailable {
		return fmt.Errorf("%w: %w", locks.ErrUnavailable, err)
	}
	return explainMigration(err)
}

// decodeLocks decodes the chosen driver's own part. ZooKeeper ties the TTL of a lock
// to its session, so a session that the file does not name is made for the TTL.
func (s *site) decodeLocks(into any) error {
	err := s.loaded.Locks.Decode(into)
	zk, ok := into.(*zklock.PluginConfig)
	if ok && zk.SessionTimeout == 0 {
		ttl := cmp.Or(s.loaded.Locks.TTL, defaultTTL)
		zk.SessionTimeout = min(ttl, cmp.Or(s.ttl, ttl)) * 3 / 2
	}
	if ok && s.patient && zk.ConnectTimeout == 0 {
		zk.ConnectTimeout = -1
	}
	return err
}

// storeLocks is the driver that keeps its locks in the store's database.
func (s *site) storeLocks(ctx context.Context) (*sqllock.Driver, error) {
	db, err := s.openDB(ctx)
	if err != nil {
		return nil, err
	}
	return sqllock.NewDriver(db, sqllock.WithPrefix(s.loaded.Store.TablePrefix))
}

// gates are the gates that the cron jobs of the file take.
func (s *site) gates() []scheduler.Gate {
	var gates []scheduler.Gate
	for _, j := range s.loaded.Jobs {
		g := j.Gate
		if g == "" {
			g = s.loaded.Scheduler.Gate
		}
		if g == "" {
			g = scheduler.GateLock
		}
		if !j.Queue && !slices.Contains(gates, g) {
			gates = append(gates, g)
		}
	}
	return gates
}

// gateDeps are the coordinators that the gates need.
func (s *site) gateDeps(ctx context.Context) (d scheduler.Deps, err error) {
	gates := s.gates()
	// Locks in the store cost nothing to have, and a later file may want them.
	free := s.loaded.Locks.Driver == configs.LocksInStore && s.loaded.Store.Migrate()
	if !free && !slices.Contains(gates, scheduler.GateLock) && !slices.Contains(gates, scheduler.GateLeader) {
		return d, nil
	}
	if d.Locker, err = s.openLocker(ctx); err != nil {
		return d, err
	}
	return d, s.leadership(&d)
}

// gatesOf are the gates that jobs can have with what is given.
func gatesOf(d scheduler.Deps) []scheduler.Gate {
	gates := []scheduler.Gate{scheduler.GateNone}
	if d.Locker != nil {
		gates = append(gates, scheduler.GateLock)
	}
	if d.Elector != nil || d.Shares != nil {
		gates = append(gates, scheduler.GateLeader)
	}
	return gates
}

// leaderKey is the election of gate leader, and where its shares begin.
func (s *site) leaderKey() string { return locks.Key(s.namespace(), "leader") }

// leadership makes what gate leader asks, over the locker. It sends nothing.
func (s *site) leadership(d *scheduler.Deps) (err error) {
	cfg := s.loaded.Leader
	cfg.Label = cmp.Or(cfg.Label, s.loaded.Scheduler.Label)
	if n := s.loaded.Scheduler.Partitions; n > 1 {
		d.Shares, err = leader.NewShares(d.Locker, s.leaderKey(), leader.SharesConfig{Config: cfg, Partitions: n})
	} else {
		d.Elector, err = leader.FromLocks(d.Locker, s.leaderKey(), cfg)
	}
	return err
}
