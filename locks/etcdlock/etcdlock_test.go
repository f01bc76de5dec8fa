package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

// The promises of the package comment, by count.
func TestRequests(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	p := start(t, space.Name, space.Addr)
	lasting := func(key string) driver.Request { // so that no keep-alive of the session is due meanwhile
		r := request(key)
		r.TTL = time.Minute
		return r
	}
	release(t, p, grant(t, p, lasting("first"))) // opens the session
	want := func(what string, txns, looks, beats int64, f func()) {
		t.Helper()
		p.sent.reset()
		f()
		if p.sent.txns.Load() != txns || p.sent.looks.Load() != looks || p.sent.beats.Load() != beats || p.sent.all() != txns+looks+beats {
			t.Errorf("%s: %d transactions, %d looks, %d keep-alives, %d requests in all; want %d, %d, %d and no more", what,
				p.sent.txns.Load(), p.sent.looks.Load(), p.sent.beats.Load(), p.sent.all(), txns, looks, beats)
		}
	}
	var h driver.Hold
	want("acquire", 1, 0, 0, func() { h = grant(t, p, lasting("k")) })
	want("acquire of a held key", 1, 0, 0, func() {
		var held *driver.HeldError
		if _, err := p.Acquire(t.Context(), lasting("k")); !errors.As(err, &held) || held.Holder.Fence != h.Fence || held.Holder.Token != h.Token {
			t.Errorf("%v", err)
		}
	})
	want("renew", 0, 1, 1, func() {
		if _, err := p.Renew(t.Context(), h); err != nil {
			t.Error(err)
		}
	})
	want("a watch of a hold that is short", 0, 0, 0, func() {
		_, stop := p.WatchLoss(h)
		stop()
	})
	want("release", 1, 0, 0, func() { release(t, p, h) })
	want("queue for a free key", 1, 0, 0, func() {
		q := take(t, queue(t.Context(), p, lasting("k")))
		if q.err != nil {
			t.Fatal(q.err)
		}
		h = q.hold
	})
	release(t, p, h)
}

// One session, one renewal: etcd is not burdened with a lease a lock.
func TestManyHolds(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	admin := console(t, server.Addr())
	p := start(t, "", server.Addr())
	l := locker(t, p, locks.Config{TTL: patience, RenewInterval: ttl / 3, RequestTimeout: patience / 3})
	const n = 1000
	var wg sync.WaitGroup
	for part := range 8 {
		wg.Go(func() {
			for i := part; i < n; i += 8 {
				if _, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	leases, err := admin.Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Errorf("%d leases for %d holds, %v", len(leases.Leases), n, err)
	}
	until(t, "the renewals come together", func() bool { return p.sent.looks.Load() > 0 })
	p.sent.reset()
	start := time.Now()
	<-time.After(ttl)
	until(t, "they come again", func() bool { return p.sent.looks.Load() > 0 })
	looks, beats, txns := p.sent.looks.Load(), p.sent.beats.Load(), p.sent.txns.Load()
	intervals := time.Since(start).Seconds() / (ttl / 3).Seconds()
	if bound := 2*intervals + 1; float64(looks) > bound || float64(beats) > bound || txns > 0 {
		t.Errorf("%d looks, %d keep-alives, %d transactions in %.1f intervals", looks, beats, txns, intervals)
	}
	if got := count(t, admin, etcdlock.DefaultPrefix); got != n {
		t.Errorf("%d keys of %d", got, n)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := count(t, admin, etcdlock.DefaultPrefix); got != 0 {
		t.Errorf("%d keys left", got)
	}
	if leases, err := admin.Leases(ctx); err != nil || len(leases.Leases) != 0 {
		t.Errorf("%d leases left, %v", len(leases.Leases), err)
	}
}

// A hold that nobody renews ends, although the session lives on for another.
func TestUnrenewedHoldEndsInALivingSession(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	p, other := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	kept, dropped := grant(t, p, request("kept")), grant(t, p, request("dropped"))
	lost, stop := p.WatchLoss(dropped)
	defer stop()
	sent := time.Now()
	for {
		if _, err := p.Renew(t.Context(), kept); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Acquire(t.Context(), request("dropped")); err == nil {
			break
		}
		if time.Since(sent) > 3*ttl+patience {
			t.Fatal("it did not end")
		}
		<-time.After(ttl / 10)
	}
	if took := time.Since(sent); took < ttl {
		t.Errorf("over after %v, the TTL is %v", took, ttl)
	}
	select {
	case <-lost:
	case <-time.After(patience):
		t.Error("its owner was not told")
	}
}

// An enqueue that was given up and comes late must not block the key for as long as
// the session lives.
func TestKeyThatNobodyKnowsIsRemoved(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	p, other := start(t, space.Name, space.Addr), start(t, space.Name, space.Addr)
	h := grant(t, p, request("mine"))
	kv, err := admin.Get(t.Context(), etcdlock.Path(space.Name, "mine"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	late := etcdlock.Path(space.Name, "late") + driver.NewToken().String()
	if _, err := admin.Put(t.Context(), late, "{}", clientv3.WithLease(clientv3.LeaseID(kv.Kvs[0].Lease))); err != nil {
		t.Fatal(err)
	}
	var held *driver.HeldError
	if _, err := other.Acquire(t.Context(), request("late")); !errors.As(err, &held) {
		t.Fatalf("err %v", err)
	}
	if _, err := p.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	until(t, "the key goes", func() bool {
		_, err := other.Acquire(t.Context(), request("late"))
		return err == nil
	})
}

// The holder hears at once of what the server knows at once.
func TestLossIsPushed(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	for name, end := range map[string]func(t *testing.T, dir string){
		"deleted": func(t *testing.T, dir string) {
			t.Helper()
			if _, err := admin.Delete(t.Context(), dir, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		},
		"lease revoked": func(t *testing.T, dir string) {
			t.Helper()
			kv, err := admin.Get(t.Context(), dir, clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.Revoke(t.Context(), clientv3.LeaseID(kv.Kvs[0].Lease)); err != nil {
				t.Fatal(err)
			}
		},
		"forced": func(t *testing.T, _ string) {
			t.Helper()
			p := start(t, space.Name, space.Addr)
			if out, err := p.ForceRelease(t.Context(), "forced"); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		},
	} {
		for _, age := range []time.Duration{0, 400 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " after ", age), func(t *testing.T) {
				p := start(t, space.Name, space.Addr)
				r := request(name)
				r.TTL = time.Hour // renewal will not tell
				h := grant(t, p, r)
				lost, stop := p.WatchLoss(h)
				defer stop()
				<-time.After(age)
				end(t, etcdlock.Path(space.Name, name))
				ended := time.Now()
				select {
				case <-lost:
					t.Logf("told after %v", time.Since(ended))
				case <-time.After(patience):
					t.Fatal("not told")
				}
				if _, err := p.Renew(t.Context(), h); !errors.Is(err, driver.ErrNotOurs) {
					t.Errorf("renew: %v", err)
				}
				next := grant(t, p, request(name)) // with a new session where the old one is gone
				if next.Fence <= h.Fence {
					t.Errorf("fence went from %d to %d", h.Fence, next.Fence)
				}
				release(t, p, next)
			})
		}
	}
}

func TestSessionEndsWhileHeld(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	p, other := start(t, "", server.Addr()), start(t, "", server.Addr())
	h := grant(t, p, request("k"))
	server.Pause()
	<-time.After(ttl)
	server.Resume()
	// The server ends the lease when it wakes, or renews it: both are its right, but
	// then both sides must agree.
	<-time.After(2 * time.Second)
	_, err := p.Renew(t.Context(), h)
	_, taken := other.Acquire(t.Context(), request("k"))
	if (err == nil) == (taken == nil) {
		t.Errorf("renew: %v; acquire by another: %v", err, taken)
	}
	if err != nil {
		release(t, p, grant(t, p, request("another"))) // in a new session
	}
}

func TestStrayKeysAreIgnoredAndReported(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	admin := console(t, space.Addr)
	var out bytes.Buffer
	d, err := etcdlock.NewDriver(admin, etcdlock.WithPrefix(space.Name), etcdlock.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	lease, err := admin.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	dir := etcdlock.Path(space.Name, "k")
	leased := clientv3.WithLease(lease.ID)
	for path, opts := range map[string][]clientv3.OpOption{
		dir + driver.NewToken().String(): nil, // ours by name, but it would stay for ever
		dir + "694d8cbd2b7e7a01":         {leased},
		dir + "deeper/" + "x":            {leased},
		space.Name + "/" + "x":           {leased},
	} {
		if _, err := admin.Put(t.Context(), path, "x", opts...); err != nil {
			t.Fatal(err)
		}
	}
	h := grant(t, d, request("k"))
	var held *driver.HeldError
	if _, err := d.Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Holder.Token != h.Token {
		t.Errorf("err %v", err)
	}
	q := queue(t.Context(), d, request("k"))
	until(t, "the waiter is in line", func() bool {
		x, err := d.Inspect(t.Context(), "k")
		return err == nil && x.Waiters == 1
	})
	hs, err := d.List(t.Context(), "", 10)
	if err != nil || len(hs) != 1 || hs[0].Token != h.Token || hs[0].Waiters != 1 || hs[0].Remaining <= 0 || hs[0].Label != "host:1" || time.Since(hs[0].Since) > time.Minute {
		t.Errorf("list: %+v, %v", hs, err)
	}
	release(t, d, h)
	next := take(t, q)
	if next.err != nil {
		t.Fatal(next.err)
	}
	release(t, d, next.hold)
	if n := strings.Count(out.String(), "694d8cbd2b7e7a01"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, out.String())
	}
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	if _, err := etcdlock.NewDriver(nil); err == nil {
		t.Error("a nil client was accepted")
	}
	client := console(t, space.Addr)
	for _, prefix := range []string{"a/", strings.Repeat("x", 600)} {
		if _, err := etcdlock.NewDriver(client, etcdlock.WithPrefix(prefix)); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("prefix %.10q: %v", prefix, err)
		}
	}
	for _, ttl := range []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond, 1999 * time.Millisecond} {
		if _, err := etcdlock.New(client, &locks.Config{TTL: ttl}); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), "ttl") {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
	l, err := etcdlock.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A TTL that etcd raises is what the holder goes by.
func TestRaisedTTL(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	p := start(t, space.Name, space.Addr)
	r := request("k")
	r.TTL = time.Second
	g, err := p.Acquire(t.Context(), r)
	if err != nil || g.TTL != 2*time.Second || g.From.IsZero() || time.Since(g.From) > time.Second {
		t.Errorf("grant %+v, %v", g, err)
	}
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, 1)[0]
	p := start(t, "", server.Addr())
	r := request("k")
	r.TTL = time.Minute
	h := grant(t, p, r)
	fresh := start(t, "", server.Addr())
	server.Kill()
	check := func(what string, bound time.Duration, known bool, f func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		var held *driver.HeldError
		if err == nil || errors.As(err, &held) || errors.Is(err, driver.ErrNotOurs) || known && !driver.IsNotApplied(err) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > bound+patience/4 {
			t.Errorf("%s: returned after %v", what, took)
		}
	}
	acquire := func(p process, r driver.Request) func(context.Context) error {
		return func(ctx context.Context) error { _, err := p.Acquire(ctx, r); return err }
	}
	check("acquire without a session", time.Second, true, acquire(fresh, request("x")))
	check("acquire", time.Second, false, acquire(p, r))
	check("renew", time.Second, false, func(ctx context.Context) error { _, err := p.Renew(ctx, h); return err })
	check("release", time.Second, false, func(ctx context.Context) error { _, err := p.Release(ctx, h); return err })
	check("wait", time.Second, false, func(ctx context.Context) error { _, err := p.AcquireQueued(ctx, request("y")); return err })
	server.Restart()
	until(t, "it renews again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Renew(ctx, h)
		if errors.Is(err, driver.ErrNotOurs) {
			t.Fatal(err)
		}
		return err == nil
	})
	release(t, p, h)
}

func TestInspectOrder(t *testing.T) {
	t.Parallel()
	space := testenv.SharedEtcd(t)
	p := start(t, space.Name, space.Addr)
	names := []string{"a", "a!", "a%", "a/", "a/b", "a0", "b"}
	for _, name := range names {
		grant(t, p, request(name))
	}
	hs, err := p.List(t.Context(), "a", 10)
	var got []string
	for _, h := range hs {
		got = append(got, h.Key)
	}
	if err != nil || !slices.Equal(got, names[:6]) {
		t.Errorf("list %q, %v", got, err)
	}
}
