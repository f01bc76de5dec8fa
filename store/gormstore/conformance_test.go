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

func openDB(t testing.TB, path string) *gorm.DB {
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
	return db
}

func newStore(t testing.TB, db *gorm.DB, opts ...gormstore.Option) *gormstore.Store {
	t.Helper()
	s, err := gormstore.New(db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		path := filepath.Join(t.TempDir(), "store.db")
		return storetest.Harness{Open: func(t testing.TB) store.Store { return newStore(t, openDB(t, path)) }}
	})
}
