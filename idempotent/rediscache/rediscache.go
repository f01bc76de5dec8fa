// Package rediscache keeps the results of idempotent.Once in Redis, so that a repeat
// costs the database nothing.
//
//	cache, err := rediscache.New(rdb, rediscache.Config{})
//	once := idempotent.WithCache(idempotent.CacheConfig{Cache: cache, Secret: secret}) // kept for 24h
//	reply, err := idempotent.Once(ctx, guard, key, fingerprint, fn, once)
//
// A call looks here, takes the key's short lock, looks again, and only then asks the
// database; of many first calls at once one does.
//
// Guarantees: a *Cache implements idempotent.Cache. A request to Redis ends with its
// context, which idempotent bounds by CacheConfig.Timeout, 50 ms by default; after one
// that was not answered no other is made for Config.Pause, so that a Redis which is away
// or slow costs a request now and then and not each call. The short lock is given back
// by the call that has it only.
//
// Not guaranteed: anything else. Redis may be down, slow, emptied, restored from an old
// copy or written by strangers: the answers of Once stay right, since the database
// decides, and a value is believed only with the signature of a process that had read
// it from a committed record, for that key and request, and not beyond its time.
package rediscache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultPrefix begins the names of all keys.
const DefaultPrefix = "solotick:"

// Config of a cache. The zero Config works.
type Config struct {
	// Prefix begins the name of every key. Default [DefaultPrefix].
	Prefix string
	// Pause is how long Redis is left alone after a request that it did not answer.
	// Default 1s.
	Pause time.Duration
}

// Cache implements idempotent.Cache on Redis. It is safe for concurrent use and needs
// no Close.
type Cache struct {
	rdb    redis.UniversalClient
	prefix string
	pause  time.Duration
	since  time.Time    // what resume counts from, on the monotonic clock
	resume atomic.Int64 // when requests are made again
}

// New makes a cache on rdb: one server, what Sentinel says is the master, a cluster or
// a Ring; it stays the caller's to close. Its options must have ContextTimeoutEnabled:
// true, without which a request outlasts its context; MaxRetries: -1 is best. It sends
// nothing.
func New(rdb redis.UniversalClient, cfg Config) (*Cache, error) {
	bounded := true
	switch c := rdb.(type) {
	case nil:
		return nil, errors.New("rediscache: the client is nil: make one with redis.NewUniversalClient")
	case *redis.Client:
		bounded = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		bounded = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		bounded = c.Options().ContextTimeoutEnabled
	}
	switch {
	case !bounded:
		return nil, errors.New("rediscache: set ContextTimeoutEnabled: true in the client's options: a Redis that hangs would hold up every call")
	case cfg.Pause < 0:
		return nil, fmt.Errorf("rediscache: Config.Pause of %v: use 0, for the default, or more", cfg.Pause)
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.Pause == 0 {
		cfg.Pause = time.Second
	}
	return &Cache{rdb: rdb, prefix: cfg.Prefix, pause: cfg.Pause, since: time.Now()}, nil
}

// errPaused is what a call gets while Redis is left alone.
var errPaused = errors.New("rediscache: Redis did not answer lately")

// ask makes a request, unless there is a pause, and begins one if it is not answered.
func (c *Cache) ask(ctx context.Context, request func() error) error {
	if int64(time.Since(c.since)) < c.resume.Load() {
		return errPaused
	}
	err := request()
	var answer redis.Error
	if err != nil && !errors.As(err, &answer) && !errors.Is(context.Cause(ctx), context.Canceled) {
		c.resume.Store(int64(time.Since(c.since) + c.pause))
	}
	return err
}

// Get is what Put kept; nil for nothing.
func (c *Cache) Get(ctx context.Context, key string) (value []byte, err error) {
	err = c.ask(ctx, func() (err error) {
		value, err = c.rdb.Get(ctx, c.prefix+key).Bytes()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, err
}

// Put keeps a value for ttl.
func (c *Cache) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return c.ask(ctx, func() error { return c.rdb.Set(ctx, c.prefix+key, value, ttl).Err() })
}

// release frees a lock if it is the caller's.
var release = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

// TryLock takes the key's lock for at most ttl, if it is free, and answers how to give
// it back; nil if it is taken.
func (c *Cache) TryLock(ctx context.Context, key string, ttl time.Duration) (unlock func(ctx context.Context), err error) {
	token, took := rand.Text(), false
	err = c.ask(ctx, func() error {
		err := c.rdb.SetArgs(ctx, c.prefix+key, token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
		took = err == nil
		return err
	})
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil || !took:
		return nil, err
	}
	return func(ctx context.Context) {
		// One that is not given back ends by itself.
		_ = c.ask(ctx, func() error { return release.Run(ctx, c.rdb, []string{c.prefix + key}, token).Err() })
	}, nil
}
