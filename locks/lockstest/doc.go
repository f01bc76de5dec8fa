// Package lockstest is what every lock backend passes, ours or a stranger's.
//
// A backend's test fills in a [Harness] and calls [Run]; its benchmarks call
// [Bench]. A driver that passes needs no other test of what a lock does, only of
// what is its own: the shape of its keys, its configuration, its server's failures.
//
//	func TestConformance(t *testing.T) {
//		lockstest.Run(t, lockstest.Harness{
//			New:    func(t testing.TB) driver.Driver { return open(t, server) },
//			Delete: func(t testing.TB, key string) { server.Del(t, key) },
//			TTL:    time.Second,
//		})
//	}
//
// The cases use two and more holders, each with a driver of its own, as processes
// have. [Faulty] stands between the portable lock and a driver and makes requests
// fail on command, also in the ways that leave their outcome unknown.
//
// One case lets processes contend while requests fail, connections fall silent and
// processes die, records what the driver answered, and checks that one lock could
// have answered so (with porcupine, by the model of internal/history).
//
// Not covered: what happens to the backend's own servers (failover, restart, a
// full disk), unless the Harness can restart it.
package lockstest
