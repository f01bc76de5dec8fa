package redlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redlock"
)

// through puts a proxy before every node.
func through(tb testing.TB, nodes []string) (proxies []*faultproxy.Proxy, behind []string) {
	tb.Helper()
	for _, addr := range nodes {
		p := faultproxy.Start(tb, addr)
		proxies, behind = append(proxies, p), append(behind, p.Addr())
	}
	return proxies, behind
}

func locker(tb testing.TB, d driver.Driver, cfg locks.Config) *locks.Locker {
	tb.Helper()
	l, err := locks.New(d, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func take(tb testing.TB, l *locks.Locker, key string) *locks.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	lease, err := l.Acquire(ctx, key) // a node may be slow, and its vote is asked for again
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

// toldAt sends when the holder was told that its lease is over.
func toldAt(lease *locks.Lease) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		<-lease.Done()
		at <- time.Now()
	}()
	return at
}

// takeOver asks for the key of a lease until it is granted, and returns when.
func takeOver(tb testing.TB, d driver.Driver, lease *locks.Lease) time.Time {
	tb.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		g, err := d.Acquire(tb.Context(), request(lease.Key(), time.Minute))
		if err == nil {
			if g.Fence <= lease.Fence() {
				tb.Errorf("fence %d after %d", g.Fence, lease.Fence())
			}
			return time.Now()
		}
		if !isHeld(err) && !driver.IsNotApplied(err) {
			tb.Fatal(err)
		}
	}
	tb.Fatal("nobody else got the key")
	return time.Time{}
}

// A holder that is cut off from the nodes is told before anybody else can hold the
// key, whatever happens to its connections.
func TestLossByTimeIsToldFirst(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	for name, cut := range map[string]func(*faultproxy.Proxy){
		"black hole":           func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"answers are lost":     func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.ToClient) },
		"delay beyond the TTL": func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, time.Minute) },
		"reset and refused":    func(p *faultproxy.Proxy) { p.Refuse() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxies, behind := through(t, nodes)
			// Times for a test machine that is busy with other things.
			const ttl = 2 * time.Second
			cfg := locks.Config{TTL: ttl, Margin: ttl * 7 / 20, RenewInterval: ttl / 5, RequestTimeout: ttl / 5}
			l := locker(t, dialled(t, open(t, behind, redlock.WithNodeTimeout(cfg.RequestTimeout))), cfg)
			lease := take(t, l, name)
			told := toldAt(lease)
			for _, p := range proxies {
				cut(p)
			}
			got := takeOver(t, process(t, nodes, redlock.WithNodeTimeout(patience)), lease)
			if err := lease.Err(); !errors.Is(err, locks.ErrLost) || lease.Valid() {
				t.Fatalf("two holders: %v", err)
			}
			margin := got.Sub(<-told)
			t.Logf("told %v before the next holder", margin.Round(time.Millisecond))
			if margin <= 0 {
				t.Errorf("told %v after the next holder had the key", -margin)
			}
		})
	}
}

// What a majority of the nodes loses is told with the next renewal, and the fence
// goes on.
func TestLostDataIsTold(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	operator := process(t, nodes, patient)
	for name, lose := range map[string]func() error{
		"a majority flushed": func() error {
			return errors.Join(admin[0].FlushAll(t.Context()).Err(), admin[1].FlushAll(t.Context()).Err())
		},
		"all flushed": func() error {
			return errors.Join(admin[0].FlushAll(t.Context()).Err(), admin[1].FlushAll(t.Context()).Err(), admin[2].FlushAll(t.Context()).Err())
		},
		"force release": func() error {
			_, err := operator.ForceRelease(t.Context(), "k")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := locks.Config{TTL: time.Hour, RenewInterval: time.Second / 2, RequestTimeout: patience}
			l := locker(t, open(t, nodes, patient), cfg)
			lease := take(t, l, "k")
			records(t, admin, "k", lease.Token(), 3)
			other := process(t, nodes, patient)
			told := toldAt(lease)
			at := time.Now()
			var next driver.Hold
			// A renewal that comes between the nodes' losses makes the key anew on one:
			// then they lose it again.
			for next.Fence == 0 {
				if err := lose(); err != nil {
					t.Fatal(err)
				}
				r := request("k", time.Hour)
				g, err := other.Acquire(t.Context(), r)
				switch {
				case err == nil:
					next = driver.Hold{Request: r, Fence: g.Fence}
				case !isHeld(err), time.Since(at) > patience:
					t.Fatal(err)
				}
			}
			got := time.Now()
			if next.Fence <= lease.Fence() {
				t.Errorf("fence %d after %d", next.Fence, lease.Fence())
			}
			var heard time.Time
			select {
			case heard = <-told:
			case <-time.After(patience):
				t.Fatal("not told")
			}
			t.Logf("told %v after the loss; held twice for %v", heard.Sub(at).Round(time.Millisecond), max(heard.Sub(got), 0).Round(time.Millisecond))
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
			}
			if _, err := operator.ForceRelease(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A majority that restarts empty ends the lease, and lets nobody else in: there is no
// overlap.
func TestRestartedMajorityIsTold(t *testing.T) {
	servers := testenv.Redises(t, 3)
	nodes := addrs(servers)
	admin := admins(t, nodes)
	patient := redlock.WithNodeTimeout(patience)
	other := process(t, nodes, patient)
	seen := hold(t, other, request("seen", time.Hour))
	records(t, admin, "seen", seen.Token.String(), 3)
	cfg := locks.Config{TTL: time.Hour, RenewInterval: time.Second / 2, RequestTimeout: patience}
	lease := take(t, locker(t, open(t, nodes, patient), cfg), "k")
	records(t, admin, "k", lease.Token(), 3)
	told := toldAt(lease)
	// Both at once: a renewal in between would make the key anew on the first.
	for _, s := range servers[:2] {
		s.Kill()
	}
	for _, s := range servers[:2] {
		s.Restart()
	}
	at := time.Now()
	for ended := false; !ended; {
		select {
		case heard := <-told:
			t.Logf("told %v after the restart", heard.Sub(at).Round(time.Millisecond))
			ended = true
		case <-time.After(10 * time.Millisecond):
		}
		if _, err := other.Acquire(t.Context(), request("k", time.Hour)); err == nil {
			t.Fatal("granted by nodes that have forgotten")
		}
		if time.Since(at) > patience {
			t.Fatal("not told, where a renewal takes half a second and the TTL an hour")
		}
	}
}

// A majority that answers after the TTL has granted nothing.
func TestLateMajorityIsNoGrant(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	d := process(t, behind, redlock.WithNodeTimeout(patience))
	hold(t, d, request("warm", time.Hour)) // the nodes know the scripts
	for _, p := range proxies {
		p.Delay(faultproxy.ToClient, 300*time.Millisecond)
	}
	if g, err := d.Acquire(t.Context(), request("k", 500*time.Millisecond)); err == nil {
		t.Errorf("two rounds of 300 ms gave a grant of 500 ms: %+v", g)
	}
}

// What has ended is not made anew on a node that lost it, however late the nodes
// answer.
func TestEndedLeaseIsNotMadeAnew(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 5))
	admin := admins(t, nodes)
	proxies, behind := through(t, nodes)
	d := process(t, behind, redlock.WithNodeTimeout(patience))
	h := hold(t, d, request("k", time.Hour))
	records(t, admin, "k", h.Token.String(), 5)
	d.Settled() // a late confirmation would start the hour anew
	if err := admin[3].FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	proxies[4].BlackHole(faultproxy.ToClient)
	h.TTL = 500 * time.Millisecond // from this renewal on
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	records(t, admin[:3], "k", "", 0)
	proxies[4].Pass() // the last node answers when the lease has ended
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		if v, err := admin[3].Get(t.Context(), redlock.DefaultPrefix+"k").Result(); err != redis.Nil {
			t.Fatalf("the node has %q, %v", v, err)
		}
	}
}

// passing lets the nodes answer a while after it is asked for a second time.
type passing struct {
	closing
	pass  func()
	asked atomic.Int64
}

func (d *passing) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if d.asked.Add(1) == 2 {
		time.AfterFunc(50*time.Millisecond, d.pass) // real time: the request must be on its way
	}
	return d.closing.Acquire(ctx, r)
}

// What is taken back from an acquire that was given up takes nothing from the next
// one, whoever asks again.
func TestTakingBackLeavesARepeatAlone(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	d := &passing{closing: dialled(t, open(t, behind, redlock.WithoutOrder(), redlock.WithNodeTimeout(patience))), pass: func() {
		for _, p := range proxies {
			p.Pass()
		}
	}}
	hold(t, d.closing, request("warm", time.Minute)) // the nodes know the scripts
	d.Settled()
	l := locker(t, d, locks.Config{TTL: time.Hour, RequestTimeout: 2 * time.Second})
	for _, p := range proxies {
		p.BlackHole(faultproxy.ToClient)
	}
	lease, err := l.TryAcquire(t.Context(), "k")
	d.pass()
	d.Settled()
	_, theirs := process(t, nodes, redlock.WithNodeTimeout(patience)).Acquire(t.Context(), request("k", time.Minute))
	switch {
	case err == nil && theirs == nil:
		t.Errorf("two holders; the first one's lease is valid: %v", lease.Valid())
	case err != nil && (!errors.Is(err, locks.ErrUnavailable) || theirs != nil):
		t.Errorf("%v; then another one: %v", err, theirs)
	}
}
