package lockstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// lockerCases are what the portable lock does on this backend while it works.
var lockerCases = []testCase{
	{name: "locker/one holder at a time", run: oneHolder},
	{name: "locker/counter under the lock", run: counterUnderLock},
	{name: "locker/many names at once", run: manyNames},
	testCase{name: "locker/a lease is renewed for as long as it is held", run: heldForLong}.asLong(),
	{name: "locker/a waiter gets the key when it is given back", run: handsOver},
	{name: "locker/a waiter gets a dead holder's key after its TTL", run: deadHolder},
	testCase{name: "locker/a long wait does not shorten the lease", run: longWait}.asLong(),
	{name: "locker/a cancelled caller leaves nothing", run: cancelLeavesNothing},
	{name: "locker/a grant taken by hand is told", run: takenByHand},
	testCase{name: "locker/a record deleted under a healthy holder is told", run: deletedUnderHolder}.withDelete(),
	{name: "locker/a lease of another TTL", run: anotherTTL},
	{name: "locker/close gives everything back", run: closeGivesBack},
	testCase{name: "locker/many cycles leave nothing behind", run: manyCycles}.byItself(),
	testCase{name: "locker/a lease outlives a restart of the backend", run: outlivesRestart}.withRestart(),
}

func oneHolder(b *bench) {
	ps := []process{b.steady(), b.steady(), b.steady(), b.steady()}
	key := b.key("k")
	var last int64
	for range 5 {
		leases := make([]*locks.Lease, len(ps))
		errs := make([]error, len(ps))
		var wg sync.WaitGroup
		for i, p := range ps {
			wg.Go(func() { leases[i], errs[i] = p.TryAcquire(b.within(b.patience()), key) })
		}
		wg.Wait()
		var holder *locks.Lease
		for i, lease := range leases {
			if lease == nil {
				b.wantHeld(errs[i])
				continue
			}
			if holder != nil {
				b.Fatal("two holders")
			}
			holder = lease
		}
		if holder == nil && b.h.Votes {
			continue
		}
		if holder == nil {
			b.Fatalf("no holder: %v", errs)
		}
		if holder.Fence() <= last || !holder.Valid() || holder.Key() != key {
			b.Fatalf("fence %d after %d, valid %v", holder.Fence(), last, holder.Valid())
		}
		last = holder.Fence()
		b.release(holder)
		b.release(holder) // twice is once
	}
	for _, p := range ps {
		// A session's requests have a bound, and are repeated beyond it.
		if n := p.Calls(Acquire); n != 5 && !b.h.Sessions {
			b.Errorf("%d requests for 5 attempts, want one each", n)
		}
	}
}

func counterUnderLock(b *bench) {
	ps := []process{b.steady(), b.steady()}
	key := b.key("k")
	const each, rounds = 4, 8
	var inside atomic.Int32
	var mu sync.Mutex
	counter, high := 0, int64(0)
	read := func() int { mu.Lock(); defer mu.Unlock(); return counter }
	write := func(n int, fence int64) {
		mu.Lock()
		defer mu.Unlock()
		if fence < high {
			b.Errorf("fence %d after %d", fence, high)
		}
		counter, high = n, fence
	}
	var wg sync.WaitGroup
	for _, p := range ps {
		for range each {
			wg.Go(func() {
				for range rounds {
					err := p.Do(b.within(10*b.patience()), key, func(_ context.Context, lease *locks.Lease) error {
						if inside.Add(1) != 1 {
							b.Error("two holders")
						}
						n := read()
						runtime.Gosched()
						write(n+1, lease.Fence())
						inside.Add(-1)
						return nil
					})
					if err != nil {
						b.Errorf("Do: %v", err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if want := len(ps) * each * rounds; counter != want {
		b.Errorf("counter = %d, want %d: updates were lost", counter, want)
	}
}

func manyNames(b *bench) {
	p, other := b.steady(), b.steady()
	const n = 100 // where each takes a connection, a server has about as many
	leases := make([]*locks.Lease, n)
	for i := range leases {
		leases[i] = b.try(p, b.key(fmt.Sprint(i)))
	}
	before, start := p.Calls(Renew), time.Now() // taking them may have lasted
	b.sleep(2 * b.h.TTL)
	for i, lease := range leases {
		if err := lease.Err(); err != nil {
			b.Fatalf("lease %d of %d: %v", i, n, err)
		}
	}
	if _, ok := driver.As[driver.BatchRenewer](p.inner); ok {
		calls := p.Calls(Renew) - before
		intervals := time.Since(start).Seconds() / p.Config().RenewInterval.Seconds()
		if float64(calls) > 2*intervals+4 {
			b.Errorf("%d renewal requests for %d leases in %.1f intervals", calls, n, intervals)
		}
	}
	for i, lease := range leases {
		if i%2 == 0 {
			b.release(lease)
		}
	}
	for i := range leases {
		lease, err := other.TryAcquire(b.within(b.patience()), b.key(fmt.Sprint(i)))
		if i%2 == 0 && err != nil {
			b.Errorf("name %d was given back: %v", i, err)
		} else if i%2 == 1 {
			b.wantHeld(err)
		}
		if lease != nil {
			b.release(lease)
		}
	}
}

func heldForLong(b *bench) {
	p, other := b.process(), b.steady()
	for _, name := range []string{"first", "second"} { // renewal starts again after the last lease has gone
		lease := b.acquire(p, b.key(name))
		end := time.Now().Add(2 * b.h.TTL)
		for time.Now().Before(end) {
			_, err := other.TryAcquire(b.within(b.patience()), lease.Key())
			b.wantHeld(err)
			b.sleep(b.h.TTL / 10)
		}
		if !lease.Valid() || lease.Err() != nil {
			b.Fatalf("lost: %v", lease.Err())
		}
		b.release(lease)
	}
}

func handsOver(b *bench) {
	ps := []process{b.steady(), b.steady()}
	key := b.key("k")
	lease := b.acquire(ps[0], key)
	var longest time.Duration
	for i := range 10 {
		got := make(chan *locks.Lease, 1)
		next := ps[(i+1)%2]
		before := next.Calls(Acquire)
		go func() {
			l, err := next.Acquire(b.within(b.patience()), key)
			if err != nil {
				b.Errorf("Acquire: %v", err)
			}
			got <- l
		}()
		for next.Calls(Acquire) == before { // it has looked, and waits
			b.sleep(b.h.TTL / 500)
		}
		b.release(lease)
		released := time.Now()
		if lease = <-got; lease == nil {
			return
		}
		longest = max(longest, time.Since(released))
	}
	b.release(lease)
	if bound := ps[0].Config().TTL / 2; longest > bound {
		b.Errorf("a waiter was let in %v after the release, want at most %v", longest, bound)
	}
}

func deadHolder(b *bench) {
	d, p := b.driver(), b.steady()
	r := b.request(b.key("k"))
	sent := time.Now()
	dead := b.grant(d, r) // by a process that is never heard of again
	lease := b.acquire(p, r.Key)
	if took := time.Since(sent); took < b.h.TTL-2*time.Millisecond || took > b.h.TTL+b.patience() {
		b.Errorf("taken over after %v, want the TTL of %v and a little", took, b.h.TTL)
	}
	if lease.Fence() <= dead.Fence {
		b.Errorf("fence went from %d to %d", dead.Fence, lease.Fence())
	}
	b.release(lease)
}

func longWait(b *bench) {
	ttl := 2 * b.h.TTL // half of it is what a slow machine may take to look
	if b.h.Sessions {
		ttl = b.h.TTL
	}
	a, p := b.steady(), b.processWith(locks.Config{TTL: ttl})
	lease := b.try(a, b.key("k"))
	got := make(chan *locks.Lease, 1)
	go func() {
		defer close(got) // also where acquire ends the goroutine
		got <- b.acquire(p, lease.Key())
	}()
	b.sleep(ttl * 3 / 2)
	b.release(lease)
	if lease = <-got; lease == nil {
		return
	}
	if left := time.Until(lease.ValidUntil()); left < ttl/2 {
		b.Errorf("%v left of a TTL of %v right after the grant", left, ttl)
	}
	b.sleep(ttl * 3 / 2)
	if err := lease.Err(); err != nil {
		b.Errorf("lost: %v", err)
	}
	b.release(lease)
}

func cancelLeavesNothing(b *bench) {
	p, other := b.process(), b.process()
	if b.h.Withdraws {
		p = b.steady() // what it leaves stays for long
	}
	key := b.key("k")
	for i := range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(4*time.Millisecond))
		start := time.Now()
		lease, err := p.Acquire(ctx, key)
		if took := time.Since(start); took > 15*time.Second {
			b.Fatalf("round %d: Acquire returned %v after its start, its context had at most 4ms", i, took)
		}
		cancel()
		if (err == nil) != (lease != nil) || err == nil && !lease.Valid() {
			b.Fatalf("round %d: Acquire = %v, %v", i, lease, err)
		}
		if err == nil {
			b.release(lease)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			b.Fatalf("round %d: Acquire = %v", i, err)
		}
	}
	start := time.Now()
	lease := b.acquire(other, key)
	// Where requests and their withdrawals take ways of their own, a late request can still
	// be carried out, unless the backend withdraws: for no longer than its TTL, which the
	// wait above bounds.
	if took := time.Since(start); (b.h.Virtual || b.h.Withdraws) && took > p.Config().TTL/2 {
		b.Errorf("a cancelled caller left the key held for %v", took)
	} else {
		b.Logf("free after %v", took)
	}
	b.release(lease)
}

func takenByHand(b *bench) {
	a, p := b.steady(), b.steady()
	lease := b.try(a, b.key("k"))
	if _, err := p.ForceRelease(b.within(b.patience()), lease.Key()); errors.Is(err, locks.ErrUnsupported) {
		b.Skip("the driver cannot force a release")
	} else if err != nil {
		b.Fatal(err)
	}
	next := b.try(p, lease.Key())
	b.wantLost(lease, b.patience(), locks.ReasonNotOurs)
	if next.Fence() <= lease.Fence() {
		b.Errorf("fence went from %d to %d", lease.Fence(), next.Fence())
	}
	var re *locks.ReleaseError
	if err := lease.Release(context.Background()); !errors.As(err, &re) || re.Outcome != locks.ReleasedOther {
		b.Errorf("Release by the old holder = %v", err)
	}
	if err := next.Err(); err != nil || !next.Valid() {
		b.Errorf("the new holder lost it: %v", err)
	}
	b.release(next)
	b.release(b.try(a, lease.Key())) // the same object gets it again
}

func deletedUnderHolder(b *bench) {
	p, other := b.steady(), b.steady()
	lease := b.try(p, b.key("k"))
	work, cancel := lease.Context(context.Background())
	defer cancel()
	b.h.Delete(b, lease.Key())
	next := b.try(other, lease.Key())
	b.wantLost(lease, b.patience(), locks.ReasonNotOurs)
	select { // contexts end right after the lease
	case <-work.Done():
	case <-time.After(b.patience()):
	}
	if cause := context.Cause(work); !errors.Is(cause, locks.ErrLost) {
		b.Errorf("cause = %v", cause)
	}
	if next.Fence() <= lease.Fence() {
		b.Errorf("fence went from %d to %d: the old holder's writes pass", lease.Fence(), next.Fence())
	}
	b.release(next)
}

func anotherTTL(b *bench) {
	p, other := b.steady(), b.steady()
	key, ttl := b.key("k"), p.Config().TTL
	b.release(b.try(p, key, locks.WithTTL(10*ttl), locks.WithLabel("long")))
	lease := b.try(p, key)
	_, err := other.TryAcquire(b.within(b.patience()), key)
	b.wantHeld(err)
	var held *locks.HeldError
	if errors.As(err, &held) && !b.h.Transactions && (held.Holder.Remaining > 2*ttl || held.Holder.Label != p.Config().Label) {
		b.Errorf("holder = %+v: the earlier lease shows through", held.Holder)
	}
	b.release(lease)
}

func closeGivesBack(b *bench) {
	p, other := b.steady(), b.steady()
	const n = 20
	for i := range n {
		b.try(p, b.key(fmt.Sprint(i)))
	}
	if err := p.Close(b.within(b.patience())); err != nil {
		b.Fatalf("Close: %v", err)
	}
	if err := p.Close(b.within(b.patience())); err != nil {
		b.Fatalf("second Close: %v", err)
	}
	if _, err := p.TryAcquire(b.within(b.patience()), b.key("late")); !errors.Is(err, locks.ErrClosed) {
		b.Errorf("TryAcquire after Close = %v", err)
	}
	for i := range n {
		b.release(b.try(other, b.key(fmt.Sprint(i))))
	}
}

func manyCycles(b *bench) {
	p, other := b.steady(), b.steady()
	held := b.try(other, b.key("held"))
	cycle := func(n int) {
		for range n {
			lease := b.try2(p, b.key("k"))
			b.release(lease)
			if _, err := p.TryAcquire(context.Background(), held.Key()); !errors.Is(err, locks.ErrHeld) {
				b.Fatalf("TryAcquire of a held key: %v", err)
			}
		}
	}
	cycle(50)
	goroutines := runtime.NumGoroutine()
	// A leak grows in every round; the buffers and pools of a client fill once. What
	// still ends by itself, such as the answer of a slow node, is no leak.
	const n, rounds, each = 500, 5, 256
	var more uint64
	for range rounds {
		heap := liveHeap()
		cycle(n)
		grown := func() uint64 { return max(liveHeap(), heap) - heap }
		for end := time.Now().Add(b.h.TTL); grown() > n*each && time.Now().Before(end); {
			b.sleep(10 * time.Millisecond)
		}
		if more = grown(); more <= n*each {
			break
		}
	}
	for end := time.Now().Add(b.patience()); runtime.NumGoroutine() > goroutines+5 && time.Now().Before(end); {
		b.sleep(10 * time.Millisecond)
	}
	if after := runtime.NumGoroutine(); after > goroutines+5 {
		b.Errorf("goroutines went from %d to %d", goroutines, after)
	}
	if more > n*each {
		b.Errorf("the heap grew in each of %d rounds, by %d bytes over the %d cycles of the last", rounds, more, n)
	}
}

// try2 is try without what a test keeps of every call.
func (b *bench) try2(p process, key string) *locks.Lease {
	ctx, cancel := context.WithTimeout(context.Background(), b.patience())
	defer cancel()
	ask := p.TryAcquire
	if b.h.Votes {
		ask = p.Acquire
	}
	lease, err := ask(ctx, key)
	if err != nil {
		b.Fatalf("TryAcquire: %v", err)
	}
	return lease
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func outlivesRestart(b *bench) {
	if b.h.Transactions {
		b.Skip("a restart ends what is held")
	}
	// The restart may take as long as half a TTL of this length.
	p := b.processWith(locks.Config{TTL: max(b.h.TTL, 5*time.Minute), RequestTimeout: time.Second, RenewInterval: b.h.TTL / 2})
	lease := b.acquire(p, b.key("k"))
	b.h.Restart(b)
	renewed := lease.ValidUntil()
	for end := time.Now().Add(2 * time.Minute); !lease.ValidUntil().After(renewed); b.sleep(b.h.TTL / 10) {
		if err := lease.Err(); err != nil || time.Now().After(end) {
			b.Fatalf("not renewed after the restart: %v", err)
		}
	}
	b.release(lease)
	b.release(b.acquire(p, lease.Key()))
}
