package leadertest_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// sqlite opens a lock driver with a database of its own, as a process has.
func sqlite(t *testing.T, path string) driver.Driver {
	t.Helper()
	db, err := sqlitedb.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	d, err := sqllock.NewDriver(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLockOnSQLite(t *testing.T) {
	path := each(func(t *testing.T) string { return filepath.Join(t.TempDir(), "locks.db") })
	leadertest.Run(t, leadertest.Harness{
		TTL:      2 * time.Second,
		Handover: 300 * time.Millisecond, Priorities: true, // a poll
		New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
			return candidate(t, sqlite(t, path(t)), election, cfg)
		},
		Depose: func(t *testing.T, election string) { depose(t, sqlite(t, path(t)), election) },
	})
}
