package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
)

var redisContenders = []contender{
	{name: "bare go-redis", bare: true, in: []string{cycle, parallel, memory}, open: openBareRedis},
	{name: "bare BLPOP", bare: true, in: []string{handOver}, open: openBLPop},
	{name: "solotick", ours: true, open: openRedis()},
	{name: "solotick, fair", ours: true, in: []string{handOver}, open: openRedis(redislock.Fair())},
	{name: "rueidislock", open: openRueidis(1, true)},
	{name: "rueidislock, defaults", in: []string{parallel}, open: openRueidis(0, false)},
	{name: "redsync", open: openRedsync((*env).redisList)},
	{name: "redislock", open: openRedislock},
}

var redlockContenders = []contender{
	{name: "bare go-redis", bare: true, in: []string{cycle}, open: openBareRedlock},
	{name: "solotick", ours: true, in: []string{cycle, memory}, open: openRedlock},
	{name: "redsync", in: []string{cycle, memory}, open: openRedsync((*env).redises)},
}

func (e *env) redisList() []string { return []string{e.redis()} }

var quiet = slog.New(slog.DiscardHandler)

func redisClient(addr string, sent *atomic.Int64) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, Dialer: dial(sent), PoolSize: 40, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
	})
}

// redlockClient keeps no connections of its own for pipelines, as redlock advises.
func redlockClient(addr string, sent *atomic.Int64) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, Dialer: dial(sent), PoolSize: 4, PipelinePoolSize: -1, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
	})
}

func openRedis(opts ...redislock.Option) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		rdb := redisClient(e.redis(), sent)
		all := append([]redislock.Option{redislock.WithPrefix(name + ":"), redislock.WithLogger(quiet)}, opts...)
		l, err := redislock.New(rdb, &locks.Config{TTL: ttl}, all...)
		if err != nil {
			return process{}, errors.Join(err, rdb.Close())
		}
		return ofLocker(l, rdb.Close), nil
	}
}

// The bare protocol: a lock with a token and a fence, and a release that looks at the
// token and wakes those who wait.
var (
	bareAcquire = redis.NewScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
	bareRelease = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[1], '') return 1 end return 0`)
)

var errHeld = errors.New("held")

func bareTry(ctx context.Context, rdb *redis.Client, key, token string) error {
	fence, err := bareAcquire.Run(ctx, rdb, []string{"{" + key + "}", "{" + key + "}:f"}, token, ttl.Milliseconds()).Int64()
	if err == nil && fence == 0 {
		err = errHeld
	}
	return err
}

func openBareRedis(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	rdb := redisClient(e.redis(), sent)
	try := func(ctx context.Context, key string) (release, error) {
		key = name + ":" + key
		token := rand.Text()
		if err := bareTry(ctx, rdb, key, token); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			return bareRelease.Run(ctx, rdb, []string{"{" + key + "}"}, token).Err()
		}, nil
	}
	return process{try: try, wait: try, close: closing(rdb.Close)}, nil
}

// openBLPop hands a token over through a list: whoever takes it out has the lock.
func openBLPop(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	rdb := redisClient(e.redis(), sent)
	// The first process puts it in.
	if first, err := rdb.SetNX(ctx, name+":made", 1, 0).Result(); err != nil {
		return process{}, errors.Join(err, rdb.Close())
	} else if first {
		if err := rdb.RPush(ctx, name, "token").Err(); err != nil {
			return process{}, errors.Join(err, rdb.Close())
		}
	}
	wait := func(ctx context.Context, _ string) (release, error) {
		if err := rdb.BLPop(ctx, 0, name).Err(); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return rdb.RPush(ctx, name, "token").Err() }, nil
	}
	return process{try: wait, wait: wait, close: closing(rdb.Close)}, nil
}

// openRueidis runs rueidislock on one server: with one key for a lock and NOLOOP, as its
// documentation recommends for one server of version 7.0.5 or later, and which is the
// least that it can do; or with its defaults, which are three keys of which two count.
func openRueidis(majority int32, noLoop bool) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		return rueidisLocker(e, name, sent, majority, noLoop)
	}
}

func rueidisLocker(e *env, name string, sent *atomic.Int64, majority int32, noLoop bool) (process, error) {
	connect := dial(sent)
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{e.redis()},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return connect(ctx, "tcp", addr)
			},
		},
		KeyPrefix: name, KeyMajority: majority, KeyValidity: ttl, NoLoopTracking: noLoop,
	})
	if err != nil {
		return process{}, err
	}
	taken := func(_ context.Context, cancel context.CancelFunc, err error) (release, error) {
		if err != nil {
			return nil, err
		}
		return func(context.Context) error { cancel(); return nil }, nil
	}
	return process{
		try:   func(ctx context.Context, key string) (release, error) { return taken(l.TryWithContext(ctx, key)) },
		wait:  func(ctx context.Context, key string) (release, error) { return taken(l.WithContext(ctx, key)) },
		close: closing(func() error { l.Close(); return nil }),
	}, nil
}

// openRedsync runs redsync with its own pauses between two looks, 50 to 250 ms, and
// without its limit on their number.
func openRedsync(addrs func(*env) []string) func(context.Context, *env, string, *atomic.Int64) (process, error) {
	return func(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
		var pools []redsyncpool.Pool
		var closers []func() error
		for _, addr := range addrs(e) {
			rdb := redisClient(addr, sent)
			pools = append(pools, goredis.NewPool(rdb))
			closers = append(closers, rdb.Close)
		}
		rs := redsync.New(pools...)
		take := func(lock func(*redsync.Mutex, context.Context) error, tries int) func(context.Context, string) (release, error) {
			return func(ctx context.Context, key string) (release, error) {
				m := rs.NewMutex(name+":"+key, redsync.WithExpiry(ttl), redsync.WithTries(tries))
				if err := lock(m, ctx); err != nil {
					return nil, err
				}
				return func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }, nil
			}
		}
		return process{
			try: take((*redsync.Mutex).TryLockContext, 1), wait: take((*redsync.Mutex).LockContext, 1_000_000),
			close: closing(func() error {
				var errs []error
				for _, f := range closers {
					errs = append(errs, f())
				}
				return errors.Join(errs...)
			}),
		}, nil
	}
}

// openRedislock runs bsm/redislock with the pause between two looks that its
// documentation shows.
func openRedislock(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	rdb := redisClient(e.redis(), sent)
	client := bsm.New(rdb)
	take := func(retry bsm.RetryStrategy) func(context.Context, string) (release, error) {
		return func(ctx context.Context, key string) (release, error) {
			l, err := client.Obtain(ctx, name+":"+key, ttl, &bsm.Options{RetryStrategy: retry})
			if err != nil {
				return nil, err
			}
			return l.Release, nil
		}
	}
	return process{try: take(bsm.NoRetry()), wait: take(bsm.LinearBackoff(100 * time.Millisecond)), close: closing(rdb.Close)}, nil
}

func openRedlock(_ context.Context, e *env, _ string, sent *atomic.Int64) (process, error) {
	var clients []redis.UniversalClient
	var closers []func() error
	for _, addr := range e.redises() {
		rdb := redlockClient(addr, sent)
		clients = append(clients, rdb)
		closers = append(closers, rdb.Close)
	}
	l, err := redlock.New(clients, &locks.Config{TTL: ttl}, redlock.TrustFirstSight())
	if err != nil {
		return process{}, err
	}
	return ofLocker(l, closers...), nil
}

// openBareRedlock asks three servers together, twice, as it takes for a fence that
// grows (see package redlock), and once for a release.
func openBareRedlock(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	var clients []*redis.Client
	for _, addr := range e.redises() {
		clients = append(clients, redisClient(addr, sent))
	}
	each := func(do func(*redis.Client) error) error {
		errs := make(chan error, len(clients))
		for _, rdb := range clients {
			go func() { errs <- do(rdb) }()
		}
		var all []error
		for range clients {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	}
	try := func(ctx context.Context, key string) (release, error) {
		key = name + ":" + key
		token := rand.Text()
		if err := each(func(rdb *redis.Client) error { return bareTry(ctx, rdb, key, token) }); err != nil {
			return nil, err
		}
		settle := func(rdb *redis.Client) error {
			return bareSettle.Run(ctx, rdb, []string{"{" + key + "}", "{" + key + "}:f"}, token, 1).Err()
		}
		if err := each(settle); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			return each(func(rdb *redis.Client) error {
				return bareRelease.Run(ctx, rdb, []string{"{" + key + "}"}, token).Err()
			})
		}, nil
	}
	return process{try: try, wait: try, close: closing(func() error { return each((*redis.Client).Close) })}, nil
}

var bareSettle = redis.NewScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end if tonumber(redis.call('GET', KEYS[2])) < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end return 1`)
