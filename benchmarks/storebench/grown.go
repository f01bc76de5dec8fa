package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/store"
)

// fillTimeout bounds the insertion of some millions of rows.
const fillTimeout = 2 * time.Hour

// grownTable is a store beside many finished rows, a call of which is timed.
type grownTable struct {
	*opened
	ctx   context.Context
	owner store.Owner
	next  store.Millis // tick
	names int
}

// calls are what is timed; each answers how long it took.
var calls = []struct {
	name string
	time func(g *grownTable) (time.Duration, error)
}{
	{"claim of a tick", (*grownTable).claim},
	{"fetch of 10", (*grownTable).fetch},
	{"fetch of nothing", (*grownTable).idle},
	{"takeover of nothing", (*grownTable).takeOver},
}

func runGrown(ctx context.Context, d *database, s size) (_ []row, err error) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	tables := make([]*grownTable, len(s.finished))
	defer func() {
		for _, g := range tables {
			if g != nil {
				err = errors.Join(err, g.close())
			}
		}
	}()
	for i, n := range s.finished {
		o, first, err := prepare(ctx, d.place(), 1)
		if err != nil {
			return nil, err
		}
		tables[i] = &grownTable{opened: o, ctx: ctx, owner: store.NewOwner(), next: first}
		if err := tables[i].fill(n); err != nil {
			return nil, fmt.Errorf("%d rows: %w", n, err)
		}
	}
	// Rounds of a few calls, so that what the machine does besides falls on both.
	const each = 10
	rounds := max(1, s.probes/each)
	took := make([][][]float64, len(calls))
	for c := range took {
		took[c] = make([][]float64, len(tables))
	}
	err = bench.Alternate(len(tables), rounds, func(round, n int) error {
		for c, call := range calls {
			var sum time.Duration
			for range each {
				one, err := call.time(tables[n])
				if err != nil {
					return fmt.Errorf("%s: %w", call.name, err)
				}
				sum += one
			}
			if round > 0 {
				took[c][n] = append(took[c][n], float64(sum.Nanoseconds())/1e3/each)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var rows []row
	for c, call := range calls {
		for n, finished := range s.finished {
			r := row{Scenario: grown, Database: d.name, What: call.name, Rows: finished, Unit: "µs", Value: bench.SpreadOf(took[c][n])}
			if n > 0 {
				ratio := bench.SpreadOf(bench.Ratios(took[c][n], took[c][0]))
				r.Ratio = &ratio
				r.judge("<= 1.5", ratio.Median <= 1.5)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// fill inserts finished runs.
func (g *grownTable) fill(n int) error {
	chunk := 20_000
	if g.name == sqlite {
		// The hashes fall everywhere in their index: with its usual 2 MB SQLite would
		// write every page of it for each of a few rows.
		chunk = 500_000
		if err := g.cache(-2_000_000); err != nil {
			return err
		}
	}
	for from := 1; from <= n; from += chunk {
		query := bench.FinishedRows(g.dialect().Name, g.prefix+"executions", int64(g.next), from, min(n, from+chunk-1))
		if err := g.db.WithContext(g.ctx).Exec(query).Error; err != nil {
			return err
		}
	}
	if g.name == sqlite {
		if err := g.cache(-2000); err != nil {
			return err
		}
	}
	return g.analyze()
}

// cache sets how much memory the writing connection of SQLite may take: pages, or
// where it is negative KiB.
func (g *grownTable) cache(size int) error {
	return g.db.WithContext(g.ctx).Exec("PRAGMA cache_size = " + strconv.Itoa(size)).Error
}

// analyze lets the database know what the table holds, as it finds out by itself
// after a while.
func (o *opened) analyze() error {
	t := o.prefix + "executions"
	return o.db.Exec(map[string]string{postgres: "VACUUM ANALYZE " + t, mariadb: "ANALYZE TABLE " + t, sqlite: "ANALYZE"}[o.name]).Error
}

func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

func (g *grownTable) claim() (took time.Duration, err error) {
	g.next++
	run := store.ClaimRun{NewExecution: store.NewExecution{
		Key: store.Key{Class: store.ClassCron, Job: "job-0", Tick: g.next}, Queue: "default", Active: store.ActiveCron("job-0", 0), SpecHash: hash,
	}}
	var got store.Claimed
	took, err = timed(func() error {
		got, err = g.store.Claim(g.ctx, store.ClaimRequest{Namespace: space, Owner: g.owner, OwnerLabel: label, Lease: lease, Runs: []store.ClaimRun{run}})
		return err
	})
	if err == nil && got.Runs[0].Outcome != store.OutcomeStarted {
		err = fmt.Errorf("claim: %v", got.Runs[0].Outcome)
	}
	if err == nil {
		err = g.finish([]store.Execution{got.Runs[0].Execution})
	}
	return took, err
}

func (g *grownTable) finish(runs []store.Execution) error {
	ends := make([]store.Finish, len(runs))
	for i := range ends {
		ends[i] = store.Finish{Ref: runs[i].Ref(), State: store.StateSucceeded}
	}
	errs, err := g.store.Finish(g.ctx, ends)
	return errors.Join(append(errs, err)...)
}

func (g *grownTable) request(limit int) store.FetchRequest {
	return store.FetchRequest{Namespace: space, Owner: g.owner, OwnerLabel: label, Lease: lease, Jobs: []string{"job-0", "mail"}, Limit: limit}
}

func (g *grownTable) fetch() (time.Duration, error) {
	const n = 10
	rows := make([]store.NewExecution, n)
	for i := range rows {
		g.names++
		rows[i] = store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: strconv.Itoa(g.names)}}
	}
	if _, err := g.store.Enqueue(g.ctx, space, rows); err != nil {
		return 0, err
	}
	got, took, err := g.fetched(n)
	if err == nil && len(got) != n {
		err = fmt.Errorf("fetched %d of %d", len(got), n)
	}
	if err != nil {
		return 0, err
	}
	return took, g.finish(got)
}

func (g *grownTable) fetched(limit int) (runs []store.Execution, took time.Duration, err error) {
	took, err = timed(func() error {
		got, err := g.store.Fetch(g.ctx, g.request(limit))
		runs = got.Runs
		return err
	})
	return runs, took, err
}

func (g *grownTable) idle() (time.Duration, error) {
	got, took, err := g.fetched(10)
	if err == nil && len(got) != 0 {
		err = fmt.Errorf("fetched %d where nothing waits", len(got))
	}
	return took, err
}

func (g *grownTable) takeOver() (time.Duration, error) {
	return timed(func() error {
		got, err := g.store.TakeOver(g.ctx, g.request(10))
		if err == nil && len(got.Runs) != 0 {
			err = fmt.Errorf("took over %d where nobody died", len(got.Runs))
		}
		return err
	})
}
