package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/solotick/solotick/locks/driver"
)

// errSession says that the session had ended before the request reached it, so
// that nothing of the request is left.
var errSession = errors.New("etcdlock: the session has ended")

// errClosed is the answer of a driver that was closed.
var errClosed = errors.New("etcdlock: the driver is closed")

// refused are the answers by which etcd says that it did not carry out a request.
var refused = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrLeaseNotFound, rpctypes.ErrPermissionDenied, rpctypes.ErrNoSpace,
	rpctypes.ErrTooManyRequests, rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty,
	rpctypes.ErrRequestTooLarge, rpctypes.ErrLeaseTTLTooLarge, rpctypes.ErrAuthOldRevision,
}

// fail wraps the error of a request that may have changed something.
func fail(what string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("etcdlock: %s: %w", what, err)
	known := rpctypes.Error(err)
	for _, r := range refused {
		if errors.Is(known, r) {
			return driver.NotApplied(wrapped)
		}
	}
	// gRPC has no code of its own for a connection that was never made.
	if text := err.Error(); strings.Contains(text, "while dialing") || strings.Contains(text, "no connection available") {
		return driver.NotApplied(wrapped)
	}
	return wrapped
}

func sessionGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// ended is the error of a call whose context had ended before anything was sent.
func ended(ctx context.Context, what string) error {
	if ctx.Err() == nil {
		return nil
	}
	return driver.NotApplied(fmt.Errorf("etcdlock: %s: %w", what, context.Cause(ctx)))
}
