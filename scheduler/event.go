package scheduler

import (
	"context"
	"time"

	"github.com/solotick/solotick/store"
)

// Event is something that happened in the scheduler. The set is closed to this
// package and may grow; a listener ignores what it does not know.
type Event interface{ event() }

// Listener is told events.
type Listener interface{ OnEvent(e Event) }

// ListenerFunc is a function that listens.
type ListenerFunc func(Event)

// OnEvent calls f.
func (f ListenerFunc) OnEvent(e Event) { f(e) }

// RunContexter is a listener that also has a say in the context of every run: it is
// called before [RunStarted] is told, and what it returns, which must come from ctx,
// is the context of the run's handler and of its log lines.
type RunContexter interface {
	Listener
	RunContext(ctx context.Context, e RunStarted) context.Context
}

// TickTracer is a listener that names the trace of a tick's first attempt before the
// tick is claimed, so that the name stands in the row from the start and an attempt of
// another process finds it in Execution.TraceParent.
type TickTracer interface {
	Listener
	// TickTrace is called when this process has the job's gate and is about to claim the
	// tick, and returns a W3C traceparent, or nothing. Whether the run becomes this
	// process's is told after it: by [RunContexter], or by [TickClaimed] where it does
	// not. After an error nothing is told.
	TickTrace(namespace string, key store.Key, gate Interval) string
}

// Interval is a stretch of time by this process's clock; the zero Interval for what
// did not happen.
type Interval struct{ From, To time.Time }

// Took is how long it lasted.
func (i Interval) Took() time.Duration { return i.To.Sub(i.From) }

// since is the interval that ends now.
func since(from time.Time) Interval { return Interval{from, time.Now()} }

// TickCount is a number of ticks of one fate.
type TickCount struct {
	State  store.State // pending, skipped or missed
	Reason store.Reason
	Ticks  int64
}

// The events.
type (
	// TickDue says that the timer fired for a tick; Late is by how much.
	TickDue struct {
		Job  string
		Tick store.Millis
		Late time.Duration
	}
	// TickHeld says that another replica holds the gate; nothing was recorded by this one.
	TickHeld struct {
		Job    string
		Tick   store.Millis
		Holder string
	}
	// TickClaimed says that the store answered a claim with something else than started.
	// State and Reason are those of the record, which for busy and skipped this claim has
	// made.
	TickClaimed struct {
		Job     string
		Tick    store.Millis
		Outcome store.Outcome
		State   store.State
		Reason  store.Reason
	}
	// RunStarted says that the handler is about to be called.
	RunStarted struct {
		Execution store.Execution
		Spec      string     // the job's schedule; empty for queue jobs
		Mode      store.Mode // degradation mode; empty under its gate
		Gate      Interval   // from the first question to the gate to its yes; zero without one
		Claim     Interval   // of the request that gave the run to this process
	}
	// RunFinished says that an attempt is over and recorded. State is pending when it will
	// be tried again. Fenced says that the record refused it.
	RunFinished struct {
		Execution store.Execution
		State     store.State
		Err       error
		Fenced    bool
		// Unrecorded says that the store did not take the end before this process
		// stopped: the run is taken over when its lease ends.
		Unrecorded bool
		Took       time.Duration
		Record     Interval // of recording the end; zero if the effect's transaction did it
	}
	// RunLost says that a running attempt's right to go on ended; its context was cancelled.
	RunLost struct {
		Execution store.Execution
		Cause     error
	}
	// RunTakenOver says that a dead owner's run was handed to this process (State running),
	// or settled by its crash policy or that of its job.
	RunTakenOver struct{ Execution store.Execution }
	// RunAbandoned says that the handler did not return in time after its context ended.
	RunAbandoned struct{ Execution store.Execution }
	// TicksSettled says that the sweep accounted for ticks of a job that had no record.
	TicksSettled struct {
		Job           string
		Pending, Rows int
		Ranged        int64
		Counts        []TickCount // the same by state and reason, each pair once
	}
	// JobsSurveyed says what the store keeps of this process's jobs: at registration, and
	// at every sweep. The states are shared: a listener only reads them.
	JobsSurveyed struct {
		Now  store.Millis
		Jobs []store.JobState
	}
	// TermWon says that this process leads from now on: one elector, or one partition.
	TermWon struct{}
	// GateUnavailable says that the coordinator could not answer for a job.
	GateUnavailable struct {
		Job string
		Err error
	}
	// Degraded says that the mode of a job's gate was taken (On) or left.
	Degraded struct {
		Coordinator string // lock or leader
		On          bool
		Mode        store.Mode // the global one
		Forced      bool       // by the position of the switch, not by the coordinator
	}
	// DegradationChanged says that the switch was configured anew.
	DegradationChanged struct{ From, To Degradation }
	// SwitchThrown says that a setting of the switch was made, cleared (To is nil), or
	// ended by itself (Source is "expiry").
	SwitchThrown struct {
		Fleet    bool // for all processes, as opposed to this one
		Source   string
		From, To *SwitchSetting
	}
	// StoreUnavailable says that the store could not answer a request; it is asked again.
	StoreUnavailable struct {
		Op  string
		Err error
	}
	// StoreAnswered says that a request to the store ended, with or without an answer. The
	// number of its Ops is small and fixed.
	StoreAnswered struct {
		Op   string
		Took time.Duration
		Err  error
	}
	// JournalSettled says that a run without a record, made while the store was away, has
	// one now. Twice says that somebody else ran its tick, too.
	JournalSettled struct {
		Job   string
		Tick  store.Millis
		State store.State
		Twice bool
	}
	// JobSuperseded says that another schedule is in force for the job; this process does
	// not fire it.
	JobSuperseded struct {
		Job  string
		Spec string
	}
	// JobsChanged says that the set of jobs was changed live, see Scheduler.Apply. The
	// names are sorted.
	JobsChanged struct{ Added, Changed, Removed []string }
	// ConfigReloaded says that a configuration was read again, by whoever reads it: see
	// Scheduler.NoteReload.
	ConfigReloaded struct {
		Result  ReloadResult
		Changed []string // keys that took effect
		Restart []string // keys that differ and wait for a restart
		Err     error    // why it was rejected
	}
	// LedgerGap says that a settled stretch of a job was counted again. Gap is the number of
	// expected ticks without a record and must be 0.
	LedgerGap struct {
		Job string
		Gap int64
	}
)

func (TickDue) event()            {}
func (TickHeld) event()           {}
func (TickClaimed) event()        {}
func (RunStarted) event()         {}
func (RunFinished) event()        {}
func (RunLost) event()            {}
func (RunTakenOver) event()       {}
func (RunAbandoned) event()       {}
func (TicksSettled) event()       {}
func (GateUnavailable) event()    {}
func (Degraded) event()           {}
func (DegradationChanged) event() {}
func (SwitchThrown) event()       {}
func (StoreUnavailable) event()   {}
func (JournalSettled) event()     {}
func (JobSuperseded) event()      {}
func (JobsChanged) event()        {}
func (ConfigReloaded) event()     {}
func (LedgerGap) event()          {}
func (JobsSurveyed) event()       {}
func (TermWon) event()            {}
func (StoreAnswered) event()      {}

// ReloadResult is what became of a configuration that was read again.
type ReloadResult string

// The results of a reload.
const (
	ReloadApplied  ReloadResult = "applied"
	ReloadRejected ReloadResult = "rejected" // nothing was changed
)

// NoteReload tells the listeners of a reload. Whoever reads the configuration calls
// it, once for each reading.
func (s *Scheduler) NoteReload(e ConfigReloaded) { s.emit(e) }
