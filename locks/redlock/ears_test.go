package redlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redlock"
)

// seldom is a locker that would not look again within the test.
var seldom = locks.Config{TTL: time.Hour, Poll: 50 * time.Minute, RequestTimeout: patience}

// listened waits until so many subscribe to the key's channel on each of the nodes.
func listened(t *testing.T, admin []*redis.Client, key string, want int64) {
	t.Helper()
	channel := redlock.DefaultPrefix + key
	for end := time.Now().Add(patience); ; <-time.After(2 * time.Millisecond) {
		all := true
		for _, a := range admin {
			n, err := a.PubSubNumSub(t.Context(), channel).Result()
			all = all && err == nil && n[channel] == want
		}
		if all {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not %d listen on every node", want)
		}
	}
}

// waiting asks for the key, and waits.
func waiting(ctx context.Context, t *testing.T, l *locks.Locker, key string) <-chan *locks.Lease {
	t.Helper()
	come := make(chan *locks.Lease, 1)
	go func() {
		next, err := l.Acquire(ctx, key)
		if err != nil {
			t.Error(err)
		}
		come <- next
	}()
	return come
}

// passOn releases, and returns the lease of who waits.
func passOn(t *testing.T, lease *locks.Lease, come <-chan *locks.Lease) *locks.Lease {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := <-come
	if next == nil {
		t.FailNow()
	}
	return next
}

// Two processes hand a key to each other although neither would look again for an hour:
// with all nodes, after their connections were cut, and with one node gone.
func TestReleaseWakesAnotherProcess(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	var lockers [2]*locks.Locker
	for i := range lockers {
		lockers[i] = locker(t, open(t, nodes, patient), seldom)
	}
	var longest time.Duration
	for i := range 12 {
		key := fmt.Sprint("k", i)
		lease := take(t, lockers[i%2], key)
		come := waiting(t.Context(), t, lockers[(i+1)%2], key)
		listened(t, admin, key, 1)
		switch i {
		case 4, 5:
			for _, a := range admin {
				if err := a.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
					t.Fatal(err)
				}
			}
			listened(t, admin, key, 1)
		case 8:
			servers[2].Kill()
			admin = admin[:2]
		}
		began := time.Now()
		lease = passOn(t, lease, come)
		longest = max(longest, time.Since(began))
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	t.Logf("the longest hand-over took %v", longest)
}

// What a try got without a majority is taken back without a word: it was no release, and
// those who are told of it would try in turn.
func TestTakenBackIsNotTold(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	d, other := process(t, nodes, patient), process(t, nodes, patient)
	spy := admin[0].Subscribe(t.Context(), redlock.DefaultPrefix+"k")
	defer func() { _ = spy.Close() }()
	if _, err := spy.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := hold(t, d, request("k", time.Hour))
	records(t, admin, "k", h.Token.String(), 3)
	if err := admin[0].Del(t.Context(), redlock.DefaultPrefix+"k").Err(); err != nil { // which then votes for the other
		t.Fatal(err)
	}
	if _, err := other.Acquire(t.Context(), request("k", time.Hour)); !isHeld(err) {
		t.Fatal(err)
	}
	other.Settled()
	records(t, admin, "k", h.Token.String(), 2)
	if _, err := d.Renew(t.Context(), h); err != nil { // makes it anew
		t.Fatal(err)
	}
	records(t, admin, "k", h.Token.String(), 3)
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	records(t, admin, "k", "", 0)
	if err := admin[0].Publish(t.Context(), redlock.DefaultPrefix+"k", "end").Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", "end"} {
		m, err := spy.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m.Payload != want {
			t.Errorf("told %q, want %q: one message of the release", m.Payload, want)
		}
	}
}

// Of 64 processes that wait for one key each asks little, however fast it goes round.
func TestHerdIsSmall(t *testing.T) {
	const waiters, turns = 64, 20
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	lease := take(t, locker(t, open(t, nodes, patient), seldom), "k")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	come := make(chan *locks.Lease, waiters)
	c := new(counter)
	for range waiters {
		d := dialled(t, open(t, nodes, patient))
		d.nodes[0].(*redis.Client).AddHook(c)
		l := locker(t, d, seldom)
		wg.Go(func() {
			if next, err := l.Acquire(ctx, "k"); err == nil {
				come <- next
			}
		})
	}
	listened(t, admin, "k", waiters)
	c.requests.Store(0)
	began := time.Now()
	for range turns {
		lease = passOn(t, lease, come)
	}
	n, took := c.requests.Load(), time.Since(began)
	t.Logf("%d requests to a node of %d waiters for %d hand-overs in %v", n, waiters, turns, took)
	// A look is two requests where it is refused, and some go round again.
	if most := int64(waiters * turns); n > most {
		t.Errorf("%d requests to a node of %d waiters for %d hand-overs, want %d at most", n, waiters, turns, most)
	}
	cancel()
	wg.Wait()
}

// While one release follows the other a process asks seldom.
func TestHintsInARowAreSeldom(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	admin := admins(t, nodes)
	hint, stop, err := process(t, nodes).Wake(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	hints, told := 0, 0
	for began := time.Now(); time.Since(began) < time.Second; told++ {
		if err := admin[told%3].Publish(t.Context(), redlock.DefaultPrefix+"k", "").Err(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hint:
			hints++
		default:
		}
	}
	t.Logf("%d hints of %d messages in a second", hints, told)
	if hints == 0 || hints > 30 {
		t.Errorf("%d hints of %d messages in a second", hints, told)
	}
}

// A user that may not subscribe, or not publish, has locks all the same, and waiters look.
func TestWithoutPrivilegesWaitersLook(t *testing.T) {
	servers := testenv.Redises(t, 3)
	for _, lacking := range []string{"+subscribe", "+publish", "&solotick:redlock:*"} {
		rule := documented(t)
		rule[2] = "lacking"
		for i, word := range rule {
			switch word {
			case lacking:
				rule[i] = "on" // once more
			case "solotick":
				t.Fatal("the name is not where it was")
			}
		}
		for _, admin := range admins(t, addrs(servers)) {
			if err := admin.Do(t.Context(), rule...).Err(); err != nil {
				t.Fatal(err)
			}
			if err := admin.Do(t.Context(), "ACL", "SETUSER", "lacking", "nopass").Err(); err != nil {
				t.Fatal(err)
			}
		}
		var log logs
		user := func() closing {
			cs := make([]redis.UniversalClient, len(servers))
			for i, s := range servers {
				cs[i] = redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "lacking", Password: "any", MaxRetries: -1, ContextTimeoutEnabled: true})
			}
			d, err := redlock.NewDriver(cs, redlock.TrustFirstSight(), redlock.WithMaxTTL(time.Hour), redlock.WithNodeTimeout(patience), log.option())
			if err != nil {
				t.Fatal(err)
			}
			return closing{d, cs}
		}
		often := seldom
		often.Poll = 20 * time.Millisecond
		holder, waiter := locker(t, user(), seldom), locker(t, user(), often)
		lease := take(t, holder, "k")
		come := waiting(t.Context(), t, waiter, "k")
		for end := time.Now().Add(patience); lacking != "+publish" && !strings.Contains(log.String(), "NOPERM"); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("without %s nothing is warned about: %s", lacking, &log)
			}
		}
		lease = passOn(t, lease, come)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n > 1 {
			t.Errorf("without %s %d lines are logged:\n%s", lacking, n, &log)
		}
	}
}

// A node that takes connections and says nothing holds no waiter up for long, and two that
// do leave the third to tell.
func TestSilentNodesDoNotHoldUpWaiters(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	d := process(t, behind, redlock.WithNodeTimeout(patience))
	for i := range 2 {
		proxies[i].BlackHole(faultproxy.Both)
		began := time.Now()
		key := fmt.Sprint("k", i)
		hint, stop, err := d.Wake(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("waited %v for %d silent nodes", took, i+1)
		}
		if err := admins(t, nodes)[2].Publish(t.Context(), redlock.DefaultPrefix+key, "").Err(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hint:
		case <-time.After(patience):
			t.Errorf("with %d silent nodes: no hint", i+1)
		}
		stop()
	}
}
