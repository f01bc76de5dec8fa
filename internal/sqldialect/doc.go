// Package sqldialect holds what differs between the databases that the SQL store
// and the SQL lock run on: error classes, what may be retried, the server's
// clock, the few spellings that are not shared, and migrations under a lock.
//
// It links no driver. Errors are told apart by the small interfaces that drivers
// implement (SQLite: Code() int, PostgreSQL: SQLState() string) or, for MySQL, by
// the head of their text; they are found in the chain, so a wrapped error is
// still recognised; GORM's own translators use a bare type assertion and lose it.
//
// Guarantees: a transaction run by [Conn.Tx] is retried as a whole and only when
// the database said that nothing of it was applied; a migration set is applied
// once, by one process, or not at all.
//
// Not guaranteed: that an error of COMMIT means the transaction was not applied.
// Such an error has class [Unavailable] and the caller settles it by repeating a
// request that is safe to repeat.
package sqldialect
