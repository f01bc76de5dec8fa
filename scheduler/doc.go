// Package scheduler runs cron jobs and queue jobs that many replicas know and
// exactly one of them runs.
//
// Every replica makes a [Scheduler] with the same jobs and one store. When a tick
// is due, each replica asks the job's gate (a lock, a leader's term, or none),
// and who comes through claims the tick in the store, where a unique key lets one
// claim win. The gate saves work; the store decides.
//
//	s, err := scheduler.New(scheduler.Config{Namespace: "shop"}, scheduler.Deps{Store: st, Locker: locker})
//	err = s.Add(scheduler.Cron("nightly-report", "0 2 * * *", report, scheduler.TimeZone("Asia/Shanghai")))
//	err = s.Run(ctx) // blocks; drains when ctx ends
//
// # Guarantees
//
//   - One run per tick, on any number of replicas, with any clock skew, with zero,
//     one or two leaders, in every degradation mode: by the unique run key. A run
//     whose process died is run again as a new attempt of the same run, unless the
//     job says otherwise.
//   - Never two runs of a job at a time: by the unique active key, held under a
//     lease. It holds without any gate, too.
//   - Every expected tick gets a record: it ran, was skipped or was missed, with the
//     reason. A sweep accounts for what has none, and makes up for it as the misfire
//     policy says. Ticks and records are compared all the time (see [LedgerGap]).
//   - A tick never runs before its time by the store's clock, less 50 ms.
//   - A handler's context ends before its run's lease can, with a cause that names
//     the loss ([ErrLeaseLost], [ErrGateLost]); an attempt that lost its run can
//     record nothing any more.
//   - A run whose owner died is taken over within a lease and two seconds.
//   - While the lock backend or the elector cannot answer, the degradation mode
//     decides, and each run carries the mode it ran under.
//
// # Not guaranteed
//
// The effect of a handler happens at least once, unless it is written in the
// transaction that also records the success (package idempotent) or the receiver
// drops repeats ([Run.EffectKey]). A handler that ignores the end of its context
// goes on computing; it is counted ([Health]) and can finish nothing. With the
// store away nothing starts; ticks are caught up when it is back.
//
// Retries, ticks made up for and runs taken over take no gate: their active key
// keeps them alone.
//
// # Time
//
// A tick is an instant in UTC milliseconds that follows from the schedule alone,
// the same on every replica. The local clock, corrected towards the store's,
// decides when a replica fires it, and the store's clock whether it may.
package scheduler
