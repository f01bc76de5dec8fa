package leadertest_test

import (
	"context"
	"sync"

	"github.com/solotick/solotick/locks/driver"
)

// wire is the way to a backend. While it is cut, requests get no answer.
type wire struct {
	mu  sync.Mutex
	cut bool
}

func (w *wire) Cut() (heal func()) {
	set := func(cut bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut = cut
	}
	set(true)
	return func() { set(false) }
}

// pass blocks until ctx ends while the wire is cut.
func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return nil
}

// backend is what the backends under test can do.
type backend interface {
	driver.Driver
	driver.Waker
	driver.Inspector
}

// wired is a lock driver behind a wire. It renews one lease at a time.
type wired struct {
	backend
	wire *wire
}

func (d *wired) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.wire.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	return d.backend.Acquire(ctx, r)
}

func (d *wired) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := d.wire.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	return d.backend.Renew(ctx, h)
}

func (d *wired) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := d.wire.pass(ctx); err != nil {
		return 0, err
	}
	return d.backend.Release(ctx, h)
}

func (d *wired) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	if err := d.wire.pass(ctx); err != nil {
		return driver.Holder{}, err
	}
	return d.backend.Inspect(ctx, key)
}
