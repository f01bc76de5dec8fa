package sqldialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
)

// Class says what an error means for the caller.
type Class int

// The classes.
const (
	Other       Class = iota // a fault of the statement or of the program
	Busy                     // locked by others; not applied; try the transaction again
	Unique                   // breaks a unique index
	Full                     // no space left; not applied
	ReadOnly                 // the database cannot be written; not applied
	Corrupt                  // the file is damaged or is no database
	Unavailable              // cannot be reached, an I/O error, or out of time; perhaps applied
	Schema                   // a table or column is missing
)

// Classify tells what err means. A nil error is Other.
func (d *Dialect) Classify(err error) Class {
	if err == nil {
		return Other
	}
	// The driver's code first: a statement that ran into its deadline while it
	// waited for a lock carries both.
	if c := d.classify(err); c != Other {
		return c
	}
	for _, lost := range []error{
		context.Canceled, context.DeadlineExceeded, driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone, errClosed,
	} {
		if errors.Is(err, lost) {
			return Unavailable
		}
	}
	// database/sql exports no value for its "sql: database is closed".
	if strings.Contains(err.Error(), "database is closed") {
		return Unavailable
	}
	return Other
}

var errClosed = errors.New("sqldialect: the connection is closed")

// NotApplied reports whether the database is known to be unchanged by the
// statement or transaction that ended in err.
func (d *Dialect) NotApplied(err error) bool {
	switch d.Classify(err) {
	case Busy, Unique, Full, ReadOnly, Schema:
		return true
	default:
		return false
	}
}

// UniqueColumns names the columns of the unique index that err says was broken,
// without their table; nil if err is of another class.
func (d *Dialect) UniqueColumns(err error) []string {
	if d.Classify(err) != Unique {
		return nil
	}
	return d.uniqueColumns(err)
}

// Explain puts an error that says "the database cannot answer" into plain words
// with a remedy. It wraps err. Errors of the other classes come back as they are.
func (d *Dialect) Explain(err error) error {
	switch d.Classify(err) {
	case Busy:
		return fmt.Errorf("the database is locked by another writer: %w", err)
	case Full:
		return fmt.Errorf("the disk or the database is full, nothing was written: make space: %w", err)
	case ReadOnly:
		return fmt.Errorf("the database cannot be written: check the permissions of the file and its directory: %w", err)
	case Corrupt:
		return fmt.Errorf("the database file is damaged or not a database: restore it from a backup: %w", err)
	default:
		return err
	}
}

// Result codes of SQLite, https://www.sqlite.org/rescode.html.
const (
	sqliteError      = 1
	sqlitePerm       = 3
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteNoMem      = 7
	sqliteReadOnly   = 8
	sqliteInterrupt  = 9
	sqliteIOErr      = 10
	sqliteCorrupt    = 11
	sqliteFull       = 13
	sqliteCantOpen   = 14
	sqliteProtocol   = 15
	sqliteConstraint = 19
	sqliteNotADB     = 26

	sqliteConstraintPrimaryKey = sqliteConstraint | 6<<8
	sqliteConstraintUnique     = sqliteConstraint | 8<<8
)

func classifySQLite(err error) Class {
	var coded interface{ Code() int }
	if !errors.As(err, &coded) {
		return Other
	}
	code := coded.Code()
	switch code & 0xff { // the rest is the extended part, such as 517 BUSY_SNAPSHOT
	case sqliteBusy, sqliteLocked, sqliteProtocol:
		return Busy
	case sqliteFull:
		return Full
	case sqliteReadOnly:
		return ReadOnly
	case sqliteCorrupt, sqliteNotADB:
		return Corrupt
	case sqliteIOErr, sqliteCantOpen, sqlitePerm, sqliteNoMem, sqliteInterrupt:
		return Unavailable
	case sqliteConstraint:
		if code == sqliteConstraintUnique || code == sqliteConstraintPrimaryKey {
			return Unique
		}
	case sqliteError:
		// SQLite has no code of its own for these.
		if m := err.Error(); strings.Contains(m, "no such table") || strings.Contains(m, "no such column") ||
			strings.Contains(m, "has no column named") {
			return Schema
		}
	}
	return Other
}

// uniqueColumnsSQLite reads "UNIQUE constraint failed: table.a, table.b".
func uniqueColumnsSQLite(err error) []string {
	_, list, ok := strings.Cut(err.Error(), "constraint failed: ")
	if !ok {
		return nil
	}
	// The driver may put text of its own in front and a code "(2067)" behind.
	if _, rest, again := strings.Cut(list, "constraint failed: "); again {
		list = rest
	}
	if i := strings.IndexAny(list, "(\n"); i >= 0 {
		list = list[:i]
	}
	var columns []string
	for c := range strings.SplitSeq(list, ",") {
		c = strings.TrimSpace(c)
		columns = append(columns, c[strings.LastIndexByte(c, '.')+1:])
	}
	return columns
}
