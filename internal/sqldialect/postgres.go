package sqldialect

import (
	"database/sql"
	"errors"
	"strings"
)

// postgres is the dialect of PostgreSQL 11 and later, over any driver whose errors
// have a method SQLState() string.
var postgres = &Dialect{
	Name:          "postgres",
	NowMillis:     "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)",
	NowMicros:     "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
	LockRows:      " FOR UPDATE",
	SkipLocked:    " FOR UPDATE SKIP LOCKED",
	Returning:     true,
	isolation:     sql.LevelReadCommitted,
	InsertIgnore:  " ON CONFLICT DO NOTHING",
	Greatest:      "greatest",
	classify:      classifyPostgres,
	refused:       refusedPostgres,
	uniqueColumns: uniqueIndexPostgres,
	remedies:      serverRemedies,
}

// Postgres is the dialect of PostgreSQL.
func Postgres() *Dialect { return postgres }

var serverRemedies = map[Class]string{
	Full:     "the database server's disk or the table is full, nothing was written: make space",
	ReadOnly: "the database cannot be written: it is read-only, perhaps a replica after a failover; connect to the primary",
	Corrupt:  "the database reports damage: look at the server's log",
}

func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) {
		return ""
	}
	return coded.SQLState()
}

// classifyPostgres goes by https://www.postgresql.org/docs/current/errcodes-appendix.html.
func classifyPostgres(err error) Class {
	state := sqlState(err)
	switch state {
	case "":
		return Other
	case "40001", "40P01", "55P03": // serialization, deadlock, lock_timeout or NOWAIT
		return Busy
	case "23505":
		return Unique
	case "53100":
		return Full
	case "25006":
		return ReadOnly
	case "42P01", "42703", "3F000": // table, column, schema
		return Schema
	case "57014", // statement_timeout, or cancelled
		"40003", // completion unknown
		"25P02", "25P03", "3D000":
		return Unavailable
	}
	switch state[:min(2, len(state))] {
	case "08", "28", "53", "57", "58": // connection, authorization, resources, shutdown, I/O
		return Unavailable
	case "XX":
		return Corrupt
	}
	return Other
}

// refusedPostgres: a statement that the server answers with an error is rolled
// back, and so is a COMMIT, unless the server itself went away meanwhile.
func refusedPostgres(err error) bool {
	switch state := sqlState(err); {
	case state == "", state == "40003", state == "57P01", state == "57P02", strings.HasPrefix(state, "08"), strings.HasPrefix(state, "XX"):
		return false
	}
	return true
}

// uniqueIndexPostgres reads `... violates unique constraint "name" (SQLSTATE ...`,
// since the field with the name can be reached by no method.
func uniqueIndexPostgres(err error) []string {
	_, rest, ok := strings.Cut(err.Error(), `unique constraint "`)
	name, _, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		return nil
	}
	return []string{name}
}
