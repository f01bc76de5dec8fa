package etcdlock_test

import (
	"context"
	"flag"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

func TestMain(m *testing.M) {
	// Most of a test's time is waiting, for which it needs no core of its own.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}

// ttl is a short TTL that etcd honours: it ends leases every half second.
const ttl = 3 * time.Second

// counter counts what a client sends.
type counter struct{ txns, reads, looks, grants, watches, beats atomic.Int64 }

func (c *counter) all() int64 {
	return c.txns.Load() + c.reads.Load() + c.looks.Load() + c.grants.Load() + c.watches.Load() + c.beats.Load()
}

func (c *counter) reset() {
	for _, n := range []*atomic.Int64{&c.txns, &c.reads, &c.looks, &c.grants, &c.watches, &c.beats} {
		n.Store(0)
	}
}

func (c *counter) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch method {
	case "/etcdserverpb.KV/Txn":
		c.txns.Add(1)
	case "/etcdserverpb.Lease/LeaseTimeToLive":
		c.looks.Add(1)
	case "/etcdserverpb.Lease/LeaseGrant":
		c.grants.Add(1)
	default:
		c.reads.Add(1)
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *counter) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	n := &c.beats
	if method == "/etcdserverpb.Watch/Watch" {
		n = &c.watches
	}
	return countedStream{s, n}, nil
}

type countedStream struct {
	grpc.ClientStream
	sent *atomic.Int64
}

func (s countedStream) SendMsg(m any) error {
	s.sent.Add(1)
	return s.ClientStream.SendMsg(m)
}

// settings for a client that prints nothing and repeats little.
func settings(c *counter, addrs ...string) clientv3.Config {
	silent := logutil.DefaultZapLoggerConfig
	silent.OutputPaths, silent.ErrorOutputPaths = nil, nil
	conf := clientv3.Config{Endpoints: addrs, LogConfig: &silent, DialTimeout: 5 * time.Second, MaxUnaryRetries: 3}
	if c != nil {
		conf.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
	}
	return conf
}

func dial(tb testing.TB, conf clientv3.Config) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(conf)
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// console is a client that lives as long as the test.
func console(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	client := dial(tb, settings(nil, addrs...))
	tb.Cleanup(func() { client.Close() })
	return client
}

// process is a driver with a client of its own, as a process has.
type process struct {
	*etcdlock.Driver
	client *clientv3.Client
	sent   *counter
}

func (p process) Close() error {
	err := p.Driver.Close()
	p.client.Close()
	return err
}

func open(tb testing.TB, prefix string, addrs ...string) process {
	tb.Helper()
	c := new(counter)
	client := dial(tb, settings(c, addrs...))
	d, err := etcdlock.NewDriver(client, etcdlock.WithPrefix(prefix))
	if err != nil {
		tb.Fatal(err)
	}
	return process{d, client, c}
}

// start is open for a driver that is closed with the test.
func start(tb testing.TB, prefix string, addrs ...string) process {
	tb.Helper()
	p := open(tb, prefix, addrs...)
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return p
}

func request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: ttl, Label: "host:1"}
}

func grant(tb testing.TB, d driver.Driver, r driver.Request) driver.Hold {
	tb.Helper()
	g, err := d.Acquire(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return driver.Hold{Request: r, Fence: g.Fence}
}

func release(tb testing.TB, d driver.Driver, h driver.Hold) {
	tb.Helper()
	if out, err := d.Release(tb.Context(), h); err != nil || out != driver.ReleasedOK {
		tb.Fatalf("release: %v, %v", out, err)
	}
}

// queued is the outcome of a wait.
type queued struct {
	hold driver.Hold
	err  error
	at   time.Time
}

func queue(ctx context.Context, d driver.Queuer, r driver.Request) <-chan queued {
	out := make(chan queued, 1)
	go func() {
		g, err := d.AcquireQueued(ctx, r)
		out <- queued{driver.Hold{Request: r, Fence: g.Fence}, err, time.Now()}
	}()
	return out
}

// patience is long enough for anything that should happen at all.
const patience = time.Minute

func take(tb testing.TB, c <-chan queued) queued {
	tb.Helper()
	select {
	case q := <-c:
		return q
	case <-time.After(patience):
		tb.Fatalf("no outcome within %v", patience)
		return queued{}
	}
}

// until waits for a condition that another process brings about.
func until(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !cond(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", what)
		}
	}
}

// count is the number of keys that begin with prefix.
func count(tb testing.TB, c *clientv3.Client, prefix string) int {
	tb.Helper()
	resp, err := c.Get(context.WithoutCancel(tb.Context()), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		tb.Fatal(err)
	}
	return int(resp.Count)
}
