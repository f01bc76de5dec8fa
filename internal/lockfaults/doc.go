// Package lockfaults holds no code: its tests show that what package locks promises
// holds between real processes on real servers. Every backend goes through the same
// plan, driven by its plugin alone.
//
// Holders and waiters are processes, each with a fault proxy of its own before the
// server. They are cut off, slowed, refused, frozen and killed, and their records are
// deleted, forced and flushed, and their servers killed and started again. What they
// report, by the clock that all processes of a host share, is checked: who lost a
// lease by time was told before the next one had it; who lost it by the server is told
// within a renewal interval; fences rise over every grant; the history is one that one
// lock could have given (by porcupine); and a guarded resource refuses old fences. The
// backend in memory does the same inside one process.
//
// LOCKFAULTS_SEED repeats the plan of a run, LOCKFAULTS_ROUNDS makes it longer, and
// LOCKFAULTS_MARGIN=default runs with the margin and renewal interval that users have
// by default, where the tests give processes of a loaded machine more.
package lockfaults
