package gormstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// The environment variable soakEnv says how long the crowd works on each
// database, such as 1h; resultEnv names the file to which the figures are written, and
// seedEnv makes the dice fall as in a run before; the order of what happens at once is
// not repeated.
const (
	soakEnv   = "SOLOTICK_SOAK"
	resultEnv = "SOLOTICK_SOAK_RESULT"
	seedEnv   = "SOLOTICK_SOAK_SEED"
)

const (
	crowdFor = 1500 * time.Millisecond
	roundFor = 15 * time.Second // of a long form, whose histories would not fit into memory
)

// Sixteen enqueuers and sixteen claimers, fetchers and takeovers at once, with
// transactions that are rolled back, runs that are forgotten, and attempts that wake
// up late: nobody sees a deadlock, every key has its effect once, and what all of them
// were told is a history of the exactly-once table.
func TestCrowd(t *testing.T) {
	soak, round := crowdFor, crowdFor
	if text := os.Getenv(soakEnv); text != "" {
		var err error
		if soak, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakEnv, err)
		}
		round = min(soak, roundFor)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Logf("repeat with %s=%d", seedEnv, seed)
	var mu sync.Mutex
	all := bench.Entry[figures]{
		Command: "make soak AREA=store SOAK=" + soak.String(), Seed: seed, Machine: bench.ThisMachine(), Load: bench.Load(),
		Began: time.Now().UTC().Truncate(time.Second), Figures: map[string]figures{},
	}
	t.Run("on", func(t *testing.T) {
		everywhere(t, func(p *place) {
			f := crowded(p, seed, soak, round)
			mu.Lock()
			defer mu.Unlock()
			all.Figures[p.db.Name()] = f
		})
	})
	if path := os.Getenv(resultEnv); path != "" {
		all.Took = time.Since(all.Began).Round(time.Second).String()
		all.Verdict = map[bool]string{
			false: "kept: no deadlock seen by a user, no key recorded twice, none lost, one effect a run, every history allowed by the model", true: "BROKEN",
		}[t.Failed()]
		text, err := json.MarshalIndent(all, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// figures are what the crowd did on one database.
type figures struct {
	Rounds     int   `json:"rounds"`
	Operations int64 `json:"operations_checked_by_the_model"`
	Runs       int64 `json:"runs"`
	Effects    int64 `json:"effects"`
	Skipped    int64 `json:"skipped_for_overlap"`
	TakenOver  int64 `json:"takeovers"`
	Fenced     int64 `json:"late_finishes_fenced"`
	RolledBack int64 `json:"transactions_rolled_back"`
	Again      int64 `json:"user_transactions_done_again"`
}

type crowd struct {
	*place
	lease time.Duration
	tick  atomic.Int64 // the newest asked for
	names atomic.Int64
	again atomic.Int64 // transactions of the user that the database wanted again
	undo  atomic.Int64

	h *history

	mu     sync.Mutex
	asleep []store.Execution // attempts that wake up late
}

// member is one goroutine of the crowd.
type member struct {
	*crowd
	*rand.Rand
	client int
	owner  store.Owner
	awake  bool // wakes up everybody
}

func crowded(p *place, seed uint64, soak, round time.Duration) (f figures) {
	p.must(p.db.Exec("CREATE TABLE effects (run VARCHAR(200) NOT NULL, n INTEGER NOT NULL)").Error)
	c := &crowd{place: p, lease: 300 * time.Millisecond}
	c.tick.Store(int64(p.register("tick-0", "tick-1", "tick-2")))
	p.ctx = context.WithoutCancel(p.ctx)
	for until := time.Now().Add(soak); f.Rounds == 0 || time.Now().Before(until) && !p.Failed(); {
		f.Rounds++
		c.h = newHistory()
		c.round(seed+uint64(f.Rounds), min(round, time.Until(until)))
		if p.Failed() {
			break
		}
		c.settleUp(&f)
		f.Again, f.RolledBack = c.again.Load(), c.undo.Load()
		p.Logf("round %d: %+v", f.Rounds, f)
	}
	return f
}

// round lets all work for a while, and then one finish what is left.
func (c *crowd) round(seed uint64, long time.Duration) {
	until := time.Now().Add(long)
	var wg sync.WaitGroup
	clients := 0
	work := func(owner store.Owner, do func(m *member)) {
		clients++
		m := &member{c, rand.New(rand.NewPCG(seed, uint64(clients))), clients, owner, false}
		wg.Go(func() {
			for time.Now().Before(until) && !c.Failed() {
				do(m)
			}
		})
	}
	for i := range 16 {
		owner := store.NewOwner()
		work(owner, (*member).enqueue)
		work(owner, func(m *member) {
			m.claim(fmt.Sprint("tick-", i%3))
			m.fetch()
			m.wake()
		})
		if i%8 == 0 {
			work(owner, (*member).takeOver)
		}
	}
	wg.Wait()
	last := &member{c, rand.New(rand.NewPCG(seed, 0)), clients + 1, store.NewOwner(), true}
	// A busy machine may take long for them all, but not between one and the next.
	left, ended := -1, time.Now()
	for n := c.open(); n > 0 && !c.Failed(); n = c.open() {
		if n != left {
			left, ended = n, time.Now()
		}
		if time.Since(ended) > time.Minute {
			c.Fatalf("%d runs stay open: a key or a lease was never given back", n)
		}
		last.fetch()
		last.takeOver()
	}
	for len(c.asleep) > 0 && !c.Failed() {
		last.wake()
	}
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

// did notes what a call that began at call was told of a run.
func (m *member) did(d deed, x *store.Execution, call int64) {
	m.h.add(op{deed: d, key: x.Key, active: x.Active, attempt: x.Attempt, owner: x.Owner, client: m.client, call: call, back: m.h.now()})
}

// enqueue is one of two that ask for the same key.
func (m *member) enqueue() {
	n := m.names.Add(1)
	row := queued("mail", fmt.Sprint(n/2))
	if n/2%3 == 0 {
		row.LockKey = fmt.Sprint("lane-", n/2%7)
	}
	row.ID = store.NewID(store.MillisOf(time.Now()))
	undo := m.IntN(4) == 0
	call := m.h.now()
	var got []store.Enqueued
	err := m.userTx(func(tx *gorm.DB) error {
		var err error
		if got, err = m.s.EnqueueTx(m.ctx, tx, space, row); err == nil && undo {
			err = errUndo
		}
		return err
	})
	switch {
	case undo && errors.Is(err, errUndo):
		m.undo.Add(1)
	case err != nil:
		m.Errorf("enqueue: %v", err)
	case got[0].Outcome == store.OutcomeEnqueued:
		m.did(enqueued, &store.Execution{Key: row.Key}, call)
	default:
		m.did(duplicate, &store.Execution{Key: row.Key}, call)
	}
}

func (m *member) claim(job string) {
	run := cron(job, store.Millis(m.tick.Add(int64(m.IntN(2)))))
	call := m.h.now()
	got, err := m.s.Claim(m.ctx, store.ClaimRequest{Namespace: space, Owner: m.owner, Lease: m.lease, Runs: []store.ClaimRun{run}})
	if err != nil {
		m.Errorf("claim: %v", err)
		return
	}
	switch got.Runs[0].Outcome {
	case store.OutcomeStarted:
		m.did(started, &got.Runs[0].Execution, call)
		m.work(got.Runs[0].Execution)
	case store.OutcomeBusy:
		m.did(skipped, &store.Execution{Key: run.Key, Active: run.Active}, call)
	case store.OutcomeDuplicate:
		m.did(duplicate, &store.Execution{Key: run.Key}, call)
	case store.OutcomeEarly:
	default:
		m.Errorf("claim: %v", got.Runs[0].Outcome)
	}
}

func (m *member) fetch() {
	call := m.h.now()
	got, err := m.s.Fetch(m.ctx, store.FetchRequest{Namespace: space, Owner: m.owner, Lease: m.lease, Jobs: []string{"mail"}, Limit: 5})
	if err != nil {
		m.Errorf("fetch: %v", err)
	}
	m.given(fetched, got.Runs, call)
}

func (m *member) takeOver() {
	call := m.h.now()
	got, err := m.s.TakeOver(m.ctx, store.FetchRequest{
		Namespace: space, Owner: m.owner, Lease: m.lease, Jobs: []string{"mail", "tick-0", "tick-1", "tick-2"}, Limit: 5,
	})
	if err != nil {
		m.Errorf("take over: %v", err)
	}
	if len(got.Settled) > 0 {
		m.Errorf("%s was given up", got.Settled[0].Key)
	}
	m.given(takenOver, got.Runs, call)
}

func (m *member) given(d deed, runs []store.Execution, call int64) {
	for i := range runs {
		m.did(d, &runs[i], call)
	}
	for _, x := range runs {
		m.work(x)
	}
}

// work has an effect and finishes, or forgets the run, for good or until it wakes up,
// or does both and takes them back.
func (m *member) work(x store.Execution) {
	switch m.IntN(40) {
	case 0:
	case 1:
		m.finish(x, true)
	case 2:
		m.mu.Lock()
		m.asleep = append(m.asleep, x)
		m.mu.Unlock()
	default:
		m.finish(x, false)
	}
}

// wake finishes an attempt that slept; it may have been taken over long since.
func (m *member) wake() {
	m.mu.Lock()
	var x store.Execution
	if n := len(m.asleep); n > 30 || n > 0 && m.awake {
		x, m.asleep = m.asleep[0], m.asleep[1:]
	}
	m.mu.Unlock()
	if x.Attempt > 0 {
		m.finish(x, false)
	}
}

func (m *member) finish(x store.Execution, undo bool) {
	call := m.h.now()
	err := m.userTx(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO effects VALUES (?, ?)", x.Key.String(), x.Attempt).Error; err != nil {
			return err
		}
		if err := m.s.FinishTx(m.ctx, tx, done(x)); err != nil {
			return err
		}
		if undo {
			return errUndo
		}
		return nil
	})
	switch {
	case errors.Is(err, errUndo):
		m.undo.Add(1)
	case errors.Is(err, store.ErrFenced):
		m.did(fenced, &x, call)
	case err != nil:
		m.Errorf("finish: %v", err)
	default:
		m.did(finished, &x, call)
	}
}

func (c *crowd) open() int {
	rows, err := c.s.List(c.ctx, store.Filter{Namespace: space, States: []store.State{store.StatePending, store.StateRunning}, Limit: 10_000})
	if err != nil {
		c.Errorf("list: %v", err)
	}
	return len(rows)
}

// settleUp adds what the ledger of effects and the records say to the history, has it
// checked, and clears the tables for the next round.
func (c *crowd) settleUp(f *figures) {
	effects := map[string][]int{}
	var rows []struct {
		Run string
		N   int
	}
	c.must(c.db.Raw("SELECT run, n FROM effects").Scan(&rows).Error)
	for _, row := range rows {
		effects[row.Run] = append(effects[row.Run], row.N)
		f.Effects++
	}
	records, err := c.s.List(c.ctx, store.Filter{Namespace: space, Limit: 1_000_000})
	c.must(err)
	at := c.h.now()
	known := map[string]bool{}
	for i := range records {
		x := &records[i]
		known[x.Key.String()] = true
		c.h.add(op{deed: ledger, key: x.Key, attempt: x.Attempt, state: x.State, effects: effects[x.Key.String()], call: at, back: at + 1})
		f.Runs++
	}
	for run := range effects {
		if !known[run] {
			c.Errorf("%s has an effect and no record", run)
		}
	}
	for _, o := range c.h.ops {
		f.Operations++
		switch o.deed {
		case takenOver:
			f.TakenOver++
		case fenced:
			f.Fenced++
		case skipped:
			f.Skipped++
		default:
		}
		if !known[o.key.String()] {
			c.Errorf("lost: %v", o)
		}
	}
	c.h.check(c.T)
	if f.Effects == 0 {
		c.Error("there were no effects")
	}
	c.count.Reset() // it keeps every statement, which is more than an hour's memory
	for _, table := range []string{"effects", c.table} {
		c.must(c.db.Exec("DELETE FROM " + table).Error)
	}
}
