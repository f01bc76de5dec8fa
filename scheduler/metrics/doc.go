// Package metrics counts what a scheduler and its locks do, for Prometheus.
//
//	m, err := metrics.New(metrics.Config{Version: version})
//	locker, err := redislock.New(client, &redislock.Config{Config: locks.Config{Observer: m.Locks("redis")}})
//	s, err := scheduler.New(cfg, scheduler.Deps{Locker: locker, Listeners: []scheduler.Listener{m}, ...})
//	m.Watch(s)
//	http.Handle("/metrics", m.Handler())
//
// Guarantees:
//   - All series of a job exist, at zero, from the moment that the job is known, and
//     go when it is removed: rate and absence alerts work from the first scrape on.
//   - The labels are job names, up to Config.MaxJobs of them, and words of small closed
//     sets. Ticks, keys, hosts and texts of errors are never labels.
//   - An event costs no allocation and no lock that another event of the job holds.
//   - Nothing is global: a Metrics is a value with a registry of its own, unless one
//     is given.
//
// Not guaranteed: sums over all replicas that survive a process. A counter tells what
// this process did; the record in the store tells what became of every tick.
//
// Names and meanings of all metrics are in docs/operations.md, rules for alerts and a
// dashboard in configs/monitoring.
package metrics
