// Package sqllock is a lock backend in a SQL database, through GORM: one row a
// key, with an owner token, an end by the database's clock, and a counter that
// is the fence. It runs on SQLite, PostgreSQL (11 and later; tested on 15) and
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
// Waiters on PostgreSQL are woken by LISTEN and NOTIFY where the driver is that of
// package postgres, over one connection a driver, while somebody waits. Elsewhere
// they poll.
//
// Not guaranteed: anything over replicas. A failover that loses the last commits
// loses leases and fences with them; use synchronous replication. On MySQL, an
// abandoned statement waits for a row as long as innodb_lock_wait_timeout says (the
// plugin sets 5 s). Quick answers while somebody keeps a write transaction open on
// the same SQLite file. SQLite is for processes of one host.
//
// # Mode advisory
//
// [Advisory] holds a session lock (pg_advisory_lock, GET_LOCK) of a hashed name on a
// connection of its own beside the row, and grants a key only where both are free.
// It pays a connection a held key, and two statements an acquire, for one thing: a
// holder that stands still past its TTL is not passed over while its connection
// lives. It does not hand over sooner: a key whose holder died is free when the row
// has ended. It works through no pooler that shares connections between clients,
// and not between the nodes of Galera or group replication. On any doubt the
// connection is closed, never returned to the pool.
//
// # What happens when
//
//	the server is down, refuses   unavailable at once; a holder is told at the end of
//	                              its lease, less the margin
//	the server is slow            the request times out, is unknown, and is settled
//	the server restarts           leases go on, as committed; mode advisory takes its
//	                              session lock anew and keeps the lease meanwhile
//	failed over, read-only        unavailable, nothing was applied
//	failed over, commits lost     not covered, see above
//	the holder is cut off         it is told before another is let in
//	the holder stands still       mode lease: the next one is let in at the lease's end,
//	                              and only the fence keeps the old one out; mode
//	                              advisory: nobody is let in
//	the row is deleted            the holder is told at its next renewal; another may
//	                              be let in before that, with a higher fence
//	a forced release              as above; the fence is raised
//	the row is locked by hand     busy: unavailable, nothing was applied
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
// to create them. ForceRelease in mode advisory ends connections of the same user.
package sqllock
