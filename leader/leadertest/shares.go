package leadertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
)

// SharesHarness is what a backend provides for [RunShares].
type SharesHarness struct {
	// Locker makes a locker, connected on its own as another process would be, and a way
	// to cut it off, and cleans up after the test. All of a test share one backend. Tests
	// run in parallel unless Around is set.
	Locker func(t *testing.T) (l *locks.Locker, cut func() (heal func()))
	// TTL is the TTL of the terms.
	TTL time.Duration
	// Pushed says that the backend pushes what is given back to all who share.
	Pushed bool
	// Short leaves out what does not depend on the backend.
	Short bool
	// Around runs the body of each test; synctest.Test fits a backend in memory.
	// Nil calls the body.
	Around func(t *testing.T, body func(t *testing.T))
}

// RunShares runs the suite for leadership that is shared out.
func RunShares(t *testing.T, h SharesHarness) {
	for _, c := range []struct {
		name string
		body func(t *testing.T, h SharesHarness)
		long bool
	}{
		{"SharesAreEven", testSharesAreEven, true},
		{"DeadProcessIsReplaced", testDeadProcessIsReplaced, false},
		{"NoMoreMoveThanMust", testNoMoreMoveThanMust, false},
		{"WorkIsNotDisturbed", testWorkIsNotDisturbed, true},
		{"RetiringLeavesNothingBehind", testRetiring, true},
		{"OutageOfAll", testOutageOfAll, false},
		{"StoppedIsFollowedAtOnce", testStoppedIsFollowedAtOnce, false},
	} {
		if c.long && h.Short {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if h.Around == nil {
				t.Parallel() // what takes long is waiting
				c.body(t, h)
				return
			}
			h.Around(t, func(t *testing.T) { c.body(t, h) })
		})
	}
}

const partitions = 24

// crowd is the processes of one test.
type crowd struct {
	*testing.T
	h     SharesHarness
	all   []*process
	names []string
	moved chan struct{} // capacity 1: something changed
	wg    sync.WaitGroup

	mu    sync.Mutex
	terms map[int]int64 // highest number seen, by partition
}

type process struct {
	*leader.Shares
	n    int
	cut  func() (heal func())
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run; read after done
}

func gather(t *testing.T, h SharesHarness, n int, cfg leader.SharesConfig, names ...string) *crowd {
	t.Helper()
	c := &crowd{T: t, h: h, names: names, moved: make(chan struct{}, 1), terms: map[int]int64{}}
	watch, end := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		for _, p := range c.all {
			p.stop()
		}
		for _, p := range c.all {
			<-p.done
		}
		end()
		c.wg.Wait()
	})
	for range n {
		c.join(watch, cfg)
	}
	return c
}

func (c *crowd) join(watch context.Context, cfg leader.SharesConfig) *process {
	c.Helper()
	cfg.TTL, cfg.Label, cfg.Partitions = c.h.TTL, "same:1", partitions
	l, cut := c.h.Locker(c.T)
	s, err := leader.NewShares(l, "leader:"+c.Name(), cfg)
	if err != nil {
		c.Fatal(err)
	}
	s.Weigh(c.names)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	p := &process{Shares: s, n: len(c.all), cut: cut, stop: cancel, done: make(chan struct{})}
	c.mu.Lock() // the watchers of those before read it
	c.all = append(c.all, p)
	c.mu.Unlock()
	go func() {
		defer close(p.done)
		p.err = s.Run(ctx)
	}()
	c.wg.Go(func() { c.watch(watch, p) })
	return p
}

// watch checks at every change of a process that what it leads is led by nobody else.
func (c *crowd) watch(ctx context.Context, p *process) {
	for {
		changed := p.Changed()
		for i, e := range p.Electors() {
			t := e.Term()
			if t == nil {
				continue
			}
			c.mu.Lock()
			for _, other := range c.all {
				// Both began before the first question; if the answers come in this
				// order, both stood at that moment.
				if o := other.Electors()[i].Term(); other != p && o != nil && t.Err() == nil {
					c.Errorf("processes %d and %d lead partition %d at one time, terms %d and %d", p.n, other.n, i, t.Number(), o.Number())
				}
			}
			if t.Number() < c.terms[i] {
				c.Errorf("partition %d: term %d after term %d", i, t.Number(), c.terms[i])
			}
			c.terms[i] = max(c.terms[i], t.Number())
			c.mu.Unlock()
		}
		select {
		case c.moved <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// leads lists the partitions that the process leads.
func (p *process) leads() (out []int) {
	for i, e := range p.Electors() {
		if e.Term() != nil {
			out = append(out, i)
		}
	}
	return out
}

// owners tells for each partition which process leads it, or -1.
func (c *crowd) owners() []int {
	out := slices.Repeat([]int{-1}, partitions)
	for _, p := range c.all {
		for _, i := range p.leads() {
			out[i] = p.n
		}
	}
	return out
}

// settled waits until all partitions are led, evenly, by the processes given.
func (c *crowd) settled(within time.Duration, by ...*process) []int {
	c.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		owners := c.owners()
		even := !slices.Contains(owners, -1)
		for _, p := range by {
			n := len(p.leads())
			even = even && n >= partitions/len(by) && n <= (partitions+len(by)-1)/len(by)
		}
		if even {
			return owners
		}
		select {
		case <-c.moved:
		case <-limit.C:
			c.Fatalf("not led evenly within %v: %v", within, owners)
		}
	}
}

// still checks that nothing moves for a time.
func (c *crowd) still(d time.Duration, owners []int) {
	c.Helper()
	limit := time.NewTimer(d)
	defer limit.Stop()
	for {
		if now := c.owners(); !slices.Equal(now, owners) {
			c.Fatalf("partitions moved although nothing happened:\n%v\n%v", owners, now)
		}
		select {
		case <-c.moved:
		case <-limit.C:
			return
		}
	}
}

func moves(before, after []int) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

func testSharesAreEven(t *testing.T, h SharesHarness) {
	var names []string
	for i := range 600 {
		names = append(names, fmt.Sprintf("job-%03d", i))
	}
	c := gather(t, h, 6, leader.SharesConfig{}, names...)
	quiet := 2 * h.TTL
	if h.Around != nil { // virtual time costs nothing
		quiet = 10 * time.Minute
	}
	c.still(quiet, c.settled(10*h.TTL+bound, c.all...))
	load := map[int]int{}
	owners := c.owners()
	for _, name := range names {
		at := c.all[0].Partition(name)
		if other := c.all[1].Partition(name); other != at {
			t.Errorf("%s belongs to partition %d and to partition %d", name, at, other)
		}
		load[owners[at]]++
	}
	for p, n := range load {
		if n < 80 || n > 120 {
			t.Errorf("process %d leads %d of 600 names, want within 20 %% of 100", p, n)
		}
	}
	if err := c.all[0].Run(t.Context()); !errors.Is(err, leader.ErrStarted) {
		t.Errorf("a second Run = %v, want ErrStarted", err)
	}
}

func testDeadProcessIsReplaced(t *testing.T, h SharesHarness) {
	c := gather(t, h, 4, leader.SharesConfig{})
	before := c.settled(10*h.TTL+bound, c.all...)
	dead := c.all[1]
	dead.cut()
	died := time.Now()
	rest := []*process{c.all[0], c.all[2], c.all[3]}
	after := c.settled(h.TTL+takeover+bound, rest...)
	if took := time.Since(died); took > h.TTL+takeover && h.Around != nil {
		t.Errorf("the partitions of a dead process were led again after %v, want within %v", took, h.TTL+takeover)
	}
	for i := range before {
		if before[i] != dead.n && before[i] != after[i] {
			t.Errorf("partition %d of process %d, which is well, moved to %d", i, before[i], after[i])
		}
	}
}

func testNoMoreMoveThanMust(t *testing.T, h SharesHarness) {
	c := gather(t, h, 4, leader.SharesConfig{})
	before := c.settled(10*h.TTL+bound, c.all...)
	watch, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()
	for range 2 {
		c.join(watch, leader.SharesConfig{})
	}
	after := c.settled(20*h.TTL+bound, c.all...)
	if n := moves(before, after); n != 8 {
		t.Errorf("%d partitions moved when 4 processes became 6, want 8:\n%v\n%v", n, before, after)
	}
	left := c.all[5]
	left.stop()
	<-left.done
	again := c.settled(h.TTL+takeover+bound, c.all[:5]...)
	if n := moves(after, again); n != 4 {
		t.Errorf("%d partitions moved when a process with 4 left:\n%v\n%v", n, after, again)
	}
}

func testWorkIsNotDisturbed(t *testing.T, h SharesHarness) {
	c := gather(t, h, 1, leader.SharesConfig{Drain: time.Hour})
	c.settled(bound, c.all...)
	one := c.all[0]
	works := map[int]context.Context{}
	ends := map[int]context.CancelFunc{}
	for i, e := range one.Electors() {
		works[i], ends[i] = e.Term().Context(t.Context())
		defer ends[i]()
	}
	watch, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()
	c.join(watch, leader.SharesConfig{})
	c.awaitLeaving(one, 1)
	// One moves, and it waits for its work; the others are led as before.
	quiet := time.NewTimer(3 * h.TTL)
	<-quiet.C
	if n := len(one.leads()); n != partitions-1 {
		t.Errorf("the first process takes work of %d partitions, want all but the one that moves", n)
	}
	for i, ctx := range works {
		if ctx.Err() != nil {
			t.Errorf("work of partition %d was ended: %v", i, context.Cause(ctx))
		}
	}
	for _, end := range ends {
		end()
	}
	c.settled(10*h.TTL+bound, c.all...)
}

// awaitLeaving waits until so many partitions of the process take no new work.
func (c *crowd) awaitLeaving(p *process, n int) {
	c.Helper()
	limit := time.NewTimer(10*c.h.TTL + bound)
	defer limit.Stop()
	for len(p.leads()) != partitions-n {
		select {
		case <-c.moved:
		case <-limit.C:
			c.Fatalf("the process leads %d partitions, want %d", len(p.leads()), partitions-n)
		}
	}
}

func testRetiring(t *testing.T, h SharesHarness) {
	c := gather(t, h, 2, leader.SharesConfig{})
	owners := c.settled(10*h.TTL+bound, c.all...)
	one, two := c.all[0], c.all[1]
	busy := slices.Index(owners, one.n)
	work, done := one.Electors()[busy].Term().Context(t.Context())
	one.Retire()
	limit := time.NewTimer(h.TTL + bound)
	defer limit.Stop()
	for len(two.leads()) != partitions-1 {
		select {
		case <-c.moved:
		case <-limit.C:
			t.Fatalf("the other process leads %d partitions, want all but the busy one", len(two.leads()))
		}
	}
	if work.Err() != nil {
		t.Errorf("the work of a retiring process was ended: %v", context.Cause(work))
	}
	done()
	c.settled(h.TTL+takeover+bound, two)
}

// Where the backend pushes, what a stopped process led is taken without waiting for the
// next look at the clock.
func testStoppedIsFollowedAtOnce(t *testing.T, h SharesHarness) {
	if !h.Pushed {
		t.Skip("the backend does not push")
	}
	interval := 10 * time.Second
	if h.Around != nil { // virtual time costs nothing
		interval = time.Minute
	}
	c := gather(t, h, 3, leader.SharesConfig{Interval: interval})
	c.settled(4*interval, c.all...)
	stopped := c.all[1]
	stopped.stop()
	<-stopped.done
	gone := time.Now()
	c.settled(4*interval, c.all[0], c.all[2])
	took := time.Since(gone)
	t.Logf("what a stopped process led was led again after %v", took)
	if most := interval / 20 * 2; took > most && h.Around != nil || took > interval/2 {
		t.Errorf("what a stopped process led was led again after %v, with looks once in %v", took, interval)
	}
}

func testOutageOfAll(t *testing.T, h SharesHarness) {
	outage := 2 * h.TTL
	if h.Around != nil { // virtual time costs nothing
		outage = 10 * time.Minute
	}
	c := gather(t, h, 3, leader.SharesConfig{})
	c.settled(10*h.TTL+bound, c.all...)
	var heals []func()
	for _, p := range c.all {
		heals = append(heals, p.cut())
	}
	limit := time.NewTimer(h.TTL + bound)
	defer limit.Stop()
	for moves(c.owners(), slices.Repeat([]int{-1}, partitions)) > 0 {
		select {
		case <-c.moved:
		case <-limit.C:
			t.Fatalf("still led in the outage: %v", c.owners())
		}
	}
	away := time.NewTimer(outage)
	<-away.C
	for _, p := range c.all {
		if err := p.Err(); !errors.Is(err, leader.ErrUnavailable) {
			t.Errorf("process %d: health in the outage is %v, want ErrUnavailable", p.n, err)
		}
		if err := p.Of("job").Err(); !errors.Is(err, leader.ErrUnavailable) {
			t.Errorf("process %d: health of a partition in the outage is %v, want ErrUnavailable", p.n, err)
		}
	}
	for _, heal := range heals {
		heal()
	}
	c.settled(10*h.TTL+bound, c.all...)
	// A look that a busy machine answered late is made good by the next one.
	within := time.Now().Add(h.TTL + bound)
	for _, p := range c.all {
		for p.Err() != nil && time.Now().Before(within) {
			<-time.After(h.TTL / 20)
		}
		if err := p.Err(); err != nil {
			t.Errorf("process %d: health after the outage is %v", p.n, err)
		}
	}
}
