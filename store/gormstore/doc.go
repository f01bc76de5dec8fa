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
// The databases are SQLite, PostgreSQL 12, MariaDB 10.6 and MySQL 8, or later ones;
// nothing was run on MySQL itself. The store's own transactions are READ COMMITTED on
// servers, whatever the default is, and are done again where the database refuses
// them as busy or deadlocked, for at most 10 s. [Store.FinishTx] and [Enqueue] hold at
// any isolation of the caller's transaction; under a snapshot the database may refuse
// them with an error that matches store.ErrUnavailable, and the caller's transaction
// must be done again.
//
// The user who works needs SELECT, INSERT, UPDATE and DELETE on the tables. The user
// who migrates needs CREATE, and on MySQL and MariaDB ALTER, INDEX, SELECT and INSERT.
// A pool of PostgreSQL that the program opened itself should have the parameter
// plan_cache_mode=force_custom_plan: plans that were made and kept while the tables
// were empty become very slow.
//
// Statements per call, counted by the tests on every database: Claim 4 for up to 500
// runs (3 where none of them starts, 2 where nothing is to be written), Fetch 2 for runs without an active key,
// FinishTx 1 (2 where it sends the run back to be tried again), Survey 2, Heartbeat 1 for up to 1,000 runs (2 on MySQL and MariaDB, whose
// UPDATE returns nothing). A Fetch or TakeOver that finds nothing costs 1 statement
// outside of a transaction on SQLite, and 2 within one on servers.
//
// Not guaranteed: fairness between processes that write at once. On SQLite all of
// them are on one host, and a transaction of the user's that stays open holds up
// every other writer, heartbeats included.
package gormstore
