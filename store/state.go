package store

import "strconv"

// State of an execution. The numbers are stored.
type State int8

// The states. Scheduled and retryable runs are pending with a later RunAt, so
// there is no process that moves rows from state to state.
const (
	StatePending       State = 1
	StateRunning       State = 2
	StateSucceeded     State = 3
	StateFailed        State = 4 // out of attempts, or failed for good: dead
	StateCanceled      State = 5
	StateSkipped       State = 6 // on purpose, see Reason
	StateMissed        State = 7 // not on purpose, see Reason
	StateIndeterminate State = 8 // an outside effect may have happened; nothing reruns it by itself
)

var stateNames = map[State]string{
	StatePending: "pending", StateRunning: "running", StateSucceeded: "succeeded", StateFailed: "failed",
	StateCanceled: "canceled", StateSkipped: "skipped", StateMissed: "missed", StateIndeterminate: "indeterminate",
}

// States lists all states in the order of their numbers.
func States() []State {
	return []State{
		StatePending, StateRunning, StateSucceeded, StateFailed,
		StateCanceled, StateSkipped, StateMissed, StateIndeterminate,
	}
}

// String names the state.
func (s State) String() string {
	if n, ok := stateNames[s]; ok {
		return n
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// ParseState reads the form that String prints.
func ParseState(name string) (State, bool) {
	for s, n := range stateNames {
		if n == name {
			return s, true
		}
	}
	return 0, false
}

// Open reports whether the run may still happen or is happening.
func (s State) Open() bool { return s == StatePending || s == StateRunning }

// Ran reports whether the run was started and came to an end.
func (s State) Ran() bool {
	return s == StateSucceeded || s == StateFailed || s == StateCanceled || s == StateIndeterminate
}

// Reason says why a tick was skipped or missed, or why a run ended as it did.
type Reason string

// The reasons.
const (
	ReasonNone       Reason = ""
	ReasonOverlap    Reason = "overlap"    // skipped: the previous run was in progress
	ReasonPaused     Reason = "paused"     // skipped: the job was paused
	ReasonDegraded   Reason = "degraded"   // skipped: fail_fast while the coordinator was away
	ReasonSuperseded Reason = "superseded" // missed: a later tick stands for it
	ReasonMisfire    Reason = "misfire"    // missed: late, and the policy is to skip late ticks
	ReasonWindow     Reason = "window"     // missed: older than the catch-up window or over its cap
	ReasonLost       Reason = "lost"       // the owner died, or had to stop, and the policy is not to rerun
	ReasonPoison     Reason = "poison"     // failed: the lease was lost on every attempt allowed
)

// OnCrash is the policy for a run whose owner died.
type OnCrash int8

// The crash policies. The numbers are stored.
const (
	CrashRerun         OnCrash = 0 // a new attempt
	CrashFail          OnCrash = 1 // failed(lost)
	CrashNextTick      OnCrash = 2 // missed(lost); the next tick is the next try
	CrashIndeterminate OnCrash = 3 // indeterminate: for effects that must not happen twice
)

// Stricter is the policy of the two that counts where a run and its job have one each:
// the later in the order rerun, fail, next tick, indeterminate.
func (p OnCrash) Stricter(q OnCrash) OnCrash { return max(p, q) }

// End is what becomes of a run whose owner died, by the policy alone; StatePending for
// one that is run again. What is none of the policies keeps it from that.
func (p OnCrash) End() (State, Reason) {
	switch p {
	case CrashRerun:
		return StatePending, ReasonNone
	case CrashFail:
		return StateFailed, ReasonLost
	case CrashNextTick:
		return StateMissed, ReasonLost
	case CrashIndeterminate:
	}
	return StateIndeterminate, ReasonLost
}

// Mode is the degradation mode that a run was made under; empty when it held
// its gate.
type Mode string

// The degradation modes.
const (
	ModeNone       Mode = ""
	ModeFailFast   Mode = "fail_fast"
	ModeLocalMutex Mode = "local_mutex"
	ModeStoreOnly  Mode = "store_only"
	ModeStoreDown  Mode = "store_down" // the store could not answer: recorded afterwards
)
