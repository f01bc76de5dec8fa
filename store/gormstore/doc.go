// Package gormstore keeps executions in a SQL database behind a *gorm.DB.
//
// GORM opens the database and carries the caller's transaction; the store's own
// statements are fixed texts run on the connection behind it. The tables carry a
// prefix ("solotick_" by default) and are made by versioned migrations, run by
// [Store.Migrate] under a lock.
//
// Guarantees: those of package store. Beyond them, [Store.FinishTx] moves a run
// out of running within the caller's transaction, by one statement that is
// guarded by attempt and owner: the transaction's writes commit if and only if
// the attempt still holds the run. [Enqueue] makes queue jobs visible if and only
// if the caller's transaction commits.
//
// Statements per call, counted by the tests: Claim 4 for up to 500 runs (5 where
// some start and others find their active key held, 3 where all have a record, 2
// where nothing is to be written), Fetch 2 for runs without an active key (1 when
// nothing is due), Heartbeat 1 for up to 1,000 runs, FinishTx 1, Survey 2, an idle TakeOver 1. What
// finds nothing to do begins no transaction, but for Claim.
//
// Not guaranteed: fairness between processes that write at once. On SQLite all of
// them are on one host, and a transaction of the user's that stays open holds up
// every other writer, heartbeats included.
package gormstore
