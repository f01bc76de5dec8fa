package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redislock"
)

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	s := testenv.SharedRedis(t)
	lockstest.Run(t, harness(t, s.Addr, s.DB))
}

func TestConformanceFair(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	s := testenv.SharedRedis(t)
	lockstest.Run(t, harness(t, s.Addr, s.DB, redislock.Fair()))
}

// All traffic through a proxy, as slow as a network, which cuts every connection where
// the suite asks for a restart.
func TestConformanceThroughAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	p.Delay(faultproxy.Both, time.Millisecond)
	h := harness(t, s.Addr, s.DB)
	h.New = func(tb testing.TB) driver.Driver { return open(tb, client(p.Addr(), s.DB)) }
	h.Restart = func(testing.TB) { p.Reset() }
	h.TTL = 2 * time.Second
	lockstest.Run(t, h)
}

// With its data on disk, Redis keeps grants and fences over a restart.
func TestConformanceOverRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	h := harness(t, server.Addr(), 0)
	h.Restart = func(testing.TB) { server.Kill(); server.Restart() }
	h.TTL = 2 * time.Second // every request is written to the disk
	h.Short, h.Proxied = true, nil
	lockstest.Run(t, h)
}

func TestConformanceBehindSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	set := testenv.StartRedisSentinel(t)
	h := harness(t, set.Master.Addr(), 0)
	h.Short, h.Proxied = true, nil
	h.New = func(tb testing.TB) driver.Driver {
		return open(tb, redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: set.Name, SentinelAddrs: set.Addrs(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		}))
	}
	lockstest.Run(t, h)
}

func TestConformanceOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	c := startCluster(t)
	lockstest.Run(t, lockstest.Harness{
		TTL: time.Second, Short: true, Withdraws: true,
		New: func(tb testing.TB) driver.Driver { return open(tb, c.client(tb), redislock.Fair()) },
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			k := redislock.RedisKey(redislock.DefaultPrefix, key)
			if err := c.admin.Del(context.Background(), k, k+":f").Err(); err != nil {
				tb.Fatal(err)
			}
		},
	})
	// All keys of a lock are in one slot, whatever its name.
	slot := func(key string) int64 {
		n, err := c.admin.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, name := range []string{"lock:shop:cron:report", "{a}b", "a}b{c", "{}", "}{", "a b"} {
		k := redislock.RedisKey(redislock.DefaultPrefix, name)
		for _, other := range []string{":f", ":q", ":x", ":h"} {
			if slot(k) != slot(k+other) {
				t.Errorf("%q and its %s are in different slots", k, other)
			}
		}
	}
}

type cluster struct {
	addrs []string
	admin *redis.ClusterClient
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	for _, s := range testenv.RedisCluster(t) {
		c.addrs = append(c.addrs, s.Addr())
	}
	c.admin = c.client(t)
	t.Cleanup(func() { _ = c.admin.Close() })
	return c
}

// client has learned the slots and dialled before a case counts on it.
func (c *cluster) client(tb testing.TB) *redis.ClusterClient {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.addrs, MaxRedirects: 2, DialerRetries: 1, ContextTimeoutEnabled: true, MaintNotificationsConfig: unannounced,
	})
	if err := rdb.ForEachMaster(context.Background(), func(ctx context.Context, n *redis.Client) error { return n.Ping(ctx).Err() }); err != nil {
		tb.Error(err)
	}
	return rdb
}
