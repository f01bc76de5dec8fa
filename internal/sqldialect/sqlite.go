package sqldialect

import (
	"errors"
	"strings"
)

// sqlite is the dialect of SQLite 3.42 and later, over any driver whose errors
// have a method Code() int with the extended result code.
//
// unixepoch('subsec') is a float of seconds; times 1000 it can lie a hair under
// the whole millisecond (1.001 * 1000 = 1000.9999...), hence round before the cast.
var sqlite = &Dialect{
	Name:          "sqlite",
	NowMillis:     "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
	NowMicros:     "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)",
	Returning:     true,
	InsertIgnore:  " ON CONFLICT DO NOTHING",
	Greatest:      "max",
	classify:      classifySQLite,
	refused:       func(error) bool { return false },
	uniqueColumns: uniqueColumnsSQLite,
	remedies: map[Class]string{
		Full:     "the disk or the database is full, nothing was written: make space",
		ReadOnly: "the database cannot be written: check the permissions of the file and its directory",
		Corrupt:  "the database file is damaged or not a database: restore it from a backup",
	},
}

// SQLite is the dialect of SQLite.
func SQLite() *Dialect { return sqlite }

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
