package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// server looks at what the database is, and at the settings of our sessions there.
func (c checker) server(ctx context.Context) []Finding {
	switch c.db.Name() {
	case "postgres":
		return c.postgres(ctx)
	case "mysql":
		return c.mysql(ctx)
	default:
		return c.sqlite(ctx)
	}
}

func (c checker) sqlite(ctx context.Context) []Finding {
	var version, mode string
	if err := c.row(ctx, "SELECT sqlite_version()", &version); err != nil {
		return []Finding{unanswered("version", err)}
	}
	if err := c.row(ctx, "PRAGMA journal_mode", &mode); err != nil {
		return []Finding{unanswered("file", err)}
	}
	all := []Finding{good("version", "SQLite %s, which comes with the program", version)}
	if mode != "wal" {
		return append(all, Bad("file", "journal mode "+mode, "close the program that has changed it: the file must be in mode wal"))
	}
	// Opening has refused network file systems, and what cannot be written.
	return append(all, good("file", "on a local disk, writable, in mode wal"))
}

func (c checker) postgres(ctx context.Context) []Finding {
	var version, plans, isolation, fsync, commit string
	var number int
	var replica bool
	err := c.row(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('plan_cache_mode'),
		current_setting('default_transaction_isolation'), current_setting('fsync'), current_setting('synchronous_commit'),
		pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'`,
		&version, &number, &plans, &isolation, &fsync, &commit, &replica)
	if err != nil {
		return []Finding{unanswered("version", err)}
	}
	all := []Finding{atLeast("PostgreSQL", version, number/10000 >= 12, "12")}
	switch {
	case replica:
		all = append(all, Bad("session", "the server takes no writes: it is a standby, or its sessions are read-only", "name the primary in store.dsn, or add target_session_attrs=read-write to it"))
	case plans != "force_custom_plan":
		all = append(all, doubtful("session", "plan_cache_mode is "+plans, "leave it out of store.dsn: plans that were made while the tables were empty become very slow"))
	default:
		all = append(all, good("session", "takes writes; plan_cache_mode %s", plans))
	}
	all = append(all, isolated(isolation))
	if fsync == "off" || commit == "off" {
		return append(all, doubtful("durability", fmt.Sprintf("fsync %s, synchronous_commit %s", fsync, commit), "turn both on: after a crash of the server's machine, runs that have ended may run again"))
	}
	return append(all, good("durability", "a commit is on disk before it is answered"))
}

func (c checker) mysql(ctx context.Context) []Finding {
	var version, mode string
	var autocommit, readOnly, flush int
	err := c.row(ctx, "SELECT VERSION(), @@SESSION.sql_mode, @@SESSION.autocommit, @@GLOBAL.read_only, @@GLOBAL.innodb_flush_log_at_trx_commit", &version, &mode, &autocommit, &readOnly, &flush)
	if err != nil {
		return []Finding{unanswered("version", err)}
	}
	maria := strings.Contains(version, "MariaDB")
	name, least, variable := "MySQL", "8.0", "transaction_isolation"
	if maria {
		name, least, variable = "MariaDB", "10.6", "tx_isolation"
	}
	all := []Finding{atLeast(name, version, newer(version, least), least)}
	switch {
	case readOnly != 0:
		all = append(all, Bad("session", "the server is read_only", "name the primary in store.dsn"))
	case autocommit == 0:
		all = append(all, Bad("session", "autocommit is off: single statements would never be committed", "remove autocommit from store.dsn"))
	case !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES"):
		all = append(all, Bad("session", fmt.Sprintf("sql_mode %q is not strict: values that do not fit would be cut in silence", mode), "remove sql_mode from store.dsn, or add STRICT_TRANS_TABLES to the server's"))
	default:
		all = append(all, good("session", "takes writes; sql_mode is strict; parseTime, loc and clientFoundRows of the DSN make no difference"))
	}
	var isolation string
	if err := c.row(ctx, "SELECT @@SESSION."+variable, &isolation); err != nil {
		return append(all, unanswered("isolation", err))
	}
	all = append(all, isolated(isolation))
	if flush != 1 {
		return append(all, doubtful("durability", fmt.Sprintf("innodb_flush_log_at_trx_commit is %d", flush), "set it to 1: after a crash of the server's machine, runs that have ended may run again"))
	}
	return append(all, good("durability", "a commit is on disk before it is answered"))
}

// isolated tells of the default, which decides nothing.
func isolated(level string) Finding {
	return good("isolation", "READ COMMITTED for the store and Guard.Do; the server's default is %s", strings.ToUpper(strings.ReplaceAll(level, "-", " ")))
}

func atLeast(name, version string, enough bool, least string) Finding {
	text := name + " " + version
	if !enough {
		return Bad("version", text, fmt.Sprintf("upgrade the server: %s %s is the oldest that is supported", name, least))
	}
	return good("version", "%s", text)
}

// newer compares the first two numbers of a version with "major.minor".
func newer(version, least string) bool {
	numbers := func(v string) (major, minor int) {
		first, rest, _ := strings.Cut(strings.TrimPrefix(v, "5.5.5-"), ".") // that is there for old clients
		second, _, _ := strings.Cut(rest, ".")
		major, _ = strconv.Atoi(first) // what is no number is 0, and too old
		minor, _ = strconv.Atoi(second)
		return major, minor
	}
	major, minor := numbers(version)
	a, b := numbers(least)
	return major > a || major == a && minor >= b
}

// names looks at how the names in the tables are compared, and at the engine that
// keeps them.
func (c checker) names(ctx context.Context) []Finding {
	query := map[string]string{
		"postgres": `SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = ANY (current_schemas(false))
			AND table_name IN ? AND column_name IN ('ns', 'job', 'queue') AND collation_name IS DISTINCT FROM 'C' ORDER BY 1`,
		"mysql": `SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns WHERE table_schema = DATABASE()
			AND table_name IN ? AND column_name IN ('ns', 'job', 'queue') AND data_type <> 'varbinary' ORDER BY 1`,
	}[c.db.Name()]
	if query == "" {
		return nil // SQLite compares bytes, and has one engine
	}
	var tables []string
	for name := range c.tables() {
		tables = append(tables, name)
	}
	wrong, err := c.column(ctx, query, tables)
	if err != nil {
		return []Finding{unanswered("collation", err)}
	}
	found := good("collation", "names are compared byte by byte")
	if len(wrong) > 0 {
		found = Bad("collation", "not compared byte by byte: "+strings.Join(wrong, ", "), "give the columns the type and collation that 'solotick migrate sql' prints: else names that differ in case or accents are one job, or are sorted in another order than the indexes")
	}
	if c.db.Name() != "mysql" {
		return []Finding{found}
	}
	wrong, err = c.column(ctx, "SELECT CONCAT(table_name, ' (', engine, ')') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ? AND engine <> 'InnoDB' ORDER BY 1", tables)
	switch {
	case err != nil:
		return []Finding{found, unanswered("engine", err)}
	case len(wrong) > 0:
		return []Finding{found, Bad("engine", "without transactions: "+strings.Join(wrong, ", "), "ALTER TABLE ... ENGINE=InnoDB, and see why the server made them so")}
	}
	return []Finding{found, good("engine", "InnoDB")}
}
