// Package sqllock is a lock backend in a SQL database, through GORM: one row a
// key, with an owner token, an end by the database's clock, and a counter that
// is the fence. It runs on SQLite, PostgreSQL (12 and later; tested on 15) and
// MariaDB (10.6 and later; tested on 10.11). There is a way for MySQL 8; nothing
// was run on MySQL itself. Packages postgres and mysql beside this one have the
// plugins for configuration files, and link the clients.
//
// Guarantees: those of package driver. An acquire is one statement, also where
// the key is held (on MySQL two), and tells who holds it; on SQLite and PostgreSQL
// a held key costs no write to the disk. A release is one statement, the renewal
// of all holds of a process is one for 5000 of them (on MariaDB and MySQL for 500,
// and one more where some of them are gone). Every statement is a transaction of
// its own on the pool of the *gorm.DB, never part of the caller's.
//
// On PostgreSQL and MariaDB a statement waits for a locked row for less than its
// request's time and then fails, so that none that was given up is carried out
// later; and what it grants runs from when it came, not from when it got the row.
//
// The row stays when the key is released, so that the fence goes on from there.
// If somebody deletes the row, the next fence starts at the database's clock in
// microseconds, which is above all earlier ones unless the clock was set back or
// the row is made again within the clock's resolution (1 ms on SQLite).
//
// Keys are bytes: case, accents and trailing blanks tell them apart everywhere. A
// label that is no UTF-8 is stored with question marks. A PostgreSQL database must
// be encoded in UTF-8.
//
// Waiters in mode lease stand in the server's queue for a session lock, the turn, on
// PostgreSQL, MariaDB and MySQL: about in order of arrival, as long as none waits for
// more than 10 s. The release of a holder that came from the line wakes the next one,
// and only that one. The row alone decides who holds the key; every waiter looks at it
// too, at least once a second. A holder that did not come from the line, or came more
// than 2 s ago, wakes the first in line by LISTEN and NOTIFY where the driver is that of
// package postgres; elsewhere that one looks every 10 to 250 ms. A waiter takes a
// connection of the pool for 10 s at most: eight of them for a driver, and no more than
// half of the pool. The others wait like all do in the other modes: woken by NOTIFY on
// PostgreSQL (over one connection a driver), else they poll.
// PostgreSQL writes the ends of such waits into its log, as lock timeout or canceled.
//
// On SQLite a driver that has waiters watches the database's write-ahead log by what the
// operating system tells of files. After a commit, of whatever, it reads the keys that are
// waited for, by a statement that writes nothing and at most 20 times a second, and has
// who waits for a free one ask. That is a hint: where there is no log to watch (in memory,
// another journal mode) or the system refuses (Linux allows a user 128 watchers by default,
// of which each process that waits takes one), waiters poll, as they do beside it.
//
// Through a pooler that shares connections between clients (PgBouncer's transaction
// mode) nobody stands in line: see [Pooled].
//
// Not guaranteed: anything over replicas. A failover that loses the last commits
// loses leases and fences with them; use synchronous replication. On MySQL, an
// abandoned statement waits for a row as long as innodb_lock_wait_timeout says (the
// plugin sets 5 s). Order of arrival, where somebody asks without waiting. Quick answers
// while somebody keeps a write transaction open on the same SQLite file. SQLite is for
// processes of one host.
//
// # Mode advisory
//
// [Advisory] holds a session lock (pg_advisory_lock, GET_LOCK) of a hashed name
// beside the row, and grants a key only where both are free: the row alone has an end
// and a fence, the session lock alone outlasts a holder that stands still past its
// TTL. It pays two statements an acquire and a release, and a connection for each
// class of TTLs (powers of two) that is in use. That connection is never the pool's
// again. On any doubt it is closed; its keys go on as rows, and get their session
// locks again with their next renewal.
//
// The server is told to end the connection when it was silent for one and a half
// to three TTLs (on MariaDB and MySQL in whole seconds; on PostgreSQL since 14,
// before that the operating system's keep-alive finds it). For so long a holder
// that stands still is not passed over, and a key whose holder is behind a dead
// network stays taken. A key whose holder's process died is free when its row ends.
//
// It works through no pooler that shares connections between clients (PgBouncer's
// transaction mode), and not between the nodes of Galera or group replication.
//
// # Mode row
//
// [Row] holds a key by a transaction that has locked the row with SELECT ... FOR
// UPDATE, on PostgreSQL and on MariaDB and MySQL. It is for critical sections of
// moments: the key is free at once when the holder's process dies, also through a
// pooler in transaction mode. It pays a connection and an open transaction for
// every key held, which keeps the server from cleaning up behind it. Its fence
// grows also over a rollback, by the database's clock.
//
// It promises less than a lease:
//   - A connection that breaks (a killed backend, a restart, a failover, a proxy's
//     idle limit) frees the key before the holder can know; it is told at its next
//     renewal, and until then only the fence keeps it out.
//   - Who holds a key is not known to others: no label, no remaining time, no
//     Inspect, List or ForceRelease. An operator ends the connection instead.
//   - Only the driver that took a key can renew or release it.
//   - TTLs are whole seconds on MariaDB and MySQL.
//   - A key that is held so is busy, that is unavailable, to the other modes.
//
// # MySQL
//
// What differs from MariaDB, by its manual; nothing was run on it. INSERT returns no
// row, so an acquire is two statements. A statement cannot be limited by a prefix, so
// one waits for a row as long as innodb_lock_wait_timeout says. MariaDB before 10.6
// is treated like it.
//
// # What happens when
//
//	the server is down, refuses   unavailable at once; a holder is told at the end of
//	                              its lease, less the margin
//	the server is slow            the request times out, is unknown, and is settled
//	the server restarts           leases go on, as committed; mode advisory takes its
//	                              session locks anew; mode row: the key is free, and
//	                              the holder is told at its next renewal
//	a connection is killed        the same
//	failed over, read-only        unavailable, nothing was applied
//	failed over, commits lost     not covered, see above
//	the holder is cut off         it is told before another is let in
//	the holder stands still       mode lease and row: the next one is let in at the
//	                              lease's end, and only the fence keeps the old one
//	                              out; mode advisory: later, see there
//	the row is deleted            the holder is told at its next renewal; another may
//	                              be let in before that, with a higher fence; mode row:
//	                              it cannot be, while it is held
//	a forced release              as above; the fence is raised
//	the row is locked by hand     busy: unavailable, nothing was applied
//	a waiter's process dies       it leaves the line within a second or so; on PostgreSQL
//	                              before 14 its turn costs a TTL
//	a waiter is cut off           its turn costs a TTL; the others look meanwhile, once a
//	                              second, until the server ends its connection after 15 s
//
// # Privileges
//
// What a user of the database needs who finds the tables in place:
//
//	-- PostgreSQL
//	CREATE ROLE locker LOGIN PASSWORD 'secret';
//	GRANT SELECT, INSERT, UPDATE ON solotick_locks TO locker;
//
//	-- MariaDB and MySQL
//	CREATE USER IF NOT EXISTS locker IDENTIFIED BY 'secret';
//	GRANT SELECT, INSERT, UPDATE ON solotick_locks TO locker;
//
// Whoever makes the tables (by [Driver.Migrate], or at the first use) needs the right
// to create them. ForceRelease in mode advisory ends connections of the same user,
// and so does a driver with connections of its own that it has given up; a waiter in
// mode lease that gives up has its own statement cancelled.
package sqllock
