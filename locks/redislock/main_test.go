package redislock_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redislock"
)

func TestMain(m *testing.M) {
	logging.Disable() // the client's own log of what tests break on purpose
	// The client looks once a second for a server that was away, also after its end.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var quiet = slog.New(slog.DiscardHandler)

// unannounced spares every new connection a request that Redis itself refuses.
var unannounced = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// client is a client of its own, as a process has, set as New's comment says.
func client(addr string, db int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, DB: db, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second,
		MaintNotificationsConfig: unannounced,
	})
}

// closing is a driver with a client of its own.
type closing struct {
	*redislock.Driver
	rdb redis.UniversalClient
}

func (c closing) Close() error {
	err := c.Driver.Close()
	if cerr := c.rdb.Close(); err == nil {
		err = cerr
	}
	return err
}

func open(tb testing.TB, rdb redis.UniversalClient, opts ...redislock.Option) driver.Driver {
	tb.Helper()
	d, err := redislock.NewDriver(rdb, append([]redislock.Option{redislock.WithLogger(quiet)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return closing{d, rdb}
}

// process is a driver that ends with the test.
func process(tb testing.TB, addr string, db int, opts ...redislock.Option) closing {
	tb.Helper()
	d := open(tb, client(addr, db), opts...).(closing)
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

func console(tb testing.TB, addr string, db int) *redis.Client {
	tb.Helper()
	c := client(addr, db)
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

func harness(tb testing.TB, addr string, db int, opts ...redislock.Option) lockstest.Harness {
	admin := console(tb, addr, db)
	return lockstest.Harness{
		TTL: time.Second, Withdraws: true,
		New: func(tb testing.TB) driver.Driver { return open(tb, client(addr, db), opts...) },
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			k := redislock.RedisKey(redislock.DefaultPrefix, key)
			if err := admin.Del(context.Background(), k, k+":f").Err(); err != nil {
				tb.Fatal(err)
			}
		},
		Proxied: func(tb testing.TB) (d driver.Driver, cut, heal func()) {
			p := faultproxy.Start(tb, addr)
			return open(tb, client(p.Addr(), db), opts...), func() { p.BlackHole(faultproxy.Both) }, func() { p.Pass() }
		},
	}
}
