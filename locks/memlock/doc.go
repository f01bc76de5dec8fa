// Package memlock is the lock backend in memory, for tests and for programs that
// are one process. A [Space] is the backend; several Lockers on one Space stand
// for several processes, and inside a testing/synctest bubble their time is the
// bubble's.
//
// Guaranteed: all that package locks/driver asks of a driver. Fences grow over
// all keys of a Space.
//
// Not guaranteed: anything beyond the life of the Space. Nothing is shared
// between processes.
package memlock
