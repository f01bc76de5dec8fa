package store

import (
	"fmt"
	"time"
)

// Execution is the stored record of one run.
type Execution struct {
	ID        ID
	Namespace string
	Queue     string
	Key       Key
	LockKey   string // queue jobs: runs with one lock key exclude each other and keep their order
	Zone      string // zone of the schedule, for people
	SpecHash  string // schedule that gave the tick, for people

	State           State
	Reason          Reason
	Mode            Mode
	Priority        int // lower first
	Attempt         int // number of the current or last attempt; 0 before the first
	MaxAttempts     int // failed for good after this many; 0 means no bound
	OnCrash         OnCrash
	CancelRequested bool
	Timeout         time.Duration // of one attempt, if shorter than its job's; 0: as its job says
	MissedCount     int           // ticks that a fire_once catch-up stands for, itself not counted

	Owner      Owner
	OwnerLabel string
	LeaseUntil Millis // by the store's clock; 0 unless running
	Fence      int64  // drawn at claim, takeover and claim of a retry
	Version    int64  // rises with every change

	RunAt    Millis // not before, by the store's clock
	Created  Millis
	Started  Millis // start of the current or last attempt; 0 before the first
	Finished Millis // 0 while open

	Active Hash // active key that the run holds while it is running; zero for none
	Dedup  Hash // at most one row has it; cleared when the run starts, or ends unstarted

	Args       []byte
	ArgsHash   Hash // HashArgs of Args
	Result     []byte
	Checkpoint []byte
	ErrorCode  string
	ErrorText  string

	TraceParent string
	CreatedBy   string
}

// Ref is what proves the right to finish a run: the attempt, and the process
// that holds it.
type Ref struct {
	Namespace string
	ID        ID
	Attempt   int
	Owner     Owner
	Fence     int64 // for the user's own resources; not part of the guard
}

// Ref is the proof for the execution's current attempt.
func (e *Execution) Ref() Ref {
	return Ref{Namespace: e.Namespace, ID: e.ID, Attempt: e.Attempt, Owner: e.Owner, Fence: e.Fence}
}

// CrashEnd is how a run ends whose owner died and that is not run again.
type CrashEnd struct {
	State  State
	Reason Reason
	Text   string // for ErrorText, unless empty
}

// CrashEnd judges a running execution whose owner died, by its own policy or that of
// its job, whichever is the stricter. One that would be run again, and that somebody
// asked to end, is canceled. The zero CrashEnd lets it run again.
func (e *Execution) CrashEnd(job OnCrash) CrashEnd {
	state, reason := e.OnCrash.Stricter(job).End()
	switch {
	case state != StatePending:
		return CrashEnd{State: state, Reason: reason}
	case e.CancelRequested:
		return CrashEnd{State: StateCanceled, Reason: ReasonLost}
	case e.MaxAttempts > 0 && e.Attempt >= e.MaxAttempts:
		return CrashEnd{StateFailed, ReasonPoison, fmt.Sprintf("lease lost on attempt %d of %d", e.Attempt, e.MaxAttempts)}
	}
	return CrashEnd{}
}

// Applied tells by the execution what became of a finish that changed nothing: nil or
// ErrCanceled if the same finish was applied before, else ErrFenced.
func (f *Finish) Applied(e *Execution) error {
	left := f.Ref.Attempt
	if f.Unstarted {
		left--
	}
	// The settling of a dead owner's run leaves attempt and owner as they were: its
	// reason tells it from the owner's own finish.
	crashed := e.Reason == ReasonLost || e.Reason == ReasonPoison
	switch {
	case e.Namespace != f.Ref.Namespace || e.Owner != f.Ref.Owner || e.Attempt != left:
	case f.Reason != e.Reason && (f.Reason != ReasonNone || crashed):
	case e.State == f.State:
		return nil
	case f.State == StatePending && e.State == StateCanceled && e.CancelRequested:
		return ErrCanceled
	}
	return ErrFenced
}
