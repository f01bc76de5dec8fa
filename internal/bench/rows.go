package bench

import "fmt"

// FinishedRows is an INSERT of finished runs, numbered from to to, into a table of
// executions of the namespace shop, by the name that GORM has for the database: IDs
// in the order of time, hashes at random, ticks before an instant. Half of them are
// ticks of job-0, half are queue jobs of kind mail, every second of these with one of
// a hundred lock keys.
func FinishedRows(database, table string, before int64, from, to int) string {
	var n, id, hash, key, with, source string
	switch database {
	case "postgres":
		n, id, hash, key = "n", "decode(lpad(to_hex(n), 32, '0'), 'hex')", "sha256(CAST('r' || n AS BYTEA))", "sha256(CAST('k' || n % 100 AS BYTEA))"
		source = fmt.Sprintf("generate_series(%d, %d) AS s (n)", from, to)
	case "mysql":
		n, id, hash, key = "seq", "UNHEX(LPAD(HEX(seq), 32, '0'))", "UNHEX(SHA2(CONCAT('r', seq), 256))", "UNHEX(SHA2(CONCAT('k', seq % 100), 256))"
		source = fmt.Sprintf("seq_%d_to_%d", from, to) // MariaDB's
	default:
		n, id, hash, key = "n", "unhex(printf('%032x', n))", "randomblob(32)", "unhex(printf('%064x', n % 100))"
		with = fmt.Sprintf("WITH RECURSIVE s (n) AS (SELECT %d UNION ALL SELECT n + 1 FROM s WHERE n < %d) ", from, to)
		source = "s"
	}
	at := fmt.Sprintf("%d + %s", before-int64(to)-1, n)
	return "INSERT INTO " + table + " (id, ns, queue, job, class, tick_ms, run_hash, active_key, spec_hash, state, attempt, fence," +
		" run_at_ms, created_ms, started_ms, since_ms, finished_ms) " + with +
		"SELECT " + id + ", 'shop', 'default', CASE WHEN " + n + " % 2 = 0 THEN 'job-0' ELSE 'mail' END, CASE WHEN " + n + " % 2 = 0 THEN 1 ELSE 4 END, " +
		at + ", " + hash + ", CASE WHEN " + n + " % 4 = 1 THEN " + key + " END, 'spec-1', 3, 1, 1, " +
		at + ", " + at + ", " + at + ", " + at + ", " + at + " FROM " + source
}
