package sqldialect

import (
	"fmt"
	"strings"

	"gorm.io/gorm"
)

// Dialect is one database's spelling and error codes. It is an immutable value.
type Dialect struct {
	Name string // as GORM's dialector calls it

	// NowMillis and NowMicros are expressions for the server's clock since the Unix
	// epoch, UTC, as an integer. The clock is read when the statement has its
	// locks, and once per statement. SQLite's clock has a resolution of 1 ms.
	NowMillis string
	NowMicros string

	// LockRows ends a SELECT that locks the rows it reads until the transaction
	// ends. Empty where a write transaction locks the whole database.
	LockRows string

	// InsertIgnore ends an INSERT that passes over rows that break any unique
	// index, without an error and without ending the transaction.
	InsertIgnore string

	classify      func(error) Class
	uniqueColumns func(error) []string
}

// sqlite is the dialect of SQLite 3.42 and later, over any driver whose errors
// have a method Code() int with the extended result code.
//
// unixepoch('subsec') is a float of seconds; times 1000 it can lie a hair under
// the whole millisecond (1.001 * 1000 = 1000.9999...), hence round before the cast.
var sqlite = &Dialect{
	Name:          "sqlite",
	NowMillis:     "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
	NowMicros:     "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)",
	InsertIgnore:  " ON CONFLICT DO NOTHING",
	classify:      classifySQLite,
	uniqueColumns: uniqueColumnsSQLite,
}

// For returns the dialect of the database behind db.
func For(db *gorm.DB) (*Dialect, error) {
	if db == nil || db.Config == nil || db.Dialector == nil {
		return nil, fmt.Errorf("sqldialect: no database: open one with gorm.Open first")
	}
	switch name := db.Name(); name {
	case "sqlite":
		return sqlite, nil
	default:
		return nil, fmt.Errorf("sqldialect: database %q is not supported: use sqlite", name)
	}
}

// List is "(?, ?, ?)" with n places.
func (d *Dialect) List(n int) string {
	if n < 1 {
		return "(NULL)"
	}
	return "(?" + strings.Repeat(", ?", n-1) + ")"
}

// Tuples is the right side of "(a, b) IN ..." for rows of width places each.
func (d *Dialect) Tuples(rows, width int) string {
	return "(VALUES " + d.Values(rows, d.List(width)) + ")"
}

// Values repeats a row of an INSERT.
func (d *Dialect) Values(rows int, row string) string {
	return row + strings.Repeat(", "+row, rows-1)
}

// SQLite is the dialect of SQLite.
func SQLite() *Dialect { return sqlite }
