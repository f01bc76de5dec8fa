// Package sqllock is a lock backend in a SQL database, through GORM: one row a
// key, with an owner token, an end by the database's clock, and a counter that
// is the fence.
//
// Guarantees: those of package driver. An acquire is one statement, also where
// the key is held, and tells who holds it; a held key costs no write to the disk.
// A release is one statement, the renewal of all holds of a process is one.
// Every statement is a transaction of its own on the pool of the *gorm.DB,
// never part of the caller's.
//
// The row stays when the key is released, so that the fence goes on from there.
// If somebody deletes the row, the next fence starts at the database's clock in
// microseconds, which is above all earlier ones unless the clock was set back or
// the row is made again within the clock's resolution (1 ms on SQLite).
//
// Not guaranteed: hints when a key becomes free (waiters poll), and quick answers
// while somebody keeps a write transaction open on the same SQLite file. SQLite is
// for processes of one host.
package sqllock
