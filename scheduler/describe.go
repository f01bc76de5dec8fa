package scheduler

import (
	"time"

	"github.com/solotick/solotick/store"
)

// Description of a scheduler, in an order that does not depend on the wiring.
type Description struct {
	Namespace string           `json:"namespace"`
	Gate      Gate             `json:"gate"`
	Lease     time.Duration    `json:"lease"`
	Jobs      []JobDescription `json:"jobs"` // by name
}

// JobDescription tells how a job will run.
type JobDescription struct {
	Name        string     `json:"name"`
	Kind        string     `json:"kind"` // cron or queue
	Spec        string     `json:"spec,omitempty"`
	Zone        string     `json:"zone,omitempty"`
	Gate        Gate       `json:"gate"`
	Misfire     Misfire    `json:"misfire,omitempty"`
	Overlap     Overlap    `json:"overlap,omitempty"`
	Timeout     string     `json:"timeout"`
	Attempts    int        `json:"attempts"`
	Mode        store.Mode `json:"degraded_mode,omitempty"`
	StoreDown   StoreDown  `json:"when_store_down,omitempty"`
	Guarantee   Guarantee  `json:"guarantee"`
	Description string     `json:"description,omitempty"`
}

// Describe tells what the scheduler is set up to do, the same however it was
// wired.
func (s *Scheduler) Describe() Description {
	d := Description{Namespace: s.cfg.Namespace, Gate: s.settings().Gate, Lease: s.cfg.Lease}
	for _, j := range s.sorted() {
		jd := JobDescription{
			Name: j.name, Kind: "queue", Gate: j.o.gate, Timeout: j.o.timeout.String(), Attempts: j.o.attempts,
			Guarantee: j.o.guarantee, StoreDown: j.o.storeDown, Description: j.o.description,
		}
		if j.kind == kindCron {
			jd.Kind, jd.Spec, jd.Zone = "cron", j.spec.String(), j.spec.Zone()
			jd.Misfire, jd.Overlap = j.o.misfire, j.o.overlap
		}
		if j.o.gate != GateNone {
			jd.Mode = s.switcher.modeOf(j)
		}
		d.Jobs = append(d.Jobs, jd)
	}
	return d
}

// Health of a scheduler.
type Health struct {
	Running     bool           `json:"running"`
	Store       string         `json:"store"`       // "ok" or the last error
	Coordinator string         `json:"coordinator"` // "ok", "none" or the last error
	Degraded    bool           `json:"degraded"`
	Mode        store.Mode     `json:"mode"` // the mode that is, or would be, taken
	Switch      SwitchPosition `json:"switch"`
	ClockOffset time.Duration  `json:"clock_offset"`
	InProgress  int            `json:"in_progress"`
	Journal     int            `json:"journal"`   // runs that wait for a record
	Abandoned   int            `json:"abandoned"` // handlers that go on although their run is over
}

// Health tells what the scheduler can reach.
func (s *Scheduler) Health() Health {
	h := Health{Store: "ok", ClockOffset: s.clock.skew()}
	s.mu.Lock()
	h.Running = s.phase == phaseRunning && s.failure == nil
	if s.storeUp != nil {
		h.Store = s.storeUp.Error()
	}
	s.mu.Unlock()
	s.switcher.health(&h)
	h.InProgress, h.Abandoned = s.heart.counts()
	if s.journal != nil {
		h.Journal = len(s.journal.Entries())
	}
	return h
}
