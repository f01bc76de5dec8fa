package lockfaults

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
)

// broken are drivers that a process can be given, by the name of what is wrong. Each
// breaks a promise of package driver, and the tests must notice.
var broken = map[string]func(driver.Driver) driver.Driver{
	"":                     func(d driver.Driver) driver.Driver { return d },
	"grants what is held":  func(d driver.Driver) driver.Driver { return &grantsHeld{Driver: d, fake: map[driver.Token]bool{}} },
	"fences fall":          func(d driver.Driver) driver.Driver { return fencesFall{d} },
	"claims a longer TTL":  func(d driver.Driver) driver.Driver { return longerTTL{d} },
	"does not tell a loss": func(d driver.Driver) driver.Driver { return silentLoss{d} },
}

type grantsHeld struct {
	driver.Driver
	mu   sync.Mutex
	fake map[driver.Token]bool
}

func (b *grantsHeld) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Driver.Acquire(ctx, r)
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.fake[r.Token] = true
		return driver.Grant{Fence: now()}, nil
	}
	return g, err
}

func (b *grantsHeld) isFake(h driver.Hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fake[h.Token]
}

func (b *grantsHeld) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if b.isFake(h) {
		return driver.Grant{Fence: h.Fence}, nil
	}
	return b.Driver.Renew(ctx, h)
}

func (b *grantsHeld) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if b.isFake(h) {
		return driver.ReleasedOK, nil
	}
	return b.Driver.Release(ctx, h)
}

// fencesFall turns the order of fences round.
type fencesFall struct{ driver.Driver }

func (b fencesFall) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Driver.Acquire(ctx, r)
	g.Fence = math.MaxInt64 - g.Fence
	return g, err
}

func (b fencesFall) real(h driver.Hold) driver.Hold { h.Fence = math.MaxInt64 - h.Fence; return h }

func (b fencesFall) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	return b.Driver.Renew(ctx, b.real(h))
}

func (b fencesFall) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	return b.Driver.Release(ctx, b.real(h))
}

type longerTTL struct{ driver.Driver }

func (b longerTTL) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Driver.Acquire(ctx, r)
	g.TTL = 3 * r.TTL
	return g, err
}

type silentLoss struct{ driver.Driver }

func (b silentLoss) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	g, err := b.Driver.Renew(ctx, h)
	if errors.Is(err, driver.ErrNotOurs) {
		return driver.Grant{Fence: h.Fence}, nil
	}
	return g, err
}

// What the processes do with a broken driver shows in the record.
func TestBrokenDriversAreNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	// handOver is what happens without any fault.
	handOver := func(c *crew, a, b *member) {
		key := c.key("handed over")
		a.hold(key)
		b.acquire(key)
		c.awaitWaiter(b, key)
		a.giveBack(key)
		c.await(b, "granted", key)
		c.await(b, "wrote", key)
	}
	// after is what another gets who waits while something happens to the holder.
	after := func(happens func(c *crew, holder *member, key string)) func(c *crew, a, b *member) {
		return func(c *crew, a, b *member) {
			key := c.key("held")
			a.hold(key)
			b.acquire(key)
			c.awaitWaiter(b, key)
			happens(c, a, key)
			c.await(b, "granted", key)
			c.await(b, "wrote", key)
			// What the holder told before is in the record when it has told this.
			asked := now()
			a.do(command{Do: "write", Key: key})
			c.awaitSince(a, "wrote", key, asked)
		}
	}
	cut := after(func(_ *crew, holder *member, _ string) { holder.cut(cuts[0]) })
	force := after(func(c *crew, _ *member, key string) { c.takes(key, func() { c.force(key) }) })
	for name, run := range map[string]func(c *crew, a, b *member){
		"grants what is held":  handOver,
		"fences fall":          handOver,
		"claims a longer TTL":  cut,
		"does not tell a loss": force,
	} {
		for _, with := range []string{name, ""} {
			t.Run(strings.TrimSpace(name+" "+map[bool]string{true: "not"}[with == ""]), func(t *testing.T) {
				t.Parallel()
				s := sqliteSite(t)
				s.broken = with
				c := newCrew(t, s)
				ms := c.crewOf("a", "b")
				run(c, ms[0], ms[1])
				if name == "does not tell a loss" && with == "" {
					c.await(ms[0], "lost", "lock:faults:1:held")
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if problems := c.record.check(); (len(problems) > 0) != (with != "") {
					t.Errorf("the check says %q", problems)
				}
			})
		}
	}
}

// A driver that does not obey its context keeps a renewal for ever: the guard timer,
// which is apart from it, tells the holder in time.
func TestRenewalThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c := newCrew(t, sqliteSite(t))
	ms := c.crewOf("h", "w")
	holder, waiter, key := ms[0], ms[1], c.key("hangs")
	holder.hold(key)
	waiter.acquire(key)
	c.awaitWaiter(waiter, key)
	holder.do(command{Do: "fault", Kind: lockstest.Deaf, Only: true})
	c.await(waiter, "granted", key)
	c.await(waiter, "wrote", key)
	c.refused(holder, key)
	c.mu.Lock()
	problems := c.record.check()
	c.mu.Unlock()
	if len(problems) > 0 {
		t.Errorf("a holder whose renewal hangs was not told in time: %q", problems)
		return
	}
	c.await(holder, "lost", key)
	holder.heal()
}

func TestCheck(t *testing.T) {
	type events = []event
	granted := func(proc string, fence, asked, at int64) event {
		return event{Proc: proc, What: "granted", Key: "k", N: 1, Fence: fence, Asked: asked, At: at}
	}
	told := func(proc, what string, at int64) event {
		return event{Proc: proc, What: what, Key: "k", N: 1, At: at, Until: at + 1000}
	}
	lost := func(proc string, at, until int64, server bool) event {
		return event{Proc: proc, What: "lost", Key: "k", N: 1, At: at, Until: until, OK: server}
	}
	for name, h := range map[string]struct {
		events
		record
		bad string // part of what is said
	}{
		"hand-over":          {events: events{granted("a", 1, 0, 10), told("a", "releasing", 20), granted("b", 2, 5, 25), told("a", "released", 30)}},
		"told in time":       {events: events{granted("a", 1, 0, 10), lost("a", 80, 80, false), granted("b", 2, 5, 100)}},
		"told too late":      {bad: "no lock", events: events{granted("a", 1, 0, 10), lost("a", 101, 80, false), granted("b", 2, 5, 100)}},
		"two hold":           {bad: "no lock", events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100)}},
		"never told":         {bad: "no lock", events: events{granted("a", 1, 0, 10), told("a", "releasing", 110), granted("b", 2, 5, 100)}},
		"a fence twice":      {bad: "do not rise", events: events{granted("a", 1, 0, 10), told("a", "releasing", 20), told("a", "released", 30), granted("b", 1, 35, 40)}},
		"a fence falls":      {bad: "do not rise", events: events{granted("a", 2, 0, 10), told("a", "releasing", 20), told("a", "released", 30), granted("b", 1, 35, 40)}},
		"lost for no reason": {bad: "healthy holder", events: events{granted("a", 1, 0, 10), lost("a", 20, 80, true)}},
		"frozen": {
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100), lost("a", 150, 80, false)},
			record: record{stood: map[string][]span{"a": {{50, 149}}}},
		},
		"frozen at another time": {
			bad:    "no lock",
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100), lost("a", 150, 80, false)},
			record: record{stood: map[string][]span{"a": {{20, 50}}}},
		},
		"learns of its end by the release": {
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100), {Proc: "a", What: "releasing", Key: "k", N: 1, At: 150, Until: 80}},
			record: record{stood: map[string][]span{"a": {{50, 149}}}},
		},
		"killed": {
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100)},
			record: record{killed: map[string]int64{"a": 50}},
		},
		"killed too late": {
			bad:    "no lock",
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 100)},
			record: record{killed: map[string]int64{"a": 101}},
		},
		"taken by the server": {
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 60), told("a", "wrote", 65), lost("a", 80, 200, true)},
			record: record{taken: map[string][]span{"k": {{50, 55}}}},
		},
		"taken by the server, of another key": {
			bad:    "healthy holder",
			events: events{granted("a", 1, 0, 10), lost("a", 80, 200, true)},
			record: record{taken: map[string][]span{"other": {{50, 55}}}},
		},
		"granted before the server took it": {
			bad:    "no lock",
			events: events{granted("a", 1, 0, 10), granted("b", 2, 5, 40), lost("a", 80, 200, true)},
			record: record{taken: map[string][]span{"k": {{50, 55}}}},
		},
		"refused while it holds": {
			bad:    "refused while it held",
			events: events{granted("a", 1, 0, 10), told("a", "wrote", 20), told("a", "releasing", 30)},
		},
	} {
		h.record.events = h.events
		said := strings.Join(h.record.check(), "\n")
		if (said != "") != (h.bad != "") || !strings.Contains(said, h.bad) {
			t.Errorf("%s: %q, want %q", name, said, h.bad)
		}
	}
}
