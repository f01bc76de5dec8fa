package idempotent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

type receipt struct {
	ID    int64
	Order string
	Cents int64
}

func ExampleOnce() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqlitedb.Open(filepath.Join(dir, "shop.db"), nil)
	if err != nil {
		panic(err)
	}
	defer func() { _ = sqlitedb.Close(db) }()
	store, err := gormstore.New(db)
	if err != nil {
		panic(err)
	}
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	if err := db.AutoMigrate(&receipt{}); err != nil {
		panic(err)
	}
	guard := idempotent.New(store)

	key := idempotent.Key{Namespace: "shop", Job: "pay", Name: "o-17"}
	fingerprint, err := idempotent.FingerprintOf(map[string]any{"order": "o-17", "cents": 4200})
	if err != nil {
		panic(err)
	}
	pay := func(tx *gorm.DB) (receipt, error) {
		r := receipt{Order: "o-17", Cents: 4200}
		return r, tx.Create(&r).Error
	}
	for range 2 {
		reply, err := idempotent.Once(ctx, guard, key, fingerprint, pay)
		if err != nil {
			panic(err)
		}
		fmt.Println(reply.Value.ID, reply.Replayed)
	}
	// Output:
	// 1 false
	// 1 true
}
