package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redislock"
)

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	s := testenv.SharedRedis(t)
	lockstest.Run(t, harness(t, s.Addr, s.DB))
}

func TestConformanceFair(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	s := testenv.SharedRedis(t)
	lockstest.Run(t, harness(t, s.Addr, s.DB, redislock.Fair()))
}

// With its data on disk, Redis keeps grants and fences over a restart.
func TestConformanceOverRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	h := harness(t, server.Addr(), 0)
	h.Restart = func(testing.TB) { server.Kill(); server.Restart() }
	h.TTL = time.Second // every request is written to the disk
	h.Proxied = nil     // shown without restarts
	lockstest.Run(t, h)
}

func TestConformanceOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	var addrs []string
	for _, s := range testenv.RedisCluster(t) {
		addrs = append(addrs, s.Addr())
	}
	// The client has learned the slots and dialled before the case counts.
	cluster := func() *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, DialerRetries: 1, ContextTimeoutEnabled: true})
		if err := c.ForEachMaster(context.Background(), func(ctx context.Context, n *redis.Client) error { return n.Ping(ctx).Err() }); err != nil {
			t.Error(err)
		}
		return c
	}
	admin := cluster()
	t.Cleanup(func() { _ = admin.Close() })
	for name, opts := range map[string][]redislock.Option{"plain": nil, "fair": {redislock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			lockstest.Run(t, lockstest.Harness{
				TTL: time.Second,
				New: func(tb testing.TB) driver.Driver { return open(tb, cluster(), opts...) },
				Delete: func(tb testing.TB, key string) {
					tb.Helper()
					k := redislock.RedisKey(redislock.DefaultPrefix, key)
					if err := admin.Del(context.Background(), k, k+":f").Err(); err != nil {
						tb.Fatal(err)
					}
				},
			})
		})
	}
}
