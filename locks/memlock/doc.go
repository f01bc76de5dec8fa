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
//
// # Privileges
//
// None: it reaches nothing outside of the process.
//
// # What happens when
//
//	the server is down, slow, fails over, is cut off   there is none; package lockstest puts such faults before a driver
//	holder paused beyond the TTL                       with the whole process: nobody else could take over meanwhile; it is told when it wakes
//	process killed                                     all is gone, fences too
//	record deleted, forced release                     told at once where the Space pushes losses, else at the next renewal; the next fence is higher
package memlock
