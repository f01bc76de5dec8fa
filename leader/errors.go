package leader

import (
	"errors"

	"github.com/solotick/solotick/locks"
)

// Why a term ended, or why the elector has none. They are matched with errors.Is.
var (
	// ErrUnavailable says that the backend could not answer. As the cause of a
	// term's end: it could not be kept in time. It is locks.ErrUnavailable.
	ErrUnavailable = locks.ErrUnavailable
	// ErrDeposed says that the backend no longer knows the term: another took over,
	// or it was ended by hand.
	ErrDeposed = errors.New("leader: deposed: the term is no longer ours")
	// ErrResigned says that Resign was called.
	ErrResigned = errors.New("leader: resigned")
	// ErrStopped says that the context of Run ended.
	ErrStopped = errors.New("leader: stopped")
	// ErrNotRunning is the health of an elector that does not campaign: Run was not
	// called, or has returned.
	ErrNotRunning = errors.New("leader: not running")
	// ErrStarted refuses a second Run.
	ErrStarted = errors.New("leader: an elector runs once")
	// ErrNoLeader is the answer of Leader when nobody leads.
	ErrNoLeader = errors.New("leader: nobody leads")
	// ErrUnsupported says that the backend cannot tell who leads.
	ErrUnsupported = errors.New("leader: the backend cannot tell who leads")
)
