package sqljob

import (
	"errors"
	"fmt"
	"slices"
)

// Check reports whether a job can run the statements on the database: every one
// that it cannot, with the line, the reason and the remedy.
func Check(d Dialect, statements string) error {
	_, err := parse(d, statements)
	return err
}

func parse(d Dialect, text string) ([]statement, error) {
	if !slices.Contains([]Dialect{SQLite, Postgres, MySQL}, d) {
		return nil, fmt.Errorf("sqljob: no rules for database %q: use sqlite, postgres or mysql", d)
	}
	sts, err := split(d, text)
	if err != nil {
		return nil, fmt.Errorf("sqljob: %w", err)
	}
	if len(sts) == 0 {
		return nil, errors.New("sqljob: there is no statement: write one or more, with ; between them")
	}
	var errs []error
	for _, st := range sts {
		if verb, reason := refused(d, st.words); reason != "" {
			errs = append(errs, fmt.Errorf("sqljob: line %d: %.32s %s", st.line, verb, reason))
		}
	}
	return sts, errors.Join(errs...)
}

// Reasons, worded to follow the verb.
const (
	endsTx   = "controls the transaction, which ends together with the run's record: remove it"
	noTx     = "cannot run in a transaction: run it from an exec job"
	commits  = "commits by itself, so the run would not be exactly once: run it from an exec job"
	session  = "changes the connection, which other work shares: remove it"
	hidden   = "runs statements that cannot be checked here, and may commit: write them out"
	body     = "has a body with statements of its own: make it in a migration"
	outside  = "writes outside of the database, which the transaction does not cover: use an exec job"
	unknown  = "is not known to be safe in a transaction: use SELECT, INSERT, UPDATE, DELETE or WITH, or an exec job"
	rollback = "can end the transaction at a conflict: use OR ABORT or OR FAIL"
)

// everywhere are verbs that no database runs in somebody else's transaction.
var everywhere = map[string]string{
	"BEGIN": endsTx, "START": endsTx, "COMMIT": endsTx, "END": endsTx, "ROLLBACK": endsTx, "ABORT": endsTx, "SAVEPOINT": endsTx, "RELEASE": endsTx, "XA": endsTx,
	"PREPARE": hidden, "EXECUTE": hidden, "DEALLOCATE": hidden, "CALL": hidden,
	"VACUUM": noTx, "SET": session, "RESET": session, "USE": session, "DISCARD": session, "PRAGMA": session, "ATTACH": session, "DETACH": session,
	"LISTEN": session, "UNLISTEN": session, "COPY": outside, "LOAD": outside,
}

// safe are the verbs that may run, by database. Some have exceptions below.
var safe = map[Dialect][]string{
	SQLite: {"SELECT", "INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "VALUES", "CREATE", "DROP", "ALTER", "REINDEX", "ANALYZE"},
	Postgres: {
		"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "CREATE", "DROP", "ALTER", "TRUNCATE", "LOCK", "NOTIFY",
		"ANALYZE", "COMMENT", "GRANT", "REVOKE", "REFRESH", "REINDEX", "DO",
	},
	MySQL: {"SELECT", "INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "VALUES", "TABLE", "DO"},
}

// committing are MySQL's and MariaDB's statements with an implicit commit.
var committing = []string{
	"ALTER", "ANALYZE", "CACHE", "CHANGE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE", "PURGE", "RENAME", "REPAIR",
	"REVOKE", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK", "BACKUP", "IMPORT", "CLONE", "RESTART", "SHUTDOWN",
}

// refused says why a statement may not run, or "".
func refused(d Dialect, words []string) (verb, reason string) {
	for len(words) > 0 && words[0] == "" {
		words = words[1:] // brackets around a SELECT
	}
	if len(words) == 0 {
		return "a statement without a word", unknown
	}
	verb = words[0]
	second := ""
	if len(words) > 1 {
		second = words[1]
	}
	if d == Postgres && verb == "SET" && second == "LOCAL" {
		return verb, ""
	}
	if reason := everywhere[verb]; reason != "" {
		return verb, reason
	}
	if d == MySQL && slices.Contains(committing, verb) {
		return verb, commits
	}
	if !slices.Contains(safe[d], verb) {
		return verb, unknown
	}
	switch d {
	case SQLite:
		return refusedSQLite(verb, words)
	case Postgres:
		return refusedPostgres(verb, second, words)
	case MySQL:
		if follows(words, "INTO", "OUTFILE") || follows(words, "INTO", "DUMPFILE") {
			return verb + " INTO OUTFILE", outside
		}
	}
	return verb, ""
}

func refusedSQLite(verb string, words []string) (string, string) {
	if verb == "CREATE" && slices.Contains(words[:min(len(words), 4)], "TRIGGER") {
		return "CREATE TRIGGER", body
	}
	if follows(words, "OR", "ROLLBACK") || follows(words, "CONFLICT", "ROLLBACK") {
		return "ON CONFLICT ROLLBACK", rollback
	}
	return verb, ""
}

func refusedPostgres(verb, second string, words []string) (string, string) {
	if slices.Contains([]string{"CREATE", "DROP", "ALTER", "REINDEX"}, verb) {
		switch {
		case slices.Contains(words, "CONCURRENTLY"):
			return verb + " " + second + " CONCURRENTLY", noTx
		case slices.Contains([]string{"DATABASE", "TABLESPACE", "SUBSCRIPTION", "SYSTEM"}, second), verb == "REINDEX" && second == "SCHEMA":
			return verb + " " + second, noTx
		case slices.Contains(words, "ATOMIC"):
			return verb + " " + second + " BEGIN ATOMIC", body
		}
	}
	return verb, ""
}

// follows reports whether b comes right after a.
func follows(words []string, a, b string) bool {
	for i := range len(words) - 1 {
		if words[i] == a && words[i+1] == b {
			return true
		}
	}
	return false
}
