package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/store"
)

// runBurst puts many rows into a table that the database knows as empty, while
// pollers have plans for an empty table, and compares what a batch takes then with
// what it takes once the database knows better.
func runBurst(ctx context.Context, d *database, s size) (_ []row, err error) {
	o, _, err := prepare(ctx, d.place(), 2*s.workers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if err := o.analyze(); err != nil {
		return nil, err
	}
	if _, err := o.drain(ctx, s, 40*s.workers, true); err != nil {
		return nil, err
	}
	if err := o.enqueue(ctx, s.burst); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	at := "after the burst"
	var took [][]float64
	for range 2 {
		times, err := o.drain(ctx, s, s.batches, false)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		took = append(took, times)
		if err := o.analyze(); err != nil {
			return nil, err
		}
		at = "when the database knows"
	}
	flood := row{Scenario: burst, Database: d.name, Rows: s.burst, What: fmt.Sprintf("batch of %d, after the burst", s.batchSize), Unit: "ms", Value: bench.SpreadOf(took[0])}
	steady := flood
	steady.What, steady.Value = fmt.Sprintf("batch of %d, when the database knows", s.batchSize), bench.SpreadOf(took[1])
	ratio := flood.Value.Median / steady.Value.Median
	flood.Ratio = &bench.Spread{Median: ratio, Low: flood.Value.Low / steady.Value.Low, High: flood.Value.High / steady.Value.High}
	flood.judge("<= 2", ratio <= 2)
	return []row{steady, flood}, nil
}

func (o *opened) enqueue(ctx context.Context, n int) error {
	for done := 0; done < n; {
		rows := make([]store.NewExecution, min(1000, n-done))
		for i := range rows {
			done++
			rows[i] = store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: strconv.Itoa(done)}}
		}
		if _, err := o.store.Enqueue(ctx, space, rows); err != nil {
			return err
		}
	}
	return nil
}

// drain lets workers fetch so many batches, and finish what they got. It answers what
// each took, in milliseconds.
func (o *opened) drain(ctx context.Context, s size, batches int, empty bool) ([]float64, error) {
	took := make([]float64, batches)
	errs := make([]error, s.workers)
	var wg sync.WaitGroup
	for w := range s.workers {
		wg.Go(func() {
			g := grownTable{opened: o, ctx: ctx, owner: store.NewOwner()}
			for n := w; n < batches && errs[w] == nil; n += s.workers {
				began := time.Now()
				got, _, err := g.fetched(s.batchSize)
				for err == nil && !empty && len(got) == 0 { // on SQLite another was faster
					got, _, err = g.fetched(s.batchSize)
				}
				switch {
				case err != nil:
				case empty && len(got) > 0:
					err = fmt.Errorf("fetched %d where nothing waits", len(got))
				case !empty:
					err = g.finish(got)
				}
				took[n] = float64(time.Since(began).Microseconds()) / 1000
				errs[w] = err
			}
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}
