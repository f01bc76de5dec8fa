package zklock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/zklock"
)

var worldACL = zk.WorldACL(zk.PermAll)

// The node of a create whose answer was lost is found again, or deleted: nobody is
// wedged, and the line is empty in the end.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	p := faultproxy.Start(t, server.Addr)
	d, other := opened(t, p.Addr(), prefix), opened(t, server.Addr, prefix)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)

	// The caller waits for the outcome, and has the key.
	r := request("k")
	trap := p.SwallowReply([]byte(r.Token.String()))
	h := hold(t, d, r)
	<-trap.Fired()
	if line := c.line(prefix, "k"); len(line) != 1 {
		t.Errorf("line = %q, want the one node that was made", line)
	}
	wantReleased(t, d, h, driver.ReleasedOK)

	// The request did not arrive.
	r = request("k")
	trap = p.CutRequest([]byte(r.Token.String()))
	h = hold(t, d, r)
	<-trap.Fired()
	wantReleased(t, d, h, driver.ReleasedOK)

	// The caller gives up.
	r = request("k")
	trap = p.SwallowReply([]byte(r.Token.String()))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-trap.Fired(); cancel() }()
	if _, err := d.Acquire(ctx, r); err == nil || driver.IsNotApplied(err) {
		t.Errorf("Acquire = %v, want unknown", err)
	}
	await(t, "an empty line", 5*time.Second, func() bool { return len(c.line(prefix, "k")) == 0 })
	wantReleased(t, d, driver.Hold{Request: r}, driver.ReleasedGone)
	wantReleased(t, other, hold(t, other, request("k")), driver.ReleasedOK)

	// The answer to a release is lost: the hold is over, and a repeat says so.
	h = hold(t, d, request("k"))
	trap = p.SwallowReply([]byte(h.Token.String()))
	if _, err := d.Release(within(t, 5*time.Second), h); err == nil {
		t.Error("a release without an answer succeeded")
	}
	<-trap.Fired()
	wantReleased(t, d, h, driver.ReleasedGone)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
}

// A connection that is reset costs no lock: the session lives.
func TestResetIsNoLoss(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	p := faultproxy.Start(t, server.Addr)
	l, err := zklock.New(t.Context(), []string{p.Addr()}, &locks.Config{TTL: testTTL}, zklock.WithPrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		p.Reset()
		until := lease.ValidUntil()
		await(t, "a renewal", 5*time.Second, func() bool { return lease.ValidUntil().After(until) || lease.Err() != nil })
	}
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A session ends while its driver is cut off (apache/curator 1211, 1018): whenever
// the network heals, the old grant is over, and a new one has a new node.
func TestExpiryWhileCutOff(t *testing.T) {
	t.Parallel()
	for name, heal := range map[string]time.Duration{
		"healed long before the end": testSession / 3,
		"healed just before the end": testSession - 20*time.Millisecond,
		"healed at the end":          testSession + 250*time.Millisecond,
		"healed just after the end":  testSession + 600*time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SharedZooKeeper(t)
			prefix := "/" + server.Name
			p := faultproxy.Start(t, server.Addr)
			d, other := opened(t, p.Addr(), prefix), opened(t, server.Addr, prefix)
			h := hold(t, d, request("k"))
			lost, stop := d.WatchLoss(h)
			defer stop()
			if _, err := d.Renew(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			valid := time.Now().Add(testTTL)
			p.Refuse()
			// The waiter gets the key when the server has cleaned up, or the driver has
			// given back what nobody renewed; never while the hold was valid.
			r := request("k")
			won := make(chan time.Time, 1)
			var next driver.Hold
			go func() {
				g, err := other.AcquireQueued(within(t, 20*time.Second), r)
				if err != nil {
					t.Error(err)
				}
				next = driver.Hold{Request: r, Fence: g.Fence}
				won <- time.Now()
			}()
			<-within(t, heal).Done()
			p.Pass()
			at := <-won
			if at.Before(valid.Add(-2 * time.Millisecond)) {
				t.Errorf("another got the key %v before the end of a valid hold", valid.Sub(at))
			}
			if _, err := d.Renew(within(t, 10*time.Second), h); !errors.Is(err, driver.ErrNotOurs) {
				t.Errorf("Renew after another's grant = %v", err)
			}
			select {
			case <-lost:
			case <-within(t, 5*time.Second).Done():
				t.Error("the loss was not told")
			}
			// The same token asked again must not find its old node and call it a grant.
			var held *driver.HeldError
			if _, err := d.Acquire(within(t, 10*time.Second), h.Request); !errors.As(err, &held) || held.Holder.Token != next.Token {
				t.Errorf("Acquire with the old token = %v", err)
			}
			stopKeeping := keep(t, other, next)
			stopKeeping()
			wantReleased(t, other, next, driver.ReleasedOK)
			again := hold(t, d, h.Request)
			if again.Fence <= next.Fence {
				t.Errorf("fence went from %d to %d", next.Fence, again.Fence)
			}
			wantReleased(t, d, again, driver.ReleasedOK)
		})
	}
}

// An acquire whose session dies between its node and its answer gets nothing of
// the old session.
func TestSessionDiesDuringAcquire(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	p := faultproxy.Start(t, server.Addr)
	d := opened(t, p.Addr(), prefix)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	r := request("k")
	trap := p.SwallowReply([]byte(r.Token.String()))
	type outcome struct {
		driver.Grant
		error
	}
	got := make(chan outcome, 1)
	go func() {
		g, err := d.Acquire(within(t, 20*time.Second), r)
		got <- outcome{g, err}
	}()
	<-trap.Fired()
	p.Refuse()
	old := c.line(prefix, "k")
	await(t, "the end of the session", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 0 })
	p.Pass()
	o := <-got
	if o.error != nil {
		t.Fatal(o.error)
	}
	h := driver.Hold{Request: r, Fence: o.Fence}
	if line := c.line(prefix, "k"); len(line) != 1 || len(old) == 1 && line[0] == old[0] {
		t.Errorf("line = %q, want a node other than %q", line, old)
	}
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Errorf("Renew = %v", err)
	}
	wantReleased(t, d, h, driver.ReleasedOK)
}

// A node with our name that another session made is not ours: after a reconnection
// it may be the dying one of the session before (apache/curator 1211, 1018).
func TestNodeOfAnotherSessionIsNotOurs(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	p := faultproxy.Start(t, server.Addr)
	d := opened(t, p.Addr(), prefix)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	r := request("k")
	path := zklock.KeyPath(prefix, "k") + "/" + r.Token.String() + "-lock-"
	trap := p.CutRequest([]byte(r.Token.String()))
	dying, err := c.Create(path, nil, zk.FlagEphemeralSequential, worldACL)
	if err != nil {
		t.Fatal(err)
	}
	h := hold(t, d, r)
	<-trap.Fired()
	if ok, _, err := c.Exists(dying); ok || err != nil {
		t.Errorf("the node of the other session: %v, %v; want it deleted", ok, err)
	}
	for _, name := range c.line(prefix, "k") {
		_, stat, err := c.Get(zklock.KeyPath(prefix, "k") + "/" + name)
		if err != nil || stat.EphemeralOwner == c.SessionID() || stat.Czxid != h.Fence {
			t.Errorf("the grant is on %s of session %x, fence %d", name, stat.EphemeralOwner, h.Fence)
		}
	}
	wantReleased(t, d, h, driver.ReleasedOK)
}

// A node that could not be deleted when its caller left is deleted when there is a
// connection again: its session lives on.
func TestNodeLeftBehindIsDeleted(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	p := faultproxy.Start(t, server.Addr)
	d := opened(t, p.Addr(), prefix)
	kept := request("kept")
	kept.TTL = time.Minute
	hold(t, d, kept)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	r := request("k")
	trap := p.CutRequest([]byte(r.Token.String() + "-lock-0")) // the look at the node
	go func() {
		<-trap.Fired()
		p.Refuse()
	}()
	if _, err := d.Acquire(within(t, testSession/6), r); err == nil || driver.IsNotApplied(err) {
		t.Errorf("Acquire = %v, want unknown", err)
	}
	<-within(t, testSession/3).Done() // until the driver has given up to delete it at once
	p.Pass()
	await(t, "an empty line", 5*time.Second, func() bool { return len(c.line(prefix, "k")) == 0 })
	if len(c.line(prefix, "kept")) == 0 {
		t.Error("the session ended, which proves nothing")
	}
}

// Sessions outlive the server, and so do the holds; what was given back meanwhile
// is.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	prefix := "/test"
	l, err := zklock.New(t.Context(), []string{server.Addr()}, &locks.Config{TTL: 6 * time.Second, RequestTimeout: 200 * time.Millisecond, RenewInterval: 500 * time.Millisecond}, zklock.WithPrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	d := opened(t, server.Addr(), prefix, zklock.WithSessionTimeout(9*time.Second))
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	waiter := request("k")
	waiter.TTL = 6 * time.Second
	go func() {
		for { // a silent server ends the wait; whoever wants the key asks again
			_, err := d.AcquireQueued(within(t, 60*time.Second), waiter)
			if err == nil || within(t, 0).Err() == nil {
				waiting <- err
				return
			}
		}
	}()
	c := dialConsole(t, server.Addr())
	await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 2 })
	server.Kill()
	if _, err := l.TryAcquire(within(t, 5*time.Second), "other"); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, locks.ErrHeld) {
		t.Errorf("TryAcquire without a server = %v", err)
	}
	until := lease.ValidUntil()
	server.Restart()
	await(t, "a renewal", 20*time.Second, func() bool { return lease.ValidUntil().After(until) || lease.Err() != nil })
	if err := lease.Err(); err != nil {
		t.Fatalf("the lease did not outlive the restart: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	h := driver.Hold{Request: waiter}
	wantReleased(t, d, h, driver.ReleasedOK)
}

// A server that is silent is told from a long line.
func TestSilentServerEndsTheWait(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	p := faultproxy.Start(t, server.Addr)
	holder, d := opened(t, server.Addr, prefix), opened(t, p.Addr(), prefix)
	h := hold(t, holder, request("k"))
	stop := keep(t, holder, h)
	got := make(chan error, 1)
	go func() {
		_, err := d.AcquireQueued(within(t, 3*patience), request("k"))
		got <- err
	}()
	c := dialConsole(t, server.Addr)
	await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 2 })
	<-within(t, 2*testTTL).Done()
	select {
	case err := <-got:
		t.Fatalf("the wait ended: %v", err)
	default:
	}
	p.BlackHole(faultproxy.Both)
	start := time.Now()
	err := <-got
	if took := time.Since(start); err == nil || took > 3*testTTL+patience/2 {
		t.Errorf("AcquireQueued = %v after %v", err, took)
	}
	p.Pass()
	stop()
	wantReleased(t, holder, h, driver.ReleasedOK)
	await(t, "an empty line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 0 })
}

// Whatever the network does, a driver can be closed.
func TestCloseWhileCutOff(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	for name, cut := range map[string]func(p *faultproxy.Proxy){
		"black hole": func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"refused":    func(p *faultproxy.Proxy) { p.Refuse() },
	} {
		p := faultproxy.Start(t, server.Addr)
		d := open(t, p.Addr(), "/"+server.Name)
		hold(t, d, request("k "+name))
		cut(p)
		done := make(chan error, 1)
		go func() {
			_, err := d.AcquireQueued(context.Background(), request("k "+name))
			done <- err
		}()
		start := time.Now()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > patience/2 {
			t.Errorf("%s: Close took %v", name, took)
		}
		if err := <-done; err == nil {
			t.Errorf("%s: a closed driver granted", name)
		}
		if _, err := d.Acquire(t.Context(), request("k")); !driver.IsNotApplied(err) {
			t.Errorf("%s: Acquire after Close = %v", name, err)
		}
	}
}
