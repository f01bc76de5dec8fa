// Package demo shows that solotick keeps its promise: replicas run as real
// processes on one SQLite file, are killed with SIGKILL while they work, and every
// tick still has exactly one effect.
//
// The verdict is counted from rows that the jobs themselves write, each in the
// transaction that also records its run, and from the instants that the schedules
// give for the time. What the scheduler thinks of itself does not enter it.
package demo
