package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redislock"
)

type turn struct {
	who  int
	hold driver.Hold
	from time.Time
	at   time.Time
	err  error
}

// stand makes a waiter stand in line, and sends what comes of it.
func stand(ctx context.Context, d driver.Driver, who int, r driver.Request, turns chan<- turn) {
	q, _ := driver.As[driver.Queuer](d)
	go func() {
		g, err := q.AcquireQueued(ctx, r)
		turns <- turn{who, driver.Hold{Request: r, Fence: g.Fence}, g.From, time.Now(), err}
	}()
}

// Who does not wait may have a key that its dead holder left free, but with Fair.
func TestOnlyFairKeepsTryingOutOfTheLine(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	d := process(t, s.Addr, s.DB)
	turns := make(chan turn, 1)
	// Once for the subscription: when it comes into force, who waits looks again.
	h := hold(t, d, request("before"))
	stand(t.Context(), d, 0, request("before"), turns)
	inLine(t, admin, "before", 1)
	released(t, d, h, driver.ReleasedOK)
	if got := <-turns; got.err != nil {
		t.Fatal(got.err)
	}
	h = hold(t, d, request("k"))
	stand(t.Context(), d, 0, request("k"), turns)
	inLine(t, admin, "k", 1)
	if err := admin.Del(t.Context(), redislock.RedisKey(redislock.DefaultPrefix, "k")).Err(); err != nil {
		t.Fatal(err)
	}
	barged := hold(t, process(t, s.Addr, s.DB), request("k"))
	if barged.Fence <= h.Fence {
		t.Errorf("fence %d after %d", barged.Fence, h.Fence)
	}
	released(t, d, barged, driver.ReleasedOK)
	got := <-turns
	if got.err != nil || got.hold.Fence <= barged.Fence {
		t.Fatalf("%+v", got)
	}
	stand(t.Context(), d, 0, request("k"), turns)
	inLine(t, admin, "k", 1)
	if err := admin.Del(t.Context(), redislock.RedisKey(redislock.DefaultPrefix, "k")).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := process(t, s.Addr, s.DB, redislock.Fair()).Acquire(t.Context(), request("k")); !isHeld(err) {
		t.Error(err)
	}
	if got := <-turns; got.err != nil {
		t.Error(got.err)
	}
}

func TestLineIsServedInOrder(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	holder := process(t, s.Addr, s.DB)
	h := hold(t, holder, request("k"))
	const n = 8
	turns := make(chan turn, n)
	for i := range n {
		d := process(t, s.Addr, s.DB, redislock.Fair())
		warm(t, d)
		stand(t.Context(), d, i, request("k"), turns)
		inLine(t, admin, "k", int64(i+1))
	}
	if _, err := holder.Acquire(t.Context(), request("k")); !isHeld(err) {
		t.Error(err)
	}
	if x, err := holder.Inspect(t.Context(), "k"); err != nil || x.Waiters != n {
		t.Errorf("Inspect = %+v, %v, want %d waiters", x, err, n)
	}
	if all, err := holder.List(t.Context(), "", 10); err != nil || len(all) != 1 || all[0].Waiters != n {
		t.Errorf("List = %+v, %v, want %d waiters", all, err, n)
	}
	last := h.Fence
	for i := range n {
		released(t, holder, h, driver.ReleasedOK)
		got := <-turns
		if got.err != nil || got.who != i || got.hold.Fence <= last {
			t.Fatalf("turn %d: waiter %d with fence %d after %d, %v", i, got.who, got.hold.Fence, last, got.err)
		}
		if age := got.at.Sub(got.from); age < 0 || age > time.Minute/2 {
			t.Errorf("turn %d: the TTL is counted from %v ago", i, age)
		}
		// Nobody overtakes the line.
		if _, err := holder.Acquire(t.Context(), request("k")); !isHeld(err) {
			t.Error(err)
		}
		h, last = got.hold, got.hold.Fence
	}
	released(t, holder, h, driver.ReleasedOK)
}

func TestDeadWaiterIsPassedOver(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	holder := process(t, s.Addr, s.DB)
	h := hold(t, holder, request("k"))
	turns := make(chan turn, 3)
	var dead [2]*faultproxy.Proxy
	for i := range dead {
		dead[i] = faultproxy.Start(t, s.Addr)
		d := process(t, dead[i].Addr(), s.DB, redislock.Fair())
		warm(t, d)
		stand(t.Context(), d, i, request("k"), turns)
		inLine(t, admin, "k", int64(i+1))
	}
	stand(t.Context(), process(t, s.Addr, s.DB, redislock.Fair()), 2, request("k"), turns)
	inLine(t, admin, "k", 3)
	channels := func() int {
		got, err := admin.PubSubChannels(t.Context(), "solotick:to:*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	before := channels()
	for _, p := range dead {
		p.Refuse()
	}
	for channels() > before-len(dead) {
		<-time.After(time.Millisecond)
	}
	at := time.Now()
	released(t, holder, h, driver.ReleasedOK)
	got := <-turns
	for got.err != nil { // the dead ones hear that their server is away
		got = <-turns
	}
	if took := got.at.Sub(at); got.who != 2 || took > time.Minute/2 {
		t.Errorf("waiter %d after %v", got.who, took)
	}
	// Those who come back have kept their places, unless they gave up.
	for _, p := range dead {
		p.Pass()
	}
}

// A line of which nobody lives goes while the holder renews, and with the holder.
func TestDeadWaitersLeaveNoLine(t *testing.T) {
	t.Parallel()
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	k := redislock.RedisKey(redislock.DefaultPrefix, "k")
	const ttl = 6 * time.Second
	lease := try(t, locker(t, open(t, client(s.Addr, s.DB)), locks.Config{TTL: ttl, RenewInterval: ttl / 6}), "k")
	r := request("k")
	r.TTL = ttl
	turns := make(chan turn, 3)
	for i := range 3 {
		p := faultproxy.Start(t, s.Addr)
		r.Token = driver.NewToken()
		stand(t.Context(), process(t, p.Addr(), s.DB), i, r, turns)
		inLine(t, admin, "k", int64(i+1))
		defer p.Refuse()
		if i == 2 { // the last one lives, until it gives up
			break
		}
		p.Refuse()
	}
	if line, record := admin.PTTL(t.Context(), k+":q").Val(), admin.PTTL(t.Context(), k).Val(); line <= 0 || line > record+ttl/4+time.Second {
		t.Errorf("the line lives for %v, the record for %v", line, record)
	}
	inLine(t, admin, "k", 1)
	for range 2 {
		if got := <-turns; got.err == nil || got.who == 2 {
			t.Errorf("%+v", got)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-turns; got.err != nil || got.who != 2 {
		t.Errorf("%+v", got)
	}
	if n := admin.Exists(t.Context(), k+":q").Val(); n != 0 {
		t.Error("the line is left")
	}
}

// A holder that dies costs its TTL, wherever the waiters thought they stood.
func TestDeadHolderInTheLine(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	d := process(t, s.Addr, s.DB, redislock.Fair())
	h := hold(t, d, request("k"))
	r := request("k")
	r.TTL = 500 * time.Millisecond
	turns := make(chan turn, 3)
	for i := range 3 {
		r.Token = driver.NewToken()
		stand(t.Context(), process(t, s.Addr, s.DB, redislock.Fair()), i, r, turns)
		inLine(t, admin, "k", int64(i+1))
	}
	released(t, d, h, driver.ReleasedOK)
	last := time.Now()
	for i := range 3 { // nobody renews or releases
		got := <-turns
		if got.err != nil || got.who != i {
			t.Fatalf("turn %d: waiter %d, %v", i, got.who, got.err)
		}
		if took := got.at.Sub(last); took > r.TTL+time.Minute/2 {
			t.Errorf("turn %d came after %v", i, took)
		}
		last = got.at
	}
}

// Without its subscription a waiter hears of its grant when it looks.
func TestLostMessageCostsADelay(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB, redislock.Fair())
	holder := process(t, s.Addr, s.DB)
	h := hold(t, holder, request("k"))
	turns := make(chan turn, 1)
	stand(t.Context(), d, 0, request("k"), turns)
	inLine(t, admin, "k", 1)
	warm(t, d) // is answered after the waiter, who knows now that it is in line
	p.BlackHole(faultproxy.ToClient)
	released(t, holder, h, driver.ReleasedOK)
	p.Reset() // what was held back is lost
	p.Pass()
	select {
	case got := <-turns:
		if got.err != nil {
			t.Error(got.err)
		} else {
			released(t, holder, got.hold, driver.ReleasedOK)
		}
	case <-time.After(time.Minute):
		t.Fatal("a lost message was a hang")
	}
}

// A push that comes late is of a grant that has ended: it must not pass for the
// grant that its waiter stands in line for anew.
func TestLatePushIsNoGrant(t *testing.T) {
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	d, other := process(t, s.Addr, s.DB, redislock.Fair()), process(t, s.Addr, s.DB)
	h := hold(t, other, request("k"))
	turns := make(chan turn, 1)
	r := request("k")
	stand(t.Context(), d, 0, r, turns)
	inLine(t, admin, "k", 1)
	channel := admin.PubSubChannels(t.Context(), "solotick:to:*").Val()
	if !slices.ContainsFunc(channel, func(c string) bool {
		return admin.Publish(t.Context(), c, fmt.Sprintf("g%s%d", r.Token, h.Fence-1)).Val() > 0
	}) {
		t.Fatal("nobody listens")
	}
	select {
	case got := <-turns:
		t.Fatalf("granted: %+v", got)
	case <-time.After(200 * time.Millisecond):
	}
	released(t, other, h, driver.ReleasedOK)
	if got := <-turns; got.err != nil || got.hold.Fence <= h.Fence {
		t.Errorf("%+v", got)
	}
}

func TestSilentServerIsToldToWaiters(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	d := process(t, server.Addr(), 0, redislock.Fair())
	hold(t, d, request("k"))
	turns := make(chan turn, 1)
	r := request("k")
	answers := make(chan error, 100)
	r.Answered = func(err error) { answers <- err }
	stand(t.Context(), d, 0, r, turns)
	if err := <-answers; err != nil {
		t.Errorf("in line: %v", err)
	}
	inLine(t, console(t, server.Addr(), 0), "k", 1)
	server.Pause()
	defer server.Resume()
	// Well before the place is given up: the next look is never more than 2.2 s away.
	began := time.Now()
	select {
	case err := <-answers:
		for ; err == nil; err = <-answers {
		}
		t.Logf("told after %v: %v", time.Since(began), err)
	case got := <-turns:
		t.Errorf("gave up before it told: %v", got.err)
	}
	select {
	case got := <-turns:
		if got.err == nil || driver.IsNotApplied(got.err) || errors.Is(got.err, t.Context().Err()) {
			t.Errorf("%v", got.err)
		}
	case <-time.After(time.Minute):
		t.Error("a silent server was not told")
	}
}

// Sixty-four waiters, in processes of their own: they look at any time of the 20 s
// in which each of them does. The holder renews.
func TestWaitersAreQuiet(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 20 seconds")
	}
	t.Parallel()
	for name, opts := range map[string][]redislock.Option{"plain": nil, "fair": {redislock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			admin := console(t, server.Addr(), 0)
			const ttl = 10 * time.Second
			holder := locker(t, open(t, client(server.Addr(), 0), opts...), locks.Config{TTL: ttl})
			lease := try(t, holder, "k")
			const n = 64
			p := faultproxy.Start(t, server.Addr())
			waiting, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range n {
				d := open(t, client(p.Addr(), 0), opts...).(closing)
				l := locker(t, d, locks.Config{TTL: ttl})
				wg.Go(func() {
					if lease, err := l.Acquire(waiting, "k"); err == nil {
						t.Error("granted")
						_ = lease.Release(context.Background())
					}
				})
				inLine(t, admin, "k", int64(i+1))
				d.Checked()
			}
			start, before := time.Now(), p.Stats()
			<-time.After(2 * ttl)
			got := p.Stats().Sub(before)
			seconds := time.Since(start).Seconds()
			t.Logf("%d waiters sent %d commands in %.1f s; %d bytes came to the server", n, got.RoundTrips, seconds, got.BytesToServer)
			if float64(got.RoundTrips) >= 5*seconds || got.Conns > 0 {
				t.Errorf("%d commands in %.1f s, %d new connections", got.RoundTrips, seconds, got.Conns)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("the holder: %v", err)
			}
			stop()
			wg.Wait()
		})
	}
}

// Waiters of one process: only the first of them asks.
func TestWaitersOfOneProcessAreQuiet(t *testing.T) {
	t.Parallel()
	s := testenv.SharedRedis(t)
	admin := console(t, s.Addr, s.DB)
	holder := process(t, s.Addr, s.DB)
	h := hold(t, holder, request("k"))
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	l, err := locks.New(d.Driver, locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			_ = lease.Release(context.Background())
		})
	}
	inLine(t, admin, "k", 1)
	d.Checked()
	start, before := time.Now(), p.Stats()
	<-time.After(2 * time.Second)
	got := p.Stats().Sub(before).RoundTrips
	if seconds := time.Since(start).Seconds(); float64(got) >= 5*seconds {
		t.Errorf("%d commands in %.1f s", got, seconds)
	}
	released(t, holder, h, driver.ReleasedOK)
	wg.Wait()
}

// The holder that is thrown out may have a fence that only its record knows: the line
// gave it, and the server's clock was set back since.
func TestForcedReleaseGoesOnFromTheRecord(t *testing.T) {
	s := testenv.SharedRedis(t)
	d := process(t, s.Addr, s.DB)
	admin := console(t, s.Addr, s.DB)
	h := hold(t, d, request("k"))
	last := h.Fence + time.Hour.Microseconds()
	if err := admin.Set(t.Context(), "solotick:{k}", fmt.Sprintf("%s %016dq %s", h.Token, last, h.Label), time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if out, err := d.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Fatal(out, err)
	}
	if next := hold(t, d, request("k")); next.Fence <= last {
		t.Errorf("fence %d after %d", next.Fence, last)
	}
}
