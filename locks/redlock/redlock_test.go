package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redlock"
)

func TestMain(m *testing.M) {
	logging.Disable() // the client's own log of what tests break on purpose
	// The client looks once a second for a server that was away, also after its end.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patience is long enough for whatever should happen at all, on any machine. Where it
// is a node's time too, who waits for a silent node is seen to.
const patience = time.Minute

func client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 4,
		// Only the driver's own bounds are to count here.
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
		// A connection that is dialled late must not look like memory that leaks.
		ReadBufferSize: 4096, WriteBufferSize: 4096, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func clients(addrs []string) []redis.UniversalClient {
	nodes := make([]redis.UniversalClient, len(addrs))
	for i, addr := range addrs {
		nodes[i] = client(addr)
	}
	return nodes
}

// closing is a driver with clients of its own, as a process has.
type closing struct {
	*redlock.Driver
	nodes []redis.UniversalClient
}

func (c closing) Close() error {
	err := c.Driver.Close()
	for _, n := range c.nodes {
		err = errors.Join(err, n.Close())
	}
	return err
}

func open(tb testing.TB, addrs []string, opts ...redlock.Option) closing {
	tb.Helper()
	nodes := clients(addrs)
	d, err := redlock.NewDriver(nodes, append([]redlock.Option{redlock.TrustFirstSight(), redlock.WithMaxTTL(time.Hour)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return closing{d, nodes}
}

// dialled has a connection to each node: eight processes that dial at once are slower
// than a node may be.
func dialled(tb testing.TB, d closing) closing {
	tb.Helper()
	for _, n := range d.nodes {
		if err := n.Ping(context.Background()).Err(); err != nil {
			tb.Fatal(err)
		}
	}
	return d
}

func process(tb testing.TB, addrs []string, opts ...redlock.Option) closing {
	tb.Helper()
	d := open(tb, addrs, opts...)
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

func addrs(servers []*testenv.Server) []string {
	out := make([]string, len(servers))
	for i, s := range servers {
		out[i] = s.Addr()
	}
	return out
}

func admins(tb testing.TB, addrs []string) []*redis.Client {
	tb.Helper()
	out := make([]*redis.Client, len(addrs))
	for i, addr := range addrs {
		c := client(addr)
		out[i] = c
		if err := c.Ping(tb.Context()).Err(); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = c.Close() })
	}
	return out
}

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	nodes := addrs(testenv.Redises(t, 3))
	lockstest.Run(t, harness(t, nodes, nodes))
}

// All traffic through proxies, as slow as a network, of which each cuts its
// connections where the suite asks for a restart.
func TestConformanceThroughProxies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	for _, p := range proxies {
		p.Delay(faultproxy.Both, time.Millisecond)
	}
	h := harness(t, nodes, behind)
	h.Restart = func(testing.TB) {
		for _, p := range proxies {
			p.Reset()
		}
	}
	lockstest.Run(t, h)
}

// harness is for drivers that reach the nodes at addrs.
func harness(t *testing.T, nodes, addrs []string) lockstest.Harness {
	t.Helper()
	admin := admins(t, nodes)
	busy := redlock.WithNodeTimeout(2 * time.Second) // as is the test machine
	return lockstest.Harness{
		TTL:   3 * time.Second,
		Votes: true,
		New:   func(tb testing.TB) driver.Driver { return dialled(tb, open(tb, addrs, busy)) },
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			for _, a := range admin {
				if err := a.Del(context.Background(), redlock.DefaultPrefix+key, redlock.DefaultPrefix+key+"\x00f").Err(); err != nil {
					tb.Fatal(err)
				}
			}
		},
		Proxied: func(tb testing.TB) (d driver.Driver, cut, heal func()) {
			tb.Helper()
			proxies, behind := through(tb, nodes)
			each := func(f func(*faultproxy.Proxy)) func() {
				return func() {
					for _, p := range proxies {
						f(p)
					}
				}
			}
			return dialled(tb, open(tb, behind, busy)), each(func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) }), each(func(p *faultproxy.Proxy) { p.Pass() })
		},
	}
}

func request(key string, ttl time.Duration) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: ttl, Label: "host 1"}
}

func hold(tb testing.TB, d driver.Driver, r driver.Request) driver.Hold {
	tb.Helper()
	g, err := d.Acquire(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return driver.Hold{Request: r, Fence: g.Fence}
}

// holdWhenFree asks until no node holds the key for another: one that was paused may
// still carry out what it was sent.
func holdWhenFree(tb testing.TB, d driver.Driver, r driver.Request) driver.Hold {
	tb.Helper()
	for end := time.Now().Add(patience); ; {
		g, err := d.Acquire(tb.Context(), r)
		if err == nil {
			return driver.Hold{Request: r, Fence: g.Fence}
		}
		if !isHeld(err) || time.Now().After(end) {
			tb.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}

// records waits until n nodes have a record of the key, of the token if given.
func records(tb testing.TB, admin []*redis.Client, key, token string, n int) {
	tb.Helper()
	for end := time.Now().Add(patience); ; <-time.After(2 * time.Millisecond) {
		got := 0
		for _, a := range admin {
			if v, err := a.Get(context.Background(), redlock.DefaultPrefix+key).Result(); err == nil && strings.HasPrefix(v, token) {
				got++
			}
		}
		if got == n {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d nodes have a record of %q, want %d", got, key, n)
		}
	}
}

// A node that answers late is locked to the end, so that one loss does not take
// the majority away (redsync issue 186).
func TestOtherNodesAreLockedInTheBackground(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 5))
	admin := admins(t, nodes)
	through := append([]string(nil), nodes...)
	var slow []*faultproxy.Proxy
	for i := range 2 {
		p := faultproxy.Start(t, nodes[i])
		slow, through[i] = append(slow, p), p.Addr()
	}
	patient := redlock.WithNodeTimeout(patience)
	a, b := process(t, through, patient), process(t, nodes, patient)
	hold(t, a, request("warm", time.Hour))
	for _, p := range slow {
		p.BlackHole(faultproxy.ToServer)
	}
	start := time.Now()
	h := hold(t, a, request("k", time.Hour))
	if took := time.Since(start); took > patience/2 {
		t.Errorf("waited %v for the slow nodes", took)
	}
	records(t, admin[:2], "k", "", 0)
	for _, p := range slow {
		p.Pass()
	}
	records(t, admin, "k", h.Token.String(), 5)
	for i := 2; i < 4; i++ { // two of the three that decided lose all they have
		if err := admin[i].FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Acquire(t.Context(), request("k", time.Minute)); !isHeld(err) {
			t.Fatalf("after the loss of %d nodes: %v", i-1, err)
		}
		// The key is made anew once what the other got there is taken back.
		for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
			if _, err := a.Renew(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			v := admin[i].Get(t.Context(), redlock.DefaultPrefix+"k").Val()
			if strings.HasPrefix(v, h.Token.String()) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the node has %q", v)
			}
		}
	}
}

func TestStoppedNodesAreNotWaitedFor(t *testing.T) {
	servers := testenv.Redises(t, 5)
	nodes := addrs(servers)
	patient := redlock.WithNodeTimeout(patience)
	d, other, brief := process(t, nodes, patient), process(t, nodes, patient), process(t, nodes, redlock.WithNodeTimeout(300*time.Millisecond))
	hold(t, d, request("warm", time.Hour))
	hold(t, other, request("warm2", time.Hour))
	servers[0].Pause()
	servers[1].Kill()
	start := time.Now()
	h := hold(t, d, request("k", time.Hour))
	if _, err := other.Acquire(t.Context(), request("k", time.Hour)); !isHeld(err) {
		t.Error(err)
	}
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("four requests took %v", took)
	}
	servers[2].Kill()
	_, err := brief.Acquire(t.Context(), request("k", time.Hour))
	if err == nil || isHeld(err) || !driver.IsNotApplied(err) {
		t.Errorf("two of five nodes: %v", err)
	}
	// What a stopped node was asked arrives when it goes on, and leaves nothing.
	servers[0].Resume()
	d.Settled()
	admin := admins(t, nodes[:1])
	records(t, admin, "k", "", 0)
}

// What was taken back is not put in place by a request that arrives even later.
func TestLateAcquireLeavesNoOrphan(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	through := append([]string(nil), nodes...)
	p := faultproxy.Start(t, nodes[0])
	through[0] = p.Addr()
	patient := redlock.WithNodeTimeout(patience)
	other := process(t, nodes, patient)
	// The first node's client gives up soon, and only that.
	mine, gaveUp := clients(through[1:]), make(onError, 1)
	hasty := client(through[0]).Options()
	hasty.ReadTimeout = 300 * time.Millisecond
	first := redis.NewClient(hasty)
	first.AddHook(gaveUp)
	driven, err := redlock.NewDriver(append([]redis.UniversalClient{first}, mine...), redlock.TrustFirstSight(), redlock.WithMaxTTL(time.Hour), patient)
	if err != nil {
		t.Fatal(err)
	}
	d := closing{driven, append(mine, first)}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	theirs := hold(t, other, request("k", time.Hour))
	records(t, admin, "k", theirs.Token.String(), 3) // a majority was enough for the grant
	if err := admin[0].Del(t.Context(), redlock.DefaultPrefix+"k").Err(); err != nil {
		t.Fatal(err)
	}
	if err := first.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.BlackHole(faultproxy.ToServer)
	r := request("k", time.Hour)
	if _, err := d.Acquire(t.Context(), r); !isHeld(err) {
		t.Fatal(err)
	}
	select {
	case <-gaveUp:
	case <-time.After(patience):
		t.Fatal("the first node is still waited for")
	}
	p.Pass() // now the acquire arrives, before or after the release
	mark := redlock.DefaultPrefix + "k\x00x" + r.Token.String()
	for end := time.Now().Add(patience); admin[0].Exists(t.Context(), mark).Val() == 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the request was not taken back")
		}
	}
	if v, err := admin[0].Get(t.Context(), redlock.DefaultPrefix+"k").Result(); err == nil && strings.HasPrefix(v, r.Token.String()) {
		t.Error("an orphan on the slow node")
	}
	again := process(t, nodes, patient)
	if v, err := again.Acquire(t.Context(), r); err == nil {
		t.Errorf("a request that was taken back was granted: %v", v)
	}
	if _, err := other.Renew(t.Context(), theirs); err != nil {
		t.Error(err)
	}
}

// A node that granted after the majority has a higher number of its own until it is
// told the grant's.
func TestInspectTellsTheFenceOfTheGrant(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	d := process(t, nodes, redlock.WithNodeTimeout(patience))
	h := hold(t, d, request("k", time.Hour))
	d.Settled()
	k := redlock.DefaultPrefix + "k"
	record := strings.Fields(admin[2].Get(t.Context(), k).Val())
	record[1], record[2] = strconv.FormatInt(h.Fence+1000, 10), "n"
	if err := admin[2].Set(t.Context(), k, strings.Join(record, " "), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if x, err := d.Inspect(t.Context(), "k"); err != nil || x.Fence != h.Fence {
		t.Errorf("fence %d, %v; want %d", x.Fence, err, h.Fence)
	}
}

// onError is told of the first script that a client had no answer to.
type onError chan error

func (c onError) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c onError) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c onError) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err != nil && cmds[0].Name() == "evalsha" && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			select {
			case c <- err:
			default:
			}
		}
		return err
	}
}

// A node that has forgotten must not make a second majority.
func TestRestartedNodeGrantsNothing(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	a, b := process(t, nodes), process(t, nodes)
	hold(t, b, request("warm", time.Minute)) // has seen the nodes
	records(t, admin, "warm", "", 3)
	h := hold(t, a, request("k", time.Minute))
	records(t, admin, "k", h.Token.String(), 3)
	for i := range 2 { // one after the other, without a renewal in between
		servers[i].Kill()
		servers[i].Restart()
	}
	// Two of three know nothing of the grant.
	_, err := b.Acquire(t.Context(), request("k", time.Minute))
	if err == nil {
		t.Fatal("two holders")
	}
	fresh := process(t, nodes)
	if _, err := fresh.Acquire(t.Context(), request("other", time.Minute)); err != nil {
		t.Errorf("nodes that are trusted at first sight: %v", err)
	}
	unknown := clients(nodes)
	wary, err := redlock.NewDriver(unknown, redlock.WithNodeTimeout(patience)) // a node that is slow says nothing of itself
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closing{wary, unknown}.Close() }()
	if _, err := wary.Acquire(t.Context(), request("another", 10*time.Second)); err == nil || !strings.Contains(err.Error(), "started within the longest TTL") {
		t.Errorf("nodes that are new: %v", err)
	}
}

// The fence grows over any order of nodes that are away. Without the second round
// a majority of slow counters would give a lower number than one fast counter has.
func TestFenceGrowsOverChangingMajorities(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	// Node 1 counts far ahead, as a clock that was set wrong for a time leaves it.
	ahead := time.Now().Add(24 * time.Hour).UnixMicro()
	if err := admin[0].Set(t.Context(), redlock.DefaultPrefix+"k\x00f", ahead, 0).Err(); err != nil {
		t.Fatal(err)
	}
	d := process(t, nodes, redlock.WithNodeTimeout(patience))
	var last int64
	for _, away := range []int{2, 0, 1, 0, 2} {
		servers[away].Pause()
		h := holdWhenFree(t, d, request("k", time.Hour))
		if h.Fence <= last {
			t.Fatalf("fence %d after %d without node %d", h.Fence, last, away+1)
		}
		last = h.Fence
		if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
			t.Fatal(out, err)
		}
		servers[away].Resume()
		d.Settled() // what that node was asked is answered and given back
		records(t, admin, "k", "", 0)
	}
	if last <= ahead {
		t.Errorf("the last fence %d is not above the counter that was ahead, %d", last, ahead)
	}
}

func TestLeaseOutlivesNodesOneAfterTheOther(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	// Only a loss of the key can end the lease: no renewal is too slow.
	cfg := locks.Config{TTL: time.Hour, RenewInterval: 300 * time.Millisecond, RequestTimeout: patience / 2}
	patient := redlock.WithNodeTimeout(patience)
	l := locker(t, open(t, nodes, patient), cfg)
	b := process(t, nodes, patient)
	hold(t, b, request("warm", time.Hour)) // has seen the nodes
	lease := take(t, l, "k")
	for i := range servers {
		records(t, admin, "k", lease.Token(), 3)
		servers[i].Kill()
		servers[i].Restart()
		if _, err := b.Acquire(t.Context(), request("k", time.Hour)); err == nil {
			t.Fatal("two holders")
		}
	}
	records(t, admin, "k", lease.Token(), 3)
	if lease.Err() != nil {
		t.Fatal(lease.Err())
	}
	// A majority lost between two renewals is told. A renewal that comes between the
	// nodes' losses makes the key anew on one: then they lose it again.
	for end := time.Now().Add(patience); lease.Err() == nil; <-time.After(50 * time.Millisecond) {
		for _, a := range admin {
			if err := a.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(end) {
			t.Fatal("not told")
		}
	}
}

// stuck answers the second pipeline only with the end of the driver.
type stuck struct {
	onError
	asked atomic.Int64
	here  chan struct{}
}

func (s *stuck) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if s.asked.Add(1) == 2 {
			close(s.here)
			<-ctx.Done()
			return ctx.Err()
		}
		return next(ctx, cmds)
	}
}

// Who takes back after a split vote hears of the end of the driver.
func TestCloseEndsASplitVote(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	d := open(t, nodes, redlock.WithNodeTimeout(patience))
	hold(t, d, request("warm", time.Hour)) // the nodes know the scripts
	d.Checked()
	d.Settled()
	for i, a := range admin[:2] {
		record := fmt.Sprintf("%032x %d n %d other", i+1, i+1, i+1)
		if err := a.Set(t.Context(), redlock.DefaultPrefix+"k", record, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s := &stuck{here: make(chan struct{})}
	d.nodes[2].(*redis.Client).AddHook(s)
	told := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), request("k", time.Hour))
		told <- err
	}()
	<-s.here
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-told:
		if err == nil {
			t.Error("granted")
		}
	case <-time.After(patience / 6):
		t.Error("the caller waits on after the driver has closed")
	}
}
