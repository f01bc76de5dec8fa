package locks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Locker gives out leases on keys of one backend. It stands for one process: its
// goroutines share it. It is safe for concurrent use. Make it with [New], or with
// the constructor of a backend.
type Locker struct {
	d       driver.Driver
	batch   driver.BatchRenewer // nil where the backend is none; so are the next five
	queuer  driver.Queuer
	waker   driver.Waker
	watcher driver.LossWatcher
	teller  driver.LossTeller
	inspect driver.Inspector
	survey  driver.Surveyor
	limits  driver.Limits
	cfg     Config // with defaults
	usual   terms  // of a lease without options
	born    time.Time

	acquiring context.Context // ends when Close begins
	refuse    context.CancelFunc
	working   context.Context // ends when Close gives up what is left
	abandon   context.CancelFunc

	// mu guards all that follows and the changing part of every Lease. It is
	// never held over I/O or a call of the user's code, so the guard timers can
	// rely on it.
	mu       sync.Mutex
	slots    map[string]*slot
	grants   []*grant            // those to renew
	adrift   map[*grant]struct{} // lost ones with contexts that go on
	renewal  alarm               // for the next round
	guard    alarm               // for the first deadline
	watchers []*watcher
	told     []*grant // whose loss the driver has told, to be ended
	orphans  []*orphan
	reaping  bool
	busy     int           // requests and goroutines under way
	settled  chan struct{} // closed when nothing is held or under way; nil unless Close waits
	closed   chan struct{} // made when Close begins, closed when it has ended
	closeErr error
}

// New returns a Locker over d, which it owns from then on: Close closes it if it
// is an io.Closer. No request is sent. Settings that are unsafe, or beyond what d
// declares, give an error that matches [ErrInvalid].
func New(d driver.Driver, cfg Config) (*Locker, error) {
	if d == nil {
		return nil, invalid("driver: it is nil; open one first")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Locker{d: d, slots: make(map[string]*slot), adrift: make(map[*grant]struct{}), born: time.Now()}
	l.batch, _ = driver.As[driver.BatchRenewer](d)
	l.queuer, _ = driver.As[driver.Queuer](d)
	l.waker, _ = driver.As[driver.Waker](d)
	l.watcher, _ = driver.As[driver.LossWatcher](d)
	l.teller, _ = driver.As[driver.LossTeller](d)
	l.inspect, _ = driver.As[driver.Inspector](d)
	l.survey, _ = driver.As[driver.Surveyor](d)
	if lim, ok := driver.As[driver.Limiter](d); ok {
		l.limits = lim.Limits()
	}
	if l.limits.MaxKeyBytes <= 0 {
		l.limits.MaxKeyBytes = MaxKeyBytes
	}
	l.cfg = cfg.withDefaults(l.waker != nil)
	l.usual = terms{l.cfg.timing(l.cfg.TTL), l.cfg.TTL, l.cfg.Label}
	if err := checkLimits(l.cfg.TTL, l.limits); err != nil {
		return nil, err
	}
	l.acquiring, l.refuse = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the locker's own: it outlives its callers
	l.working, l.abandon = context.WithCancel(context.Background())  //nolint:forbidigo // a root of the locker's own: it outlives its callers
	return l, nil
}

// Config returns the settings in force, defaults filled in.
func (l *Locker) Config() Config { return l.cfg }

// Inspect returns the holder of key, or an error that matches [ErrFree],
// [ErrUnavailable] or [ErrUnsupported].
func (l *Locker) Inspect(ctx context.Context, key string) (Holder, error) {
	var h Holder
	if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
		return h, err
	}
	err := l.look(ctx, key, func(ctx context.Context) (err error) {
		h, err = l.inspect.Inspect(ctx, key)
		return err
	})
	return h, err
}

// List returns the held keys that begin with prefix, in key order, at most limit
// of them; a limit of 0 or less means 1000.
func (l *Locker) List(ctx context.Context, prefix string, limit int) ([]Holder, error) {
	if limit <= 0 {
		limit = 1000
	}
	var hs []Holder
	err := l.look(ctx, prefix, func(ctx context.Context) (err error) {
		hs, err = l.inspect.List(ctx, prefix, limit)
		return err
	})
	return hs, err
}

// ForceRelease ends whatever grant the key has, in this process or another, and
// raises the fence. The holder is told at its next renewal at the latest; until
// then two may work, and only a check of the fence keeps the old one out.
func (l *Locker) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	var r driver.Released
	if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
		return r, err
	}
	err := l.look(ctx, key, func(ctx context.Context) (err error) {
		r, err = l.inspect.ForceRelease(ctx, key)
		return err
	})
	return r, err
}

func (l *Locker) look(ctx context.Context, key string, ask func(context.Context) error) error {
	if l.inspect == nil {
		return fmt.Errorf("%w: inspect", ErrUnsupported)
	}
	if l.acquiring.Err() != nil {
		return ErrClosed
	}
	call, cancel := context.WithTimeout(ctx, l.cfg.RequestTimeout)
	defer cancel()
	err := ask(call)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrFree):
		return fmt.Errorf("%w: %q", ErrFree, key)
	}
	return l.unavailable(ctx, call, OpInspect, key, err)
}

// Close ends the Locker. Acquires fail with [ErrClosed], also those under way.
// Leases are released, after their contexts were cancelled; those that a [Locker.Do]
// works under are renewed until its function has returned. Then orphans are
// settled. What is not done when ctx ends is abandoned, and ends with its TTL: its
// holders are told, and the error says how much that was.
//
// Stop the work under leases that were not taken by Do before calling Close. Close
// returns at most a moment (Config.ReleaseTimeout) after ctx ended. No goroutine
// of the Locker is left then, provided that the driver obeys its contexts. A
// second call waits for the first and returns the same error.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	if closed := l.closed; closed != nil {
		l.mu.Unlock()
		select {
		case <-closed:
			return l.closeErr
		case <-ctx.Done():
			return fmt.Errorf("locks: close: %w", ctxError(ctx))
		}
	}
	l.closed = make(chan struct{})
	if ctx.Err() != nil { // what can be done at once is done all the same
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), l.cfg.ReleaseTimeout/2)
		defer cancel()
	}
	var idle []*grant
	var tell []context.CancelCauseFunc
	for _, g := range l.grants {
		if g.inDo {
			tell = append(tell, g.cancels()...)
		} else {
			idle = append(idle, g)
		}
	}
	for g := range l.adrift {
		tell = append(tell, g.cancels()...)
	}
	clear(l.adrift)
	l.mu.Unlock()

	l.refuse()
	for _, cancel := range tell {
		cancel(ErrClosed)
	}
	l.giveBack(ctx, idle)
	l.awaitSettled(ctx)

	l.mu.Lock()
	left, orphans := len(l.grants), len(l.orphans)
	var told []ending
	for len(l.grants) > 0 {
		told = append(told, l.lose(l.grants[0], ReasonAbandoned))
	}
	l.mu.Unlock()
	tellAll(told)
	l.abandon()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.ReleaseTimeout)
	defer cancel()
	l.awaitSettled(grace)
	l.mu.Lock()
	l.renewal.stop()
	l.guard.stop()
	l.mu.Unlock()

	var err error
	if left+orphans > 0 {
		err = fmt.Errorf("locks: close: %d leases and %d requests of unknown outcome abandoned; their keys are free after the TTL: %w",
			left, orphans, ctxError(ctx))
	}
	if c, ok := l.d.(io.Closer); ok {
		if cerr := c.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("locks: close driver: %w", cerr))
		}
	}
	l.closeErr = err
	close(l.closed)
	return err
}

// giveBack releases grants, a few at a time.
func (l *Locker) giveBack(ctx context.Context, grants []*grant) {
	var wg sync.WaitGroup
	next := make(chan *grant)
	for range min(maxParallel, len(grants)) {
		wg.Go(func() {
			for g := range next {
				_ = l.giveUp(ctx, g) // an unknown outcome is an orphan now, and counted
			}
		})
	}
	for _, g := range grants {
		if ctx.Err() != nil {
			break
		}
		next <- g
	}
	close(next)
	wg.Wait()
}

// maxParallel bounds the requests that one call or round has under way at a time
// on a backend that takes them one by one.
const maxParallel = 16

// awaitSettled waits until nothing is held or under way, or ctx ends.
func (l *Locker) awaitSettled(ctx context.Context) {
	l.mu.Lock()
	done := make(chan struct{})
	l.settled = done
	l.checkSettled()
	l.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// checkSettled tells Close when nothing is left. The caller holds mu.
func (l *Locker) checkSettled() {
	if l.settled != nil && l.busy == 0 && len(l.grants) == 0 {
		close(l.settled)
		l.settled = nil
	}
}

// done ends what was counted in busy.
func (l *Locker) done() {
	l.mu.Lock()
	l.busy--
	l.checkSettled()
	l.mu.Unlock()
}

func (l *Locker) observe(e Event) {
	if l.cfg.Observer != nil {
		l.cfg.Observer(e)
	}
}

// unavailable wraps the error of a request that was sent with call. An end of
// call that is not one of ctx is the Locker's own timeout, and must not look like
// the caller's.
func (l *Locker) unavailable(ctx, call context.Context, op Op, key string, err error) error {
	end, bounded := ctx.Deadline()
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("locks: %v %q: %w", op, key, ctxError(ctx))
	case ctx.Err() != nil:
		err = errors.Join(ctxError(ctx), err)
	case bounded && !time.Now().Before(end): // the connection's timer was first; that of ctx is about to fire
		err = errors.Join(context.DeadlineExceeded, err)
	case call.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)):
		err = fmt.Errorf("no answer in time (%v)", err) //nolint:errorlint // it must not match
	}
	return &UnavailableError{Key: key, Op: op, Err: err}
}
