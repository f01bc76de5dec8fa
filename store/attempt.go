package store

import "errors"

// AttemptEnd says how an attempt ended that another one has superseded.
type AttemptEnd string

// The ends. The first two lead to the next attempt by themselves; after the others
// somebody asked for it, see Store.Retry.
const (
	EndRetry         AttemptEnd = "retry"         // it failed, and attempts were left
	EndLost          AttemptEnd = "lost"          // its owner let the lease end, and another took over
	EndFailed        AttemptEnd = "failed"        // it failed for good
	EndCanceled      AttemptEnd = "canceled"      // somebody had canceled it
	EndIndeterminate AttemptEnd = "indeterminate" // nobody knows whether its effect happened
)

// EndOf is the end of an attempt that left its run in the state; empty for a state
// that a run does not leave again.
func EndOf(s State) AttemptEnd {
	switch s {
	case StateFailed:
		return EndFailed
	case StateCanceled:
		return EndCanceled
	case StateIndeterminate:
		return EndIndeterminate
	case StatePending, StateRunning, StateSucceeded, StateSkipped, StateMissed:
	}
	return ""
}

// Attempt is one that a later one has superseded, or is to. It does not change any
// more. The last attempt of an execution is the execution's record itself.
type Attempt struct {
	Number     int
	OwnerLabel string
	Started    Millis
	Ended      Millis // of a lost one: when its lease ended
	End        AttemptEnd
	Reason     Reason
	Mode       Mode
	Fence      int64
	ErrorCode  string
	ErrorText  string
	Note       string // who asked for another attempt; empty for one that came by itself
}

// ErrState says that the run is in no state for what was asked.
var ErrState = errors.New("store: the run is in no state for that")

// CheckRetry tells why the execution cannot be retried; nil if it can, or is open
// already. The error matches ErrState.
func (e *Execution) CheckRetry() error {
	switch {
	case e.State.Open():
		return nil
	case EndOf(e.State) == "":
		return &stateError{"it is " + e.State.String() + ": only what failed, was canceled or is indeterminate can be retried"}
	case !e.ArgsHash.IsZero() && len(e.Args) == 0:
		return &stateError{"its arguments are pruned: enqueue it anew under another key"}
	}
	return nil
}

type stateError struct{ why string }

func (e *stateError) Error() string        { return ErrState.Error() + ": " + e.why }
func (e *stateError) Is(target error) bool { return target == ErrState }

// RetryNote is the note of an attempt after which by asked for another one.
func RetryNote(by string) string {
	if by == "" {
		return "retried by somebody without a name"
	}
	return "retried by " + by
}
