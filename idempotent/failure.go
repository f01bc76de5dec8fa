package idempotent

import (
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/store"
)

var (
	// ErrInProgress says that another call with the key is in progress, or that its
	// next try is not due. The error is an [*InProgressError].
	ErrInProgress = errors.New("idempotent: a call with this key is in progress")
	// ErrMismatch says that the key was used before, for a request with another
	// fingerprint.
	ErrMismatch = errors.New("idempotent: this key was used for another request: a new request needs a new key")
	// ErrIndeterminate says that an earlier call of a key under [AtMostOnce] ended
	// without anybody knowing whether its effect happened. Nothing was called.
	ErrIndeterminate = errors.New("idempotent: whether the effect of this key happened is not known")
	// ErrForgotten says that the call was made and succeeded, and that its result is
	// no longer kept.
	ErrForgotten = errors.New("idempotent: this key was used with success, but its result is no longer kept")
	// ErrTooLarge refuses a result of more than MaxResult bytes. Its writes were
	// rolled back. It is store.ErrTooLarge.
	ErrTooLarge = store.ErrTooLarge
	// ErrLeaseLost is the cause with which fn's context ends when the lease could not
	// be renewed in time or another has taken the key over.
	ErrLeaseLost = errors.New("idempotent: the lease of the key was lost")
	// ErrCanceled is the cause with which fn's context ends when the run was
	// canceled by its record (Store.Cancel).
	ErrCanceled = errors.New("idempotent: the run was canceled")
)

// InProgressError tells when it is worth asking again. It matches ErrInProgress.
type InProgressError struct {
	Key     Key
	ID      store.ID // of the record, as a handle for Store.Get
	Attempt int
	// Pending is a run that failed and waits for its next try, not one that runs.
	Pending bool
	// RetryAfter is the time until the next try is due, or until the lease of the
	// running attempt ends if nobody renews it; more than 0.
	RetryAfter time.Duration
}

// Error implements error.
func (e *InProgressError) Error() string {
	what := "is in progress"
	if e.Pending {
		what = "waits for its next try"
	}
	return fmt.Sprintf("idempotent: %s %s, attempt %d: ask again in %v", e.Key, what, e.Attempt, e.RetryAfter)
}

// Is makes it match ErrInProgress.
func (e *InProgressError) Is(target error) bool { return target == ErrInProgress }

// Failure is the stored end of a key that did not succeed: what [Permanent] said,
// or what the store did (code "lost", "poison", "canceled"). Every later call is
// answered with it, until one with [RetryFailed].
type Failure struct {
	Code     string
	Text     string
	Replayed bool  // an earlier call failed, and this one called nothing
	Err      error // the error given to Permanent; nil if Replayed
}

// Error implements error.
func (f *Failure) Error() string {
	switch {
	case f.Text == "":
		return "idempotent: failed for good: " + f.Code
	case f.Code == "":
		return "idempotent: failed for good: " + f.Text
	}
	return "idempotent: failed for good: " + f.Code + ": " + f.Text
}

// Unwrap is the error given to Permanent.
func (f *Failure) Unwrap() error { return f.Err }

// maxText bounds the stored text of an error, in bytes.
const maxText = 4 << 10

// Permanent is returned by fn when a repeat would fail alike: fn's writes are
// rolled back, and code and the text of err (cut to 4 KiB, readable by every later
// caller of the key: no secrets) are stored and answered from then on, as a
// [*Failure].
func Permanent(code string, err error) error {
	f := &Failure{Code: code, Err: err}
	if err != nil {
		f.Text = err.Error()
		f.Text = f.Text[:min(len(f.Text), maxText)]
	}
	return f
}

// refusal is an error of a call that left nothing behind.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refuse is returned by fn when the request is not to be executed at all, because
// it is invalid: fn's writes are rolled back and the key's record is deleted, so
// that a corrected request can use the key. The caller gets err. It says that
// nothing happened outside of the transaction either.
func Refuse(err error) error {
	if err == nil {
		err = errors.New("idempotent: refused")
	}
	return &refusal{err}
}
