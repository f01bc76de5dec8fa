package locks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
)

func TestErrorsReadWell(t *testing.T) {
	down := errors.New("connection refused")
	for want, err := range map[string]error{
		`locks: "k" is held by "host:7" for another 1.5s at most`:              &locks.HeldError{Holder: locks.Holder{Key: "k", Label: "host:7", Remaining: 1500 * time.Millisecond}},
		`locks: "k" is held by "host:7"`:                                       &locks.HeldError{Holder: locks.Holder{Key: "k", Label: "host:7"}},
		`locks: "k" is held by another, whose label the backend does not tell`: &locks.HeldError{Holder: locks.Holder{Key: "k"}},
		`locks: acquire "k": backend unavailable: connection refused`: &locks.UnavailableError{
			Key: "k", Op: locks.OpAcquire, Err: down,
		},
		`locks: lease of "k" (fence 3) lost: not renewed in time: connection refused`: &locks.LostError{
			Key: "k", Fence: 3, Reason: locks.ReasonUnavailable, Err: down,
		},
		`locks: lease of "k" (fence 3) lost: no longer ours`:                &locks.LostError{Key: "k", Fence: 3, Reason: locks.ReasonNotOurs},
		`locks: lease of "k" (fence 3) lost: abandoned by this process`:     &locks.LostError{Key: "k", Fence: 3, Reason: locks.ReasonAbandoned},
		`locks: release "k" (fence 3): held by another`:                     &locks.ReleaseError{Key: "k", Fence: 3, Outcome: locks.ReleasedOther},
		`locks: release "k" (fence 3): outcome unknown: connection refused`: &locks.ReleaseError{Key: "k", Fence: 3, Err: down},
		`acquire renew release inspect Op(9) Reason(9) no longer ours`:      fmt.Errorf("%v %v %v %v %v %v %v", locks.OpAcquire, locks.OpRenew, locks.OpRelease, locks.OpInspect, locks.Op(9), locks.Reason(9), locks.ReasonNotOurs),
	} {
		if err.Error() != want {
			t.Errorf("error reads\n%s\nwant\n%s", err, want)
		}
	}
}

// Each error is of one class, whatever it wraps.
func TestErrorsHaveOneClass(t *testing.T) {
	down := errors.New("connection refused")
	classes := []error{locks.ErrHeld, locks.ErrUnavailable, locks.ErrLost, locks.ErrClosed, locks.ErrInvalid, locks.ErrReleased}
	for _, c := range []struct {
		err  error
		want error
	}{
		{&locks.HeldError{}, locks.ErrHeld},
		{&locks.UnavailableError{Err: down}, locks.ErrUnavailable},
		{&locks.LostError{Err: down}, locks.ErrLost},
		{&locks.ReleaseError{Outcome: locks.ReleasedGone}, locks.ErrLost},
		{&locks.ReleaseError{Outcome: locks.ReleasedOther}, locks.ErrLost},
		{&locks.ReleaseError{Err: down}, locks.ErrUnavailable},
	} {
		for _, class := range classes {
			if errors.Is(c.err, class) != (class == c.want) {
				t.Errorf("errors.Is(%T %v, %v) = %v", c.err, c.err, class, class != c.want)
			}
		}
	}
	if !errors.Is(&locks.UnavailableError{Err: context.Canceled}, context.Canceled) {
		t.Error("an unavailable error hides its cause")
	}
}
