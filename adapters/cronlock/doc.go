// Package cronlock runs the jobs of a robfig/cron scheduler under a solotick lock,
// for those who keep that scheduler on several replicas.
//
//	lock, err := cronlock.New(ctx, locker, locks.Key("shop", "cron", "report"))
//	...
//	c.AddJob("0 2 * * *", lock.Job(report))               // func(ctx, fence) error
//	c.AddJob("0 3 * * *", cron.NewChain(other.Wrap).Then(job)) // any cron.Job
//
// # Guaranteed
//
//   - Two runs under one key do not overlap, on any number of replicas, as far as the
//     lock backend promises that (and its fence where it cannot).
//   - The lease is renewed for as long as the job runs, and given back when it has
//     returned or panicked; a lease that was lost is given back without harm to
//     the next holder.
//   - A function given to [Lock.Job] has a context that ends when the lease is lost,
//     with the loss as its cause, before another replica can hold the key.
//   - Every tick is told to the observer once, with what became of it here.
//
// # Not guaranteed
//
//   - One run per tick. A lock says that nobody runs now, not that nobody ran. The
//     scheduler starts a job on each replica by that replica's clock, and tells the
//     job neither the tick that it is for nor whether it was done: a job that takes
//     10 ms on one replica is over when a second one, whose clock is 50 ms behind,
//     asks for the key. [HoldAtLeast] closes that for clocks that differ by less.
//   - A run for every tick. A replica that dies in a run takes the tick with it: the
//     others were refused and do not ask again. Missed ticks are not made up for.
//   - That an overlong job has stopped when its lease is lost. A [Lock.Wrap]ped job
//     cannot even be told: cron.Job has no context.
//
// Where a tick must run once, use package scheduler, which has both: its runs are
// records under a unique index of job and tick, written with their effects.
package cronlock
