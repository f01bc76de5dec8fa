package sqllock_test

import (
	"context"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
)

// The connection that listens is lost together with what was sent meanwhile: who
// waits looks again when there is a new one, and does not sleep until the next poll.
func TestWaiterOutlivesTheListeningConnection(t *testing.T) {
	t.Parallel()
	p := places[0].shared(t)
	cfg := locks.Config{TTL: 5 * time.Minute, Poll: 4 * time.Minute, RequestTimeout: 5 * time.Second}
	l := locker(t, p.driver(t, p.addr, sqllock.ModeLease), cfg)
	other := locker(t, p.driver(t, p.addr, sqllock.ModeLease), cfg)
	lease, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		type answer struct {
			lease *locks.Lease
			err   error
		}
		come := make(chan answer, 1)
		ctx, cancel := contextWithin(t, 2*time.Minute)
		defer cancel()
		go func() {
			next, err := other.Acquire(ctx, "k")
			come <- answer{next, err}
		}()
		listening := p.listener(ctx, t)
		if err := p.admin.Exec("SELECT pg_terminate_backend(?)", listening).Error; err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		got := <-come
		if got.err != nil {
			t.Fatal(got.err)
		}
		lease, l, other = got.lease, other, l
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// listener waits for a connection that listens.
func (p *place) listener(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	for {
		var found []int64
		const query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
		if err := p.admin.Raw(query).Scan(&found).Error; err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return found[0]
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("nobody listens")
		}
	}
}
