package zklock_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/zklock"
)

// lastDialed is a dialer that remembers whom it reached last.
type lastDialed struct {
	mu   sync.Mutex
	addr string
}

func (l *lastDialed) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		l.mu.Lock()
		l.addr = addr
		l.mu.Unlock()
	}
	return c, err
}

func (l *lastDialed) is(s *testenv.Server) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr == s.Addr()
}

// The session survives the death of the member that it is connected to, follower or
// leader; without a majority the holder is told before its lease ends, and nobody
// gets the key.
func TestEnsemble(t *testing.T) {
	t.Parallel()
	members := testenv.ZooKeeperEnsemble(t, 3)
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr())
	}
	const ttl, margin = 6 * time.Second, 200 * time.Millisecond
	cfg := func() *locks.Config {
		return &locks.Config{TTL: ttl, Margin: margin, RequestTimeout: 500 * time.Millisecond, RenewInterval: time.Second}
	}
	var at lastDialed
	l, err := zklock.New(t.Context(), addrs, cfg(), zklock.WithPrefix("/test"), zklock.WithDialer(at.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.WithoutCancel(t.Context()))
	other, err := zklock.New(t.Context(), addrs, cfg(), zklock.WithPrefix("/test"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.WithoutCancel(t.Context()))
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	renewed := func(what string) {
		t.Helper()
		until := time.Now().Add(ttl - margin) // so that it was sent after this
		await(t, "a renewal "+what, 20*time.Second, func() bool { return lease.ValidUntil().After(until) || lease.Err() != nil })
		if err := lease.Err(); err != nil {
			t.Fatalf("lost %s: %v", what, err)
		}
	}
	down := slices.IndexFunc(members, at.is)
	if down < 0 {
		t.Fatal("connected to none of the members")
	}
	t.Logf("the holder is connected to the leader: %v", testenv.Leads(t.Context(), members[down]))
	members[down].Kill()
	renewed("by another member")
	if at.is(members[down]) {
		t.Error("the holder is connected to the member that was killed")
	}
	if _, err := other.TryAcquire(within(t, 10*time.Second), "k"); !errors.Is(err, locks.ErrHeld) {
		t.Errorf("TryAcquire by another = %v", err)
	}

	second := members[(down+1)%len(members)]
	second.Kill()
	killed := time.Now()
	select {
	case <-lease.Done():
	case <-within(t, 3*ttl).Done():
		t.Fatal("the holder was not told that the majority is gone")
	}
	told := time.Now()
	if _, err := other.TryAcquire(within(t, 5*time.Second), "k"); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
		t.Errorf("TryAcquire without a majority = %v", err)
	}
	members[down].Restart()
	second.Restart()
	next, err := other.Acquire(within(t, time.Minute), "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("told %v after the majority was lost, %v before another got the key", told.Sub(killed).Round(time.Millisecond), time.Since(told).Round(time.Millisecond))
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence went from %d to %d", lease.Fence(), next.Fence())
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
