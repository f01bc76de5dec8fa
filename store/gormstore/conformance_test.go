package gormstore_test

import (
	"path/filepath"
	"testing"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
	"github.com/solotick/solotick/store/storetest"
)

func openDB(tb testing.TB, path string) *gorm.DB {
	tb.Helper()
	db, err := sqlitedb.Open(path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func newStore(tb testing.TB, db *gorm.DB, opts ...gormstore.Option) *gormstore.Store {
	tb.Helper()
	s, err := gormstore.New(db, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		path := filepath.Join(t.TempDir(), "store.db")
		return storetest.Harness{Open: func(tb testing.TB) store.Store { return newStore(tb, openDB(tb, path)) }}
	})
}
