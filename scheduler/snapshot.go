package scheduler

import "time"

// Snapshot is the state of a scheduler at an instant, for gauges: what changes by
// itself, without an event.
type Snapshot struct {
	Health
	Leading int         // terms held: 0 or 1, or the number of partitions
	Jobs    []JobStatus // by name
}

// JobStatus is a job's part of a Snapshot.
type JobStatus struct {
	Name      string
	Kind      string // cron or queue
	Gate      Gate
	Guarantee Guarantee
	// Next is the next tick by the schedule, and Period the distance to the tick before
	// it; both zero for queue jobs, and while another schedule is in force.
	Next   time.Time
	Period time.Duration
}

// Snapshot reads the state. It asks neither the store nor a coordinator, and costs
// some microseconds a job.
func (s *Scheduler) Snapshot() Snapshot {
	snap := Snapshot{Health: s.Health()}
	if s.lead.given() {
		for _, e := range s.lead.electors() {
			if e.Term() != nil {
				snap.Leading++
			}
		}
	}
	now := s.clock.now()
	for _, j := range s.sorted() {
		st := JobStatus{Name: j.name, Kind: "queue", Gate: j.o.gate, Guarantee: j.o.guarantee}
		if j.kind == kindCron {
			st.Kind = "cron"
			if next, ok := j.spec.Next(now); ok && !j.isSuperseded() {
				st.Next, st.Period = next, j.spec.Period(now)
			}
		}
		snap.Jobs = append(snap.Jobs, st)
	}
	return snap
}
