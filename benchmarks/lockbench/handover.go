package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// hold is how long each holder works under the key.
const hold = time.Millisecond

func runHandOver(ctx context.Context, e *env, b backend, s size) ([]row, error) {
	var rows []row
	for _, waiters := range s.waiters {
		some, err := handOverOf(ctx, e, b, s, waiters)
		if err != nil {
			return nil, fmt.Errorf("%d waiters: %w", waiters, err)
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

func handOverOf(ctx context.Context, e *env, b backend, s size, waiters int) (_ []row, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	all, closeAll, err := b.open(ctx, e, handOver, waiters+1)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, closeAll()
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	f := figures{}
	longest := map[*opened]time.Duration{}
	turns := map[*opened][]int{}
	requests := map[*opened]float64{}
	// Many waiters need longer rounds for everyone to have their turn, and get fewer.
	handOvers := max(s.handOvers, 6*(waiters+1))
	budget, rounds := s.handOverBudget, s.handOverRounds
	if handOvers > s.handOvers {
		budget, rounds = 4*budget, (rounds+1)/2
	}
	err = alternate(all, rounds, func(o *opened) error {
		before := o.sent.Load()
		c := &contest{want: handOvers, over: make(chan struct{}), granted: make(chan struct{}), grants: make([]int, len(o.processes))}
		if err := c.run(ctx, o.processes, budget); err != nil {
			return err
		}
		if len(c.gaps) == 0 {
			return fmt.Errorf("no hand-over in %v", budget)
		}
		warmUp := len(f[o]) == 0
		slices.Sort(c.gaps)
		f.add(o, float64(c.gaps[len(c.gaps)/2].Nanoseconds())/1e3)
		if !warmUp {
			longest[o] = max(longest[o], c.longest)
			if turns[o] == nil {
				turns[o] = make([]int, len(c.grants))
			}
			for i, n := range c.grants {
				turns[o][i] += n
			}
		}
		requests[o] = float64(o.sent.Load()-before) / float64(len(c.gaps))
		return nil
	})
	if err != nil {
		return nil, err
	}
	rows := f.rows(handOver, b, all)
	for i, o := range all {
		rows[i].Unit, rows[i].Waiters = "µs", waiters
		rows[i].Requests = requests[o]
		rows[i].LongestWait = float64(longest[o].Microseconds()) / 1e3
		fewest, most := slices.Min(turns[o]), slices.Max(turns[o])
		rows[i].Turns = &[2]int{fewest, most}
	}
	for i, o := range all {
		if o.ours {
			wantHandOver(rows, i)
		}
	}
	return rows, nil
}

func wantHandOver(rows []row, i int) {
	if rows[i].Waiters == 64 {
		rows[i].judge("nobody starved", rows[i].Turns[0] > 0)
	}
	switch rows[i].Backend + " " + rows[i].Contender {
	case "redis solotick, fair":
		rows[i].want(atMost, 1.3)
	case "redis solotick":
		rows[i].ahead(rows, "rueidislock", false)
	case "etcd solotick", "zookeeper solotick":
		rows[i].want(atMost, 1.15)
	case "postgres solotick":
		rows[i].want(atMost, 2)
	}
}

// contest is one round of one contender: its processes hold the key for a moment,
// in turns, until there were as many hand-overs as wanted or the time is up.
type contest struct {
	want int
	over chan struct{}

	mu       sync.Mutex
	ended    bool
	released time.Time     // when the last release was called
	granted  chan struct{} // closed by the next grant
	gaps     []time.Duration
	grants   []int
	longest  time.Duration // that somebody waited, or had waited at the end
}

func (c *contest) run(ctx context.Context, processes []process, budget time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up := time.AfterFunc(budget, c.end)
	defer up.Stop()
	errs := make([]error, len(processes))
	var wg sync.WaitGroup
	for i, p := range processes {
		wg.Go(func() { errs[i] = c.compete(ctx, i, p) })
	}
	<-c.over
	// Who still waits has its turn without holding. Who looks but now and then would
	// take long for that, and is told to stop.
	stop := time.AfterFunc(300*time.Millisecond, cancel)
	defer stop.Stop()
	wg.Wait()
	return errors.Join(errs...)
}

// compete takes part until the end. Who has released lines up again when somebody
// else has got the key, so that each hand-over is one to another process.
func (c *contest) compete(ctx context.Context, i int, p process) error {
	for {
		asked := time.Now()
		free, err := p.wait(ctx, "key")
		next, ended := c.got(i, asked, err == nil)
		switch {
		case err != nil && ended && ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to stop waiting
		case err != nil:
			c.end()
			return err
		case ended:
			return free(context.WithoutCancel(ctx))
		}
		<-time.After(hold)
		c.mu.Lock()
		c.released = time.Now()
		c.mu.Unlock()
		if err := free(ctx); err != nil {
			c.end()
			return err
		}
		select {
		case <-next:
		case <-c.over:
			return nil
		}
	}
}

// got notes that a process has stopped waiting, and returns what the next grant
// closes.
func (c *contest) got(i int, asked time.Time, granted bool) (next <-chan struct{}, ended bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, true
	}
	if !granted {
		return nil, false
	}
	c.longest = max(c.longest, now.Sub(asked))
	c.grants[i]++
	if !c.released.IsZero() {
		c.gaps = append(c.gaps, now.Sub(c.released))
	}
	close(c.granted)
	c.granted = make(chan struct{})
	if len(c.gaps) >= c.want {
		c.ended = true
		close(c.over)
	}
	return c.granted, c.ended
}

func (c *contest) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		close(c.over)
	}
}
