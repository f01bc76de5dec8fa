// Package switchwatch keeps the degradation switch of a scheduler in step with what a
// configuration centre says, so that one command turns a whole fleet.
//
//	centre, err := redisswitch.New(rdb, "shop", nil)
//	watcher, err := switchwatch.New(centre, s.Switch(), nil)
//	go watcher.Run(ctx)
//
// A [Centre] keeps one value, the JSON of a scheduler.SwitchSetting, or none. The
// packages beside this one keep it in etcd, Redis, ZooKeeper and the scheduler's own
// store; package switchwatchtest is the suite that each of them passes.
//
// Guaranteed:
//
//   - A process obeys what the centre says as soon as it can read it, also a process
//     that starts later. Waiting for the centre holds up nothing.
//   - While the centre is away, the last setting stays in force, until its own expiry.
//     The watcher tries again, after a random pause of 5 s at most.
//   - A value that cannot be understood changes nothing: it is logged once, and
//     [Watcher.Status] shows it until it is replaced.
//   - The last of several changes is obeyed. Those before it may be passed over.
//
// Not guaranteed: that all processes turn at one instant. Each claims its runs in the
// store, in every mode, so what is promised of runs does not depend on that.
package switchwatch
