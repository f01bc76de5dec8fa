package redislock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redislock"
)

func BenchmarkLock(b *testing.B) {
	s := testenv.SharedRedis(b)
	lockstest.Bench(b, harness(b, s.Addr, s.DB))
}

// The bare protocol: a lock with a token and a fence, and a release that looks at
// the token.
var (
	bareAcquire = redis.NewScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
	bareRelease = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

func bareCycle(ctx context.Context, rdb *redis.Client, key string) error {
	token := driver.NewToken().String()
	keys := []string{"{" + key + "}", "{" + key + "}:f"}
	if err := bareAcquire.Run(ctx, rdb, keys, token, 60000).Err(); err != nil {
		return err
	}
	return bareRelease.Run(ctx, rdb, keys, token).Err()
}

func cycle(ctx context.Context, l *locks.Locker, key string) error {
	lease, err := l.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// BenchmarkAgainstBare alternates with bare calls of the same client, and reports
// the ratios: time of a cycle alone, and throughput of 32 goroutines on 32 keys
// against bare calls one after the other.
func BenchmarkAgainstBare(b *testing.B) {
	s := testenv.SharedRedis(b)
	ctx := context.Background()
	rdb := client(s.Addr, s.DB)
	defer func() { _ = rdb.Close() }()
	l, err := redislock.New(rdb, &locks.Config{TTL: time.Minute}, redislock.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close(ctx) }()
	const part, callers = 100, 32
	timed := func(f func() error) time.Duration {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	many := func(n int, f func(key string) error) func() error {
		return func() error {
			for range n {
				if err := f("bench"); err != nil {
					return err
				}
			}
			return nil
		}
	}
	one := func(key string) error { return cycle(ctx, l, key) }
	bare := func(key string) error { return bareCycle(ctx, rdb, key) }
	together := func() error {
		errs := make([]error, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				key := "bench" + strconv.Itoa(i)
				for range part {
					if err := one(key); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
	var ours, theirs, shared time.Duration
	for b.Loop() {
		theirs += timed(many(part, bare))
		ours += timed(many(part, one))
		shared += timed(together)
	}
	b.ReportMetric(float64(ours)/float64(theirs), "cycle/bare")
	b.ReportMetric(callers*float64(theirs)/float64(shared), "throughput32/bare")
	b.ReportMetric(float64(theirs.Microseconds())/float64(part*b.N), "bare-µs")
}

// BenchmarkHandOver is the time from the release to the next holder's return, with
// waiters in processes of their own, against a bare BLPOP.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.SharedRedis(b)
	ctx := context.Background()
	for _, waiters := range []int{2, 8} {
		b.Run(fmt.Sprint("fair-", waiters), func(b *testing.B) {
			given := make(chan *locks.Lease)
			stop, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			for range waiters {
				l := locker(b, open(b, client(s.Addr, s.DB), redislock.Fair()), locks.Config{TTL: time.Minute})
				wg.Go(func() {
					for {
						lease, err := l.Acquire(stop, "hand-over")
						if err != nil {
							return
						}
						select {
						case given <- lease:
						case <-stop.Done():
							_ = lease.Release(ctx)
							return
						}
					}
				})
			}
			lease := <-given
			for b.Loop() {
				<-time.After(time.Millisecond)
				if err := lease.Release(ctx); err != nil {
					b.Fatal(err)
				}
				lease = <-given
			}
			cancel()
			_ = lease.Release(ctx)
			wg.Wait()
		})
	}
}
