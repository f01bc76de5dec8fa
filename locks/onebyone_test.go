package locks_test

import (
	"context"
	"sync"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// oneByOne has the three methods that a driver must have, and takes 10 ms for a
// renewal.
type oneByOne struct {
	d driver.Driver

	mu        sync.Mutex
	now, most int
}

func (o *oneByOne) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return o.d.Acquire(ctx, r)
}

func (o *oneByOne) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	o.mu.Lock()
	o.now++
	o.most = max(o.most, o.now)
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		o.now--
		o.mu.Unlock()
	}()
	time.Sleep(10 * time.Millisecond)
	return o.d.Renew(ctx, h)
}

func (o *oneByOne) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	return o.d.Release(ctx, h)
}

// slowAnswer grants at once and says so two hours later.
type slowAnswer struct{ driver.Driver }

func (s slowAnswer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.TTL *= 3
	g, err := s.Driver.Acquire(ctx, r)
	time.Sleep(2 * time.Hour)
	return g, err
}

func request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: ttl, Label: "dead"}
}
