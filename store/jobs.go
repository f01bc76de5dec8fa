package store

import "time"

// Revision is a schedule that was in force for a job from an instant on.
type Revision struct {
	Number int64  `json:"n"`    // Config.Revision of the replica that brought it
	Spec   string `json:"spec"` // marshalled schedule, readable by every replica
	Hash   string `json:"hash"`
	From   Millis `json:"from"` // by the store's clock; its ticks are those after it
}

// JobState is what the store keeps per job.
type JobState struct {
	Namespace   string
	Job         string
	Settled     Millis // every expected tick up to here has a record
	Pruned      Millis // ticks up to here may have lost their row: claims are refused
	Fence       int64  // last fence drawn
	Paused      Millis // beginning of the present or last pause; 0 for none. Ask PausedAt
	PausedUntil Millis // its end; 0 while none is set
	PausedBy    string
	PauseReason string
	Revisions   []Revision // oldest first; the last one is in force
	Version     int64
}

// Current is the revision in force; the zero Revision for a job without a
// schedule.
func (j *JobState) Current() Revision {
	if len(j.Revisions) == 0 {
		return Revision{}
	}
	return j.Revisions[len(j.Revisions)-1]
}

// At is the revision that owns the tick: the one in force from before it. The first
// one owns what lies before all of them; the zero Revision is that of a job without
// a schedule.
func (j *JobState) At(tick Millis) Revision {
	for i := len(j.Revisions) - 1; i > 0; i-- {
		if j.Revisions[i].From < tick {
			return j.Revisions[i]
		}
	}
	if len(j.Revisions) == 0 {
		return Revision{}
	}
	return j.Revisions[0]
}

// PausedAt reports whether the job is paused at the instant.
func (j *JobState) PausedAt(at Millis) bool {
	return j.Paused != 0 && at >= j.Paused && (j.PausedUntil == 0 || at < j.PausedUntil)
}

// JobSpec registers a job.
type JobSpec struct {
	Job      string
	Spec     string // marshalled schedule; empty for a job without ticks
	Hash     string // of the schedule; empty with Spec
	Revision int64  // the highest is in force; among equals the one registered last
}

// Pause of a job, or its end when Off. The stretch of the last pause stays known,
// so that ticks in it are skipped(paused) even if they are accounted for after it.
type Pause struct {
	Namespace string
	Job       string
	Off       bool
	For       time.Duration // resumes by itself after this; 0 means never
	By        string
	Reason    string
}

// TickRange is a stretch of consecutive ticks that did not run for one reason:
// one row, however long the stretch. A store joins a new range to the job's last
// one when state and reason are the same and no record lies between them.
type TickRange struct {
	Job      string
	From, To Millis // first and last tick of the stretch
	Count    int64
	State    State // StateSkipped or StateMissed
	Reason   Reason
	Recorded Millis
}
