package redlock_test

import (
	"context"
	"errors"
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
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func try(tb testing.TB, l *locks.Locker, key string) *locks.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(tb.Context(), key)
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
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
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
			busy := redlock.WithNodeTimeout(200 * time.Millisecond) // as is the test machine
			// A margin for a test machine that is busy with other things.
			l := locker(t, open(t, behind, busy), locks.Config{TTL: time.Second, Margin: time.Second / 5, RenewInterval: time.Second / 4})
			lease := try(t, l, name)
			told := toldAt(lease)
			for _, p := range proxies {
				cut(p)
			}
			got := takeOver(t, process(t, nodes, busy), lease)
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
	operator := process(t, nodes)
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
			cfg := locks.Config{TTL: 2 * time.Second, RenewInterval: time.Second / 2}
			l := locker(t, open(t, nodes), cfg)
			lease := try(t, l, "k")
			records(t, admin, "k", lease.Token(), 3)
			other := dialled(t, process(t, nodes))
			told := toldAt(lease)
			if err := lose(); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			got := takeOver(t, other, lease)
			heard := <-told
			t.Logf("told %v after the loss; held twice for %v", heard.Sub(at).Round(time.Millisecond), max(heard.Sub(got), 0).Round(time.Millisecond))
			var lost *locks.LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
				t.Errorf("Err = %v", lease.Err())
			}
			if heard.Sub(at) > cfg.RenewInterval*5/4+500*time.Millisecond {
				t.Errorf("told after %v, more than a renewal interval of %v", heard.Sub(at), cfg.RenewInterval)
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
	other := process(t, nodes)
	seen := hold(t, other, request("seen", time.Minute))
	records(t, admin, "seen", seen.Token.String(), 3)
	cfg := locks.Config{TTL: 2 * time.Second, RenewInterval: time.Second / 2}
	lease := try(t, locker(t, open(t, nodes), cfg), "k")
	records(t, admin, "k", lease.Token(), 3)
	told := toldAt(lease)
	for _, s := range servers[:2] {
		s.Kill()
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
		if _, err := other.Acquire(t.Context(), request("k", time.Second)); err == nil {
			t.Fatal("granted by nodes that have forgotten")
		}
		if time.Since(at) > cfg.RenewInterval*5/4+time.Second {
			t.Fatal("not told within an interval")
		}
	}
}

// A majority that answers after the TTL has granted nothing.
func TestLateMajorityIsNoGrant(t *testing.T) {
	nodes := addrs(testenv.Redises(t, 3))
	proxies, behind := through(t, nodes)
	d := dialled(t, process(t, behind, redlock.WithNodeTimeout(5*time.Second)))
	hold(t, d, request("warm", time.Minute)) // the nodes know the scripts
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
	d := dialled(t, process(t, behind, redlock.WithNodeTimeout(2*time.Second)))
	h := hold(t, d, request("k", 500*time.Millisecond))
	records(t, admin, "k", h.Token.String(), 5)
	if _, err := d.Renew(t.Context(), h); err != nil { // dialled, and the nodes know the script
		t.Fatal(err)
	}
	if err := admin[3].FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	proxies[4].Delay(faultproxy.ToClient, 800*time.Millisecond)
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	// real time: the last node answers when the lease has ended.
	for end := time.Now().Add(1100 * time.Millisecond); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		if v, err := admin[3].Get(t.Context(), redlock.DefaultPrefix+"k").Result(); err != redis.Nil {
			t.Fatalf("the node has %q, %v", v, err)
		}
	}
}
