// Package schedulertest runs several replicas of a scheduler in one test, on
// virtual time: inside a testing/synctest bubble an hour of ticks takes
// milliseconds, and every replica can be given a skewed clock, cut off from the
// store or the lock backend, or killed.
//
// The replicas share a memstore and a memlock space, which stand for the database
// and the lock backend. Effects are counted apart from both, by the jobs
// themselves: [Cluster.Effect] in a handler, [Cluster.Effects] afterwards.
//
// A killed replica is one that reaches neither backend from that instant on and
// whose effects no longer count. Its goroutines live on until the end of the
// test, as a frozen process's would.
package schedulertest
