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
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

// A holder that is cut off from the server is told before anybody else can hold the
// key, whatever happens to its connection.
func TestLossByTimeIsToldFirst(t *testing.T) {
	t.Parallel()
	s := testenv.SharedRedis(t)
	for name, cut := range map[string]func(*faultproxy.Proxy){
		"black hole":           func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"requests are lost":    func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToServer) },
		"answers are lost":     func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToClient) },
		"delay beyond the TTL": func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, time.Minute) },
		"reset and refused":    func(p *faultproxy.Proxy) { p.Refuse() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := faultproxy.Start(t, s.Addr)
			d := process(t, p.Addr(), s.DB)
			warm(t, d)
			// Times for a test machine that is busy with other things.
			const ttl = 2 * time.Second
			cfg := locks.Config{TTL: ttl, Margin: ttl * 7 / 20, RenewInterval: ttl / 5, RequestTimeout: ttl / 5}
			lease := try(t, lend(t, d, cfg), name)
			told := toldAt(lease)
			cut(p)
			got := takeOver(t, process(t, s.Addr, s.DB), lease)
			if err := lease.Err(); !errors.Is(err, locks.ErrLost) || lease.Valid() {
				t.Fatalf("two holders: %v", err)
			}
			margin := got.Sub(<-told)
			t.Logf("told %v before the next holder", margin.Round(time.Millisecond))
			if margin <= 0 {
				t.Errorf("told %v after the next holder had the key", -margin)
			}
		})
	}
}

// A connection that is reset costs nothing: the next renewal makes another.
func TestResetConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	lease := try(t, lend(t, d, locks.Config{TTL: time.Minute, RenewInterval: time.Second / 4, RequestTimeout: 10 * time.Second}), "k")
	for range 6 {
		until := lease.ValidUntil()
		p.Reset()
		for end := time.Now().Add(time.Minute); !lease.ValidUntil().After(until); <-time.After(5 * time.Millisecond) {
			if lease.Err() != nil || time.Now().After(end) {
				t.Fatalf("not renewed after a reset: %v", lease.Err())
			}
		}
	}
}

// lend is a locker on a driver that somebody else closes.
func lend(tb testing.TB, d closing, cfg locks.Config) *locks.Locker {
	tb.Helper()
	return locker(tb, lent{d.Driver}, cfg)
}

type lent struct{ *redislock.Driver }

func (lent) Close() error { return nil }

// toldAt sends when the holder was told that its lease is over.
func toldAt(lease *locks.Lease) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		<-lease.Done()
		at <- time.Now()
	}()
	return at
}

// takeOver asks for the key of a lease until it is granted, and returns when.
func takeOver(tb testing.TB, d driver.Driver, lease *locks.Lease) time.Time {
	tb.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
		g, err := d.Acquire(tb.Context(), request(lease.Key()))
		if err == nil {
			if g.Fence <= lease.Fence() {
				tb.Errorf("fence %d after %d", g.Fence, lease.Fence())
			}
			return time.Now()
		}
		if !isHeld(err) {
			tb.Fatal(err)
		}
	}
	tb.Fatal("nobody else got the key")
	return time.Time{}
}

// Data that the server loses is told with the next renewal, and the fence goes on.
func TestLostDataIsTold(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	admin := console(t, server.Addr(), 0)
	operator := process(t, server.Addr(), 0)
	k := redislock.RedisKey(redislock.DefaultPrefix, "k")
	for name, lose := range map[string]func() error{
		"flushall":    func() error { return admin.FlushAll(t.Context()).Err() },
		"deleted key": func() error { return admin.Del(t.Context(), k).Err() },
		"both keys":   func() error { return admin.Del(t.Context(), k, k+":f").Err() },
		"kill -9":     func() error { server.Kill(); server.Restart(); return nil },
		"force release": func() error {
			_, err := operator.ForceRelease(t.Context(), "k")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := locks.Config{TTL: 2 * time.Minute, RenewInterval: time.Second / 2, RequestTimeout: 20 * time.Second}
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
			case <-time.After(cfg.TTL / 2):
				t.Fatal("not told")
			}
			t.Logf("told %v after the loss; held twice for %v", time.Since(at).Round(time.Millisecond), time.Since(got).Round(time.Millisecond))
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
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
	t.Parallel()
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
	enough := process(t, set.Master.Addr(), 0, redislock.WithReplicas(1, 2*time.Second))
	h := hold(t, enough, r)
	if err := console(t, set.Replica.Addr(), 0).Get(t.Context(), "solotick:{k}").Err(); err != nil {
		t.Errorf("the replica: %v", err)
	}
	if _, err := few.Acquire(t.Context(), request("k")); !isHeld(err) {
		t.Error(err)
	}
	released(t, few, h, driver.ReleasedOK)
}

// A failover keeps what was replicated. A grant that was not is told with the first
// renewal on the new master, and the fence goes on in both cases.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Parallel()
	set := testenv.StartRedisSentinel(t)
	failover := func() *redis.Client {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: set.Name, SentinelAddrs: set.Addrs(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		})
	}
	cfg := locks.Config{TTL: 4 * time.Minute, RenewInterval: time.Second, RequestTimeout: 10 * time.Second}
	l := locker(t, open(t, failover(), redislock.WithReplicas(1, 2*time.Second)), cfg)
	kept, lost := try(t, l, "kept"), try(t, l, "lost")
	until := kept.ValidUntil()
	replica := console(t, set.Replica.Addr(), 0)
	if err := replica.ConfigSet(t.Context(), "replica-read-only", "no").Err(); err != nil {
		t.Fatal(err)
	}
	k := redislock.RedisKey(redislock.DefaultPrefix, "lost")
	if n := replica.Del(t.Context(), k, k+":f").Val(); n != 2 {
		t.Fatalf("the replica had %d of 2 keys", n)
	}
	told := toldAt(lost)
	set.Master.Kill()

	other := locker(t, open(t, failover()), cfg)
	next, err := other.TryAcquire(t.Context(), "lost")
	for end := time.Now().Add(cfg.TTL / 4); err != nil; <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(err)
		}
		next, err = other.TryAcquire(t.Context(), "lost")
	}
	got := time.Now()
	overlap := (<-told).Sub(got)
	t.Logf("held twice for %v after the failover", max(overlap, 0).Round(time.Millisecond))
	var reason *locks.LostError
	if !errors.As(lost.Err(), &reason) || reason.Reason != locks.ReasonNotOurs || overlap > cfg.TTL/4 {
		t.Errorf("held twice for %v, and told %v", overlap, lost.Err())
	}
	if next.Fence() <= lost.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lost.Fence())
	}
	for end := time.Now().Add(cfg.TTL / 4); !kept.ValidUntil().After(until.Add(3 * time.Second)); <-time.After(20 * time.Millisecond) {
		if kept.Err() != nil || time.Now().After(end) {
			t.Fatalf("not renewed on the new master: %v", kept.Err())
		}
	}
	d := process(t, set.Replica.Addr(), 0)
	if out, err := d.ForceRelease(t.Context(), "kept"); err != nil || out != driver.ReleasedOK {
		t.Fatal(out, err)
	}
	if h := hold(t, d, request("kept")); h.Fence <= kept.Fence() {
		t.Errorf("fence %d after %d", h.Fence, kept.Fence())
	}
	select {
	case <-kept.Done():
	case <-time.After(cfg.TTL / 4):
		t.Error("not told that it was thrown out")
	}
}

// A change of the master is noticed at once: a grant that was not replicated is told long
// before its next renewal, and others are kept.
func TestNewMasterIsAskedAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Parallel()
	set := testenv.StartRedisSentinel(t)
	failover := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: set.Name, SentinelAddrs: set.Addrs(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	const interval = 5 * time.Minute
	l := locker(t, open(t, failover, redislock.WithReplicas(1, 2*time.Second)), locks.Config{TTL: 20 * time.Minute, RenewInterval: interval, RequestTimeout: 10 * time.Second})
	kept, lost := try(t, l, "kept"), try(t, l, "lost")
	master := console(t, set.Master.Addr(), 0)
	for { // the subscription is kept while there are holds
		if channels, err := master.PubSubChannels(t.Context(), "solotick:to:*").Result(); err != nil {
			t.Fatal(err)
		} else if len(channels) > 0 {
			break
		}
		<-time.After(time.Millisecond)
	}
	replica := console(t, set.Replica.Addr(), 0)
	if err := replica.ConfigSet(t.Context(), "replica-read-only", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if n := replica.Del(t.Context(), redislock.RedisKey(redislock.DefaultPrefix, "lost")).Val(); n != 1 {
		t.Fatalf("the replica had %d of 1 keys", n)
	}
	start := time.Now()
	set.Master.Kill()
	select {
	case <-lost.Done():
	case <-time.After(time.Minute):
		t.Fatal("not told")
	}
	t.Logf("told %v after the master was killed", time.Since(start).Round(time.Millisecond))
	var reason *locks.LostError
	if !errors.As(lost.Err(), &reason) || reason.Reason != locks.ReasonNotOurs {
		t.Errorf("told %v", lost.Err())
	}
	if err := kept.Err(); err != nil {
		t.Errorf("the replicated one: %v", err)
	}
	if err := kept.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
