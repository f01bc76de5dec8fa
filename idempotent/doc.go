// Package idempotent makes the effect of a run happen exactly once: the writes of
// the run's handler and the record that the run succeeded are one transaction of
// one database.
//
//	err := guard.Do(ctx, run, func(tx *gorm.DB) error {
//		return tx.Create(&Invoice{OrderID: in.OrderID}).Error
//	})
//
// # Guaranteed
//
//   - What fn writes through tx is committed if and only if the run is recorded as
//     succeeded by this very attempt. An attempt that no longer holds its run
//     (frozen past its lease, taken over, finished) gets [ErrFenced] and has
//     written nothing, however late it wakes.
//   - Over all attempts and processes at most one call of fn for a run is committed.
//   - A COMMIT whose answer was lost is settled by reading the record back; fn is
//     never run again while it may have been committed.
//   - Nothing is committed once ctx has ended.
//
// # Not guaranteed
//
//   - That fn is called once: it is called again when the database asks for that
//     (a deadlock, a busy file) and by the next attempt. It must not act outside of
//     tx.
//   - Anything about effects outside of the database behind tx.
//
// # Requests
//
// [Once] does the same for what no scheduler knows of, such as an HTTP request, a
// message, a click: under a key of the caller's, whoever repeats it and wherever, with
// the first result as the answer to every repeat. Package httpkey is the middleware for
// the header Idempotency-Key. A [Cache] may answer repeats, and decides nothing.
//
// # Grades
//
// How strongly an effect can be promised depends on who receives it.
//
//	grade  effect                      by                                 promise
//	A      rows in the database of     Guard.Do, Once; Step for a part    exactly once
//	       the store
//	       rows in another database    Effects.Do                         exactly once; the run's success
//	                                                                      is recorded a moment later
//	B      a receiver that knows       EffectKey, the same for every      once, if retries end before the
//	       idempotency keys            attempt                            receiver forgets the key
//	C      a receiver that compares    the run's Fence, higher with each  no write by a late attempt;
//	       numbers; rows of yours      claim; the function Fence          repeats are possible
//	D      messages, mail              package outbox: a row written in   sent if committed, at least once;
//	                                   fn, sent after the commit          handled once with package inbox
//	E      none of these               AtMostOnce, or the crash policy    at most once; a doubt is visible,
//	                                   "indeterminate"                    and a Probe can settle it
//
// Statements that end a transaction by themselves (on MySQL and MariaDB any DDL)
// break grade A. GORM's Commit and Rollback inside of fn are refused; a COMMIT in
// plain SQL cannot be.
package idempotent
