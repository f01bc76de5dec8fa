// Package testenv starts the real servers that tests need: Redis (one, several,
// with Sentinel, as a cluster), etcd, ZooKeeper, MariaDB and PostgreSQL. Each runs
// on free ports of 127.0.0.1 from a temporary folder of its own.
//
// A server of one test is asked for by its name (Redis, Etcd, ...), may be killed,
// paused and restarted, and ends with the test. A server that the tests of a
// package share (SharedRedis, ...) costs its start once; every test gets a
// [Space] of its own in it, and must leave it running. Sharing needs a TestMain:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }
//
// Guaranteed: a server answers its protocol when its function returns; no server
// outlives the test process, however that ends; two test processes at a time do
// not get the same port; and a restarted server has its port and its files again.
// What a server printed is shown when its test fails. The folder of a test process
// that was killed stays until the next one that starts a server.
//
// Where a server is not installed, the test is skipped, or fails where the
// environment has SOLOTICK_REQUIRE_SERVICES=1. `make deps` installs them on Debian.
// With go test -short every test that wants one is skipped.
//
// It is for tests only and works on Linux.
package testenv
