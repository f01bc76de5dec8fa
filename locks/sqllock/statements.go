package sqllock

import (
	"strings"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
)

// statements is the text of what is sent. The order of a statement's parameters
// is that of its call in rows.go.
type statements struct {
	acquire string
	// readBack is what tells the outcome of an acquire on a database where INSERT
	// returns nothing. Empty elsewhere.
	readBack string
	renew    string
	// renewMany renews and returns the grants that it found, or, where UPDATE
	// returns nothing, is followed by alive.
	renewMany string
	alive     string
	release   string
	force     string
	// turn waits for a session lock and then acquires; handOver releases and frees
	// that. They are PostgreSQL's.
	turn     string
	handOver string

	holder, list, listBelow string
	survey                  string // followed by a list of names
}

// pieces of the statements that are the same everywhere.
type pieces struct {
	d     *sqldialect.Dialect
	table string
	live  string // the row's lease runs
	lived string // the same within an upsert, by the clock that the insert proposes
	mine  string // token, fence; a fence of 0 is any
	exact string // token, fence
	end   string // the lease's new end: never earlier than the old one
}

// A grant is live while until_us >= now. The clock is cut to its resolution when
// the end is set and when it is compared, so that the sign must include the end:
// else a grant could end a tick of the clock too early.
func newStatements(table string, d *sqldialect.Dialect, mariadb bool) statements {
	p := pieces{
		d: d, table: table,
		live:  "until_us >= " + d.NowMicros,
		lived: table + ".until_us >= " + d.Proposed("since_us"),
		mine:  " AND token = ? AND ? IN (fence, 0)",
		exact: " AND token = ? AND fence = ?",
		// Of two renewals under way the one sent first may be carried out last.
		end: d.Greatest + "(until_us, " + d.NowMicros + " + ?)",
	}
	if mutation.On("release-without-token") {
		p.mine = " AND (1 = 1 OR token = ? OR ? IN (fence, 0))"
	}
	if d == sqldialect.Postgres() { // it would take the place for a small integer, after the 0
		p.mine = strings.Replace(p.mine, "? IN", "CAST(? AS BIGINT) IN", 1)
	}
	if mutation.On("renew-without-token") {
		p.exact = " AND (1 = 1 OR token = ? OR fence = ?)"
	}
	if mutation.On("lock-exclusion") {
		p.lived = "1 = 0"
	}
	q := statements{
		renew:   "UPDATE " + table + " SET until_us = " + p.end + ", beats = beats + 1 WHERE name = ?" + p.exact + " AND " + p.live,
		release: "UPDATE " + table + " SET until_us = 0, beats = beats + 1 WHERE name = ?" + p.mine + " AND " + p.live,
		force:   "UPDATE " + table + " SET until_us = 0, fence = fence + 1, beats = beats + 1 WHERE name = ? AND " + p.live,
	}
	read := "SELECT name, token, fence, label, since_us, until_us - " + d.NowMicros + " FROM " + table
	q.holder = read + " WHERE name = ? AND " + p.live
	q.survey = read + " WHERE " + p.live + " AND name IN "
	q.list = read + " WHERE name >= ? AND " + p.live + " ORDER BY name LIMIT ?"
	q.listBelow = read + " WHERE name >= ? AND name < ? AND " + p.live + " ORDER BY name LIMIT ?"
	switch d {
	case sqldialect.Postgres():
		p.postgres(&q)
	case sqldialect.MySQL():
		p.mysql(&q, mariadb)
	default:
		// Where it refuses, it writes what is there already, which SQLite does not
		// write to the disk.
		q.acquire = p.upsert("VALUES (?, ?, "+d.NowMicros+", "+d.NowMicros+", "+d.NowMicros+" + ?, ?)") + p.returning()
		q.renewMany = "UPDATE " + table + " SET until_us = " + p.end + ", beats = beats + 1 WHERE " + p.live + " AND name IN "
	}
	for _, s := range []*string{&q.acquire, &q.renew, &q.renewMany, &q.release, &q.force, &q.turn, &q.handOver, &q.holder, &q.list, &q.listBelow} {
		*s = d.Bind(*s)
	}
	return q
}

// upsert grants, extends or refuses in one statement.
//
// The proposed since_us is the clock by which it judges and from which the lease
// runs. PostgreSQL and MySQL read it before they wait for the row. That is meant:
// a statement whose caller has long given up then grants no more than is left of
// the TTL since it came, and by an old clock more leases look alive, never fewer.
//
// MySQL assigns from left to right, and sees what it has assigned. So the end
// comes last: token and end are what the others, and token, are judged by. When
// the end is judged, a new token is in place only where the old lease is over.
func (p pieces) upsert(row string) string {
	t, is := p.table+".", p.d.Proposed
	return "INSERT INTO " + p.table + " (name, token, fence, since_us, until_us, label) " + row + p.d.OnConflict("name") +
		"fence = CASE WHEN " + p.lived + " THEN " + t + "fence ELSE " + t + "fence + 1 END," +
		" since_us = CASE WHEN " + p.lived + " THEN " + t + "since_us ELSE " + is("since_us") + " END," +
		" label = CASE WHEN " + p.lived + " AND " + t + "token <> " + is("token") + " THEN " + t + "label ELSE " + is("label") + " END," +
		" token = CASE WHEN " + p.lived + " THEN " + t + "token ELSE " + is("token") + " END," +
		" until_us = CASE WHEN " + p.lived + " AND (" + t + "token <> " + is("token") + " OR " + t + "until_us > " + is("until_us") + ")" +
		" THEN " + t + "until_us ELSE " + is("until_us") + " END"
}

func (p pieces) returning() string {
	return " RETURNING token, fence, label, since_us, until_us - " + p.d.NowMicros
}

// postgres adds what PostgreSQL can: a look before the write, so that a refusal
// takes no lock and writes nothing to the disk (ON CONFLICT DO UPDATE always
// writes); a limit on the wait for the row, local to the statement's transaction,
// so that it needs no statement of its own; and a notification.
func (p pieces) postgres(q *statements) {
	const limit = "limited AS MATERIALIZED (SELECT set_config('lock_timeout', CAST(? AS TEXT), true) AS ms)"
	const within = " FROM limited WHERE limited.ms <> '' AND "
	t := p.table + "."
	held := t + "until_us >= asked.us AND " + t + "token <> CAST(? AS BYTEA)"
	if p.lived == "1 = 0" {
		held += " AND " + p.lived
	}
	asked := strings.Replace(limit, "SELECT", "SELECT "+p.d.NowMicros+" AS us,", 1)
	asked = strings.Replace(asked, "limited", "asked", 1)
	q.acquire = "WITH " + asked +
		", held AS MATERIALIZED (SELECT " + t + "token, " + t + "fence, " + t + "label, " + t + "since_us, " + t + "until_us - asked.us" +
		" FROM " + p.table + ", asked WHERE " + t + "name = ? AND " + held + ")" +
		", made AS (" + p.upsert("SELECT CAST(? AS TEXT), CAST(? AS BYTEA), asked.us, asked.us, asked.us + ?, CAST(? AS TEXT)"+
		" FROM asked WHERE asked.ms <> '' AND NOT EXISTS (SELECT FROM held)") + p.returning() + ")" +
		" SELECT * FROM made UNION ALL SELECT * FROM held"
	// These two go over connections that have a limit on every wait. There is no look
	// before the write, for it would see the row as it was before the turn came. OFFSET
	// keeps the order, the turn before the clock.
	q.turn = p.upsert("SELECT CAST(? AS TEXT), CAST(? AS BYTEA), asked.us, asked.us, asked.us + ?, CAST(? AS TEXT)"+
		" FROM (SELECT "+p.d.NowMicros+" AS us FROM (SELECT pg_advisory_lock(CAST(? AS BIGINT)) IS NULL AS come OFFSET 0) AS turn OFFSET 0) AS asked") + p.returning()
	// The transaction takes the turn over from its session, so that it is the commit
	// that wakes the next one.
	q.handOver = strings.Replace(q.release, " WHERE ", " FROM (SELECT CAST(? AS BIGINT) AS k) AS turn WHERE ", 1) +
		" RETURNING pg_advisory_xact_lock(turn.k), pg_advisory_unlock(turn.k)"
	limited := func(update string) string {
		return "WITH " + limit + " " + strings.Replace(update, " WHERE ", within, 1)
	}
	notify := func(update string) string {
		return "WITH " + limit + ", freed AS (" + strings.Replace(update, " WHERE ", within, 1) + " RETURNING name) SELECT pg_notify(?, name) FROM freed"
	}
	q.renewMany = limited("UPDATE "+p.table+" SET until_us = "+p.end+", beats = beats + 1 WHERE "+p.live) +
		" AND (name, token, fence) IN (SELECT h.name COLLATE \"C\", h.token, h.fence FROM" +
		" unnest(CAST(? AS TEXT[]), CAST(? AS BYTEA[]), CAST(? AS BIGINT[])) AS h(name, token, fence)) RETURNING name, token, fence"
	q.renew = limited(q.renew)
	q.release = notify(q.release)
	q.force = notify(q.force)
}

// mysql: MariaDB's INSERT returns the row, and a prefix limits the wait for it.
// MySQL has neither, so there the row is read back.
func (p pieces) mysql(q *statements, mariadb bool) {
	now := p.d.NowMicros
	q.acquire = p.upsert("VALUES (?, ?, " + now + ", " + now + ", " + now + " + ?, ?)")
	if mariadb {
		q.acquire += p.returning()
	} else {
		q.readBack = "SELECT token, fence, label, since_us, until_us - " + now + " FROM " + p.table + " WHERE name = ?"
	}
	q.renewMany = "UPDATE " + p.table + " SET until_us = " + p.end + ", beats = beats + 1 WHERE " + p.live + " AND name IN "
	q.alive = "SELECT name, token, fence FROM " + p.table + " WHERE " + p.live + " AND name IN "
}
