package locks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

// process is one locker on a shared space, with a backend that fails on command
// and a record of what its observer was told.
type process struct {
	*locks.Locker
	faults *lockstest.Faulty

	mu     sync.Mutex
	events []locks.Event
}

func newProcess(t testing.TB, space *memlock.Space, cfg locks.Config) *process {
	t.Helper()
	p := &process{faults: lockstest.NewFaulty(memlock.NewDriver(space))}
	cfg.Observer = func(e locks.Event) {
		p.mu.Lock()
		p.events = append(p.events, e)
		p.mu.Unlock()
	}
	var err error
	if p.Locker, err = locks.New(p.faults.Driver(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.faults.Heal()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return p
}

// told returns the events of type E so far.
func told[E locks.Event](p *process) (found []E) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

func (p *process) mustTry(t testing.TB, key string, opts ...locks.Option) *locks.Lease {
	t.Helper()
	lease, err := p.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q) = %v", key, err)
	}
	return lease
}

func mustRelease(t testing.TB, lease *locks.Lease) {
	t.Helper()
	if err := lease.Release(context.Background()); err != nil {
		t.Fatalf("Release = %v", err)
	}
}

func wantLost(t testing.TB, err error, lease *locks.Lease, reason locks.Reason) {
	t.Helper()
	var lost *locks.LostError
	if !errors.As(err, &lost) || !errors.Is(err, locks.ErrLost) {
		t.Fatalf("error = %v, want a LostError", err)
	}
	if lost.Reason != reason || lost.Key != lease.Key() || lost.Fence != lease.Fence() {
		t.Fatalf("lost = %+v, want reason %v of %q fence %d", lost, reason, lease.Key(), lease.Fence())
	}
}

func keys(n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = locks.Key("test", fmt.Sprint(i))
	}
	return ks
}
