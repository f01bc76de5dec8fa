package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The scenarios.
const (
	cycle    = "cycle"    // acquire and release of a free key, one after the other
	parallel = "parallel" // 32 goroutines on 32 keys
	handOver = "handover" // from the release called to the next holder
	memory   = "memory"   // of a held lock
)

// size is how much is measured.
type size struct {
	cycleRounds, cycles int
	parallelRounds      int
	handOverRounds      int
	handOvers           int
	handOverBudget      time.Duration // of one round of one contender
	waiters             []int
	held                int
}

var (
	full = size{
		cycleRounds: 40, cycles: 100, parallelRounds: 30,
		handOverRounds: 8, handOvers: 150, handOverBudget: 700 * time.Millisecond, waiters: []int{2, 8, 64}, held: 1000,
	}
	short = size{
		cycleRounds: 10, cycles: 50, parallelRounds: 5,
		handOverRounds: 2, handOvers: 70, handOverBudget: 250 * time.Millisecond, waiters: []int{2, 8}, held: 200,
	}
	// smoke is for the test that everything still runs.
	smoke = size{
		cycleRounds: 1, cycles: 2, parallelRounds: 1,
		handOverRounds: 1, handOvers: 5, handOverBudget: 500 * time.Millisecond, waiters: []int{2}, held: 3,
	}
)

type scenario struct {
	name string
	run  func(ctx context.Context, e *env, b backend, s size) ([]row, error)
}

var scenarios = []scenario{{cycle, runCycle}, {parallel, runParallel}, {handOver, runHandOver}, {memory, runMemory}}

var scenarioNames = names(scenarios, func(s scenario) string { return s.name })

// alternate lets the contenders take turns, round by round, each time another one
// first, after a round that does not count.
func alternate(all []*opened, rounds int, one func(o *opened) error) error {
	for round := range rounds + 1 {
		for i := range all {
			o := all[(i+round)%len(all)]
			if err := one(o); err != nil {
				return fmt.Errorf("%s: round %d: %w", o.name, round, err)
			}
		}
	}
	return nil
}

// figures collects, for each contender, one figure a round.
type figures map[*opened][]float64

func (f figures) add(o *opened, x float64) { f[o] = append(f[o], x) }

// rows makes a row of each contender, compared with the bare one round by round.
func (f figures) rows(scenario string, b backend, all []*opened) []row {
	var bare []float64
	for _, o := range all {
		if o.bare {
			bare = f[o][1:]
		}
	}
	var rows []row
	for _, o := range all {
		own := f[o][1:] // the first round warms up
		r := row{Scenario: scenario, Backend: b.name, Contender: o.name, ours: o.ours, bare: o.bare, Value: spreadOf(own)}
		if !o.bare && len(bare) > 0 {
			ratios := make([]float64, len(own))
			for i := range own {
				ratios[i] = own[i] / bare[i]
			}
			s := spreadOf(ratios)
			r.Ratio = &s
		}
		rows = append(rows, r)
	}
	return rows
}

// cycleKeys is more than one, because some contenders give back in the background.
const cycleKeys = 8

func runCycle(ctx context.Context, e *env, b backend, s size) (_ []row, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	all, closeAll, err := b.open(ctx, e, cycle, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	f := figures{}
	sent := map[*opened]int64{}
	err = alternate(all, s.cycleRounds, func(o *opened) error {
		before := o.sent.Load()
		began := time.Now()
		for i := range s.cycles {
			free, err := o.processes[0].try(ctx, "k"+strconv.Itoa(i%cycleKeys))
			if err != nil {
				return err
			}
			if err := free(ctx); err != nil {
				return err
			}
		}
		f.add(o, float64(time.Since(began).Nanoseconds())/1e3/float64(s.cycles))
		sent[o] = o.sent.Load() - before
		return nil
	})
	if err != nil {
		return nil, err
	}
	rows := f.rows(cycle, b, all)
	for i, o := range all {
		rows[i].Unit = "µs"
		rows[i].Requests = float64(sent[o]) / float64(s.cycles)
		if o.ours {
			rows[i].want(atMost, 1.15)
		}
	}
	return rows, nil
}

// goroutines is how many take part in the parallel scenario.
const goroutines = 32

// runParallel compares with bare calls one after the other, which is what a program
// without an own pipeline of requests does in one goroutine.
func runParallel(ctx context.Context, e *env, b backend, s size) (_ []row, err error) {
	if b.name != "redis" {
		return nil, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	all, closeAll, err := b.open(ctx, e, parallel, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	const each = 10
	f := figures{}
	cycles := func(o *opened, key string, n int) error {
		for range n {
			free, err := o.processes[0].wait(ctx, key)
			if err != nil {
				return err
			}
			if err := free(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	together := func(o *opened) error {
		errs := make([]error, goroutines)
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() { errs[i] = cycles(o, "p"+strconv.Itoa(i), each) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	var sequential *opened
	for _, o := range all {
		if o.bare {
			sequential = &opened{contender: o.contender, processes: o.processes}
			sequential.name = "bare go-redis, one after the other"
			o.bare, o.name = false, "bare go-redis, in parallel"
			break
		}
	}
	all = append([]*opened{sequential}, all...)
	spent := map[*opened]processors{}
	err = alternate(all, s.parallelRounds, func(o *opened) error {
		before := processorTime(e.redisPid)
		defer func() { spent[o] = spent[o].plus(processorTime(e.redisPid).minus(before)) }()
		began := time.Now()
		var err error
		if o == sequential {
			err = cycles(o, "s", goroutines*each)
		} else {
			err = together(o)
		}
		f.add(o, goroutines*each/time.Since(began).Seconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	rows := f.rows(parallel, b, all)
	for i, o := range all {
		rows[i].Unit = "cycles/s"
		n := float64((s.parallelRounds + 1) * goroutines * each)
		rows[i].ClientCPU, rows[i].ServerCPU = micros(spent[o].client)/n, micros(spent[o].server)/n
		if o.ours {
			rows[i].want(atLeast, 1.5)
			rows[i].ahead(rows, "rueidislock", true)
		}
	}
	return rows, nil
}

func runMemory(ctx context.Context, e *env, b backend, s size) (rows []row, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for _, c := range b.contenders {
		if !c.takesPart(memory) || c.bare {
			continue
		}
		r, err := memoryOf(ctx, e, b, c, s.held)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func memoryOf(ctx context.Context, e *env, b backend, c contender, held int) (_ row, err error) {
	p, err := c.open(ctx, e, e.name(), new(atomic.Int64))
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, p.close(context.WithoutCancel(ctx))) }()
	keys := make([]string, held)
	for i := range keys {
		keys[i] = "held" + strconv.Itoa(i)
	}
	frees := make([]release, 0, held)
	take := func(keys []string) error {
		for _, key := range keys {
			free, err := p.try(ctx, key)
			if err != nil {
				return err
			}
			frees = append(frees, free)
		}
		return nil
	}
	giveBack := func() error {
		var errs []error
		for _, free := range frees {
			errs = append(errs, free(ctx))
		}
		frees = frees[:0]
		return errors.Join(errs...)
	}
	// Once for pools and buffers, which stay; they are no part of a lock.
	if err := errors.Join(take(keys[:(held+9)/10]), giveBack()); err != nil {
		return row{}, err
	}
	before, goroutinesBefore := inUse(), runtime.NumGoroutine()
	if err := take(keys); err != nil {
		return row{}, err
	}
	each := float64(int64(inUse())-int64(before)) / float64(held)
	r := row{
		Scenario: memory, Backend: b.name, Contender: c.name, ours: c.ours, Unit: "bytes",
		Value:      spread{each, each, each},
		Goroutines: float64(runtime.NumGoroutine()-goroutinesBefore) / float64(held),
	}
	runtime.KeepAlive(keys)
	if c.ours {
		r.wantValue(1024)
	}
	return r, giveBack()
}

// inUse is what the heap and the stacks hold that is still needed.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// spread is the median of a figure, and its quartiles.
type spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func spreadOf(xs []float64) spread {
	if len(xs) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(xs))
	at := func(q float64) float64 { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	return spread{at(0.5), at(0.25), at(0.75)}
}
