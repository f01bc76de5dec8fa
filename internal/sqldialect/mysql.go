package sqldialect

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
)

// mysql is the dialect of MariaDB 10.6 and later and of MySQL 8. It is tested on
// MariaDB; nothing was run on MySQL itself.
//
// UTC_TIMESTAMP does not depend on the session's time zone, as UNIX_TIMESTAMP of
// NOW(6) does in the hour that a zone repeats in autumn.
var mysql = &Dialect{
	Name:          "mysql",
	NowMillis:     "(" + mysqlMicros + " DIV 1000)",
	NowMicros:     mysqlMicros,
	LockRows:      " FOR UPDATE",
	SkipLocked:    " FOR UPDATE SKIP LOCKED",
	ReadLatest:    " LOCK IN SHARE MODE",
	isolation:     sql.LevelReadCommitted,
	InsertIgnore:  " ON DUPLICATE KEY UPDATE version = version",
	Greatest:      "greatest",
	TableOptions:  " ENGINE=InnoDB",
	classify:      classifyMySQL,
	refused:       refusedMySQL,
	uniqueColumns: uniqueIndexMySQL,
	remedies:      serverRemedies,
}

const mysqlMicros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// MySQL is the dialect of MySQL and MariaDB.
func MySQL() *Dialect { return mysql }

// mysqlNumber finds the server's error number. The driver's error has it in a
// field only, and naming its type would link the driver into every program, so
// it is read from the beginning of that error's own text: "Error 1213 (40001): ".
// A test of package mysqldb holds the driver to that text.
func mysqlNumber(err error) int {
	for err != nil {
		if rest, ok := strings.CutPrefix(err.Error(), "Error "); ok {
			head, _, found := strings.Cut(rest, ":")
			number, state, _ := strings.Cut(head, " ")
			if n, bad := strconv.Atoi(number); bad == nil && found && (state == "" || len(state) == 7 && state[0] == '(') {
				return n
			}
		}
		switch u := err.(type) { //nolint:errorlint // it walks the chain itself
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				if n := mysqlNumber(e); n != 0 {
					return n
				}
			}
			return 0
		default:
			return 0
		}
	}
	return 0
}

// classifyMySQL goes by the lists of MySQL and MariaDB, which agree below 1900.
func classifyMySQL(err error) Class {
	switch mysqlNumber(err) {
	case 1205, 1213, // lock wait timeout, deadlock
		1020,       // record changed: MariaDB's innodb_snapshot_isolation
		3572,       // NOWAIT
		1969, 3024: // max_statement_time, max_execution_time
		return Busy
	case 1062, 1586:
		return Unique
	case 1021, 1114:
		return Full
	case 1290, 1792, 1836, 1223: // --read-only, read-only transaction, read-only mode, FLUSH TABLES WITH READ LOCK
		return ReadOnly
	case 1034, 1194, 1195:
		return Corrupt
	case 1054, 1146:
		return Schema
	case 1040, 1203, 1226, // too many connections
		1044, 1045, 1049, // access to the database
		1053, 1927, 2006, 2013, // shutdown, killed, gone
		1180, 1317, 1028, 1030, 1037, 1038:
		return Unavailable
	case 0:
		// The driver's own error for a connection that ended under a statement.
		if strings.HasSuffix(err.Error(), "invalid connection") {
			return Unavailable
		}
	}
	return Other
}

// refusedMySQL: a statement that ends in an error of the server is rolled back,
// unless the server or the connection went away meanwhile.
func refusedMySQL(err error) bool {
	switch mysqlNumber(err) {
	case 0, 1053, 1180, 1927, 2006, 2013, 1034, 1194, 1195:
		return false
	}
	return true
}

// uniqueIndexMySQL reads "Duplicate entry '...' for key 'table.index'"; the entry
// may contain anything, so the end counts.
func uniqueIndexMySQL(err error) []string {
	text := err.Error()
	i := strings.LastIndex(text, "for key '")
	if i < 0 {
		return nil
	}
	name, _, ok := strings.Cut(text[i+len("for key '"):], "'")
	if !ok {
		return nil
	}
	return []string{name[strings.LastIndexByte(name, '.')+1:]}
}

// IsMariaDB asks the server whether it is MariaDB 10.6 or later, which has what
// MySQL has not: INSERT ... RETURNING and SET STATEMENT ... FOR.
func (c Conn) IsMariaDB(ctx context.Context) (bool, error) {
	var version string
	if err := c.QueryRow(ctx, "SELECT VERSION()", nil, &version); err != nil {
		return false, err
	}
	return isMariaDB(version), nil
}

// isMariaDB reads "10.11.6-MariaDB-log", perhaps with a "5.5.5-" in front that is
// there for old clients.
func isMariaDB(version string) bool {
	if !strings.Contains(version, "MariaDB") {
		return false
	}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "5.5.5-"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA == nil && errB == nil && (a > 10 || a == 10 && b >= 6)
}
