package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/solotick/solotick/leader"
)

// ErrNotLeader says that another replica leads, or nobody.
var ErrNotLeader = errors.New("gocronlock: this replica does not lead")

// Elector is a [gocron.Elector], for gocron.WithDistributedElector: all jobs of the
// scheduler run on the replica that leads. It is safe for concurrent use.
//
// Compared with a [Locker], skewed clocks cannot double a tick while a term lasts.
// At a change of leader they can: a tick that the old leader ran by its clock may
// still be to come by the clock of the new one, or be over by it, and then runs
// twice or not at all. gocron does not use a Locker beside an Elector.
type Elector struct{ elector *leader.Elector }

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector on e, whose Run is the caller's to run, until after
// gocron's Shutdown.
func NewElector(e *leader.Elector) (*Elector, error) {
	if e == nil {
		return nil, errors.New("gocronlock: elector: it is nil; make one with leader.FromLocks")
	}
	return &Elector{e}, nil
}

// IsLeader implements [gocron.Elector]. It asks no backend: the term's trust window
// is judged by the clock. The error matches [ErrNotLeader], and what the elector's
// Health says where the backend does not answer or the elector does not run.
func (e *Elector) IsLeader(context.Context) error {
	if e.elector.Term() != nil {
		return nil
	}
	return e.notLeader()
}

func (e *Elector) notLeader() error {
	if err := e.elector.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return ErrNotLeader
}

// Task is a gocron.Task whose context ends with the term, with its end as the cause,
// and when gocron stops the job. A leader that resigns waits for run to return, up
// to its grace. Pass term, its number, to the resource that the job changes, which
// refuses lower numbers than the highest it has seen. A job that starts when the
// term has ended fails with [ErrNotLeader].
func (e *Elector) Task(run func(ctx context.Context, term int64) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		term := e.elector.Term()
		if term == nil {
			return e.notLeader()
		}
		ctx, cancel := term.Context(ctx)
		defer cancel()
		return run(ctx, term.Number())
	})
}
