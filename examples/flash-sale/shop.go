package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// Item is what is sold.
type Item struct {
	ID      int64
	Stock   int
	Version int64
}

// TableName implements GORM's Tabler.
func (Item) TableName() string { return "flash_items" }

// Sale is an item sold. Nothing makes Request unique: a second one would show.
type Sale struct {
	ID      int64
	Request string `gorm:"size:64;index"`
	Stock   int    // after it
}

// TableName implements GORM's Tabler.
func (Sale) TableName() string { return "flash_sales" }

const itemID = 1

// open opens the database; the caller calls closer.
func open(driver, dsn string) (db *gorm.DB, closer func() error, err error) {
	quiet := &gorm.Config{SkipDefaultTransaction: true, Logger: logger.Discard}
	switch driver {
	case "sqlite":
		if db, err = sqlitedb.Open(dsn, nil); err != nil {
			return nil, nil, err
		}
		return db, func() error { return sqlitedb.Close(db) }, nil
	case "postgres":
		db, err = gorm.Open(postgres.Open(dsn), quiet)
	default:
		db, err = gorm.Open(mysql.Open(dsn), quiet)
	}
	if err != nil {
		return nil, nil, errors.New("the database cannot be opened: is FLASH_SALE_DSN right?") // the driver's error can quote it
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	pool.SetMaxOpenConns(20)
	pool.SetMaxIdleConns(20)
	return db, pool.Close, nil
}

// stockUp makes the tables anew.
func stockUp(ctx context.Context, db *gorm.DB, st *gormstore.Store, items int) error {
	db = db.WithContext(ctx)
	return errors.Join(
		st.Migrate(ctx),
		db.Migrator().DropTable(&Item{}, &Sale{}),
		db.AutoMigrate(&Item{}, &Sale{}),
		db.Create(&Item{ID: itemID, Stock: items}).Error,
	)
}

const soldOut = "sold out"

// buy sells an item in a transaction. Seen is the item as the buyer saw it before.
func buy(tx *gorm.DB, update, request string, seen Item) (answer string, err error) {
	item := Item{ID: itemID}
	switch update {
	case "conditional":
		res := tx.Model(&item).Where("stock > 0").Updates(map[string]any{"stock": gorm.Expr("stock - 1"), "version": gorm.Expr("version + 1")})
		if res.Error != nil || res.RowsAffected == 0 {
			return soldOut, res.Error
		}
	case "swap":
		if err := idempotent.Swap(tx, &item, seen.Version, map[string]any{"stock": seen.Stock - 1}); err != nil {
			return "", err
		}
	default:
		if err := tx.Model(&item).Updates(map[string]any{"stock": seen.Stock - 1, "version": gorm.Expr("version + 1")}).Error; err != nil {
			return "", err
		}
	}
	// The row is this transaction's until it ends.
	if err := tx.First(&item, itemID).Error; err != nil {
		return "", err
	}
	sale := Sale{Request: request, Stock: item.Stock}
	err = tx.Create(&sale).Error
	return "bought, number " + strconv.FormatInt(sale.ID, 10), err
}

// look reads the item outside of any transaction.
func look(ctx context.Context, db *gorm.DB) (seen Item, err error) {
	err = db.WithContext(ctx).First(&seen, itemID).Error
	return seen, err
}

// books are what the database says at the end.
type books struct {
	Sold   int // rows of sales
	Stock  int // what is left
	Lowest int // that a sale left
	Twice  int // requests with more than one sale
}

func readBooks(ctx context.Context, db *gorm.DB) (books, error) {
	var b books
	db = db.WithContext(ctx)
	err := db.Raw("SELECT count(*), COALESCE(min(stock), 0) FROM flash_sales").Row().Scan(&b.Sold, &b.Lowest)
	item, lookErr := look(ctx, db)
	b.Stock = item.Stock
	twice := db.Raw("SELECT count(*) FROM (SELECT request FROM flash_sales GROUP BY request HAVING count(*) > 1) r").Scan(&b.Twice).Error
	if err := errors.Join(err, lookErr, twice); err != nil {
		return b, fmt.Errorf("read the books: %w", err)
	}
	return b, nil
}
