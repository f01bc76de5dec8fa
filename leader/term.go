package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks"
)

// Term is a period of leadership that was won. It does not change hands and does
// not come back: a new win is a new Term. Its methods may be called from any
// goroutine.
type Term struct {
	lease *locks.Lease
	since time.Time

	ctx  context.Context // ends with the term, with the cause
	stop context.CancelCauseFunc

	resign   chan struct{} // closed when the holder is asked to resign
	resigned sync.Once
	retire   chan struct{} // closed when it is asked to once its work is done
	retired  sync.Once
	over     chan struct{} // closed when the backend has it back, or it was lost
	overErr  error         // why giving it back failed; read after over

	mu   sync.Mutex
	work int           // contexts that were not cancelled yet
	idle chan struct{} // closed when work falls to 0; made by whoever waits
}

func newTerm(lease *locks.Lease) *Term {
	t := &Term{lease: lease, since: time.Now(), resign: make(chan struct{}), retire: make(chan struct{}), over: make(chan struct{})}
	t.ctx, t.stop = context.WithCancelCause(context.Background()) //nolint:forbidigo // a term ends by its own causes only
	return t
}

// Number of the term: greater than that of every earlier term of the election,
// and never given again. A resource that remembers the highest it has seen can
// refuse a leader that woke too late.
func (t *Term) Number() int64 { return t.lease.Fence() }

// Since is when the term was won, by this process's clock. For people.
func (t *Term) Since() time.Time { return t.since }

// Done is closed when the term ends, before the backend can give the next one.
// After a suspension of the machine that can be late: Err is not.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// Err is nil while the term stands and its trust window is open, by the clock,
// suspension included. After that it says why the term ended: it matches
// ErrDeposed, ErrUnavailable, ErrResigned or ErrStopped, and stays the same once
// Done is closed.
func (t *Term) Err() error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if !t.lease.Valid() && !mutation.On("leader-trust-window") {
		return t.lost(&locks.LostError{Key: t.lease.Key(), Fence: t.lease.Fence(), Reason: locks.ReasonUnavailable})
	}
	return nil
}

// Context returns a context for work that only the leader may do. It ends with
// the parent, and with the term, whose end is then its cause.
//
// Cancel must be called when the work has returned: a leader that resigns or
// stops waits for that, up to Config.Grace, before it gives the term back, so
// that its successor does not overlap it.
func (t *Term) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if err := t.enter(); err != nil {
		cancel(err)
		return ctx, func() {}
	}
	forget := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	return ctx, sync.OnceFunc(func() {
		forget()
		cancel(context.Canceled)
		t.leave()
	})
}

func (t *Term) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.Err(); err != nil {
		return err
	}
	if t.retiring() {
		return fmt.Errorf("leader: term %d is being handed over: %w", t.Number(), ErrResigned)
	}
	t.work++
	return nil
}

// retiring reports whether the term takes no new work.
func (t *Term) retiring() bool {
	select {
	case <-t.retire:
		return true
	default:
		return false
	}
}

func (t *Term) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.work--; t.work == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// drained is closed when no work is left. To be called when no work can be added.
func (t *Term) drained() <-chan struct{} {
	idle := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.work == 0 {
		close(idle)
	} else {
		t.idle = idle
	}
	return idle
}

// lost says in this package's errors how the lease ended.
func (t *Term) lost(err error) error {
	why := ErrUnavailable
	var lost *locks.LostError
	switch {
	case !errors.As(err, &lost) || lost.Reason == locks.ReasonAbandoned: // the locker was closed
		why = ErrStopped
	case lost.Reason == locks.ReasonNotOurs:
		why = ErrDeposed
	}
	return fmt.Errorf("leader: term %d ended: %w: %w", t.Number(), why, err)
}
