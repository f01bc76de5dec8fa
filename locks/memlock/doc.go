// Package memlock is the lock backend in memory, for tests and for programs that
// are one process. A [Space] is the backend; several Lockers on one Space stand
// for several processes, and inside a testing/synctest bubble their time is the
// bubble's.
//
// A Space can keep its waiters in line and push losses, or do neither, as the
// backends over a network differ in that: see [Space].
//
// Guaranteed: all that package locks/driver asks of a driver. Fences grow over
// all keys of a Space.
//
// Not guaranteed: anything beyond the life of the Space. Nothing is shared
// between processes.
package memlock
