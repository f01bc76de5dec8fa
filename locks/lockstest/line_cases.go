package lockstest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// lineCases are the promises of driver.Queuer and driver.LossWatcher.
var lineCases = []testCase{
	{name: "driver/a line is served in order of arrival", run: lineInOrder},
	{name: "driver/who stands in line hears that it does", run: lineIsTold},
	{name: "driver/a grant from the line is a whole one", run: wholeGrantFromLine},
	{name: "driver/a waiter that goes away leaves the line", run: waiterLeaves},
	testCase{name: "driver/a dead waiter is passed over", run: deadWaiter}.withProxy(),
	{name: "driver/a loss is pushed", run: lossIsPushed},
}

// line is a held key and those who wait for it.
type line struct {
	*bench
	key     string
	holder  driver.Driver
	hold    driver.Hold
	waiting int
	wg      sync.WaitGroup
	unkeep  func() // ends the renewal of hold
}

func (b *bench) line() *line {
	b.Helper()
	l := &line{bench: b, key: b.key("k"), holder: b.driver()}
	if _, ok := driver.As[driver.Queuer](l.holder); !ok {
		b.Skip("the driver keeps no line")
	}
	r := b.request(l.key)
	r.TTL = max(b.h.TTL, 5*time.Minute) // nobody renews it, unless the backend cuts it
	l.hold = b.grant(l.holder, r)
	l.unkeep = func() {}
	if b.h.Sessions {
		l.unkeep = b.keep(l.holder, l.hold)
	}
	return l
}

// join puts r in line and calls then with the answer. It returns when r stands there.
func (l *line) join(ctx context.Context, d driver.Driver, r driver.Request, then func(driver.Grant, error)) {
	l.Helper()
	q, _ := driver.As[driver.Queuer](d)
	l.waiting++
	l.wg.Go(func() { then(q.AcquireQueued(ctx, r)) })
	i, ok := driver.As[driver.Inspector](l.holder)
	if !ok {
		l.sleep(l.h.TTL/2 + 500*time.Millisecond) // it must have arrived by then
		return
	}
	for end := time.Now().Add(l.patience()); time.Now().Before(end); l.sleep(l.h.TTL / 50) {
		if h, err := i.Inspect(l.within(l.patience()), l.key); err == nil && h.Waiters >= l.waiting {
			return
		}
	}
}

func (l *line) free() {
	l.Helper()
	l.unkeep()
	l.wantReleased(l.holder, l.hold, driver.ReleasedOK)
}

func lineIsTold(b *bench) {
	l := b.line()
	told := make(chan error, 100)
	r := b.lasting(l.key)
	r.Answered = func(err error) { told <- err }
	left := make(chan struct{})
	ctx, leave := context.WithCancel(b.Context())
	defer leave()
	l.join(ctx, b.driver(), r, func(driver.Grant, error) {
		select {
		case told <- errReturned:
		default:
		}
		close(left)
	})
	select {
	case err := <-told:
		if err != nil {
			b.Errorf("told %v, want that the key is held", err)
		}
	case <-b.within(b.patience()).Done():
		b.Error("nothing is told")
	}
	leave()
	<-left
	for ended := false; len(told) > 0; {
		err := <-told
		if ended {
			b.Errorf("told %v after the call had returned", err)
		}
		ended = errors.Is(err, errReturned)
	}
	l.free()
}

var errReturned = errors.New("returned")

func lineInOrder(b *bench) {
	l := b.line()
	var mu sync.Mutex
	var order []int
	last := l.hold.Fence
	for i := range 5 {
		d, r := b.driver(), b.lasting(l.key)
		l.join(b.within(4*b.patience()), d, r, func(g driver.Grant, err error) {
			if err != nil {
				b.Errorf("waiter %d: %v", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if order = append(order, i); g.Fence <= last {
				b.Errorf("waiter %d: fence %d after %d", i, g.Fence, last)
			}
			last = g.Fence
			b.wantReleased(d, driver.Hold{Request: r, Fence: g.Fence}, driver.ReleasedOK)
		})
	}
	l.free()
	l.wg.Wait()
	if !slices.IsSorted(order) {
		b.Errorf("served in order %v", order)
	}
	free := b.request(l.key) // in line for a free key
	q, _ := driver.As[driver.Queuer](l.holder)
	g, err := q.AcquireQueued(b.within(b.patience()), free)
	if err != nil || g.Fence <= last {
		b.Fatalf("a free key: fence %d after %d, %v", g.Fence, last, err)
	}
	b.wantReleased(l.holder, driver.Hold{Request: free, Fence: g.Fence}, driver.ReleasedOK)
}

func wholeGrantFromLine(b *bench) {
	l := b.line()
	d, r, other := b.driver(), b.request(l.key), b.driver()
	var g driver.Grant
	var granted time.Time
	l.join(b.within(2*b.patience()), d, r, func(got driver.Grant, err error) {
		if g, granted = got, time.Now(); err != nil {
			b.Errorf("AcquireQueued: %v", err)
		}
	})
	b.sleep(2 * b.h.TTL) // longer than its grant will live
	l.free()
	l.wg.Wait()
	if b.Failed() {
		return
	}
	ttl := r.TTL
	if g.TTL > 0 {
		ttl = g.TTL
	}
	if left := g.From.Add(ttl).Sub(granted); g.From.IsZero() || g.From.After(granted) || left < ttl/4 {
		b.Fatalf("%v left of a TTL of %v on arrival (From %v, arrival %v)", left, ttl, g.From, granted)
	}
	for {
		if _, err := other.Acquire(b.within(b.patience()), b.request(l.key)); err == nil {
			break
		}
		if time.Since(g.From) > ttl+b.patience() {
			b.Fatalf("still held %v after it began, for a TTL of %v", time.Since(g.From), ttl)
		}
		b.sleep(ttl / 50)
	}
	if since := time.Since(g.From); since < ttl-2*time.Millisecond {
		b.Errorf("over %v after it began, for a TTL of %v", since, ttl)
	}
}

func waiterLeaves(b *bench) {
	l := b.line()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	gone, r := b.driver(), b.request(l.key)
	r.TTL = max(b.h.TTL, 5*time.Minute) // a grant that it got all the same would show
	var left time.Time
	l.join(ctx, gone, r, func(_ driver.Grant, err error) {
		if !errors.Is(err, context.Canceled) {
			b.Errorf("AcquireQueued of one that left = %v", err)
		}
		if took := time.Since(left); took > b.patience() {
			b.Errorf("left after %v", took)
		}
		if !driver.IsNotApplied(err) { // then the caller settles it
			if _, err := gone.Release(b.within(b.patience()), driver.Hold{Request: r}); err != nil {
				b.Errorf("Release: %v", err)
			}
		}
	})
	next, nr := b.driver(), b.lasting(l.key)
	var waited sync.WaitGroup
	waited.Add(1)
	l.join(b.within(2*b.patience()), next, nr, func(g driver.Grant, err error) {
		defer waited.Done()
		if err != nil {
			b.Errorf("the next in line: %v", err)
			return
		}
		b.wantReleased(next, driver.Hold{Request: nr, Fence: g.Fence}, driver.ReleasedOK)
	})
	left = time.Now()
	leave()
	if i, ok := driver.As[driver.Inspector](l.holder); ok {
		for end := time.Now().Add(b.patience()); ; b.sleep(b.h.TTL / 50) {
			h, err := i.Inspect(b.within(b.patience()), l.key)
			if err == nil && h.Waiters <= 1 {
				break
			}
			if time.Now().After(end) {
				b.Fatalf("%d wait after one of two left: %v", h.Waiters, err)
			}
		}
	}
	l.free()
	waited.Wait()
	l.wg.Wait()
	b.grant(l.holder, b.request(l.key))
}

func deadWaiter(b *bench) {
	l := b.line()
	dead, cut, heal := b.h.Proxied(b)
	b.Cleanup(func() { closeDriver(b, dead) })
	b.Cleanup(heal)
	ctx, end := context.WithCancel(context.Background())
	defer end()
	r := b.request(l.key)
	l.join(ctx, dead, r, func(driver.Grant, error) {})
	next, nr := b.driver(), b.lasting(l.key)
	served := make(chan error, 1)
	l.join(b.within(4*b.patience()), next, nr, func(g driver.Grant, err error) {
		if err == nil {
			_, err = next.Release(b.within(b.patience()), driver.Hold{Request: nr, Fence: g.Fence})
		}
		served <- err
	})
	cut()
	l.free()
	freed := time.Now()
	if err := <-served; err != nil {
		b.Errorf("behind a dead waiter: %v", err)
	}
	if took := time.Since(freed); took > b.patience() {
		b.Errorf("behind a dead waiter: served after %v", took)
	}
	end()
	l.wg.Wait() // its clean-up has a time limit of its own
	heal()
}

func lossIsPushed(b *bench) {
	d := b.driver()
	w, ok := driver.As[driver.LossWatcher](d)
	if !ok {
		b.Skip("the driver does not push losses")
	}
	end := b.h.Delete
	if i, ok := driver.As[driver.Inspector](b.driver()); ok {
		end = func(t testing.TB, key string) {
			if _, err := i.ForceRelease(b.within(b.patience()), key); err != nil {
				t.Fatalf("ForceRelease: %v", err)
			}
		}
	}
	if end == nil {
		b.Skip("nothing here can end a grant")
	}
	h := b.grant(d, b.lasting(b.key("lost")))
	kept := b.grant(d, b.lasting(b.key("kept")))
	lost, stop := w.WatchLoss(h)
	defer stop()
	keptLost, stopKept := w.WatchLoss(kept)
	defer stopKept()
	for range 4 {
		b.sleep(b.h.TTL / 3)
		b.wantRenewal(d, h, nil)
		b.wantRenewal(d, kept, nil)
	}
	select {
	case <-lost:
		b.Fatal("a healthy hold is reported lost")
	default:
	}
	end(b, h.Key)
	select {
	case <-lost:
	case <-b.within(h.TTL / 2).Done():
		b.Error("a loss was not pushed")
	}
	select {
	case <-keptLost:
		b.Error("a loss of another key was pushed")
	default:
	}
	b.wantRenewal(d, kept, nil)
	over, stopOver := w.WatchLoss(h)
	defer stopOver()
	select {
	case <-over:
	case <-b.within(h.TTL / 2).Done():
		b.Error("a watch that comes too late hears nothing")
	}
}
