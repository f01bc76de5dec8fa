package locks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Holder describes a held key.
type Holder = driver.Holder

// The answer of [Locker.ForceRelease], and part of that of [Lease.Release].
const (
	ReleasedOK    = driver.ReleasedOK    // it was held and is free now
	ReleasedGone  = driver.ReleasedGone  // nobody held it: it had ended before
	ReleasedOther = driver.ReleasedOther // somebody else holds it; nothing was changed
)

var (
	// ErrHeld says that another grant holds the key. The error is a *[HeldError].
	ErrHeld = errors.New("locks: held")
	// ErrUnavailable says that the backend gave no clear answer in time. The
	// error is an *[UnavailableError] or, from a release, a *[ReleaseError].
	ErrUnavailable = errors.New("locks: backend unavailable")
	// ErrLost says that a lease ended before it was released. The error is a
	// *[LostError] or, from a release, a *[ReleaseError].
	ErrLost = errors.New("locks: lease lost")
	// ErrReleased is the end of a lease that was given back.
	ErrReleased = errors.New("locks: lease released")
	// ErrClosed says that the Locker has been closed.
	ErrClosed = errors.New("locks: locker closed")
	// ErrFree says that nobody holds the key.
	ErrFree = errors.New("locks: nobody holds the key")
	// ErrInvalid says that an argument or a setting cannot be used. Nothing was
	// sent to the backend.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported says that the backend cannot do what was asked.
	ErrUnsupported = errors.New("locks: not supported by this backend")
)

// HeldError says who holds the key. It matches [ErrHeld].
type HeldError struct {
	Holder Holder // Label and Remaining as far as the backend knows them

	here bool // this process holds it
}

func (e *HeldError) Error() string {
	left := ""
	if e.Holder.Remaining > 0 {
		left = fmt.Sprintf(" for another %v at most", e.Holder.Remaining.Round(time.Millisecond))
	}
	holder := "another, whose label the backend does not tell"
	if e.Holder.Label != "" {
		holder = strconv.Quote(e.Holder.Label)
	}
	return fmt.Sprintf("locks: %q is held by %s%s", e.Holder.Key, holder, left)
}

// Is makes the error match ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// UnavailableError says which request the backend did not answer, and why. It
// matches [ErrUnavailable] and whatever its cause matches.
type UnavailableError struct {
	Key string
	Op  Op
	Err error // the driver's error, with the caller's context error if that ended
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("locks: %v %q: backend unavailable: %v", e.Op, e.Key, e.Err)
}

// Is makes the error match ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *UnavailableError) Unwrap() error        { return e.Err }

// Reason is how a lease was lost.
type Reason int

// The ways to lose a lease.
const (
	// ReasonUnavailable: it could not be renewed in time, because the backend
	// gave no clear answer or the process or machine was paused. Nobody else is
	// known to hold the key.
	ReasonUnavailable Reason = iota + 1
	// ReasonNotOurs: the backend said that the key is not this lease's any more.
	// Somebody took it, deleted it or forced its release.
	ReasonNotOurs
	// ReasonAbandoned: this process gave it up, because its Locker was closed or
	// the work did not return within the drain timeout.
	ReasonAbandoned
)

// String names the reason.
func (r Reason) String() string {
	switch r {
	case ReasonUnavailable:
		return "not renewed in time"
	case ReasonNotOurs:
		return "no longer ours"
	case ReasonAbandoned:
		return "abandoned by this process"
	}
	return fmt.Sprintf("Reason(%d)", int(r))
}

// LostError is the end of a lease that was not released, and the cause of its
// contexts' end. It matches [ErrLost].
type LostError struct {
	Key    string
	Fence  int64
	Reason Reason
	Err    error // the last renewal's error, if there was one
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("locks: lease of %q (fence %d) lost: %v", e.Key, e.Fence, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes the error match ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }
func (e *LostError) Unwrap() error        { return e.Err }

// ReleaseError says that a release did not end in the lease being given back.
type ReleaseError struct {
	Key   string
	Fence int64
	// Outcome is ReleasedGone or ReleasedOther, and then the error matches
	// [ErrLost]; or 0 for an unknown outcome, and then it matches
	// [ErrUnavailable], and the release is repeated in the background until its
	// outcome is known or the TTL has passed.
	Outcome driver.Released
	Err     error // cause of an unknown outcome
}

func (e *ReleaseError) Error() string {
	if e.Outcome == 0 {
		return fmt.Sprintf("locks: release %q (fence %d): outcome unknown: %v", e.Key, e.Fence, e.Err)
	}
	return fmt.Sprintf("locks: release %q (fence %d): %v", e.Key, e.Fence, e.Outcome)
}

// Is makes the error match ErrLost or ErrUnavailable.
func (e *ReleaseError) Is(target error) bool {
	if e.Outcome == 0 {
		return target == ErrUnavailable
	}
	return target == ErrLost
}
func (e *ReleaseError) Unwrap() error { return e.Err }

// waitError is the end of the caller's context while somebody held the key: it
// matches the context's error, its cause, and ErrHeld.
func waitError(ctx context.Context, key string, held *HeldError) error {
	err := fmt.Errorf("locks: acquire %q: %w", key, ctxError(ctx))
	if held != nil {
		err = fmt.Errorf("%w while waiting: %w", err, held)
	}
	return err
}

// ctxError is the context's error together with its cause, where that differs.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("locks: %w "+format, append([]any{ErrInvalid}, args...)...)
}
