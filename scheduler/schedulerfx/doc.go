// Package schedulerfx wires a scheduler with go.uber.org/fx, and nothing else:
// everything it makes can be made without it, and describes itself the same.
//
//	fx.New(
//		schedulerfx.Options(cfg, schedulerfx.WithMigration()),
//		fx.Provide(newDB, idempotent.New),
//		schedulerfx.Store(gormstore.New),
//		schedulerfx.Locker(newLocker),
//		schedulerfx.Jobs(newNightlyReport, newSendInvoice), // func(deps...) scheduler.Job
//	).Run()
//
// Guarantees:
//   - No tags are written by the user, so none can be mistyped: a constructor of
//     the wrong shape is an error that names it, where fx would drop its result.
//   - There are no optional dependencies: what a composition needs and nobody
//     provides is an error at fx.New, also under fx.ValidateApp.
//   - Start hooks return at once and dial nothing; a store or a lock backend that
//     is away delays runs, not the start. Whether it can be reached is in
//     Scheduler.Health.
//   - A scheduler that cannot go on shuts the application down with exit code 1.
//   - The stop hook drains and ends inside fx's stop timeout, which Options sets to
//     the drain timeout and 5 seconds.
//
// Not guaranteed: an order among jobs or lock plugins, which are keyed by name.
// Middleware and listeners are ordered slices.
package schedulerfx
