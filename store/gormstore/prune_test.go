package gormstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

const day = 24 * time.Hour

var retention = store.Retention{Succeeded: 7 * day, Failed: 30 * day, Canceled: 30 * day, Idle: 7 * day, Ranges: 30 * day, Keys: 30 * day}

func (p *place) prune() store.Pruned {
	p.Helper()
	out, err := p.s.Prune(p.ctx, store.PruneRequest{Namespace: space, Retention: retention})
	p.must(err)
	return out
}

// age makes the run's end older.
func (p *place) age(x store.Execution, by time.Duration) {
	p.Helper()
	p.must(p.db.Exec("UPDATE solotick_executions SET finished_ms = finished_ms - ? WHERE id = ?", by.Milliseconds(), x.ID[:]).Error)
}

func (p *place) end(x store.Execution, st store.State) {
	p.Helper()
	errs, err := p.s.Finish(p.ctx, []store.Finish{{Ref: x.Ref(), State: st}})
	p.must(err)
	p.must(errs[0])
}

func (p *place) settle(job string, to store.Millis) {
	p.Helper()
	v, err := p.s.Survey(p.ctx, space, []string{job})
	p.must(err)
	_, err = p.s.Settle(p.ctx, store.SettleRequest{Namespace: space, Jobs: []store.SettleJob{{Job: job, Seen: v.Jobs[0].Settled, To: to}}},
		func(store.TickView) store.Settlement { return store.Settlement{} })
	p.must(err)
}

// What stays is not looked at twice: a prune begins where the last one ended.
func TestPruneGoesOnWhereItEnded(t *testing.T) {
	everywhere(t, func(p *place) {
		tick := p.register("job", "mail")
		var rows []store.Execution
		for i, st := range []store.State{store.StateSucceeded, store.StateFailed, store.StateSucceeded} {
			x := p.started(cron("job", tick+store.Millis(i)))
			p.end(x, st)
			rows = append(rows, x)
		}
		p.settle("job", tick+2)
		mark := func(part string) store.Millis {
			p.Helper()
			var at store.Millis
			p.must(p.db.Raw("SELECT COALESCE(MAX(upto_ms), 0) FROM solotick_prune_marks WHERE job = 'job' AND part = ?", part).Row().Scan(&at))
			return at
		}
		p.age(rows[0], 8*day)
		p.age(rows[1], 8*day)
		if got := p.prune(); got.Succeeded != 1 || got.Records() != 1 {
			p.Errorf("pruned %+v", got)
		}
		now, err := p.s.Now(p.ctx)
		p.must(err)
		if got := mark("succeeded"); got > now.Add(-7*day) || got < now.Add(-7*day-time.Minute) {
			p.Errorf("succeeded runs are looked at up to %s, the age ends at %s", got, now.Add(-7*day))
		}
		if got := mark("failed"); got > now.Add(-30*day) {
			p.Errorf("failed runs are looked at up to %s", got)
		}
		pass := func(d time.Duration) { // time, for what is marked
			p.Helper()
			p.must(p.db.Exec("UPDATE solotick_prune_marks SET upto_ms = upto_ms - ?", d.Milliseconds()).Error)
		}
		// A run that ended after the mark goes when its time has come.
		p.age(rows[2], 7*day+time.Second)
		pass(time.Hour)
		if got := p.prune(); got.Succeeded != 1 {
			p.Errorf("pruned %+v", got)
		}
		p.costs("prune with nothing to do", 16, 0, func() { p.prune() }) // 4, and 6 to each job
		p.age(rows[1], 23*day)
		pass(2 * day)
		if got := p.prune(); got.Failed != 1 {
			p.Errorf("pruned %+v", got)
		}
		if st, err := p.s.Survey(p.ctx, space, []string{"job"}); err != nil || st.Jobs[0].Pruned != tick+2 {
			p.Errorf("watermark %+v, %v, want %s", st.Jobs, err, tick+2)
		}
	})
}

// Attempts that end without ending their run cost one statement more; those that end
// it cost none.
func TestAttemptsCostOneStatement(t *testing.T) {
	everywhere(t, func(p *place) {
		tick := p.register("job")
		x, y := p.started(cron("job", tick)), p.started(store.ClaimRun{NewExecution: store.NewExecution{
			Key: store.Key{Class: store.ClassCron, Job: "job", Tick: tick + 1}, SpecHash: "h",
		}})
		back := func(x store.Execution, unstarted bool) func() {
			return func() {
				p.Helper()
				errs, err := p.s.Finish(p.ctx, []store.Finish{{Ref: x.Ref(), State: store.StatePending, Delay: time.Hour, Unstarted: unstarted}})
				p.must(err)
				p.must(errs[0])
			}
		}
		p.costs("finish", 1, 0, func() { p.end(x, store.StateSucceeded) })
		p.costs("finish that hands back", 1, 0, back(y, true))
		x = p.started(cron("job", tick+2))
		p.costs("finish that is to be tried again", 2, 1, back(x, false))
		x = p.started(cron("job", tick+3))
		p.costs("finish in a transaction that is to be tried again", 2, 1, func() {
			p.must(p.db.Transaction(func(tx *gorm.DB) error {
				return p.s.FinishTx(p.ctx, tx, store.Finish{Ref: x.Ref(), State: store.StatePending})
			}))
		})
		if got, err := p.s.Attempts(p.ctx, space, x.ID); err != nil || len(got) != 1 || got[0].End != store.EndRetry {
			p.Errorf("attempts %+v, %v", got, err)
		}
	})
}

// What a prune sends goes by an index, but for the names of the jobs, which are
// found one by one along one.
func TestPruneUsesIndexes(t *testing.T) {
	p := newPlace(t)
	tick := p.register("job")
	x := p.started(cron("job", tick))
	p.end(x, store.StateSucceeded)
	p.settle("job", tick)
	p.age(x, 8*day)
	p.count.Reset()
	if got := p.prune(); got.Succeeded != 1 {
		t.Errorf("pruned %+v", got)
	}
	seen := 0
	for _, q := range p.count.Queries() {
		if strings.Contains(q, "WITH RECURSIVE") || strings.Contains(q, "SELECT job, part") { // the marks of all jobs
			continue
		}
		seen++
		p.goesByIndex(q)
	}
	if seen < 8 {
		t.Errorf("only %d statements looked at", seen)
	}
}

// The tables of the first version become those of the next ones with what is in
// them; until then this program does not work with them.
func TestUpgrade(t *testing.T) {
	upgrade := func(t *testing.T, db *gorm.DB) {
		t.Helper()
		s, err := gormstore.New(db)
		if err != nil {
			t.Fatal(err)
		}
		p := &place{T: t, ctx: t.Context(), db: db, s: s, owner: store.NewOwner()}
		for stmt := range strings.SplitSeq(strings.TrimSpace(s.MigrationSQL()), ";\n") {
			p.must(db.Exec(strings.TrimSuffix(stmt, ";")).Error)
			if strings.HasPrefix(stmt, "INSERT INTO") { // the first version is recorded
				break
			}
		}
		// What the first version wrote: these calls use its tables only.
		tick := p.register("job")
		done := p.started(cron("job", tick))
		p.end(done, store.StateSucceeded)
		open := p.started(cron("job", tick+1))
		failed := queued("mail", "1")
		failed.ID = store.NewID(tick)
		_, err = s.Enqueue(p.ctx, space, []store.NewExecution{failed})
		p.must(err)
		p.end(p.fetch(1, "mail").Runs[0], store.StateFailed)

		if err := s.CheckSchema(p.ctx); !errors.Is(err, store.ErrSchema) {
			t.Errorf("the first version's tables: %v, want ErrSchema", err)
		}
		p.must(s.Migrate(p.ctx))
		p.must(s.CheckSchema(p.ctx))
		st, err := s.MigrationStatus(p.ctx)
		if err != nil || st.Current != st.Latest || len(st.Applied) != st.Latest || st.Latest < 2 {
			t.Errorf("status %+v, %v", st, err)
		}
		if got, err := s.Get(p.ctx, space, done.ID); err != nil || got.State != store.StateSucceeded {
			t.Errorf("a run of the first version: %+v, %v", got, err)
		}
		p.end(open, store.StatePending)
		if got, err := s.Attempts(p.ctx, space, open.ID); err != nil || len(got) != 1 {
			t.Errorf("attempts of a run that began before: %+v, %v", got, err)
		}
		if got, err := s.Retry(p.ctx, space, failed.ID, "ann"); err != nil || got.State != store.StatePending {
			t.Errorf("retry of a run that failed before: %+v, %v", got, err)
		}
		if c, err := s.ThrowSwitch(p.ctx, space, store.SwitchChange{Fleet: true, By: "ann", To: "{}"}); err != nil || c.ID == 0 {
			t.Errorf("switch: %+v, %v", c, err)
		}
		p.settle("job", tick)
		p.age(done, 8*day)
		if got := p.prune(); got.Succeeded != 1 {
			t.Errorf("pruned %+v", got)
		}
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		upgrade(t, openDB(t, t.TempDir()+"/store.db"))
	})
	onServers(t, func(t *testing.T, s server) { upgrade(t, s.db(t, 4)) })
}

// A run that goes takes its steps with it; the steps of what stays are kept.
func TestPruneTakesTheStepsOfARun(t *testing.T) {
	everywhere(t, func(p *place) {
		tick := p.register("job", "mail")
		var rows []store.Execution
		for i := range 2 {
			x := p.started(cron("job", tick+store.Millis(i)))
			p.must(p.db.Transaction(func(tx *gorm.DB) error { return p.s.SaveStepTx(p.ctx, tx, x.Ref(), "charge", []byte("receipt")) }))
			p.end(x, store.StateSucceeded)
			rows = append(rows, x)
		}
		p.settle("job", tick+1)
		p.age(rows[0], 8*day)
		if got := p.prune(); got.Succeeded != 1 {
			t.Fatalf("pruned %+v", got)
		}
		for i, want := range []bool{false, true} {
			if _, found, err := p.s.Step(p.ctx, rows[i].ID, "charge"); err != nil || found != want {
				p.Errorf("step of run %d: found %v (%v), want %v", i, found, err, want)
			}
		}
		sizes, err := p.s.Sizes(p.ctx)
		p.must(err)
		if !slices.ContainsFunc(sizes, func(s store.TableSize) bool { return s.Name == "solotick_steps" }) {
			p.Errorf("sizes do not tell of the steps: %v", sizes)
		}
	})
}
