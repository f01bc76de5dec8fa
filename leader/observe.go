package leader

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/solotick/solotick/internal/backoff"
)

// Leader is who leads an election, as the backend tells it. Term 0 means that
// nobody does.
type Leader struct {
	Election  string
	Term      int64
	Label     string
	Since     time.Time     // by the backend's clock; zero if not known
	Remaining time.Duration // of the term if it is not kept; zero if not known
}

// Leader asks the backend who leads. ErrNoLeader means that nobody does,
// ErrUnavailable that the backend cannot answer, ErrUnsupported that it never
// can. The elector need not run. It takes Config.RequestTimeout at most.
func (e *Elector) Leader(ctx context.Context) (Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.RequestTimeout)
	defer cancel()
	return e.source.leader(ctx)
}

// What Observe has yielded last, when it was not a term.
const (
	none    = -1
	failing = -2
)

// Observe yields who leads, first at once and then at every change, in order,
// until ctx ends. An election without a leader is a Leader of Term 0. An error is
// yielded once per outage, and who leads after it; only ErrUnsupported is the end. Terms that begin
// and end between two looks, at most Config.ObserveInterval apart, are not seen.
// The elector need not run.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		hint, stop, err := e.source.watch(ctx)
		if err != nil { // the timed look goes on without hints
			hint, stop = nil, func() {}
		}
		defer stop()
		seen := int64(none)
		for {
			l, err := e.Leader(ctx)
			if errors.Is(err, ErrNoLeader) {
				l, err = Leader{Election: e.election}, nil
			}
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				if l.Term != seen && !yield(l, nil) {
					return
				}
				seen = l.Term
			default:
				if seen != failing && !yield(Leader{}, err) || errors.Is(err, ErrUnsupported) {
					return
				}
				seen = failing
			}
			if !e.look(ctx, hint) {
				return
			}
		}
	}
}

// look waits for the next look at who leads; false when ctx has ended.
func (e *Elector) look(ctx context.Context, hint <-chan struct{}) bool {
	t := time.NewTimer(backoff.Jitter(e.cfg.ObserveInterval, 0.1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-hint:
	case <-t.C:
	}
	return true
}
