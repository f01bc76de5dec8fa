// Package gocronlock lets the replicas of a go-co-op/gocron scheduler share their
// jobs through solotick: a [Locker] on any lock backend, or an [Elector].
//
//	locker, err := gocronlock.NewLocker(l, "shop", gocronlock.HoldAtLeast(10*time.Second))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	s.NewJob(gocron.CronJob("0 2 * * *", false), locker.Task("report", report), gocron.WithName("report"))
//
// # Guaranteed
//
//   - Two runs of a job's name do not overlap, on any number of replicas, as far as
//     the lock backend promises that.
//   - The lease is renewed for as long as the job runs. Unlocking after a loss does no
//     harm to the next holder.
//   - A function given to [Locker.Task] or [Elector.Task] has a context that ends with
//     the lease or term, with the loss as its cause, and its fence.
//   - That somebody else holds the lock ([locks.ErrHeld]) is told apart from a backend
//     that does not answer ([locks.ErrUnavailable]), in the error that gocron gives
//     to [gocron.AfterLockError].
//
// # Not guaranteed
//
//   - One run per tick. gocron passes the name of the job to a lock and nothing of the
//     tick, so a replica whose clock is behind asks when a short run elsewhere is over,
//     and gets the lock (go-co-op/gocron 841). [HoldAtLeast] closes that for clocks that
//     differ by less.
//     Jobs of a duration count from each scheduler's start and need gocron.WithStartAt
//     on a common instant as well, else the replicas have no tick in common.
//   - A run for every tick. A replica that dies in a run, and an elector between two
//     terms, take the tick with them.
//   - That a job with a plain gocron.Task stops when its lease is lost.
//
// Where a tick must run once, use solotick's own package scheduler: its runs are
// records under a unique index of job and tick, written with their effects.
package gocronlock
