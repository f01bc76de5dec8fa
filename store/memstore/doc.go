// Package memstore is a [store.Store] in memory, for users' tests and for
// simulations on virtual time.
//
// It passes the same conformance suite as the SQL store: claims, leases, fences,
// settled watermarks and all. Its clock is time.Now, so it is virtual inside a
// testing/synctest bubble. One Store plays the database; any number of schedulers
// may share it, as replicas would.
//
// Not guaranteed: anything after the process ends.
package memstore
