package cli

import (
	"context"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

const (
	closeTimeout = 2 * time.Second
	memoryDriver = "memory"
)

// lockPlugins are the lock backends that this program is linked with, beside the
// one that keeps its locks in the store's database.
func lockPlugins() (*locks.Registry, error) {
	return locks.NewRegistry(
		memlock.Plugin(nil),
		sqllock.Plugin("sqlite", func(_ context.Context, dsn string) (*gorm.DB, func() error, error) {
			db, err := sqlitedb.Open(dsn, nil) //nolint:contextcheck // Open bounds itself
			if err != nil {
				return nil, nil, err
			}
			return db, func() error { return sqlitedb.Close(db) }, nil
		}),
	)
}

func lockDrivers() []string {
	r, err := lockPlugins()
	if err != nil {
		panic(err) // two plugins of one name: a mistake in this package
	}
	return r.Names()
}

// openLocker opens the lock backend of the file.
func (s *site) openLocker(ctx context.Context) (*locks.Locker, error) {
	if s.locker != nil {
		return s.locker, nil
	}
	backend, err := s.openLockDriver(ctx)
	if err != nil {
		return nil, err
	}
	locker, err := locks.New(backend, s.loaded.Locks.Config)
	if err != nil {
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
		return r.Open(ctx, s.loaded.Locks.Driver, s.loaded.Locks.Decode)
	}
	d, err := s.storeLocks(ctx)
	if err != nil {
		return nil, err
	}
	if s.loaded.Store.Migrate() {
		return d, d.Migrate(ctx)
	}
	return d, nil
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
func (s *site) gateDeps(ctx context.Context) (locker *locks.Locker, elector *leader.Elector, err error) {
	gates := s.gates()
	if !slices.Contains(gates, scheduler.GateLock) && !slices.Contains(gates, scheduler.GateLeader) {
		return nil, nil, nil
	}
	if locker, err = s.openLocker(ctx); err != nil {
		return nil, nil, err
	}
	if !slices.Contains(gates, scheduler.GateLeader) {
		return locker, nil, nil
	}
	//nolint:contextcheck // it sends nothing
	elector, err = leader.FromLocks(locker, locks.Key(s.namespace(), "leader"), leader.Config{Label: s.loaded.Scheduler.Label})
	return locker, elector, err
}
