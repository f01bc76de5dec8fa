package zklock

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
)

const patience = time.Minute

func openDriver(t *testing.T, addr, prefix string, session time.Duration) *Driver {
	t.Helper()
	d, err := NewDriver(t.Context(), []string{addr}, WithPrefix(prefix), WithSessionTimeout(session))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// until waits for a condition that the server or the driver brings about.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (d *Driver) ghostCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ghosts)
}

func inLine(t *testing.T, d *Driver, key string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	line, err := d.line(ctx, d.dir(key), true)
	if err != nil {
		t.Fatal(err)
	}
	return len(line)
}

// An acquire that was given up and repeated with its token may have made several nodes.
// A release that settles it deletes them all: one that is left would block the key for
// as long as the session lives.
func TestReleaseOfUnknownOutcomeLeavesNoNode(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	d := openDriver(t, server.Addr, "/"+server.Name, 8*time.Second)
	r := driver.Request{Key: "k", Token: driver.NewToken(), TTL: 5 * time.Second}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.makeKey(ctx, d.dir("k")); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.reaping = true // it comes too late for this test
	d.mu.Unlock()
	for range 2 {
		path, err := d.conn.Create(d.dir("k")+"/"+r.Token.String()+infix, nil, zk.FlagEphemeralSequential, d.acl)
		if err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		d.bury(&ghost{dir: d.dir("k"), path: path, token: r.Token})
		d.mu.Unlock()
	}
	if out, err := d.Release(ctx, driver.Hold{Request: r}); err != nil || out != driver.ReleasedOK {
		t.Fatalf("release: %v, %v", out, err)
	}
	if n := inLine(t, d, "k"); n != 0 {
		t.Errorf("%d nodes are left, and %d on the reaper's list", n, d.ghostCount())
	}
	if n := d.ghostCount(); n != 0 {
		t.Errorf("%d ghosts are left of nodes that are gone", n)
	}
}

// The release of a hold settles nothing of another acquire with its token, whose node
// stays on the reaper's list.
func TestReleaseOfAHoldKeepsOtherGhosts(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	d := openDriver(t, server.Addr, "/"+server.Name, 8*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := driver.Request{Key: "k", Token: driver.NewToken(), TTL: 5 * time.Second}
	g, err := d.Acquire(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.reaping = true
	d.mu.Unlock()
	path, err := d.conn.Create(d.dir("k")+"/"+r.Token.String()+infix, nil, zk.FlagEphemeralSequential, d.acl)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.bury(&ghost{dir: d.dir("k"), path: path, token: r.Token})
	d.forgetHoldForTest(r.Token) // as another driver would release it
	d.mu.Unlock()
	if out, err := d.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil || out != driver.ReleasedOK {
		t.Fatalf("release: %v, %v", out, err)
	}
	if n := d.ghostCount(); n != 1 {
		t.Errorf("%d ghosts, want the one of the other node", n)
	}
	d.mu.Lock()
	d.reaping = true
	d.wg.Go(d.reap)
	d.mu.Unlock()
	until(t, "the other node is deleted too", func() bool { return inLine(t, d, "k") == 0 })
}

func (d *Driver) forgetHoldForTest(t driver.Token) { delete(d.holds, t) }

// A new acquire with the token of one that left a node of unknown fate first settles
// that: it neither stands behind its own ghost nor is deleted as one.
func TestAcquireSettlesItsGhosts(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	d := openDriver(t, server.Addr, "/"+server.Name, 8*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := driver.Request{Key: "k", Token: driver.NewToken(), TTL: 5 * time.Second}
	if err := d.makeKey(ctx, d.dir("k")); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.reaping = true // it comes later
	d.mu.Unlock()
	if _, err := d.conn.Create(d.dir("k")+"/"+r.Token.String()+infix, nil, zk.FlagEphemeralSequential, d.acl); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.bury(&ghost{dir: d.dir("k"), token: r.Token}) // its create was not answered
	d.mu.Unlock()
	g, err := d.Acquire(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.ghostCount(); n != 0 {
		t.Errorf("%d ghosts, which the reaper would take the hold for", n)
	}
	if n := inLine(t, d, "k"); n != 1 {
		t.Errorf("%d in line, want the holder alone", n)
	}
	if _, err := d.Renew(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil {
		t.Error(err)
	}
}

// Where the answers of the server take longer than the reaper waits, all that many
// callers left is deleted together: one by one, each would cost a connection.
func TestGhostsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	p := faultproxy.Start(t, server.Addr)
	const session = 8 * time.Second
	d, other := openDriver(t, p.Addr(), prefix, session), openDriver(t, server.Addr, prefix, session)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := other.makeKey(ctx, other.dir("k")); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.reaping = true
	d.mu.Unlock()
	const n = 40
	for range n {
		token := driver.NewToken()
		path, err := d.conn.Create(d.dir("k")+"/"+token.String()+infix, nil, zk.FlagEphemeralSequential, d.acl)
		if err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		d.bury(&ghost{dir: d.dir("k"), path: path, token: token})
		d.mu.Unlock()
	}
	p.Delay(faultproxy.ToClient, d.silence()+d.silence()/4)
	before := p.Stats().Conns
	d.mu.Lock()
	d.wg.Go(d.reap)
	d.mu.Unlock()
	until(t, "the line is empty", func() bool { return inLine(t, other, "k") == 0 })
	if conns := p.Stats().Conns - before; conns > n/4 {
		t.Errorf("%d connections were given up for %d nodes", conns, n)
	}
	p.Pass()
	until(t, "the list is empty", func() bool { return d.ghostCount() == 0 })
}
