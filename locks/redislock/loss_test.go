package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redislock"
)

func locker(tb testing.TB, d driver.Driver, cfg locks.Config) *locks.Locker {
	tb.Helper()
	l, err := locks.New(d, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func try(tb testing.TB, l *locks.Locker, key string) *locks.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

// Data that the server loses is told with the next renewal, and the fence goes on.
func TestLostDataIsTold(t *testing.T) {
	server := testenv.Redis(t)
	admin := console(t, server.Addr(), 0)
	k := redislock.RedisKey(redislock.DefaultPrefix, "k")
	for name, lose := range map[string]func() error{
		"flushall":    func() error { return admin.FlushAll(t.Context()).Err() },
		"deleted key": func() error { return admin.Del(t.Context(), k).Err() },
		"both keys":   func() error { return admin.Del(t.Context(), k, k+":f").Err() },
		"kill -9":     func() error { server.Kill(); server.Restart(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := locks.Config{TTL: 3 * time.Second}
			a := locker(t, open(t, client(server.Addr(), 0)), cfg)
			b := locker(t, open(t, client(server.Addr(), 0)), cfg)
			lease := try(t, a, "k")
			if err := lose(); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			next := try(t, b, "k")
			got := time.Now()
			select {
			case <-lease.Done():
			case <-time.After(cfg.TTL):
				t.Fatal("not told")
			}
			t.Logf("told %v after the loss; held twice for %v", time.Since(at).Round(time.Millisecond), time.Since(got).Round(time.Millisecond))
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
			}
			if interval := a.Config().RenewInterval; time.Since(at) > interval*5/4+300*time.Millisecond {
				t.Errorf("told after %v, more than a renewal interval of %v", time.Since(at), interval)
			}
			if next.Fence() <= lease.Fence() {
				t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
			}
			if err := next.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSwallowedAnswers(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	l, err := locks.New(d.Driver, locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	other := process(t, s.Addr, s.DB)
	for range 5 {
		trap := p.SwallowReply([]byte("evalsha"))
		lease := try(t, l, "k")
		<-trap.Fired()
		if _, err := other.Acquire(t.Context(), request("k")); !isHeld(err) {
			t.Error(err)
		}
		trap = p.SwallowReply([]byte("evalsha"))
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		<-trap.Fired()
		released(t, other, hold(t, other, request("k")), driver.ReleasedOK)
	}
}

func TestRefusalsAreKnown(t *testing.T) {
	server := testenv.Redis(t)
	d := process(t, server.Addr(), 0)
	admin := console(t, server.Addr(), 0)
	warm(t, d)
	// A full server grants nothing and is unavailable, not held.
	if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), request("k")); err == nil || isHeld(err) {
		t.Errorf("a full server: %v", err)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Set(t.Context(), "solotick:{s}", "by hand", 0).Result(); err != nil {
		t.Fatal(err)
	}
	_, err := d.Acquire(t.Context(), request("s"))
	var held *driver.HeldError
	if !errors.As(err, &held) || held.Holder.Label != "by hand" {
		t.Errorf("a stranger's key: %v", err)
	}
	server.Kill()
	if _, err := d.Acquire(t.Context(), request("k")); err == nil || isHeld(err) {
		t.Errorf("a dead server: %v", err)
	}
	if _, err := d.Acquire(t.Context(), request("k")); !driver.IsNotApplied(err) {
		t.Errorf("a refused connection: %v", err)
	}
}

func TestReplicas(t *testing.T) {
	set := testenv.StartRedisSentinel(t)
	r := request("k")
	admin := console(t, set.Master.Addr(), 0)
	few := process(t, set.Master.Addr(), 0, redislock.WithReplicas(2, 50*time.Millisecond))
	for range 2 { // the script is not known at first
		if _, err := few.Acquire(t.Context(), r); err == nil || isHeld(err) || !driver.IsNotApplied(err) {
			t.Errorf("one of two replicas: %v", err)
		}
		if n := admin.Exists(t.Context(), "solotick:{k}").Val(); n != 0 {
			t.Error("the refused grant was left")
		}
	}
	enough := process(t, set.Master.Addr(), 0, redislock.WithReplicas(1, time.Second))
	h := hold(t, enough, r)
	if err := console(t, set.Replica.Addr(), 0).Get(t.Context(), "solotick:{k}").Err(); err != nil {
		t.Errorf("the replica: %v", err)
	}
	if _, err := few.Acquire(t.Context(), request("k")); !isHeld(err) {
		t.Error(err)
	}
	released(t, few, h, driver.ReleasedOK)
}

// A failover keeps what was replicated, and the fence goes on.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	set := testenv.StartRedisSentinel(t)
	failover := func() *redis.Client {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: set.Name, SentinelAddrs: set.Addrs(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		})
	}
	l := locker(t, open(t, failover(), redislock.WithReplicas(1, time.Second)), locks.Config{TTL: 30 * time.Second, RenewInterval: time.Second})
	lease := try(t, l, "k")
	until := lease.ValidUntil()
	set.Master.Kill()
	for end := time.Now().Add(25 * time.Second); !lease.ValidUntil().After(until.Add(3 * time.Second)); <-time.After(20 * time.Millisecond) {
		if lease.Err() != nil || time.Now().After(end) {
			t.Fatalf("not renewed on the new master: %v", lease.Err())
		}
	}
	d := process(t, set.Replica.Addr(), 0)
	if out, err := d.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Fatal(out, err)
	}
	if h := hold(t, d, request("k")); h.Fence <= lease.Fence() {
		t.Errorf("fence %d after %d", h.Fence, lease.Fence())
	}
	select {
	case <-lease.Done():
	case <-time.After(5 * time.Second):
		t.Error("not told that it was thrown out")
	}
}
