package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/zklock"
)

// The promises of the package comment, by count.
func TestRequests(t *testing.T) {
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	var count counter
	d := opened(t, server.Addr, prefix, zklock.WithDialer(count.dial), zklock.WithSessionTimeout(10*time.Second))
	other := opened(t, server.Addr, prefix, zklock.WithSessionTimeout(10*time.Second))
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK) // makes the nodes above
	count.take()
	want := func(what string, n map[int32]int, f func()) {
		t.Helper()
		f()
		if got := count.take(); !maps.Equal(got, n) {
			t.Errorf("%s: requests by operation %v, want %v", what, got, n)
		}
	}
	var h driver.Hold
	want("acquire", map[int32]int{opCreate: 1, opChildren: 1, opGetData: 1}, func() { h = hold(t, d, request("k")) })
	want("renew", map[int32]int{opSync: 1}, func() {
		if _, err := d.Renew(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	})
	want("release", map[int32]int{opDelete: 1}, func() { wantReleased(t, d, h, driver.ReleasedOK) })

	theirs := hold(t, other, request("k"))
	tryHeld := func() {
		var held *driver.HeldError
		if _, err := d.Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Holder.Token != theirs.Token || held.Holder.Label != theirs.Label {
			t.Fatalf("Acquire = %v", err)
		}
	}
	want("first look at a held key", map[int32]int{opCreate: 1, opChildren: 1, opGetData: 1, opDelete: 1}, tryHeld)
	want("next look at a held key", map[int32]int{opChildren: 1, opGetData: 1}, tryHeld)

	granted := make(chan driver.Hold, 1)
	want("hand-over", map[int32]int{opCreate: 1, opChildren: 1, opGetData: 2}, func() {
		go func() {
			r := request("k")
			g, err := d.AcquireQueued(within(t, 20*time.Second), r)
			if err != nil {
				t.Error(err)
			}
			granted <- driver.Hold{Request: r, Fence: g.Fence}
		}()
		await(t, "a place in line", 10*time.Second, func() bool {
			count.mu.Lock()
			defer count.mu.Unlock()
			return count.n[opGetData] == 2
		})
		wantReleased(t, other, theirs, driver.ReleasedOK)
		h = <-granted
	})
	if h.Fence <= theirs.Fence {
		t.Errorf("fence went from %d to %d", theirs.Fence, h.Fence)
	}
	wantReleased(t, d, h, driver.ReleasedOK)

	const n = 1000
	holds := make([]driver.Hold, n)
	var wg sync.WaitGroup
	for part := range 50 {
		wg.Go(func() {
			for i := part; i < n; i += 50 {
				r := request(fmt.Sprint("many ", i))
				r.TTL = time.Minute
				g, err := d.Acquire(within(t, time.Minute), r)
				if err != nil {
					t.Error(err)
				}
				holds[i] = driver.Hold{Request: r, Fence: g.Fence}
			}
		})
	}
	wg.Wait()
	count.take()
	want("renewal of 1000 holds", map[int32]int{opSync: 1}, func() {
		for i, err := range d.RenewBatch(t.Context(), holds) {
			if err != nil {
				t.Fatalf("hold %d: %v", i, err)
			}
		}
	})
}

// In a line of any length a waiter makes its node, looks at the line when it comes and
// when the last but one before it goes, and watches three nodes, its own included; it
// asks for the last one again where that goes while it looks.
func TestLongLineRequests(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	holder := opened(t, server.Addr, prefix)
	r := request("k")
	r.TTL = time.Minute
	h := hold(t, holder, r)
	const n = 6
	counts := make([]counter, n)
	drivers := make([]*zklock.Driver, n)
	won := make([]chan driver.Hold, n)
	for i := range n {
		drivers[i] = opened(t, server.Addr, prefix, zklock.WithDialer(counts[i].dial), zklock.WithSessionTimeout(10*time.Second))
		counts[i].take()
		won[i] = make(chan driver.Hold, 1)
		go func() {
			r := request("k")
			g, err := drivers[i].AcquireQueued(within(t, patience), r)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			won[i] <- driver.Hold{Request: r, Fence: g.Fence}
		}()
		watches := min(3, i+2)
		await(t, "a place in line", patience, func() bool {
			counts[i].mu.Lock()
			defer counts[i].mu.Unlock()
			return len(c.line(prefix, "k")) == i+2 && counts[i].n[opGetData] == watches
		})
	}
	from := holder
	for i := range n {
		wantReleased(t, from, h, driver.ReleasedOK)
		h, from = <-won[i], drivers[i]
		got := counts[i].take()
		delete(got, opSync) // signs of life, where the machine is slow
		looks, watches := 1, i+2
		if i >= 2 {
			looks, watches = 2, 4
		}
		if got[opCreate] != 1 || got[opGetData] > watches || got[opChildren] > looks || len(got) != 3 {
			t.Errorf("waiter %d: requests by operation %v", i, got)
		}
	}
	wantReleased(t, from, h, driver.ReleasedOK)
}

// Requests that need not wait for each other do not.
func TestRoundTrips(t *testing.T) {
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	p := faultproxy.Start(t, server.Addr)
	var count counter
	d := opened(t, p.Addr(), prefix, zklock.WithSessionTimeout(10*time.Second), zklock.WithDialer(count.dial))
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	const trip = 300 * time.Millisecond
	p.Delay(faultproxy.ToServer, trip)
	measure := func(what string, trips int, f func()) {
		t.Helper()
		start := time.Now()
		f()
		if took := time.Since(start); took < time.Duration(trips)*trip || took > time.Duration(trips)*trip+trip*9/10 {
			t.Errorf("%s took %v, want %d round trips of %v", what, took, trips, trip)
		}
	}
	var h driver.Hold
	measure("acquire", 2, func() { h = hold(t, d, request("k")) })
	measure("renew", 1, func() {
		if _, err := d.Renew(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	})
	measure("release", 1, func() { wantReleased(t, d, h, driver.ReleasedOK) })

	other := opened(t, server.Addr, prefix, zklock.WithSessionTimeout(10*time.Second))
	theirs := hold(t, other, request("k"))
	count.take()
	granted := make(chan driver.Hold, 1)
	measure("a place in line, until the watches are asked for,", 1, func() {
		go func() {
			r := request("k")
			g, err := d.AcquireQueued(within(t, patience), r)
			if err != nil {
				t.Error(err)
			}
			granted <- driver.Hold{Request: r, Fence: g.Fence}
		}()
		await(t, "the watches of the own node and of the holder's", patience, func() bool {
			count.mu.Lock()
			defer count.mu.Unlock()
			return count.n[opGetData] == 2
		})
	})
	wantReleased(t, other, theirs, driver.ReleasedOK)
	wantReleased(t, d, <-granted, driver.ReleasedOK)
}

// First come, first served, and only the next one is told.
func TestQueueIsFair(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	holder := opened(t, server.Addr, prefix)
	r := request("k")
	r.TTL = time.Minute
	h := hold(t, holder, r)
	const n = 6
	type won struct {
		i int
		h driver.Hold
		d *zklock.Driver
	}
	order := make(chan won, n)
	for i := range n {
		d := opened(t, server.Addr, prefix)
		r := request("k")
		go func() {
			g, err := d.AcquireQueued(within(t, 30*time.Second), r)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			order <- won{i, driver.Hold{Request: r, Fence: g.Fence}, d}
		}()
		await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == i+2 })
	}
	if info, err := holder.Inspect(t.Context(), "k"); err != nil || info.Waiters != n || info.Token != h.Token || info.Since.IsZero() {
		t.Errorf("Inspect = %+v, %v", info, err)
	}
	wantReleased(t, holder, h, driver.ReleasedOK)
	last := h.Fence
	for i := range n {
		w := <-order
		if w.i != i || w.h.Fence <= last {
			t.Errorf("waiter %d came %d. with fence %d after %d", w.i, i, w.h.Fence, last)
		}
		last = w.h.Fence
		wantReleased(t, w.d, w.h, driver.ReleasedOK)
	}
}

// Whoever gives up waiting leaves no node, also one that was about to be made.
func TestCancelledWaitersLeaveTheLine(t *testing.T) {
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	holder, d := opened(t, server.Addr, prefix), opened(t, server.Addr, prefix)
	r := request("k")
	h := hold(t, holder, r)
	stop := keep(t, holder, h)
	done := make(chan error)
	const n = 300
	for i := range n {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i%97)*time.Millisecond/4)
			defer cancel()
			_, err := d.AcquireQueued(ctx, request("k"))
			done <- err
		}()
	}
	for range n {
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("AcquireQueued = %v", err)
		}
	}
	await(t, "an empty line", 5*time.Second, func() bool { return len(c.line(prefix, "k")) == 1 })
	stop()
	wantReleased(t, holder, h, driver.ReleasedOK)
	await(t, "an empty line", 5*time.Second, func() bool { return len(c.line(prefix, "k")) == 0 })
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
}

// keep renews a hold until stop is called.
func keep(t *testing.T, d driver.Driver, h driver.Hold) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(h.TTL / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if _, err := d.Renew(ctx, h); err != nil && ctx.Err() == nil {
					t.Errorf("Renew = %v", err)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// What is not ours in a line is in nobody's way.
func TestForeignChildren(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	c := dialConsole(t, server.Addr)
	d, other := opened(t, server.Addr, prefix), opened(t, server.Addr, prefix)
	wantReleased(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	for _, name := range []string{"notes", "lock-", "0-lock-0000000000", "_c_0123456789abcdef0123456789abcdef-lock-0000000000"} {
		if _, err := c.Create(zklock.KeyPath(prefix, "k")+"/"+name, nil, 0, worldACL); err != nil {
			t.Fatal(err)
		}
	}
	h := hold(t, d, request("k"))
	var held *driver.HeldError
	if _, err := other.Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Holder.Token != h.Token {
		t.Errorf("Acquire of a held key = %v", err)
	}
	wantReleased(t, d, h, driver.ReleasedOK)
	wantReleased(t, d, h, driver.ReleasedGone)
	if _, err := d.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrFree) {
		t.Errorf("Inspect = %v", err)
	}
	g := make(chan error, 1)
	h = hold(t, d, request("k"))
	go func() {
		_, err := other.AcquireQueued(within(t, 20*time.Second), request("k"))
		g <- err
	}()
	await(t, "a place in line", 10*time.Second, func() bool { return len(c.line(prefix, "k")) == 6 })
	wantReleased(t, d, h, driver.ReleasedOK)
	if err := <-g; err != nil {
		t.Errorf("AcquireQueued = %v", err)
	}
}

// A deleted node is told at once, without waiting for a renewal, and the one who
// forced it meets a greater fence.
func TestDeletionIsToldAtOnce(t *testing.T) {
	server := testenv.SharedZooKeeper(t)
	prefix := "/" + server.Name
	l, err := zklock.New(t.Context(), []string{server.Addr}, &locks.Config{TTL: 6 * time.Second, RenewInterval: 2 * time.Second}, zklock.WithPrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	console := opened(t, server.Addr, prefix)
	for _, release := range []func() error{
		func() error { dialConsole(t, server.Addr).deleteLine(t, prefix, "k"); return nil },
		func() error { _, err := console.ForceRelease(t.Context(), "k"); return err },
	} {
		lease, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := release(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-lease.Done():
			if took := time.Since(start); took > l.Config().RenewInterval*9/10 { // before a renewal could have told it
				t.Errorf("told after %v", took)
			}
		case <-within(t, patience).Done():
			t.Fatal("not told")
		}
		var lost *locks.LostError
		if !errors.As(lease.Err(), &lost) || lost.Reason != locks.ReasonNotOurs {
			t.Errorf("Err = %v", lease.Err())
		}
		next := hold(t, console, request("k"))
		if next.Fence <= lease.Fence() {
			t.Errorf("fence went from %d to %d", lease.Fence(), next.Fence)
		}
		wantReleased(t, console, next, driver.ReleasedOK)
	}
}

// What a watch goes on with is its own: the race detector looks.
func TestWatchGoesOnByItself(t *testing.T) {
	t.Parallel()
	server := testenv.SharedZooKeeper(t)
	d, other := opened(t, server.Addr, "/"+server.Name), opened(t, server.Addr, "/"+server.Name)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	busy.Go(func() {
		for ctx.Err() == nil {
			wantReleased(t, other, hold(t, other, request("k")), driver.ReleasedOK)
		}
	})
	for range 5 {
		hint, stop, err := d.Watch(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			<-hint
		}
		stop()
	}
}
