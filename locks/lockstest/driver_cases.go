package lockstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// driverCases are the promises of package locks/driver.
var driverCases = []testCase{
	{name: "driver/one of many wins", run: oneOfManyWins},
	{name: "driver/a grant is idempotent in its token", run: grantIsIdempotent},
	{name: "driver/the fence grows with every grant", run: fenceGrows},
	testCase{name: "driver/the fence grows over a deleted record", run: fenceGrowsOverDeletion}.withDelete(),
	testCase{name: "driver/fence and grant survive a restart", run: survivesRestart}.withRestart(),
	{name: "driver/renewal is for the holder only", run: renewalIsForTheHolder},
	{name: "driver/release is for the holder only", run: releaseIsForTheHolder},
	{name: "driver/a late release does not free the next holder", run: lateRelease},
	{name: "driver/the TTL is honoured", run: ttlIsHonoured},
	{name: "driver/odd TTLs are refused or honoured", run: oddTTLs},
	{name: "driver/odd keys are keys of their own", run: oddKeys},
	{name: "driver/a withdrawn request is refused when it comes late", run: lateAcquire},
	{name: "driver/an ended context changes nothing and does not block", run: endedContext},
	testCase{name: "driver/a silent connection outlasts no context", run: silence}.withProxy(),
	{name: "driver/batch renewal answers for each hold", run: batchRenewal},
	{name: "driver/a release wakes who waits", run: wakes},
	{name: "driver/inspect, list and force release", run: inspects},
}

func oneOfManyWins(b *bench) {
	const n = 8
	drivers := make([]driver.Driver, n)
	for i := range drivers {
		drivers[i] = b.driver()
	}
	for round := range 5 {
		key := b.key(fmt.Sprint("round ", round))
		reqs := make([]driver.Request, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, d := range drivers {
			reqs[i] = b.lasting(key)
			wg.Go(func() { _, errs[i] = d.Acquire(b.within(b.patience()), reqs[i]) })
		}
		wg.Wait()
		winner := slices.Index(errs, nil)
		if winner < 0 && b.h.Votes {
			continue
		}
		if winner < 0 {
			b.Fatalf("nobody was granted a free key: %v", errs)
		}
		for i, err := range errs {
			if i == winner {
				continue
			}
			var held *driver.HeldError
			if !errors.As(err, &held) {
				b.Fatalf("driver %d: %v, want a HeldError (driver %d won)", i, err, winner)
			}
			if b.h.Transactions {
				continue
			}
			if held.Holder.Label != reqs[winner].Label || held.Holder.Remaining < 0 || held.Holder.Remaining > reqs[winner].TTL*5/4 {
				b.Errorf("holder = %+v, want the winner's label and remaining time", held.Holder)
			}
			if held.Holder.Token != (driver.Token{}) && held.Holder.Token != reqs[winner].Token {
				b.Error("the holder's token is not the winner's")
			}
		}
	}
}

func grantIsIdempotent(b *bench) {
	d := b.driver()
	r := b.request(b.key("k"))
	first := b.grant(d, r)
	for range 3 {
		b.sleep(b.h.TTL * 2 / 5)
		if again := b.grant(d, r); again.Fence != first.Fence {
			b.Fatalf("fence went from %d to %d for the same token", first.Fence, again.Fence)
		}
	}
	b.refused(b.driver(), b.request(r.Key)) // the TTL began anew
	b.wantReleased(d, first, driver.ReleasedOK)
}

func fenceGrows(b *bench) {
	d := b.driver()
	key := b.key("k")
	var last int64
	next := func(how string, d driver.Driver, r driver.Request) driver.Hold {
		b.Helper()
		h := b.grantAfter(d, r)
		if h.Fence <= last {
			b.Fatalf("fence went from %d to %d over %s", last, h.Fence, how)
		}
		last = h.Fence
		return h
	}
	h := next("nothing", d, b.lasting(key))
	b.wantRenewal(d, h, nil)
	if again := b.grant(d, h.Request); again.Fence != h.Fence {
		b.Fatalf("renewal raised the fence from %d to %d", h.Fence, again.Fence)
	}
	b.wantReleased(d, h, driver.ReleasedOK)
	next("a release", d, b.request(key))
	h = next("expiry", d, b.lasting(key))
	b.wantReleased(d, h, driver.ReleasedOK)
	d = b.driver()
	h = next("a new process", d, b.lasting(key))
	if i, ok := driver.As[driver.Inspector](d); ok {
		if out, err := i.ForceRelease(b.within(b.patience()), key); err != nil || out != driver.ReleasedOK {
			b.Fatalf("ForceRelease = %v, %v", out, err)
		}
		b.wantRenewal(d, h, driver.ErrNotOurs)
		h = next("a forced release", d, b.lasting(key))
	}
	b.wantReleased(d, h, driver.ReleasedOK)
}

func fenceGrowsOverDeletion(b *bench) {
	d := b.driver()
	h := b.grant(d, b.lasting(b.key("k")))
	for range 3 {
		b.h.Delete(b, h.Key)
		b.wantRenewal(d, h, driver.ErrNotOurs)
		next := b.grant(d, b.lasting(h.Key))
		if next.Fence <= h.Fence {
			b.Fatalf("fence went from %d to %d", h.Fence, next.Fence)
		}
		b.wantReleased(d, h, driver.ReleasedOther)
		h = next
	}
}

func survivesRestart(b *bench) {
	d := b.driver()
	r := b.request(b.key("k"))
	r.TTL = max(b.h.TTL, time.Minute)
	h := b.grant(d, r)
	b.h.Restart(b)
	other := b.driver()
	if b.h.Transactions {
		b.wantRenewal(d, h, driver.ErrNotOurs)
		b.wantReleased(d, h, driver.ReleasedGone)
	} else {
		b.refused(other, b.request(r.Key))
		b.wantRenewal(other, h, nil)
		b.wantReleased(other, h, driver.ReleasedOK)
	}
	if next := b.grant(other, b.request(r.Key)); next.Fence <= h.Fence {
		b.Fatalf("fence went from %d to %d", h.Fence, next.Fence)
	}
}

func renewalIsForTheHolder(b *bench) {
	d, other := b.driver(), b.driver()
	h := b.grant(d, b.lasting(b.key("k")))
	b.wantRenewal(d, h, nil)
	b.wantRenewal(d, h, nil) // also twice within one tick of any clock
	if !b.h.Sessions && !b.h.Transactions {
		b.wantRenewal(other, h, nil)
	} else if _, err := other.Renew(b.within(b.patience()), h); err == nil || errors.Is(err, driver.ErrNotOurs) {
		b.Errorf("another session's Renew = %v, want unknown", err)
	}

	wrongToken, wrongFence, wrongKey := h, h, h
	wrongToken.Token = driver.NewToken()
	wrongFence.Fence++
	wrongKey.Key = b.key("never acquired")
	for _, wrong := range []driver.Hold{wrongToken, wrongFence, wrongKey} {
		b.wantRenewal(d, wrong, driver.ErrNotOurs)
	}
	b.refused(other, b.request(h.Key))
	b.wantReleased(d, h, driver.ReleasedOK)
	b.wantRenewal(d, h, driver.ErrNotOurs)

	h = b.grant(d, b.request(h.Key))
	for range 6 { // renewal keeps it over more than a TTL
		b.sleep(b.h.TTL / 4)
		b.wantRenewal(d, h, nil)
	}
	b.refused(other, b.request(h.Key))
	b.sleep(2 * b.h.TTL)
	b.wantRenewal(d, h, driver.ErrNotOurs) // expired, and nobody took it
	next := b.grantAfter(other, b.lasting(h.Key))
	if !b.h.Transactions { // else it knows only that another has it
		b.wantRenewal(d, h, driver.ErrNotOurs) // expired, and taken
	}
	b.wantReleased(other, next, driver.ReleasedOK)
}

func releaseIsForTheHolder(b *bench) {
	d, other := b.driver(), b.driver()
	h := b.grant(d, b.lasting(b.key("k")))
	wrongToken, wrongFence := h, h
	wrongToken.Token = driver.NewToken()
	wrongFence.Fence++
	b.wantReleased(other, wrongToken, driver.ReleasedOther)
	b.wantReleased(other, wrongFence, driver.ReleasedOther)
	wrongToken.Fence = 0
	b.wantReleased(other, wrongToken, driver.ReleasedOther)
	b.wantRenewal(d, h, nil)
	b.refused(other, b.request(h.Key))

	b.wantReleased(d, h, driver.ReleasedOK)
	b.wantReleased(d, h, driver.ReleasedGone)
	b.wantReleased(d, h, driver.ReleasedGone)
	never := h
	never.Key = b.key("never acquired")
	b.wantReleased(d, never, driver.ReleasedGone)

	h = b.grant(d, b.lasting(h.Key))
	h.Fence = 0 // an acquire of unknown outcome
	b.wantReleased(d, h, driver.ReleasedOK)
	b.wantReleased(d, h, driver.ReleasedGone)
}

func lateRelease(b *bench) {
	d, other := b.driver(), b.driver()
	late := b.grant(d, b.request(b.key("k")))
	next := b.grantAfter(other, b.lasting(late.Key))
	b.wantReleased(d, late, driver.ReleasedOther)
	late.Fence = 0
	b.wantReleased(d, late, driver.ReleasedOther)
	b.wantRenewal(other, next, nil)
	b.refused(d, b.request(late.Key))
	b.wantReleased(other, next, driver.ReleasedOK)
}

func lateAcquire(b *bench) {
	if !b.h.Withdraws {
		b.Skip("a late request is carried out")
	}
	d, other := b.driver(), b.driver()
	for _, held := range []bool{false, true} {
		late := b.lasting(b.key(fmt.Sprint("held ", held)))
		var h driver.Hold
		if held {
			h = b.grant(other, b.lasting(late.Key))
		}
		want := map[bool]driver.Released{false: driver.ReleasedGone, true: driver.ReleasedOther}[held]
		b.wantReleased(d, driver.Hold{Request: late}, want)
		if held {
			b.wantReleased(other, h, driver.ReleasedOK)
		}
		if g, err := d.Acquire(b.within(b.patience()), late); !driver.IsNotApplied(err) {
			b.Errorf("Acquire after the withdrawal = %+v, %v, want refused", g, err)
		}
		if q, ok := driver.As[driver.Queuer](d); ok {
			if g, err := q.AcquireQueued(b.within(b.patience()), late); !driver.IsNotApplied(err) {
				b.Errorf("AcquireQueued after the withdrawal = %+v, %v, want refused", g, err)
			}
		}
		b.wantReleased(other, b.grant(other, b.lasting(late.Key)), driver.ReleasedOK)
	}
}

func ttlIsHonoured(b *bench) {
	d, other := b.driver(), b.driver()
	r := b.request(b.key("k"))
	sent := time.Now()
	b.grant(d, r)
	for {
		asked := time.Now()
		_, err := other.Acquire(b.within(b.patience()), b.request(r.Key))
		var held *driver.HeldError
		switch {
		case err == nil:
			// The backend began to count after sent, and answered before now; the
			// holder's margin of at least 2 ms covers a clock that counts coarsely.
			if since := time.Since(sent); since < b.h.TTL-2*time.Millisecond {
				b.Fatalf("granted to another %v after the request for a TTL of %v", since, b.h.TTL)
			}
			return
		case !errors.As(err, &held):
			b.Fatalf("Acquire = %v", err)
		case asked.Sub(sent) > b.h.TTL+b.patience():
			b.Fatalf("still held %v after the request for a TTL of %v", asked.Sub(sent), b.h.TTL)
		}
		b.sleep(b.h.TTL / 50)
	}
}

func oddTTLs(b *bench) {
	d := b.driver()
	type grant struct {
		driver.Request
		sent time.Time
	}
	var grants []*grant
	for _, ttl := range []time.Duration{b.h.TTL + b.h.TTL/2, b.h.TTL*2 - time.Millisecond, b.h.TTL + 7*time.Millisecond} {
		if _, err := locks.New(noClose{d}, locks.Config{TTL: ttl}); err != nil {
			if !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), "ttl") {
				b.Errorf("TTL %v: refused by %v, want an error that names it", ttl, err)
			}
			continue
		}
		r := b.request(b.key(ttl.String()))
		r.TTL = ttl
		sent := time.Now()
		g, err := d.Acquire(b.within(b.patience()), r)
		if err != nil {
			b.Fatalf("TTL %v: %v", ttl, err)
		}
		if g.TTL != 0 {
			r.TTL = g.TTL // what the holder goes by
		}
		grants = append(grants, &grant{Request: r, sent: sent})
	}
	for len(grants) > 0 {
		grants = slices.DeleteFunc(grants, func(g *grant) bool {
			asked := time.Since(g.sent)
			_, err := d.Acquire(b.within(b.patience()), b.request(g.Key))
			switch took := time.Since(g.sent); {
			case err == nil && took < g.TTL-2*time.Millisecond:
				b.Errorf("TTL %v: over after %v", g.TTL, took)
			case err != nil && asked > g.TTL+b.patience():
				b.Errorf("TTL %v: not over after %v", g.TTL, asked)
			case err != nil:
				return false
			}
			return true
		})
		b.sleep(b.h.TTL / 40)
	}
}

// noClose is a driver as the constructor sees it, without the right to close it.
type noClose struct{ driver.Driver }

func (n noClose) Limits() driver.Limits {
	if l, ok := driver.As[driver.Limiter](n.Driver); ok {
		return l.Limits()
	}
	return driver.Limits{}
}

func oddKeys(b *bench) {
	d, other := b.driver(), b.driver()
	longest := locks.MaxKeyBytes
	if n := (noClose{d}).Limits().MaxKeyBytes; n > 0 {
		longest = n
	}
	base := "lockstest:" + b.run + ":"
	long := base + strings.Repeat("x", longest-len(base)-1)
	keys := []string{
		base + "job", base + "Job", base + "JOB", base + " job", base + "job ", base + "job  ",
		base + "jób", base + "jo\u0301b", base + "作业", base + "Ünïcode-\U0001f512", base + "ß", base + "ss", base + "ſ",
		base + "a:b", base + "a::b", base + "a/b", base + "a//b", base + "{a}", base + "a}b", base + "{", base + "*", base + "?", base + "[a]",
		base + "%", base + "_", base + "a%b", base + "a_b", base + "'; DROP TABLE x; --", base + `"quoted"`, base + "`tick`", base + `back\slash`,
		base + "..", base + "/", base + ".", base + "$1", base + "@p1", base + "\u00a0", base + "\u200b",
		long + "1", long + "2",
	}
	held := make([]driver.Hold, len(keys))
	for i, key := range keys {
		held[i] = b.grant(d, b.lasting(key))
	}
	for _, key := range keys {
		b.refused(other, b.request(key))
	}
	for i, h := range held { // each by itself
		b.wantReleased(d, h, driver.ReleasedOK)
		if i+1 < len(held) {
			b.wantRenewal(d, held[i+1], nil)
		}
	}
}

func endedContext(b *bench) {
	d := b.driver()
	h := b.grant(d, b.lasting(b.key("held")))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	if _, err := d.Acquire(ended, b.request(b.key("free"))); err == nil {
		b.Error("Acquire with an ended context was granted")
	}
	if _, err := d.Renew(ended, h); err == nil || errors.Is(err, driver.ErrNotOurs) {
		b.Errorf("Renew with an ended context = %v", err)
	}
	if _, err := d.Release(ended, h); err == nil {
		b.Error("Release with an ended context succeeded")
	}
	if took := time.Since(start); took > slow {
		b.Errorf("three calls with an ended context took %v", took)
	}
	b.wantRenewal(d, h, nil)
	b.grant(b.driver(), b.request(b.key("free")))
}

func silence(b *bench) {
	d, cut, heal := b.h.Proxied(b)
	b.Cleanup(func() { closeDriver(b, d) })
	b.Cleanup(heal) // before the driver is closed
	r := b.request(b.key("k"))
	r.TTL = max(b.h.TTL, 5*time.Minute)
	h := b.grant(d, r)
	theirs := b.grant(b.driver(), driver.Request{Key: b.key("theirs"), Token: driver.NewToken(), TTL: r.TTL, Label: r.Label})
	for range 2 {
		cut()
		for name, call := range map[string]func(context.Context) error{
			"Acquire of a held key": func(ctx context.Context) error { _, err := d.Acquire(ctx, b.request(theirs.Key)); return err },
			"Renew":                 func(ctx context.Context) error { _, err := d.Renew(ctx, h); return err },
			"Release":               func(ctx context.Context) error { _, err := d.Release(ctx, h); return err },
		} {
			const has, more = 200 * time.Millisecond, 2 * time.Second
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), has)
			overdue := b.overdue(start.Add(has), more)
			err := call(ctx)
			cancel()
			select {
			case <-overdue:
				b.Errorf("%s returned after %v, its context had %v", name, time.Since(start), has)
			default:
			}
			var held *driver.HeldError
			ended := errors.Is(err, driver.ErrNotOurs) && !b.h.Transactions
			if err == nil || errors.As(err, &held) || ended {
				b.Errorf("%s over a silent connection = %v, want an error that says nothing of the key", name, err)
			}
		}
		heal()
		// The client comes back by itself. What was sent may have been applied.
		for end := time.Now().Add(b.patience()); ; b.sleep(50 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := d.Release(ctx, h)
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(end) {
				b.Fatalf("the driver did not come back: %v", err)
			}
		}
		next := driver.Request{Key: h.Key, Token: driver.NewToken(), TTL: h.TTL, Label: h.Label}
		if b.h.Transactions {
			h = b.grantAfter(d, next) // the server may hear later than we that the connection has ended
		} else {
			h = b.grant(d, next)
		}
	}
	b.wantReleased(d, h, driver.ReleasedOK)
}

func batchRenewal(b *bench) {
	d := b.driver()
	batch, ok := driver.As[driver.BatchRenewer](d)
	if !ok {
		b.Skip("the driver renews one at a time")
	}
	const n = 20
	holds := make([]driver.Hold, n)
	want := make([]error, n)
	ttl := 3 * b.h.TTL // none of so many is to end before the first renewal
	if b.h.Sessions {
		ttl = b.h.TTL
	}
	for i := range holds {
		r := b.request(b.key(fmt.Sprint(i)))
		r.TTL = ttl
		holds[i] = b.grant(d, r)
		switch i % 5 {
		case 1: // given back
			b.wantReleased(d, holds[i], driver.ReleasedOK)
			want[i] = driver.ErrNotOurs
		case 2: // another grant of the same key
			b.wantReleased(d, holds[i], driver.ReleasedOK)
			b.grant(d, b.request(holds[i].Key))
			want[i] = driver.ErrNotOurs
		case 3: // a fence that never was
			holds[i].Fence += 1000
			want[i] = driver.ErrNotOurs
		}
	}
	for round := range 3 {
		errs := batch.RenewBatch(b.within(b.patience()), holds)
		if len(errs) != n {
			b.Fatalf("%d answers for %d holds", len(errs), n)
		}
		for i, err := range errs {
			if !errors.Is(err, want[i]) {
				b.Errorf("round %d, hold %d: %v, want %v", round, i, err, want[i])
			}
		}
		b.sleep(ttl * 2 / 5)
	}
	other := b.driver()
	for i, h := range holds {
		if want[i] == nil {
			b.refused(other, b.request(h.Key))
		}
	}
	if errs := batch.RenewBatch(b.within(b.patience()), nil); len(errs) != 0 {
		b.Errorf("an empty batch gave %d answers", len(errs))
	}
}

func wakes(b *bench) {
	d, other := b.driver(), b.driver()
	w, ok := driver.As[driver.Waker](other)
	if !ok {
		b.Skip("the driver does not push")
	}
	h := b.grant(d, b.lasting(b.key("k")))
	subscribing, subscribed := context.WithCancel(context.Background())
	hint, stop, err := w.Wake(subscribing, h.Key)
	if err != nil {
		b.Fatal(err)
	}
	subscribed() // it bounds no more than the subscribing
	defer stop()
	second, stopSecond, err := w.Wake(context.Background(), h.Key)
	if err != nil {
		b.Fatal(err)
	}
	stopSecond()
	stopSecond() // twice does no harm
	b.wantReleased(d, h, driver.ReleasedOK)
	select {
	case <-hint:
	case <-b.within(b.patience()).Done():
		b.Fatal("no hint after a release")
	}
	select {
	case _, open := <-second:
		if !open {
			b.Error("the hint channel was closed")
		}
	default:
	}
}
