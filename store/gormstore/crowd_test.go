package gormstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Enqueuers, claimers, fetchers and takeovers at once, with transactions that are
// rolled back and runs that are forgotten: nobody sees a deadlock, and every key has
// its effect once.
func TestCrowd(t *testing.T) { everywhere(t, crowded) }

const crowdFor = 1500 * time.Millisecond

type crowd struct {
	*place
	lease time.Duration
	tick  atomic.Int64 // the newest asked for
	names atomic.Int64
	again atomic.Int64 // transactions of the user that the database wanted again

	mu       sync.Mutex
	recorded map[store.Key]int // by how many calls a key is recorded
}

func crowded(p *place) {
	p.must(p.db.Exec("CREATE TABLE effects (run VARCHAR(200) NOT NULL, n INTEGER NOT NULL)").Error)
	c := &crowd{place: p, lease: 300 * time.Millisecond, recorded: map[store.Key]int{}}
	c.tick.Store(int64(p.register("tick-0", "tick-1", "tick-2")))
	p.ctx = context.WithoutCancel(p.ctx)
	until := time.Now().Add(crowdFor)
	var wg sync.WaitGroup
	for i := range 16 {
		owner := store.NewOwner()
		wg.Go(func() {
			for time.Now().Before(until) && !p.Failed() {
				c.enqueue()
			}
		})
		wg.Go(func() {
			for time.Now().Before(until) && !p.Failed() {
				c.claim(owner, fmt.Sprint("tick-", i%3))
				c.fetch(owner)
			}
		})
		if i%8 == 0 {
			wg.Go(func() {
				for time.Now().Before(until) && !p.Failed() {
					c.takeOver(owner)
				}
			})
		}
	}
	wg.Wait()
	owner := store.NewOwner()
	for end := time.Now().Add(30 * time.Second); !p.Failed() && c.open(); {
		c.fetch(owner)
		c.takeOver(owner)
		if time.Now().After(end) {
			p.Fatal("runs stay open: a key or a lease was never given back")
		}
	}
	c.check()
}

// userTx is a transaction of the user's, done again where the database wants that, as
// package idempotent does.
func (c *crowd) userTx(f func(tx *gorm.DB) error) error {
	d := sqldialectOf(c.db)
	for n := 0; ; n++ {
		err := c.db.Transaction(f)
		if d.Classify(err) != sqldialect.Busy || n == 50 {
			return err
		}
		c.again.Add(1)
		if err := backoff.Wait(c.ctx, backoff.Policy{Max: 100 * time.Millisecond}.Delay(n)); err != nil {
			return err
		}
	}
}

func (c *crowd) record(k store.Key, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorded[k] += by
}

// enqueue is one of two that ask for the same key.
func (c *crowd) enqueue() {
	n := c.names.Add(1)
	row := queued("mail", fmt.Sprint(n/2))
	if n/2%3 == 0 {
		row.LockKey = fmt.Sprint("lane-", n/2%7)
	}
	row.ID = store.NewID(store.MillisOf(time.Now()))
	undo := rand.IntN(4) == 0
	var got []store.Enqueued
	err := c.userTx(func(tx *gorm.DB) error {
		var err error
		if got, err = c.s.EnqueueTx(c.ctx, tx, space, row); err == nil && undo {
			err = errUndo
		}
		return err
	})
	switch {
	case undo && errors.Is(err, errUndo):
	case err != nil:
		c.Errorf("enqueue: %v", err)
	case got[0].Outcome == store.OutcomeEnqueued:
		c.record(row.Key, 1)
	}
}

func (c *crowd) claim(owner store.Owner, job string) {
	run := cron(job, store.Millis(c.tick.Add(int64(rand.IntN(2)))))
	got, err := c.s.Claim(c.ctx, store.ClaimRequest{Namespace: space, Owner: owner, Lease: c.lease, Runs: []store.ClaimRun{run}})
	if err != nil {
		c.Errorf("claim: %v", err)
		return
	}
	if got.Runs[0].Outcome == store.OutcomeStarted {
		c.record(run.Key, 1)
		c.work(got.Runs[0].Execution)
	}
}

func (c *crowd) fetch(owner store.Owner) {
	got, err := c.s.Fetch(c.ctx, store.FetchRequest{Namespace: space, Owner: owner, Lease: c.lease, Jobs: []string{"mail"}, Limit: 5})
	if err != nil {
		c.Errorf("fetch: %v", err)
	}
	for _, x := range got.Runs {
		c.work(x)
	}
}

func (c *crowd) takeOver(owner store.Owner) {
	got, err := c.s.TakeOver(c.ctx, store.FetchRequest{
		Namespace: space, Owner: owner, Lease: c.lease, Jobs: []string{"mail", "tick-0", "tick-1", "tick-2"}, Limit: 5,
	})
	if err != nil {
		c.Errorf("take over: %v", err)
	}
	for _, x := range got.Runs {
		c.work(x)
	}
}

// work has an effect and finishes, or forgets the run, or does both and takes them back.
func (c *crowd) work(x store.Execution) {
	dice := rand.IntN(40)
	if dice == 0 {
		return
	}
	err := c.userTx(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO effects VALUES (?, ?)", x.Key.String(), x.Attempt).Error; err != nil {
			return err
		}
		if err := c.s.FinishTx(c.ctx, tx, done(x)); err != nil {
			return err
		}
		if dice == 1 {
			return errUndo
		}
		return nil
	})
	if err != nil && !errors.Is(err, errUndo) && !errors.Is(err, store.ErrFenced) {
		c.Errorf("finish: %v", err)
	}
}

func (c *crowd) open() bool {
	rows, err := c.s.List(c.ctx, store.Filter{Namespace: space, States: []store.State{store.StatePending, store.StateRunning}, Limit: 1})
	if err != nil {
		c.Errorf("list: %v", err)
	}
	return len(rows) > 0
}

func (c *crowd) check() {
	effects := map[string]int{}
	rows, err := c.db.Raw("SELECT run, count(*) FROM effects GROUP BY run").Rows()
	c.must(err)
	defer func() { c.must(rows.Close()) }()
	for rows.Next() {
		var run string
		var n int
		c.must(rows.Scan(&run, &n))
		effects[run] = n
	}
	c.must(rows.Err())
	if len(effects) != len(c.recorded) || len(effects) == 0 {
		c.Errorf("%d runs have effects, %d were recorded", len(effects), len(c.recorded))
	}
	for k, n := range c.recorded {
		if n != 1 || effects[k.String()] != 1 {
			c.Errorf("%s was recorded by %d calls and has %d effects", k, n, effects[k.String()])
		}
	}
	c.Logf("%d runs, %d transactions of the user were done again", len(effects), c.again.Load())
}
