package lockstest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Method is what a fault applies to.
type Method int

// The methods of a driver.
const (
	Acquire Method = iota // also AcquireQueued
	Renew                 // also RenewBatch, as one call
	Release
	Wake        // also WatchLoss, which falls silent instead of failing
	Inspect     // also List and ForceRelease
	methods int = iota
)

// Kind is the way a request goes wrong.
type Kind int

// The kinds of fault.
const (
	Refuse      Kind = iota + 1 // not sent, and the caller can tell (driver.NotApplied)
	ErrorBefore                 // not applied, but the caller cannot know
	ErrorAfter                  // applied, and then an error
	Delay                       // waits for Fault.Delay, or for ctx to end, before it is sent
	BlackHole                   // lost on the way there: silence until ctx ends
	Swallow                     // applied, and the answer lost: silence until ctx ends
	Deaf                        // silence until Heal, whatever ctx says, as a driver must not do
)

// ErrInjected is the error of faults, other than those of contexts.
var ErrInjected = errors.New("lockstest: injected fault")

// Fault is something to go wrong.
type Fault struct {
	Kind  Kind
	Delay time.Duration // of Kind Delay
	Times int           // how many calls it hits; 0 means until it is disarmed
}

// Faulty is a driver that fails on command. Faults are armed and healed while it
// is in use. It is safe for concurrent use.
type Faulty struct {
	inner driver.Driver

	mu     sync.Mutex
	armed  [methods]Fault
	calls  [methods]int
	healed chan struct{} // closed by Heal
}

// NewFaulty returns a Faulty over d, without a fault yet.
func NewFaulty(d driver.Driver) *Faulty {
	return &Faulty{inner: d, healed: make(chan struct{})}
}

// Arm makes calls of m fail from now on, in place of what was armed for m.
func (f *Faulty) Arm(m Method, fault Fault) {
	f.mu.Lock()
	f.armed[m] = fault
	f.mu.Unlock()
}

// Cut makes the backend fall silent for every method.
func (f *Faulty) Cut() {
	for m := range methods {
		f.Arm(Method(m), Fault{Kind: BlackHole})
	}
}

// Heal disarms every fault and ends the silence of calls under way, with
// ErrInjected.
func (f *Faulty) Heal() {
	f.mu.Lock()
	f.armed = [methods]Fault{}
	close(f.healed)
	f.healed = make(chan struct{})
	f.mu.Unlock()
}

// Calls returns how many calls of m were made, failed ones included.
func (f *Faulty) Calls(m Method) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[m]
}

// AllCalls returns how many calls were made.
func (f *Faulty) AllCalls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		n += c
	}
	return n
}

// Driver returns the failing driver. It serves the optional interfaces that the
// inner driver serves, see [driver.As].
func (f *Faulty) Driver() driver.Driver { return faultyDriver{f} }

// call runs do under the fault armed for m. Silence ends with ctx, with Heal, or
// after patience if that is not zero.
func (f *Faulty) call(ctx context.Context, m Method, patience time.Duration, do func() error) error {
	f.mu.Lock()
	f.calls[m]++
	fault, healed := f.armed[m], f.healed
	if fault.Times > 0 {
		if f.armed[m].Times--; f.armed[m].Times == 0 {
			f.armed[m] = Fault{}
		}
	}
	f.mu.Unlock()

	silence := func() error {
		var enough <-chan time.Time
		if patience > 0 {
			t := time.NewTimer(patience)
			defer t.Stop()
			enough = t.C
		}
		select {
		case <-enough:
			return ErrInjected
		case <-ctx.Done():
			return ctx.Err()
		case <-healed:
			return ErrInjected
		}
	}
	switch fault.Kind {
	case Refuse:
		return driver.NotApplied(ErrInjected)
	case ErrorBefore:
		return ErrInjected
	case ErrorAfter:
		_ = do()
		return ErrInjected
	case Delay:
		t := time.NewTimer(fault.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-healed:
		case <-ctx.Done():
			return ctx.Err()
		}
	case BlackHole:
		return silence()
	case Swallow:
		_ = do()
		return silence()
	case Deaf:
		<-healed
		return ErrInjected
	}
	return do()
}

// faultyDriver has all methods there are; the inner driver must serve those that
// are called.
type faultyDriver struct{ f *Faulty }

var _ driver.Partial = faultyDriver{}

func (c faultyDriver) Serves(iface any) (ok bool) {
	switch iface.(type) {
	case *driver.BatchRenewer:
		_, ok = driver.As[driver.BatchRenewer](c.f.inner)
	case *driver.Queuer:
		_, ok = driver.As[driver.Queuer](c.f.inner)
	case *driver.Waker:
		_, ok = driver.As[driver.Waker](c.f.inner)
	case *driver.Watcher:
		_, ok = driver.As[driver.Watcher](c.f.inner)
	case *driver.LossWatcher:
		_, ok = driver.As[driver.LossWatcher](c.f.inner)
	case *driver.Inspector:
		_, ok = driver.As[driver.Inspector](c.f.inner)
	case *driver.Limiter:
		_, ok = driver.As[driver.Limiter](c.f.inner)
	}
	return ok
}

func (c faultyDriver) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = c.f.call(ctx, Acquire, 0, func() (err error) {
		g, err = c.f.inner.Acquire(ctx, r)
		return err
	})
	if err != nil {
		g = driver.Grant{}
	}
	return g, err
}

func (c faultyDriver) Renew(ctx context.Context, h driver.Hold) (g driver.Grant, err error) {
	err = c.f.call(ctx, Renew, 0, func() (err error) {
		g, err = c.f.inner.Renew(ctx, h)
		return err
	})
	if err != nil {
		g = driver.Grant{}
	}
	return g, err
}

func (c faultyDriver) Release(ctx context.Context, h driver.Hold) (r driver.Released, err error) {
	err = c.f.call(ctx, Release, 0, func() (err error) {
		r, err = c.f.inner.Release(ctx, h)
		return err
	})
	if err != nil {
		r = 0
	}
	return r, err
}

func (c faultyDriver) Limits() driver.Limits { return c.f.inner.(driver.Limiter).Limits() }

func (c faultyDriver) Close() error {
	if cl, ok := c.f.inner.(io.Closer); ok {
		return cl.Close()
	}
	return nil
}

func (c faultyDriver) RenewBatch(ctx context.Context, holds []driver.Hold) (errs []error) {
	err := c.f.call(ctx, Renew, 0, func() error {
		errs = c.f.inner.(driver.BatchRenewer).RenewBatch(ctx, holds)
		return nil
	})
	if err != nil {
		errs = make([]error, len(holds))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func (c faultyDriver) Wake(ctx context.Context, key string) (hint <-chan struct{}, stop func(), err error) {
	err = c.f.call(ctx, Wake, 0, func() (err error) {
		hint, stop, err = c.f.inner.(driver.Waker).Wake(ctx, key)
		return err
	})
	if err != nil && stop != nil {
		stop()
		hint, stop = nil, nil
	}
	return hint, stop, err
}

func (c faultyDriver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return c.f.inner.(driver.Watcher).Watch(ctx, key)
}

func (c faultyDriver) Inspect(ctx context.Context, key string) (h driver.Holder, err error) {
	err = c.f.call(ctx, Inspect, 0, func() (err error) {
		h, err = c.f.inner.(driver.Inspector).Inspect(ctx, key)
		return err
	})
	return h, err
}

func (c faultyDriver) List(ctx context.Context, prefix string, limit int) (hs []driver.Holder, err error) {
	err = c.f.call(ctx, Inspect, 0, func() (err error) {
		hs, err = c.f.inner.(driver.Inspector).List(ctx, prefix, limit)
		return err
	})
	return hs, err
}

func (c faultyDriver) ForceRelease(ctx context.Context, key string) (r driver.Released, err error) {
	err = c.f.call(ctx, Inspect, 0, func() (err error) {
		r, err = c.f.inner.(driver.Inspector).ForceRelease(ctx, key)
		return err
	})
	return r, err
}

// AcquireQueued fails as Acquire does, but notices silence after a TTL, as a driver
// of a queue must. A connection that falls silent while the call waits in line loses
// what comes then.
func (c faultyDriver) AcquireQueued(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = c.f.call(ctx, Acquire, r.TTL, func() (err error) {
		g, err = c.f.inner.(driver.Queuer).AcquireQueued(ctx, r)
		return err
	})
	if c.f.silenced(Acquire) && (err == nil || driver.IsNotApplied(err)) {
		err = c.f.call(ctx, Acquire, r.TTL, func() error { return ErrInjected })
	}
	if err != nil {
		g = driver.Grant{}
	}
	return g, err
}

// WatchLoss never tells of a loss that came while Wake was armed with silence.
func (c faultyDriver) WatchLoss(h driver.Hold) (lost <-chan struct{}, stop func()) {
	c.f.mu.Lock()
	c.f.calls[Wake]++
	c.f.mu.Unlock()
	told, unwatch := c.f.inner.(driver.LossWatcher).WatchLoss(h)
	heard, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer unwatch()
		select {
		case <-told:
			if !c.f.silenced(Wake) {
				close(heard)
			}
		case <-stopped:
		}
	}()
	return heard, sync.OnceFunc(func() { close(stopped) })
}

// silenced reports whether answers to calls of m are lost.
func (f *Faulty) silenced(m Method) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.armed[m].Kind {
	case BlackHole, Swallow, Deaf:
		return true
	default:
	}
	return false
}
