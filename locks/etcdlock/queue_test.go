package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

// lineUp starts a wait and returns when it is in line as the nth.
func lineUp(tb testing.TB, admin *clientv3.Client, prefix string, p process, key string, n int) <-chan queued {
	tb.Helper()
	q := queue(tb.Context(), p, request(key))
	until(tb, "it is in line", func() bool { return count(tb, admin, etcdlock.Path(prefix, key)) == n+1 })
	return q
}

func TestOrderOfArrival(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	p := start(t, space.Name, space.Addr)
	ps := []process{p, start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)}
	h := grant(t, p, request("k"))
	var line []<-chan queued
	for i := range 12 {
		line = append(line, lineUp(t, admin, space.Name, ps[i%3], "k", i+1))
	}
	fence := h.Fence
	for i, c := range line {
		select {
		case q := <-c:
			t.Fatalf("waiter %d: %v before its turn", i, q.err)
		default:
		}
		release(t, ps[(i+2)%3], h)
		q := take(t, c)
		if q.err != nil || q.hold.Fence <= fence {
			t.Fatalf("waiter %d: fence %d after %d, %v", i, q.hold.Fence, fence, q.err)
		}
		h, fence = q.hold, q.hold.Fence
	}
	release(t, p, h)
}

// Who waits sends little, and a release wakes one.
func TestNoHerd(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	holder, p := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	r := request("k")
	r.TTL = time.Minute
	h := grant(t, holder, r)
	const n = 30
	var line []<-chan queued
	for i := range n {
		r := request("k")
		r.TTL = time.Minute
		line = append(line, queue(t.Context(), p, r))
		until(t, "it is in line", func() bool { return count(t, admin, etcdlock.Path(space.Name, "k")) == i+2 })
	}
	until(t, "all watch", func() bool { return p.sent.txns.Load() >= 2*n && p.sent.watches.Load() >= n })
	p.sent.reset()
	release(t, holder, h)
	first := take(t, line[0])
	if first.err != nil {
		t.Fatal(first.err)
	}
	// The one that was granted the key sent no more than the end of its watch, and the
	// one behind it changed its watch and looked once.
	if sent := p.sent.all(); sent > n/2 {
		t.Errorf("%d requests for one hand-over among %d", sent, n)
	}
	release(t, p, first.hold)
	for _, c := range line[1:] {
		q := take(t, c)
		if q.err != nil {
			t.Fatal(q.err)
		}
		release(t, p, q.hold)
	}
	if err := count(t, admin, space.Name+"/"); err != 0 {
		t.Errorf("%d keys left", err)
	}
}

// Between a release and the next grant there is no request, and before it there are
// few: who lines up where few stand asks once, and watches; in a longer line it watches
// one ahead first. A watch that etcd begins later than it answers costs another look.
func TestHandOverRequests(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	wanted := func(key string) driver.Request {
		r := request(key)
		r.TTL = time.Minute // none of the keep-alives of long waits
		return r
	}
	t.Run("two take turns", func(t *testing.T) {
		holder, waiter := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
		h := grant(t, holder, wanted("turns"))
		fewest := int64(1000)
		for range 12 {
			waiter.sent.reset()
			c := queue(t.Context(), waiter, wanted("turns"))
			until(t, "it watches", waiter.InFront)
			asked := waiter.sent.txns.Load()
			release(t, holder, h)
			q := take(t, c)
			if q.err != nil {
				t.Fatal(q.err)
			}
			if n := waiter.sent.txns.Load(); n != asked {
				t.Errorf("%d requests between the release and the grant", n-asked)
			}
			until(t, "its watch ends", func() bool { return waiter.sent.watches.Load() >= 2 })
			if n := waiter.sent.watches.Load(); n != 2 {
				t.Errorf("%d requests for one watch", n)
			}
			if asked > 3 {
				t.Errorf("%d requests before it watched", asked)
			}
			fewest = min(fewest, asked)
			h, holder, waiter = q.hold, waiter, holder
		}
		if fewest != 1 {
			t.Errorf("at least %d requests before it watched, want to see 1", fewest)
		}
		release(t, holder, h)
	})
	t.Run("long line", func(t *testing.T) {
		holder := start(t, space.Name, space.Addr)
		h := grant(t, holder, wanted("long"))
		const n = 6
		var ps []process
		var line []<-chan queued
		for i := range n {
			p := start(t, space.Name, space.Addr)
			ps, line = append(ps, p), append(line, queue(t.Context(), p, wanted("long")))
			until(t, "it is in line", func() bool { return count(t, admin, etcdlock.Path(space.Name, "long")) == i+2 })
		}
		for i, c := range line {
			until(t, "the next one is ready", ps[i].InFront)
			asked := ps[i].sent.txns.Load()
			release(t, holder, h)
			q := take(t, c)
			if q.err != nil {
				t.Fatal(q.err)
			}
			if sent := ps[i].sent.txns.Load(); sent != asked {
				t.Errorf("waiter %d: %d requests between the release and the grant", i, sent-asked)
			}
			// Lined up, and looked beside the beginning of each of two watches, or once more.
			if watches := ps[i].sent.watches.Load(); asked > 5 || watches > 4 {
				t.Errorf("waiter %d: %d transactions and %d requests for watches", i, asked, watches)
			}
			h, holder = q.hold, ps[i]
		}
		release(t, holder, h)
	})
}

// A waiter in the middle that dies or goes does not break the line.
func TestPredecessorGoes(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	holder, middle, last := start(t, space.Name, space.Addr), open(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	h := grant(t, holder, request("k"))
	gone := lineUp(t, admin, space.Name, middle, "k", 1)
	c := lineUp(t, admin, space.Name, last, "k", 2)
	if err := middle.Close(); err != nil { // its session ends, and with it its place
		t.Fatal(err)
	}
	if q := take(t, gone); q.err == nil {
		t.Error("a wait of a closed driver ended in a grant")
	}
	until(t, "its place is free", func() bool { return count(t, admin, etcdlock.Path(space.Name, "k")) == 2 })
	select {
	case q := <-c:
		t.Fatalf("the last came before the holder had gone: %v", q.err)
	case <-time.After(200 * time.Millisecond):
	}
	release(t, holder, h)
	q := take(t, c)
	if q.err != nil {
		t.Fatal(q.err)
	}
	release(t, last, q.hold)
}

// A holder that is heard of no more is replaced when its session ends.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	dead, p := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	sent := time.Now()
	grant(t, dead, request("k"))
	q := take(t, queue(t.Context(), p, request("k")))
	if took := time.Since(sent); q.err != nil || took < ttl || took > ttl+patience {
		t.Errorf("%v after %v", q.err, took)
	}
	release(t, p, q.hold)
}

// Waiting longer than the TTL keeps the place, and the grant has its TTL before it.
func TestLongWait(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	holder, p := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	r := request("k")
	r.TTL = time.Hour
	h := grant(t, holder, r)
	mine := request("k")
	mine.TTL = 2 * ttl
	type answer struct {
		g   driver.Grant
		err error
	}
	got := make(chan answer, 1)
	go func() {
		g, err := p.AcquireQueued(t.Context(), mine)
		got <- answer{g, err}
	}()
	<-time.After(3 * ttl)
	release(t, holder, h)
	a := <-got
	if left := a.g.TTL - time.Since(a.g.From); a.err != nil || left < ttl || left > 2*ttl {
		t.Errorf("%v left of %v, %v", left, ttl, a.err)
	}
	release(t, p, driver.Hold{Request: mine, Fence: a.g.Fence})
}

// rounds is the number of cancels; the environment asks for more than fit into a usual run.
func rounds(tb testing.TB, n int) int {
	if s := os.Getenv("SOLOTICK_ETCD_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return n
}

// A nil error means held, whenever the caller goes; and nothing is left of those
// who went (etcd-io/etcd#10111).
func TestCancelAtRandomInstants(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	var ps []process
	for range 4 {
		ps = append(ps, start(t, space.Name, space.Addr))
	}
	spread := []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}
	var inside, grants, cancels atomic.Int64
	var wg sync.WaitGroup
	each := rounds(t, 2000) / (4 * len(ps))
	for i := range 4 * len(ps) {
		wg.Go(func() {
			p := ps[i%len(ps)]
			for range each {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(spread[rand.N(len(spread))]))
				r := request("k")
				g, err := p.AcquireQueued(ctx, r)
				cancel()
				if err != nil {
					cancels.Add(1)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("err %v", err)
					}
					if !driver.IsNotApplied(err) {
						if _, err := p.Release(context.Background(), driver.Hold{Request: r}); err != nil {
							t.Error(err)
						}
					}
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				grants.Add(1)
				inside.Add(-1)
				if out, err := p.Release(context.Background(), driver.Hold{Request: r, Fence: g.Fence}); err != nil || out != driver.ReleasedOK {
					t.Errorf("granted, but not held: %v, %v", out, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d grants, %d cancels", grants.Load(), cancels.Load())
	if grants.Load() == 0 || cancels.Load() == 0 {
		t.Error("the instants are not spread")
	}
	if n := count(t, admin, space.Name+"/"); n != 0 {
		t.Errorf("%d keys left in line", n)
	}
}

// The place in the line is deleted by hand: the waiter lines up again.
func TestPlaceIsRemoved(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	holder, p := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	h := grant(t, holder, request("k"))
	dir := etcdlock.Path(space.Name, "k")
	c := lineUp(t, admin, space.Name, p, "k", 1)
	remove := func(revoke bool) {
		t.Helper()
		all, err := admin.Get(t.Context(), dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
		if err != nil {
			t.Fatal(err)
		}
		last := all.Kvs[0]
		if revoke {
			_, err = admin.Revoke(t.Context(), clientv3.LeaseID(last.Lease))
		} else {
			_, err = admin.Delete(t.Context(), string(last.Key))
		}
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it is in line again", func() bool {
			all, err := admin.Get(t.Context(), dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
			return err == nil && len(all.Kvs) == 2 && all.Kvs[0].CreateRevision > last.CreateRevision
		})
	}
	remove(false)
	if _, err := holder.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	remove(true)
	if _, err := holder.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	release(t, holder, h)
	q := take(t, c)
	if q.err != nil {
		t.Fatal(q.err)
	}
	release(t, p, q.hold)
}

// The place is removed in the very moment in which the key becomes free, and the
// watch that would tell is cut off: only the look before the grant can know.
func TestNoGrantWithoutTheKey(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	holder, p, other := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	for i := range 20 {
		key := fmt.Sprint("k", i)
		h := grant(t, holder, request(key))
		c := lineUp(t, admin, space.Name, p, key, 1)
		// Both go in one transaction, so that both watches fire in one moment.
		if _, err := admin.Delete(t.Context(), etcdlock.Path(space.Name, key), clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		q := take(t, c)
		if q.err != nil {
			t.Fatal(q.err)
		}
		var held *driver.HeldError
		if _, err := other.Acquire(t.Context(), request(key)); !errors.As(err, &held) || held.Holder.Token != q.hold.Token || held.Holder.Fence != q.hold.Fence {
			t.Fatalf("round %d: granted fence %d, but a stranger hears %v", i, q.hold.Fence, err)
		}
		release(t, p, q.hold)
		_ = h
	}
}

// Connections are cut and the history is compacted while somebody waits.
func TestWaitOverCutsAndCompaction(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	admin := console(t, server.Addr())
	holder := start(t, "", server.Addr())
	proxy := faultproxy.Start(t, server.Addr())
	p := start(t, "", proxy.Addr())
	compact := func() {
		t.Helper()
		resp, err := admin.Put(t.Context(), "other", "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Compact(t.Context(), resp.Header.Revision); err != nil {
			t.Fatal(err)
		}
	}
	for name, trouble := range map[string]func(release func()){
		"compaction before the release": func(release func()) { compact(); release() },
		"reset and compaction":          func(release func()) { proxy.Reset(); compact(); release() },
		"released while cut off": func(release func()) {
			proxy.Refuse()
			release()
			compact()
			proxy.Pass()
		},
		"released in silence": func(release func()) {
			proxy.BlackHole(faultproxy.Both)
			release()
			proxy.Pass()
		},
		"server killed": func(release func()) { server.Kill(); server.Restart(); release() },
	} {
		r := request(name)
		r.TTL = time.Minute
		h := grant(t, holder, r)
		c := queue(t.Context(), p, request(name))
		until(t, "it waits in line", func() bool {
			return count(t, admin, etcdlock.Path(etcdlock.DefaultPrefix, name)) == 2 && p.InFront()
		})
		trouble(func() { release(t, holder, h) })
		q := take(t, c)
		if q.err != nil {
			t.Errorf("%s: %v", name, q.err)
			continue
		}
		release(t, p, q.hold)
	}
}

// A wait that ends before etcd has answered does not say that the key is held.
func TestWaitWithoutAnAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	proxy := faultproxy.Start(t, space.Addr)
	proxy.BlackHole(faultproxy.Both)
	l := locker(t, open(t, space.Name, proxy.Addr()), locks.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "k")
	if !errors.Is(err, locks.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrHeld) || !strings.Contains(err.Error(), "open a session") {
		t.Error(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A waiter behind silence says so, and leaves nothing.
func TestSilenceWhileWaiting(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	holder := start(t, space.Name, space.Addr)
	proxy := faultproxy.Start(t, space.Addr)
	p := start(t, space.Name, proxy.Addr())
	r := request("k")
	r.TTL = time.Minute
	h := grant(t, holder, r)
	c := lineUp(t, admin, space.Name, p, "k", 1)
	ctx, cancel := context.WithCancel(t.Context())
	impatient := request("k")
	second := queue(ctx, p, impatient)
	until(t, "both are in line", func() bool { return count(t, admin, etcdlock.Path(space.Name, "k")) == 3 })
	proxy.BlackHole(faultproxy.Both)
	cancelled := time.Now()
	cancel()
	if q := take(t, second); !errors.Is(q.err, context.Canceled) || driver.IsNotApplied(q.err) {
		t.Errorf("cancelled: %v after %v", q.err, q.at.Sub(cancelled))
	}
	if q := take(t, c); q.err == nil || driver.IsNotApplied(q.err) {
		t.Errorf("in silence: %v", q.err)
	} else {
		t.Logf("said after %v: %v", q.at.Sub(cancelled), q.err)
	}
	proxy.Pass()
	until(t, "only the holder is left", func() bool { return count(t, admin, etcdlock.Path(space.Name, "k")) == 1 })
	release(t, holder, h)
}

// Silence that begins before it is in line is borne no longer, also by a client that
// does not look after its connection.
func TestSilenceWhileLiningUp(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	proxy := faultproxy.Start(t, space.Addr)
	p := start(t, space.Name, proxy.Addr())
	r := request("other")
	r.TTL = time.Minute
	h := grant(t, p, r) // there is a session
	proxy.BlackHole(faultproxy.Both)
	r = request("k")
	r.TTL = time.Minute
	if q := take(t, queue(t.Context(), p, r)); q.err == nil || driver.IsNotApplied(q.err) || errors.Is(q.err, context.Canceled) {
		t.Errorf("in silence: %v", q.err)
	}
	proxy.Pass()
	release(t, p, h)
	until(t, "nothing is left", func() bool { return count(t, admin, space.Name+"/") == 0 })
}
