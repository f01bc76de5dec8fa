package sqldialect

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"gorm.io/gorm"
)

// Dialect is one database's spelling and error codes. It is an immutable value.
type Dialect struct {
	Name string // as GORM's dialector calls it

	// NowMillis and NowMicros are expressions for the server's clock since the Unix
	// epoch, UTC, as an integer. MySQL reads the clock when the statement begins. SQLite
	// reads it once the statement has its locks, and again whenever the reader asks for
	// the next row. PostgreSQL reads it wherever the expression stands, and again if it
	// had to wait for a row. So two of them in one statement may differ; see
	// [Dialect.Clock]. SQLite's clock has a resolution of 1 ms.
	NowMillis string
	NowMicros string

	// LockRows ends a SELECT that locks the rows it reads until the transaction
	// ends. Empty where a write transaction locks the whole database.
	LockRows string

	// SkipLocked is LockRows for a SELECT that passes over rows which others have
	// locked. Empty where LockRows is.
	SkipLocked string

	// ReadLatest ends a SELECT that must see what others committed since the
	// transaction's snapshot, at any isolation level, of rows that an INSERT of the
	// same transaction was refused by. Empty where that INSERT fails instead.
	ReadLatest string

	// Returning tells whether an UPDATE can return the rows it wrote; see also
	// [Dialect.InsertReturning].
	Returning bool

	// InsertIgnore ends an INSERT that passes over rows that break any unique
	// index, without an error and without ending the transaction.
	InsertIgnore string

	// Greatest is the function that returns the largest of its arguments.
	Greatest string

	// TableOptions end a CREATE TABLE.
	TableOptions string

	isolation     sql.IsolationLevel // of our own transactions
	classify      func(error) Class
	refused       func(error) bool // by the server, so that nothing was applied
	uniqueColumns func(error) []string
	remedies      map[Class]string
}

// For returns the dialect of the database behind db.
func For(db *gorm.DB) (*Dialect, error) {
	if db == nil || db.Config == nil || db.Dialector == nil {
		return nil, fmt.Errorf("sqldialect: no database: open one with gorm.Open first")
	}
	switch name := db.Name(); name {
	case "sqlite":
		return sqlite, nil
	case "postgres":
		return postgres, nil
	case "mysql":
		return mysql, nil
	default:
		return nil, fmt.Errorf("sqldialect: database %q is not supported: use sqlite, postgres or mysql", name)
	}
}

// TxOptions are those of a transaction that locks the rows it is about to change:
// on servers READ COMMITTED, where each statement sees what is committed. A snapshot
// that is older than a row would refuse to change it (PostgreSQL's error 40001,
// MariaDB's 1020) or judge it by what it was.
func (d *Dialect) TxOptions() *sql.TxOptions {
	if d.isolation == sql.LevelDefault {
		return nil
	}
	return &sql.TxOptions{Isolation: d.isolation}
}

// Clock is the server's clock in milliseconds for a statement that asks for it in
// several places: with begins the statement, and now stands for one reading of it,
// by which an index can be searched.
func (d *Dialect) Clock() (with, now string) {
	if d == mysql {
		return "", d.NowMillis
	}
	return "WITH clock (t) AS MATERIALIZED (SELECT " + d.NowMillis + ") ", "(SELECT t FROM clock)"
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
	if d == sqlite {
		return "(VALUES " + d.Values(rows, d.List(width)) + ")"
	}
	return "(" + d.Values(rows, d.List(width)) + ")"
}

// InsertReturning ends an INSERT that answers the rows it meets: those that it has
// made, and on MariaDB also those that it has passed over. MySQL reads a comment, and
// answers none.
func (d *Dialect) InsertReturning(columns string) string {
	if d == mysql {
		return d.InsertIgnore + " /*M!100500 RETURNING " + columns + " */"
	}
	return d.InsertIgnore + " RETURNING " + columns
}

// Values repeats a row of an INSERT.
func (d *Dialect) Values(rows int, row string) string {
	return row + strings.Repeat(", "+row, rows-1)
}

// OnConflict begins the assignments of an INSERT that meets a row with the same
// key. MySQL, which knows no target and assigns from left to right, lets every
// assignment see those before it.
func (d *Dialect) OnConflict(key string) string {
	if d == mysql {
		return " ON DUPLICATE KEY UPDATE "
	}
	return " ON CONFLICT (" + key + ") DO UPDATE SET "
}

// Proposed is, in such an assignment, what the INSERT would have written.
func (d *Dialect) Proposed(column string) string {
	if d == mysql {
		return "VALUES(" + column + ")"
	}
	return "excluded." + column
}

// Bind numbers the places of a query where the database wants that. A query
// without a "?" comes back as it is, so it may be bound twice. A "?" that is not a
// place has no room in our statements.
func (d *Dialect) Bind(query string) string {
	if d != postgres {
		return query
	}
	i := strings.IndexByte(query, '?')
	if i < 0 {
		return query
	}
	b := make([]byte, 0, len(query)+32)
	for n := int64(1); i >= 0; n++ {
		b = append(append(b, query[:i]...), '$')
		b = strconv.AppendInt(b, n, 10)
		query = query[i+1:]
		i = strings.IndexByte(query, '?')
	}
	return string(append(b, query...))
}
