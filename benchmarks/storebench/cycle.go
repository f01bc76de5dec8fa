package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/store"
)

const (
	space = "shop"
	hash  = "spec-1"
	label = "bench:1"
	lease = 10 * time.Second
	limit = 30 * time.Second // of one run
	wait  = 5 * time.Minute  // of everything that is not measured
)

// side is a contender whose tables are there. Its cycle is one tick of a job, from
// the claim to the commit of the effect. One goroutine works for one job.
type side struct {
	place
	cycle func(ctx context.Context, job string, tick store.Millis) error
	close func() error
}

type contender struct {
	name string
	bare bool
	open func(ctx context.Context, p place, callers int) (*side, error)
}

var contenders = []contender{
	{name: "written by hand", bare: true, open: openBare},
	{name: "solotick", open: openOurs},
}

func jobs(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "job-" + strconv.Itoa(i)
	}
	return out
}

// prepare makes the tables, with jobs whose ticks since yesterday can be claimed. It
// answers the first of them.
func prepare(ctx context.Context, p place, callers int) (*opened, store.Millis, error) {
	o, err := p.open(ctx, callers)
	if err != nil {
		return nil, 0, err
	}
	var specs []store.JobSpec
	for _, j := range jobs(callers) {
		specs = append(specs, store.JobSpec{Job: j, Spec: "@every 1s", Hash: hash})
	}
	r, err := o.store.Register(ctx, space, specs)
	first := r.Now.Add(-24 * time.Hour)
	if err == nil {
		err = o.db.WithContext(ctx).Exec("UPDATE "+p.prefix+"job_state SET settled_ms = ?", first-1).Error
	}
	if err != nil {
		return nil, 0, errors.Join(err, o.close())
	}
	return o, first, nil
}

// doing is what *scheduler.Run is to the guard.
type doing struct {
	ref     store.Ref
	settled bool
}

func (d *doing) Ref() store.Ref { return d.ref }
func (d *doing) MarkSettled()   { d.settled = true }
func (d *doing) Settled() bool  { return d.settled }
func (*doing) Result() []byte   { return nil }
func (*doing) Mode() store.Mode { return store.ModeNone }

func openOurs(ctx context.Context, p place, callers int) (*side, error) {
	o, first, err := prepare(ctx, p, callers)
	if err != nil {
		return nil, err
	}
	guard := idempotent.New(o.store)
	owner := store.NewOwner()
	effect := "INSERT INTO " + p.effects() + " (note, id) VALUES (?, ?)"
	return &side{p, func(ctx context.Context, job string, tick store.Millis) error {
		run := store.ClaimRun{NewExecution: store.NewExecution{
			Key:   store.Key{Class: store.ClassCron, Job: job, Tick: first + tick},
			Queue: "default", Active: store.ActiveCron(job, 0), Zone: "UTC", SpecHash: hash,
		}}
		got, err := o.store.Claim(ctx, store.ClaimRequest{Namespace: space, Owner: owner, OwnerLabel: label, Lease: lease, Runs: []store.ClaimRun{run}})
		if err != nil {
			return err
		}
		if got.Runs[0].Outcome != store.OutcomeStarted {
			return fmt.Errorf("claim of tick %d: %v", tick, got.Runs[0].Outcome)
		}
		x := &got.Runs[0].Execution
		return guard.Do(ctx, &doing{ref: x.Ref()}, func(tx *gorm.DB) error {
			return tx.Exec(effect, job, x.ID[:]).Error
		})
	}, o.close}, nil
}

// work lets each caller run cycles of its own job, from the tick given on, for the
// time of a round. It answers cycles a second, and the next tick.
func (s *side) work(ctx context.Context, callers int, round time.Duration, from store.Millis) (float64, store.Millis, error) {
	ends := make([]store.Millis, callers)
	errs := make([]error, callers)
	began := time.Now()
	var wg sync.WaitGroup
	for i, job := range jobs(callers) {
		wg.Go(func() {
			tick := from
			for ; errs[i] == nil && (tick == from || time.Since(began) < round); tick++ {
				one, cancel := context.WithTimeout(ctx, limit)
				errs[i] = s.cycle(one, job, tick)
				cancel()
			}
			ends[i] = tick
		})
	}
	wg.Wait()
	took := time.Since(began)
	done, next := int64(0), from
	for _, end := range ends {
		done += int64(end - from)
		next = max(next, end)
	}
	return float64(done) / took.Seconds(), next, errors.Join(errs...)
}

func runCycle(ctx context.Context, d *database, s size) ([]row, error) {
	var rows []row
	for _, callers := range s.callers {
		some, err := cyclesOf(ctx, d, s, callers)
		if err != nil {
			return nil, fmt.Errorf("%d callers: %w", callers, err)
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

func cyclesOf(ctx context.Context, d *database, s size, callers int) (_ []row, err error) {
	sides := make([]*side, len(contenders))
	defer func() {
		for _, o := range sides {
			if o != nil {
				err = errors.Join(err, o.close())
			}
		}
	}()
	for i, c := range contenders {
		opening, cancel := context.WithTimeout(ctx, wait)
		sides[i], err = c.open(opening, d.place(), callers)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	rates := make([][]float64, len(contenders))
	next := make([]store.Millis, len(contenders))
	err = bench.Alternate(len(contenders), s.rounds, func(round, n int) error {
		rate, to, err := sides[n].work(ctx, callers, s.round, next[n])
		if next[n] = to; err != nil {
			return fmt.Errorf("%s: %w", contenders[n].name, err)
		}
		if round > 0 {
			rates[n] = append(rates[n], rate)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var bare []float64
	var rows []row
	for i, c := range contenders {
		r := row{Scenario: cycle, Database: d.name, Callers: callers, Contender: c.name, Unit: "runs/s", Value: bench.SpreadOf(rates[i])}
		if c.bare {
			bare = rates[i]
		} else {
			ratio := bench.SpreadOf(bench.Ratios(rates[i], bare))
			r.Ratio = &ratio
			r.judge(">= 0.9", ratio.Median >= 0.9)
		}
		rows = append(rows, r)
	}
	return rows, nil
}
