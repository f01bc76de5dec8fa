// Package execjob makes a job's handler of a command.
//
// The command runs as a process group of its own. It finds what it is run for in
// its environment:
//
//	SOLOTICK_KEY        idempotency key, the same for every attempt of the run
//	SOLOTICK_JOB        name of the job, or kind of the queue job
//	SOLOTICK_TICK       scheduled instant, RFC 3339 in UTC; empty for queue jobs
//	SOLOTICK_ATTEMPT    1, 2, ...
//	SOLOTICK_FENCE      number that rises with every claim of the job
//	SOLOTICK_MODE       degradation mode, empty when the run holds its gate
//	SOLOTICK_NAMESPACE  namespace of the scheduler
//
// Beside these it gets PATH, HOME, LANG, TZ and TMPDIR, the variables that
// Config.PassEnv names, and Config.Env: nothing else of the worker's environment.
// The arguments of a queue job are on its standard input.
//
// Guarantees:
//   - When the run's context ends, the group gets SIGTERM and, at most the grace
//     later, SIGKILL. The grace is at most four fifths of the lease, so that the next
//     command of the job does not begin before; where the run was lost at most a tenth,
//     so that the command has gone before another process can take over.
//   - When the command ends, what is left of its group is killed.
//   - On Linux the command itself dies with the worker, also when the worker is
//     killed.
//   - Exit code N other than 0 fails the attempt with error code exit:N. 75
//     (EX_TEMPFAIL) always leaves the next attempt open; the codes of
//     Config.PermanentCodes never do.
//
// Not guaranteed: that a descendant which leaves the group (setsid, a daemon) is
// stopped, or that the command's own children die with a worker that is killed.
// The effect is at-least-once, unless the command checks key or fence.
package execjob
