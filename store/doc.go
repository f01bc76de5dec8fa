// Package store holds the contract of the execution record: what a store keeps,
// which moves a run can make, and what each move guarantees.
//
// The record is what makes solotick correct. A tick is materialised by inserting
// its row, and a unique index picks one of all the replicas that try; a second
// unique index, the active key, lets at most one run of a job be in progress;
// every later move is guarded by attempt and owner. With that in place a lock or
// a leader only decides who bothers to try.
//
// Guarantees, on every implementation that passes storetest:
//   - One row per run key, for any number of callers with any clock.
//   - At most one running row per active key.
//   - A move out of running happens for the attempt and owner that hold it, once.
//   - Fences of one job (or one lock key) strictly rise from claim to claim.
//   - Leases, run times and the refusal of early ticks go by the store's clock.
//
// Not guaranteed: that a handler whose lease ended has stopped computing. It can
// finish nothing, which is what counts.
//
// The package needs the standard library only. Implementations: gormstore (SQL)
// and memstore (tests). The interface is not a seam for strangers' plugins: it
// may grow with any release.
package store
