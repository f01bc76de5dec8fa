package sqldialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
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
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Unavailable
	}
	for _, lost := range []error{
		context.Canceled, context.DeadlineExceeded, driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone, errClosed,
	} {
		if errors.Is(err, lost) {
			return Unavailable
		}
	}
	// database/sql exports no value for its "sql: database is closed", and pgx none for
	// its "conn closed", which says that it sent nothing.
	if notSent(err) || strings.Contains(err.Error(), "database is closed") {
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
	}
	// What was not sent cannot be applied.
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return true
	}
	return notSent(err) || err != nil && d.refused(err)
}

// Ended reports whether the server said, instead of carrying out the statement, that it
// had ended the session for its idleness, and with it the transaction that was open.
func (d *Dialect) Ended(err error) bool {
	switch d {
	case postgres:
		state := sqlState(err)
		return state == "25P03" || state == "57P05"
	case mysql:
		return mysqlNumber(err) == 4031
	default:
		return false
	}
}

// notSent reports whether the driver says of its error that the server saw nothing.
func notSent(err error) bool {
	var early interface{ SafeToRetry() bool }
	return errors.As(err, &early) && early.SafeToRetry()
}

// UniqueColumns names the columns of the unique index that err says was broken,
// without their table; nil if err is of another class. MySQL and PostgreSQL tell
// the name of the index instead, which is then the only entry.
func (d *Dialect) UniqueColumns(err error) []string {
	if d.Classify(err) != Unique {
		return nil
	}
	return d.uniqueColumns(err)
}

// Explain puts an error that says "the database cannot answer" into plain words
// with a remedy. It wraps err. Errors of the other classes come back as they are.
func (d *Dialect) Explain(err error) error {
	class := d.Classify(err)
	if class == Busy {
		return fmt.Errorf("the database is locked by another writer: %w", err)
	}
	if remedy := d.remedies[class]; remedy != "" {
		return fmt.Errorf("%s: %w", remedy, err)
	}
	return err
}
