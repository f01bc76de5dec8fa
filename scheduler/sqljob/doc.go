// Package sqljob makes a job's handler of SQL statements that run exactly once.
//
// The statements run through idempotent.Guard.Do: they and the record that the run
// succeeded are one transaction of the store's database. Parameters are bound,
// never written into the text:
//
//	:key      idempotency key, the same for every attempt of the run
//	:job      name of the job, or kind of the queue job
//	:tick     scheduled instant in UTC: 'YYYY-MM-DD HH:MM:SS', or on PostgreSQL a
//	          timestamp with time zone; NULL for queue jobs
//	:tick_ms  the same in milliseconds since the Unix epoch; NULL for queue jobs
//	:args     arguments of a queue job as text; NULL for cron jobs
//	:attempt  1, 2, ...
//	:fence    number that rises with every claim of the job
//
// The result kept with the run is {"rows_affected":[...]}, a number per statement.
//
// Guarantees: statements that would end the transaction, or that cannot run in one,
// are refused by New, by name and with the reason; so is every statement whose first
// word is not known to be safe on the database. Comments, strings and quoted names
// are told from code by the rules of the database, in its default mode.
//
// Not guaranteed: what functions and triggers that the statements call do outside of
// the database; and DDL on MySQL and MariaDB, which commits by itself and is
// refused.
package sqljob
