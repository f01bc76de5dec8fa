package zklock_test

import (
	"context"
	"encoding/binary"
	"flag"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/zklock"
)

func TestMain(m *testing.M) {
	// Most of a test's time is waiting, for which it needs no core of its own.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}

const (
	testTTL     = 2400 * time.Millisecond
	testSession = 3600 * time.Millisecond // some seven ticks of the test server
)

// patience is long enough for anything that should happen at all.
const patience = time.Minute

func open(tb testing.TB, addr, prefix string, opts ...zklock.Option) *zklock.Driver {
	tb.Helper()
	all := append([]zklock.Option{zklock.WithSessionTimeout(testSession), zklock.WithPrefix(prefix)}, opts...)
	d, err := zklock.NewDriver(context.Background(), []string{addr}, all...)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// opened is open for a driver that the test closes at its end.
func opened(tb testing.TB, addr, prefix string, opts ...zklock.Option) *zklock.Driver {
	tb.Helper()
	d := open(tb, addr, prefix, opts...)
	tb.Cleanup(func() { d.Close() })
	return d
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// console is a plain client, as an operator has.
type console struct {
	*zk.Conn
	tb testing.TB
}

func dialConsole(tb testing.TB, addr string) console {
	tb.Helper()
	var mu sync.Mutex
	var last net.Conn
	conn, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(silent{}), zk.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, addr, timeout)
		mu.Lock()
		defer mu.Unlock()
		last = c
		return c, err
	}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		conn.Close()
		mu.Lock()
		if last != nil { // the library may wait for a greeting for more than a minute
			last.Close()
		}
		mu.Unlock()
		for range events {
			continue
		}
	})
	if _, _, err := conn.Exists("/"); err != nil { // its goroutines run from here on
		tb.Fatal(err)
	}
	return console{conn, tb}
}

// line are the children of a key.
func (c console) line(prefix, key string) []string {
	c.tb.Helper()
	children, _, err := c.Children(zklock.KeyPath(prefix, key))
	if err != nil && err != zk.ErrNoNode {
		c.tb.Fatal(err)
	}
	return children
}

func (c console) deleteLine(tb testing.TB, prefix, key string) {
	tb.Helper()
	for _, name := range c.line(prefix, key) {
		if err := c.Delete(zklock.KeyPath(prefix, key)+"/"+name, -1); err != nil && err != zk.ErrNoNode {
			tb.Fatal(err)
		}
	}
}

func harness(tb testing.TB, server testenv.Space) lockstest.Harness {
	prefix := "/" + server.Name + "/locks"
	c := dialConsole(tb, server.Addr)
	return lockstest.Harness{
		New:    func(tb testing.TB) driver.Driver { return open(tb, server.Addr, prefix) },
		Delete: func(tb testing.TB, key string) { c.deleteLine(tb, prefix, key) },
		Proxied: func(tb testing.TB) (driver.Driver, func(), func()) {
			p := faultproxy.Start(tb, server.Addr)
			return open(tb, p.Addr(), prefix), func() { p.BlackHole(faultproxy.Both) }, p.Pass
		},
		TTL: testTTL, Sessions: true,
	}
}

func TestConformance(t *testing.T) { lockstest.Run(t, harness(t, testenv.SharedZooKeeper(t))) }

// All traffic through a proxy, as slow as a network.
func TestConformanceThroughAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	server := testenv.SharedZooKeeper(t)
	proxy := faultproxy.Start(t, server.Addr)
	proxy.Delay(faultproxy.Both, time.Millisecond)
	h := harness(t, server)
	h.New = func(tb testing.TB) driver.Driver { return open(tb, proxy.Addr(), "/"+server.Name+"/locks") }
	lockstest.Run(t, h)
}

func BenchmarkLock(b *testing.B) {
	server := testenv.ZooKeeper(b, "maxSessionTimeout=600000")
	lockstest.Bench(b, lockstest.Harness{
		New: func(tb testing.TB) driver.Driver {
			return open(tb, server.Addr(), "/bench", zklock.WithSessionTimeout(90*time.Second))
		},
		TTL: time.Minute, Sessions: true,
	})
}

func request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: testTTL, Label: "host:1"}
}

func within(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}

func hold(tb testing.TB, d driver.Driver, r driver.Request) driver.Hold {
	tb.Helper()
	g, err := d.Acquire(within(tb, patience), r)
	if err != nil {
		tb.Fatal(err)
	}
	return driver.Hold{Request: r, Fence: g.Fence}
}

func wantReleased(tb testing.TB, d driver.Driver, h driver.Hold, want driver.Released) {
	tb.Helper()
	if got, err := d.Release(within(tb, patience), h); err != nil || got != want {
		tb.Fatalf("Release = %v, %v; want %v", got, err, want)
	}
}

// await waits until what is looked at again and again has come true.
func await(tb testing.TB, what string, limit time.Duration, done func() bool) {
	tb.Helper()
	limit += patience // on a machine that is busy with other things
	end := time.Now().Add(limit)
	for !done() {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", limit, what)
		}
		tick := time.NewTimer(5 * time.Millisecond)
		<-tick.C
	}
}

// counter counts the requests of a client by their operation.
type counter struct {
	mu sync.Mutex
	n  map[int32]int
}

// Operations of the protocol.
const (
	opCreate      = 1
	opDelete      = 2
	opGetData     = 4
	opSync        = 9
	opChildren    = 12
	opContainer   = 19
	opPing        = 11
	opSetWatches  = 101
	opAuth        = 100
	opClose       = -11
	opConnectHead = 0
)

var quiet = map[int32]bool{opPing: true, opSetWatches: true, opAuth: true, opClose: true, opConnectHead: true}

func (c *counter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, c: c}, nil
}

// take returns the counts since the last call, without what the library sends.
func (c *counter) take() map[int32]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = nil
	return n
}

type countedConn struct {
	net.Conn
	c       *counter
	greeted bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	if c.greeted && len(b) >= 12 {
		op := int32(binary.BigEndian.Uint32(b[8:]))
		if !quiet[op] {
			c.c.mu.Lock()
			if c.c.n == nil {
				c.c.n = make(map[int32]int)
			}
			c.c.n[op]++
			c.c.mu.Unlock()
		}
	}
	c.greeted = true
	return c.Conn.Write(b)
}
