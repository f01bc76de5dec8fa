package locks

import (
	"context"
	"errors"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/lazyctx"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// waitInLine waits in the backend's own line, as the first of this process.
func (l *Locker) waitInLine(ctx context.Context, s *slot, w wanted) (*Lease, error) {
	var silent leaseclock.Instant // when the backend's silence began
	for failures := 0; ; failures++ {
		began := leaseclock.Start()
		l.mu.Lock()
		l.busy++
		l.mu.Unlock()
		g, err := l.askInLine(ctx, s, w)
		lease, err := l.take(s, g, err)
		l.done()
		if err == nil && l.cfg.Observer == nil {
			return lease, nil // to read the clock is a system call
		}
		took := began.Elapsed()
		l.observeAttempt(s.key, lease, err, took)
		if took > 2*w.t.request {
			failures, silent = 0, leaseclock.Now() // it stood in line before it failed
		} else if failures == 0 {
			silent = began
		}
		if err == nil || ctx.Err() != nil || !errors.Is(err, ErrUnavailable) || silent.Elapsed() >= l.cfg.TTL {
			return lease, err
		}
		w.answered(err)
		pause := backoff.Policy{Base: l.cfg.Poll / 4, Max: l.cfg.Poll}.Delay(failures)
		switch ended := l.pause(ctx, s, pause, nil, false); {
		case ended == nil:
		case errors.Is(ended, context.DeadlineExceeded):
			return nil, &UnavailableError{Key: s.key, Op: OpAcquire, Err: errors.Join(ended, err)}
		case errors.Is(ended, ErrClosed):
			return nil, ended
		default:
			return nil, waitError(ctx, s.key, nil)
		}
	}
}

// askInLine sends one request that waits in line.
func (l *Locker) askInLine(ctx context.Context, s *slot, w wanted) (*grant, error) {
	call := lazyctx.With(ctx, l.acquiring, ErrClosed)
	defer call.Cancel()

	if err := l.settle(call, s); err != nil {
		return nil, err
	}
	req := driver.Request{Key: s.key, Token: driver.NewToken(), TTL: w.t.ttl, Label: w.label}
	asked, inLine := req, false
	asked.Answered = func(err error) {
		inLine = err == nil
		if err != nil {
			err = &UnavailableError{Key: s.key, Op: OpAcquire, Err: err}
		}
		w.answered(err)
	}
	sent := leaseclock.Start()
	d, err := l.queuer.AcquireQueued(call, asked)
	if err == nil {
		return l.accept(s, req, d, w, sent)
	}
	if !driver.IsNotApplied(err) {
		l.mu.Lock()
		l.adopt(s, driver.Hold{Request: req}, w.t)
		l.mu.Unlock()
	}
	switch {
	case call.Err() == nil:
		if !driver.IsNotApplied(err) {
			l.observe(EventUnknown{Key: s.key, Op: OpAcquire, Err: err})
		}
		return nil, l.unavailable(ctx, call, OpAcquire, s.key, err)
	case ctx.Err() == nil:
		return nil, ErrClosed
	}
	l.mu.Lock()
	held := l.heldHere(s)
	l.mu.Unlock()
	switch {
	case held != nil:
	case inLine:
		held = &HeldError{Holder: Holder{Key: s.key}}
	default: // the backend has not said that anybody holds the key
		return nil, l.unavailable(ctx, call, OpAcquire, s.key, err)
	}
	return nil, waitError(ctx, s.key, held)
}
