// Package locks is the portable distributed lock: one [Locker] over any backend
// that implements the three methods of package locks/driver.
//
// A [Locker] stands for one process. It gives out a [Lease], the right to a key
// for a time (the TTL), renews all of them from one timer, tells their holders
// at once when one is lost, and gives them back.
//
//	lease, err := locker.TryAcquire(ctx, locks.Key("shop", "cron", "report"))
//	if errors.Is(err, locks.ErrHeld) { ... somebody else has it ... }
//	if err != nil { ... }
//	defer lease.Release(ctx)
//	work, cancel := lease.Context(ctx) // ends before the lease can
//	defer cancel()
//
// # Guaranteed
//
//   - A lease is valid until the moment before its request was sent, plus the
//     TTL, less a margin. A guard timer apart from all I/O tells the holder then,
//     whatever the backend does. A grant whose answer comes later than that is
//     given back and never returned.
//   - Suspension of the machine counts, see [Lease.Valid].
//   - Key, token and fence of a Lease never change.
//   - [ErrHeld] means that another grant holds the key, [ErrUnavailable] that the
//     backend gave no clear answer. No error is both.
//   - An acquire of unknown outcome is settled: repeated with the same token, or
//     given back in the background until the answer is clear or the TTL has
//     passed. A caller that goes away in the middle leaves no key held for longer.
//   - In one process, goroutines that wait for one key do so in order of arrival,
//     and one of them at a time talks to the backend.
//   - Where the backend keeps a line, processes get the key in order of arrival,
//     and a waiter sends nothing while it stands there.
//   - A loss is told at the next renewal at the latest, and at once where the
//     backend pushes it. What it does to the work is said by [OnLoss].
//   - A key is taken again only through a context that carries its lease, see
//     [ContextWith], and is given back once, with the last level.
//   - No goroutine is kept per lease (where losses are pushed, one for 16 of them),
//     and an idle Locker has none and sends nothing.
//
// # Not guaranteed
//
//   - That the holder has stopped when its lease ends: a process can be paused at
//     any instruction (M. Kleppmann, "How to do distributed locking", 2016). Check
//     [Lease.Fence] at the resource.
//   - Order of arrival between processes, where the backend keeps no line.
//   - That work runs once. A lock prevents overlap, a record prevents repetition.
package locks
