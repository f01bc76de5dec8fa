package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/lazyctx"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// TryAcquire asks for key once and does not wait for its holder. A nil error
// means that the lease is held. Otherwise the error matches one of [ErrHeld],
// [ErrUnavailable], [ErrClosed], [ErrInvalid], or the error of ctx; where ctx's
// deadline passed without an answer it matches that and ErrUnavailable.
//
// It costs one request, and none while this process holds the key. An answer that
// stays away is given up after twice Config.RequestTimeout. It does not queue
// behind those who wait in [Locker.Acquire].
//
// Where ctx carries a lease of the same key from [ContextWith], that is taken once
// more, without a request; if it was lost the error matches [ErrLost].
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	w, err := l.want(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	if lease, err := l.reenter(ctx, key, w); lease != nil || err != nil {
		return lease, err
	}
	s := l.use(key)
	defer l.unuse(s)
	return l.attempt(ctx, s, w)
}

// Acquire waits until it has the key. Errors are those of [Locker.TryAcquire],
// but ErrHeld only comes with the error of ctx, which ended while somebody held
// the key. A backend that answers nothing for a whole TTL gives [ErrUnavailable].
//
// Waiters of one process get the key in order of arrival, and only the first of
// them asks the backend. Where the backend keeps a line, it stands there, also
// while this process holds the key, and is given the key when its turn comes.
// Elsewhere it asks when the backend pushes, and at least every Config.Poll.
//
// A ctx from [ContextWith] is honoured as by TryAcquire.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	w, err := l.want(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	if lease, err := l.reenter(ctx, key, w); lease != nil || err != nil {
		return lease, err
	}
	s := l.use(key)
	defer l.unuse(s)
	if l.cfg.Observer == nil {
		return l.stand(ctx, s, w)
	}
	l.observe(EventWaiting{Key: key})
	began := time.Now()
	lease, err := l.stand(ctx, s, w)
	l.observe(EventWaited{Key: key, Err: err, Took: time.Since(began)})
	return lease, err
}

// stand waits in the line of this process, and then as its first.
func (l *Locker) stand(ctx context.Context, s *slot, w wanted) (*Lease, error) {
	l.mu.Lock()
	come := s.line.enter()
	l.mu.Unlock()
	if come != nil {
		if err := l.await(ctx, s, &s.line, come); err != nil {
			return nil, err
		}
	}
	wait := l.wait
	if l.queuer != nil {
		wait = l.waitInLine
	}
	lease, err := wait(ctx, s, w)
	l.mu.Lock()
	s.line.leave()
	l.mu.Unlock()
	return lease, err
}

// wait asks again and again, as the first in line.
func (l *Locker) wait(ctx context.Context, s *slot, w wanted) (*Lease, error) {
	var (
		hint     <-chan struct{}
		held     *HeldError // the last answer
		answered = leaseclock.Now()
		failures int
	)
	for {
		lease, err := l.attempt(ctx, s, w)
		var pause time.Duration
		switch {
		case err == nil:
			return lease, nil
		case errors.As(err, &held):
			answered, failures = leaseclock.Now(), 0
			w.answered(nil)
			if l.waker != nil && hint == nil {
				var stop func()
				if hint, stop = l.subscribe(ctx, s.key); hint != nil {
					defer stop()
					continue // it may have become free before the subscription
				}
			}
			pause = lookAgain(held.Holder, w.poll)
		case ctx.Err() != nil && held != nil && answered.Elapsed() < l.cfg.RequestTimeout+l.cfg.Poll:
			// The look that ctx cut short says nothing about the backend.
			return nil, waitError(ctx, s.key, held)
		case ctx.Err() != nil, !errors.Is(err, ErrUnavailable), answered.Elapsed() >= l.cfg.TTL:
			return nil, err
		default:
			w.answered(err)
			pause = backoff.Policy{Base: l.cfg.Poll / 4, Max: l.cfg.Poll}.Delay(failures)
			failures++
		}
		here := held != nil && held.here && failures == 0
		switch ended := l.pause(ctx, s, pause, hint, here); {
		case ended == nil:
		case errors.Is(ended, ErrClosed):
			return nil, ended
		case failures > 0 && errors.Is(ended, context.DeadlineExceeded):
			return nil, &UnavailableError{Key: s.key, Op: OpAcquire, Err: errors.Join(ended, err)}
		case failures > 0:
			return nil, waitError(ctx, s.key, nil)
		default:
			return nil, waitError(ctx, s.key, held)
		}
	}
}

// lookAgain is the pause before the next look at a key held by h: at most poll,
// and not much beyond the end of the holder's lease, spread so that waiters of
// many processes do not come together.
func lookAgain(h Holder, poll time.Duration) time.Duration {
	d := poll/2 + rand.N(poll/2+1)
	if h.Remaining > 0 {
		d = min(d, h.Remaining+1+rand.N(poll/8+1))
	}
	return d
}

// pause waits for a hint, for the key to be given up by this process, or for d
// where another holds it. If here, it was this process which held it at the last
// look.
func (l *Locker) pause(ctx context.Context, s *slot, d time.Duration, hint <-chan struct{}, here bool) error {
	l.mu.Lock()
	if here && s.holder == nil {
		l.mu.Unlock()
		return nil // given up since
	}
	var freed chan struct{}
	if s.holder != nil {
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed = s.freed
	}
	l.mu.Unlock()
	var again <-chan time.Time
	if freed == nil {
		t := time.NewTimer(d)
		defer t.Stop()
		again = t.C
	}
	select {
	case <-freed:
	case <-hint:
	case <-again:
	case <-ctx.Done():
		return ctxError(ctx)
	case <-l.acquiring.Done():
		return ErrClosed
	}
	return nil
}

func (l *Locker) subscribe(ctx context.Context, key string) (<-chan struct{}, func()) {
	call, cancel := context.WithTimeout(ctx, l.cfg.RequestTimeout)
	defer cancel()
	hint, stop, err := l.waker.Wake(call, key)
	if err != nil {
		return nil, nil // polling does without; the next look tries again
	}
	return hint, stop
}

// wanted is a checked acquire.
type wanted struct {
	options
	t timing
}

func (w wanted) answered(err error) {
	if w.answers != nil {
		w.answers(err)
	}
}

func (l *Locker) want(ctx context.Context, key string, opts []Option) (wanted, error) {
	o := options{ttl: l.cfg.TTL, label: l.cfg.Label, poll: l.cfg.Poll}
	for _, opt := range opts {
		opt(&o)
	}
	w := wanted{o, l.cfg.timing(o.ttl)}
	if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
		return w, err
	}
	if o.ttl != l.cfg.TTL {
		if err := w.t.check(); err != nil {
			return w, err
		}
		if err := checkLimits(o.ttl, l.limits); err != nil {
			return w, err
		}
	}
	if o.poll <= 0 {
		return w, invalid("poll: %v; wait longer than nothing between two looks", o.poll)
	}
	if o.onLoss < Abort || o.onLoss > Checkpoint {
		return w, invalid("loss policy: %d; use Abort, Continue or Checkpoint", int(o.onLoss))
	}
	if len(o.label) > MaxLabelBytes {
		return w, invalid("label: %d bytes; shorten it to %d", len(o.label), MaxLabelBytes)
	}
	if l.acquiring.Err() != nil {
		return w, ErrClosed
	}
	if ctx.Err() != nil {
		return w, waitError(ctx, key, nil)
	}
	return w, nil
}

// await waits until the turn has come. The caller does not hold mu.
func (l *Locker) await(ctx context.Context, s *slot, t *turn, come <-chan error) error {
	var closed bool
	select {
	case err := <-come:
		return err
	case <-ctx.Done():
	case <-l.acquiring.Done():
		closed = true
	}
	l.mu.Lock()
	t.giveUp(come)
	held := l.heldHere(s)
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return waitError(ctx, s.key, held)
}

// attempt asks once, when no other caller of this process is asking.
func (l *Locker) attempt(ctx context.Context, s *slot, w wanted) (*Lease, error) {
	l.mu.Lock()
	if err := l.heldHere(s); err != nil {
		l.mu.Unlock()
		l.observe(EventHeld{Key: s.key, Holder: err.Holder, Local: true})
		return nil, err
	}
	if come := s.call.enter(); come != nil {
		l.mu.Unlock()
		if err := l.await(ctx, s, &s.call, come); err != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) {
				err = &UnavailableError{Key: s.key, Op: OpAcquire, Err: err}
			}
			l.observeAttempt(s.key, nil, err, 0)
			return nil, err
		}
		l.mu.Lock()
		if err := l.heldHere(s); err != nil {
			s.call.leave()
			l.mu.Unlock()
			l.observe(EventHeld{Key: s.key, Holder: err.Holder, Local: true})
			return nil, err
		}
	}
	l.busy++
	l.mu.Unlock()
	defer l.done()

	start := time.Now()
	g, err := l.ask(ctx, s, w)
	lease, err := l.take(s, g, err)
	l.mu.Lock()
	if errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
		// It took the whole time that a request has: the others need not each
		// find out anew.
		s.call.fail(err)
	} else {
		s.call.leave()
	}
	l.mu.Unlock()
	l.observeAttempt(s.key, lease, err, time.Since(start))
	return lease, err
}

func (l *Locker) observeAttempt(key string, lease *Lease, err error, took time.Duration) {
	if l.cfg.Observer == nil {
		return
	}
	var held *HeldError
	switch {
	case lease != nil:
		l.observe(EventAcquired{Key: key, Fence: lease.Fence(), Took: took})
	case errors.As(err, &held):
		l.observe(EventHeld{Key: key, Holder: held.Holder, Local: held.here, Took: took})
	case errors.Is(err, ErrUnavailable):
		l.observe(EventUnavailable{Key: key, Err: err, Took: took})
	}
}

// heldHere answers for the backend when this process holds the key itself. The
// caller holds mu.
func (l *Locker) heldHere(s *slot) *HeldError {
	e := s.holder
	if e == nil {
		return nil
	}
	return &HeldError{here: true, Holder: Holder{
		Key: s.key, Label: e.t.label, Token: e.token, Fence: e.fence,
		Remaining: max(e.deadline.Remaining(), 0),
	}}
}

// take makes g the grant that this process holds, unless the Locker has closed
// meanwhile. It returns its lease.
func (l *Locker) take(s *slot, g *grant, err error) (*Lease, error) {
	if g == nil {
		return nil, err
	}
	var before ending
	l.mu.Lock()
	if l.closed != nil {
		l.adopt(s, g.hold(), g.t.timing)
		l.mu.Unlock()
		return nil, ErrClosed
	}
	old := s.holder
	if old != nil && old.err == nil && old.fence > g.fence {
		l.adopt(s, g.hold(), g.t.timing)
		l.mu.Unlock()
		return nil, &UnavailableError{Key: s.key, Op: OpAcquire, Err: errors.New("the answer came after that to a later grant")}
	}
	if old != nil {
		// Granted from the line before this process knew that the old grant is
		// over: it is being given back, or was thrown out.
		before = l.lose(old, ReasonNotOurs)
		l.vacate(old)
	}
	s.holder = g
	s.refs++
	l.schedule(g)
	l.mu.Unlock()
	before.tell()
	l.watchLoss(g)
	return &g.outer, nil
}

// maxTries bounds how often an acquire of unknown outcome is repeated before it
// is left to the reaper.
const maxTries = 3

// ask sends the request, and again with the same token while the outcome is
// unknown and there is time.
func (l *Locker) ask(ctx context.Context, s *slot, w wanted) (*grant, error) {
	asking := lazyctx.With(ctx, l.acquiring, ErrClosed)
	defer asking.Cancel()
	ctx = asking

	if err := l.settle(ctx, s); err != nil {
		return nil, err
	}
	req := driver.Request{Key: s.key, Token: driver.NewToken(), TTL: w.t.ttl, Label: w.label}
	retry := backoff.Policy{Base: w.t.request / 20, Max: w.t.request / 2}
	start := time.Now()
	unknown := false
	for try := 1; ; try++ {
		sent := leaseclock.Start()
		call := lazyctx.WithTimeout(ctx, min(w.t.request, 2*w.t.request-time.Since(start)))
		g, raw := l.d.Acquire(call, req)
		err := l.judge(ctx, call, req, raw)
		call.Cancel()
		var held *HeldError
		switch {
		case err == nil:
			return l.accept(s, req, g, w, sent)
		case errors.As(err, &held):
			return nil, held
		case !driver.IsNotApplied(raw):
			unknown = true
			l.observe(EventUnknown{Key: s.key, Op: OpAcquire, Err: err})
		}
		if !unknown {
			return nil, err
		}
		worthwhile := try < maxTries && time.Since(start) < 2*w.t.request*8/10
		if worthwhile && backoff.Wait(ctx, retry.Delay(try-1)) == nil {
			continue
		}
		l.mu.Lock()
		l.adopt(s, driver.Hold{Request: req}, w.t)
		l.mu.Unlock()
		return nil, err
	}
}

// judge turns the driver's error into ours. An answer that the key is held by the
// very token that asked is no answer.
func (l *Locker) judge(ctx, call context.Context, req driver.Request, err error) error {
	if err == nil {
		return nil
	}
	var held *driver.HeldError
	if errors.As(err, &held) && held.Holder.Token != req.Token {
		held.Holder.Key = req.Key
		return &HeldError{Holder: held.Holder}
	}
	return l.unavailable(ctx, call, OpAcquire, req.Key, err)
}

// accept takes what was granted, or gives it back if it came too late.
func (l *Locker) accept(s *slot, req driver.Request, d driver.Grant, w wanted, sent leaseclock.Instant) (*grant, error) {
	g := l.newGrant(s, req, d, w, sent)
	if !g.deadline.Expired() {
		return g, nil
	}
	l.mu.Lock()
	l.adopt(s, g.hold(), g.t.timing)
	l.mu.Unlock()
	return nil, &UnavailableError{
		Key: req.Key, Op: OpAcquire,
		Err: fmt.Errorf("the grant came %v after it began, when it had ended already; it is given back", begun(d, sent).Elapsed().Round(time.Millisecond)),
	}
}
