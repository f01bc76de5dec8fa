// Package tracing makes OpenTelemetry spans of runs, and puts their trace into log
// lines. It needs OpenTelemetry's API only; where the spans go is the program's
// matter.
//
//	t := tracing.New(tracing.Config{Provider: provider})
//	deps := scheduler.Deps{Logger: slog.New(tracing.LogHandler(handler)), ...}
//	t.Attach(&deps)
//	s, err := scheduler.New(cfg, deps)
//
// Every attempt of a run is a trace of its own, since a retry may come hours later and
// from another process: a root span by the name of the job, with the spans acquire,
// claim, handler and finish below it. The handler's context carries the span handler,
// so that spans made in it belong to the run. The root is linked to the attempt before
// it and, for a queue run, to the span of whoever put the row in.
//
// Guarantees:
//   - A span is made when a run starts. What this process did before, asking the gate
//     and the store, is told with the times that it had; ticks that others run, and
//     runs that wait for a retry, have no span that is open.
//   - Where the sampler says no, a run costs one span that is not recorded.
//   - Arguments and results never get into a span. The texts of errors do, cut to 1 KiB.
//
// Not guaranteed: the link to the first attempt of a tick that came through no gate, to
// a later attempt that another process made, and to an attempt of another process of a
// queue run, which has the link to its producer. All attempts have the same job.run_id.
// Of a process that crashed, the root span was never ended: the link leads to a trace
// that has the spans of acquire and claim.
package tracing
