package gormstore_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

const (
	space   = "shop"
	guarded = 1000 // rows of one guarded update
	long    = time.Minute
)

// place is a store whose statements are counted.
type place struct {
	*testing.T
	ctx   context.Context
	db    *gorm.DB
	s     *gormstore.Store
	count *sqlcount.Counter
	owner store.Owner
	path  string                       // of the SQLite file
	table string                       // of the executions
	open  func(tb testing.TB) *gorm.DB // the same database, as another process would
}

func newPlace(t *testing.T) *place {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	p := placeOn(t, func(tb testing.TB) *gorm.DB { tb.Helper(); return openDB(tb, path) })
	p.path = path
	return p
}

func placeOn(t *testing.T, open func(tb testing.TB) *gorm.DB) *place {
	t.Helper()
	return placeAt(t, gormstore.DefaultPrefix, open)
}

func placeAt(t *testing.T, prefix string, open func(tb testing.TB) *gorm.DB) *place {
	t.Helper()
	db, count := sqlcount.Wrap(open(t))
	s := newStore(t, db, gormstore.WithPrefix(prefix))
	return &place{T: t, ctx: t.Context(), db: db, s: s, count: count, owner: store.NewOwner(), open: open, table: prefix + "executions"}
}

// everywhere runs a test on SQLite and on every kind of server.
func everywhere(t *testing.T, run func(p *place)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		run(newPlace(t))
	})
	onServers(t, func(t *testing.T, s server) {
		run(placeOn(t, func(tb testing.TB) *gorm.DB { tb.Helper(); return s.db(tb, 8) }))
	})
}

func (p *place) sqlite() bool  { return p.db.Name() == "sqlite" }
func (p *place) mariadb() bool { return p.db.Name() == "mysql" }

// onServers is n, or what it is on servers.
func (p *place) onServers(n, server int) int {
	if p.sqlite() {
		return n
	}
	return server
}

// orMariaDB is n, or what it is where an UPDATE returns no rows.
func (p *place) orMariaDB(n, maria int) int {
	if p.mariadb() {
		return maria
	}
	return n
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// register makes jobs known and returns the first tick they can be asked for,
// which is due.
func (p *place) register(jobs ...string) store.Millis {
	p.Helper()
	var specs []store.JobSpec
	for _, j := range jobs {
		specs = append(specs, store.JobSpec{Job: j, Spec: "@every 1s", Hash: "h"})
	}
	r, err := p.s.Register(p.ctx, space, specs)
	p.must(err)
	return r.Now + 1
}

func cron(job string, tick store.Millis) store.ClaimRun {
	return store.ClaimRun{NewExecution: store.NewExecution{
		Key: store.Key{Class: store.ClassCron, Job: job, Tick: tick}, Active: store.ActiveCron(job, 0), SpecHash: "h",
	}}
}

func (p *place) claim(runs ...store.ClaimRun) []store.ClaimedRun {
	p.Helper()
	out, err := p.s.Claim(p.ctx, store.ClaimRequest{Namespace: space, Owner: p.owner, Lease: long, Runs: runs})
	p.must(err)
	return out.Runs
}

func (p *place) started(run store.ClaimRun) store.Execution {
	p.Helper()
	got := p.claim(run)[0]
	if got.Outcome != store.OutcomeStarted {
		p.Fatalf("claim of %s: %v", run.Key, got.Outcome)
	}
	return got.Execution
}

func (p *place) fetch(limit int, jobs ...string) store.Fetched {
	p.Helper()
	out, err := p.s.Fetch(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: jobs, Limit: limit})
	p.must(err)
	return out
}

func queued(kind, name string) store.NewExecution {
	return store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: kind, Name: name}}
}

func done(x store.Execution) store.Finish {
	return store.Finish{Ref: x.Ref(), State: store.StateSucceeded}
}

// costs fails unless f sends so many statements in so many transactions.
func (p *place) costs(what string, statements, transactions int, f func()) {
	p.Helper()
	p.count.Reset()
	f()
	if s, tx := p.count.Statements(), p.count.Transactions(); s != statements || tx != transactions {
		p.Errorf("%s: %d statements in %d transactions, want %d in %d:\n%s", what, s, tx, statements, transactions,
			strings.Join(p.count.Queries(), "\n"))
	}
}

func outcomes(runs []store.ClaimedRun) string {
	var out []string
	for _, r := range runs {
		out = append(out, r.Outcome.String())
	}
	return strings.Join(out, " ")
}

func (p *place) want(runs []store.ClaimedRun, outcome string, n int) {
	p.Helper()
	want := strings.TrimSpace(strings.Repeat(outcome+" ", n))
	if got := outcomes(runs); got != want {
		p.Errorf("outcomes %q, want %q", got, want)
	}
}

func TestClaimCostsFourStatements(t *testing.T) { everywhere(t, claimCosts) }

func claimCosts(p *place) {
	var jobs []string
	for i := range 40 {
		jobs = append(jobs, fmt.Sprintf("job-%02d", i))
	}
	tick := p.register(jobs...)
	for _, k := range []int{1, 2, 40} {
		tick++
		var runs []store.ClaimRun
		for _, j := range jobs[:k] {
			runs = append(runs, cron(j, tick))
		}
		var got []store.ClaimedRun
		p.costs(fmt.Sprint("claim of ", k), 3, 1, func() { got = p.claim(runs...) })
		p.want(got, "started", k)
		p.costs("a late loser", 3, 1, func() { got = p.claim(runs...) })
		p.want(got, "duplicate", k)
		for i := range runs {
			runs[i].Key.Tick = tick + 1_000_000 // however slow the machine is
		}
		p.costs("too early", 2, 1, func() { got = p.claim(runs...) })
		p.want(got, "early", k)
		for i := range runs {
			runs[i].Key.Tick = tick - 100_000
		}
		p.costs("settled", 2, 1, func() { got = p.claim(runs...) })
		p.want(got, "duplicate", k)
		tick++
		for i := range runs {
			runs[i].Key.Tick = tick
		}
		p.costs("active key held", 2, 1, func() { got = p.claim(runs...) })
		p.want(got, "busy", k)
		for _, x := range p.list(store.Filter{Namespace: space, States: []store.State{store.StateRunning}}) {
			_, err := p.s.Finish(p.ctx, []store.Finish{done(x)})
			p.must(err)
		}
	}
	// Some held, some not: the fences are raised as well.
	p.started(cron(jobs[0], tick+1))
	p.costs("mixed", 3, 1, func() {
		if got := outcomes(p.claim(cron(jobs[0], tick+2), cron(jobs[1], tick+2))); got != "busy started" {
			p.Errorf("outcomes %q", got)
		}
	})
}

func (p *place) list(f store.Filter) []store.Execution {
	p.Helper()
	out, err := p.s.List(p.ctx, f)
	p.must(err)
	return out
}

func TestOtherCosts(t *testing.T) { everywhere(t, otherCosts) }

func otherCosts(p *place) {
	tick := p.register("tick", "mail", "sync")
	p.costs("register again", 1, 0, func() { p.register("tick", "mail", "sync") })

	enqueue := func(rows ...store.NewExecution) {
		p.Helper()
		_, err := p.s.Enqueue(p.ctx, space, rows)
		p.must(err)
	}
	p.costs("enqueue 3", 1, 1, func() { enqueue(queued("mail", "1"), queued("mail", "2"), queued("mail", "3")) })
	p.costs("fetch", 2, p.onServers(0, 1), func() {
		if got := p.fetch(10, "mail"); len(got.Runs) != 3 || got.More || got.Now == 0 {
			p.Errorf("fetched %+v", got)
		}
	})
	p.costs("fetch of nothing", p.onServers(1, 2), p.onServers(0, 1), func() {
		if got := p.fetch(10, "mail"); len(got.Runs) != 0 || got.Now == 0 {
			p.Errorf("fetched %+v", got)
		}
	})
	locked := queued("sync", "1")
	locked.LockKey = "ann"
	enqueue(locked)
	p.costs("fetch of a lock key", p.orMariaDB(3, 4), 1, func() {
		if got := p.fetch(10, "sync").Runs; len(got) != 1 || got[0].Fence != 1 {
			p.Errorf("fetched %+v", got)
		}
	})
	running := p.list(store.Filter{Namespace: space, States: []store.State{store.StateRunning}})
	var beats []store.Beat
	var ends []store.Finish
	for _, x := range running {
		beats = append(beats, store.Beat{ID: x.ID, Attempt: x.Attempt})
		ends = append(ends, done(x))
	}
	p.costs("heartbeat of 4", p.orMariaDB(1, 2), 0, func() {
		got, err := p.s.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: long, Beats: beats})
		p.must(err)
		for _, b := range got.Beats {
			if b.Lost {
				p.Error("lost")
			}
		}
	})
	p.costs("take over nothing", p.onServers(1, 2), p.onServers(0, 1), func() {
		_, err := p.s.TakeOver(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"tick", "mail"}, Limit: 10})
		p.must(err)
	})
	p.costs("survey", 2, 0, func() {
		_, err := p.s.Survey(p.ctx, space, nil)
		p.must(err)
	})
	p.costs("finish 4 alike", 1, p.orMariaDB(0, 1), func() {
		errs, err := p.s.Finish(p.ctx, ends)
		p.must(err)
		for _, err := range errs {
			p.must(err)
		}
	})
	x := p.started(cron("tick", tick))
	p.costs("finish in a transaction", 1, 1, func() {
		p.must(p.db.Transaction(func(tx *gorm.DB) error { return p.s.FinishTx(p.ctx, tx, done(x)) }))
	})
	p.costs("settle two jobs", 4, 1, func() {
		sv := []store.SettleJob{{Job: "tick", Seen: tick - 1, To: tick + 5}, {Job: "mail", Seen: tick - 1, To: tick + 5}}
		got, err := p.s.Settle(p.ctx, store.SettleRequest{Namespace: space, Jobs: sv}, func(v store.TickView) store.Settlement { return store.Settlement{} })
		p.must(err)
		if got.Settled != 2 {
			p.Errorf("settled %+v", got)
		}
	})
}

// More rows than a statement takes parameters for.
func TestManyRows(t *testing.T) { everywhere(t, manyRows) }

func manyRows(p *place) {
	const n = guarded + 50
	rows := make([]store.NewExecution, n)
	for i := range rows {
		rows[i] = queued("mail", strconv.Itoa(i))
	}
	put, err := p.s.Enqueue(p.ctx, space, rows)
	p.must(err)
	var beats []store.Beat
	var ends []store.Finish
	for more := true; more; {
		got := p.fetch(n, "mail")
		more = got.More
		for _, x := range got.Runs {
			beats = append(beats, store.Beat{ID: x.ID, Attempt: x.Attempt})
			ends = append(ends, done(x))
		}
	}
	if len(put) != n || len(beats) != n {
		p.Fatalf("enqueued %d and fetched %d of %d", len(put), len(beats), n)
	}
	beat, err := p.s.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: long, Beats: beats})
	p.must(err)
	errs, err := p.s.Finish(p.ctx, ends)
	p.must(err)
	for i := range n {
		if beat.Beats[i].Lost || errs[i] != nil {
			p.Fatalf("row %d: %+v, %v", i, beat.Beats[i], errs[i])
		}
	}
}

// Every statement of the hot paths must go by an index, whatever the size of the
// tables.
func TestStatementsUseIndexes(t *testing.T) {
	p := newPlace(t)
	tick := p.register("tick", "mail")
	p.count.Reset()
	x := p.started(cron("tick", tick))
	keyed := queued("mail", "2")
	keyed.LockKey = "ann"
	_, err := p.s.Enqueue(p.ctx, space, []store.NewExecution{queued("mail", "1"), keyed})
	p.must(err)
	fetched := p.fetch(1, "mail").Runs
	fetched = append(fetched, p.fetch(5, "mail").Runs...)
	if len(fetched) != 2 {
		t.Fatalf("fetched %d", len(fetched))
	}
	_, err = p.s.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: long, Beats: []store.Beat{{ID: x.ID, Attempt: 1}}})
	p.must(err)
	_, err = p.s.Finish(p.ctx, []store.Finish{done(x), done(fetched[0]), {Ref: fetched[1].Ref(), State: store.StatePending}})
	p.must(err)
	y := p.started(cron("tick", tick+1))
	_, err = p.s.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: time.Millisecond, Beats: []store.Beat{{ID: y.ID, Attempt: 1}}})
	p.must(err)
	for {
		over, err := p.s.TakeOver(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"tick", "mail"}, Limit: 10})
		p.must(err)
		if len(over.Runs) == 1 {
			break
		}
	}
	_, err = p.s.Survey(p.ctx, space, []string{"tick"})
	p.must(err)
	_, err = p.s.Settle(p.ctx, store.SettleRequest{Namespace: space, Jobs: []store.SettleJob{{Job: "tick", Seen: tick - 1, To: tick + 5}}},
		func(v store.TickView) store.Settlement {
			return store.Settlement{Ranges: []store.TickRange{{From: tick + 2, To: tick + 5, Count: 4, State: store.StateMissed}}}
		})
	p.must(err)
	_, err = p.s.Ledger(p.ctx, space, "tick", 0, tick+10)
	p.must(err)

	seen := map[string]bool{}
	for _, q := range p.count.Queries() {
		if seen[q] {
			continue
		}
		seen[q] = true
		p.goesByIndex(q)
	}
	if len(seen) < 15 {
		t.Errorf("only %d statements looked at", len(seen))
	}
}

// goesByIndex looks at SQLite's plan.
func (p *place) goesByIndex(q string) {
	p.Helper()
	rows, err := p.db.Raw("EXPLAIN QUERY PLAN "+q, make([]any, strings.Count(q, "?"))...).Rows()
	p.must(err)
	defer func() { p.must(rows.Close()) }()
	for rows.Next() {
		var a, b, c int
		var detail string
		p.must(rows.Scan(&a, &b, &c, &detail))
		scans := strings.HasPrefix(detail, "SCAN ") && strings.Contains(detail, "solotick_") || detail == "SCAN e" || detail == "SCAN j" ||
			strings.Contains(detail, "(ns=?)") && !strings.Contains(detail, "_due") && !strings.Contains(detail, "_lease") && !strings.Contains(detail, "job_state") ||
			strings.HasSuffix(detail, "executions_finished (ns=? AND job=?)")
		sorts := strings.Contains(detail, "TEMP B-TREE") && strings.Contains(q, "LIMIT")
		if scans || sorts {
			p.Errorf("%s\nin %s", detail, q)
		}
	}
	p.must(rows.Err())
}

// Who looks for work and finds none does not wait for a writer, not even on SQLite.
func TestLooksDoNotWaitForAWriter(t *testing.T) {
	p := newPlace(t)
	p.register("job")
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	p.must(p.db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE solotick_job_state SET version = version + 1").Error; err != nil {
			return err
		}
		work := store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"job"}, Limit: 5}
		if got, err := p.s.Fetch(ctx, work); err != nil || len(got.Runs) != 0 {
			p.Errorf("Fetch = %+v, %v", got, err)
		}
		if got, err := p.s.TakeOver(ctx, work); err != nil || len(got.Runs) != 0 {
			p.Errorf("TakeOver = %+v, %v", got, err)
		}
		return nil
	}))
}
