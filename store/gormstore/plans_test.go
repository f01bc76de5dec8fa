package gormstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/store"
)

// What a claim, a fetch, a takeover, a heartbeat and a finish read does not grow with
// the number of finished rows. Not time is measured but what the database says that it
// reads: pages on PostgreSQL, rows on MariaDB. SQLite tells no such figure, but its plan.
func TestCostsBesideFinishedRows(t *testing.T) {
	few, many := 1000, 200_000
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.finished(few)
		for what, calls := range p.everyCall() {
			for _, c := range calls {
				p.sqlitePlan(what, c)
			}
		}
	})
	onServers(t, func(t *testing.T, s server) {
		if testing.Short() {
			many = 20_000
		}
		reads := make([]map[string]int, 2)
		for i, n := range []int{few, many} {
			p := placeAt(t, fmt.Sprintf("n%d_", n), func(tb testing.TB) *gorm.DB { tb.Helper(); return s.db(tb, 1) })
			p.finished(n)
			if p.mariadb() {
				reads[i] = p.rowsRead()
			} else {
				reads[i] = p.pagesRead()
			}
		}
		for _, what := range slices.Sorted(maps.Keys(reads[0])) {
			t.Logf("%s reads %d beside %d finished rows, %d beside %d", what, reads[0][what], few, reads[1][what], many)
			// An index of more rows is a level or two deeper, also for each row of a
			// heartbeat, which PostgreSQL at times finds among few rows without it.
			room := 50
			if what == "heartbeat" {
				room = 250
			}
			if a, b := reads[0][what], reads[1][what]; b > 2*a+room {
				t.Errorf("%s reads %d beside %d finished rows, %d beside %d", what, a, few, b, many)
			}
		}
	})
}

// finished inserts runs that are over.
func (p *place) finished(n int) {
	p.Helper()
	first := p.register("job-0")
	checks := func(on int) {
		if p.mariadb() { // without them the indexes of an empty table are built at once
			p.must(p.db.Exec("SET unique_checks = ?, foreign_key_checks = ?", on, on).Error)
		}
	}
	checks(0)
	p.must(p.db.Exec(bench.FinishedRows(p.db.Name(), p.table, int64(first)-1, 1, n)).Error)
	checks(1)
	if analyze := map[string]string{"postgres": "VACUUM ANALYZE ", "mysql": "ANALYZE TABLE "}[p.db.Name()]; analyze != "" {
		p.must(p.db.Exec(analyze + p.table).Error)
	}
}

// steps are the calls of the store that run all the time, in an order in which they
// find something to do.
func (p *place) steps() []step {
	tick := p.register("job-0")
	var ran, got []store.Execution
	keyed := queued("mail", "keyed")
	keyed.LockKey = "ann"
	return []step{
		{"claim", func() { ran = append(ran, p.started(cron("job-0", tick))) }},
		{"claim of a held key", func() { p.want(p.claim(cron("job-0", tick+1)), "busy", 1) }},
		{"claim of a tick that is recorded", func() { p.want(p.claim(cron("job-0", tick)), "duplicate", 1) }},
		{"enqueue", func() {
			rows := []store.NewExecution{keyed}
			for i := range batch - 1 {
				rows = append(rows, queued("mail", fmt.Sprint(i)))
			}
			_, err := p.s.Enqueue(p.ctx, space, rows)
			p.must(err)
		}},
		{"fetch", func() { got = p.fetch(2*batch, "job-0", "mail").Runs }},
		{"heartbeat", func() {
			_, err := p.s.Heartbeat(p.ctx, store.HeartbeatRequest{
				Namespace: space, Owner: p.owner, Lease: long, Beats: beats(append(got, ran...)),
			})
			p.must(err)
		}},
		{"fetch of nothing", func() { p.fetch(10, "job-0", "mail") }},
		{"takeover of nothing", func() {
			_, err := p.s.TakeOver(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"job-0", "mail"}, Limit: 10})
			p.must(err)
		}},
		{"survey", func() {
			_, err := p.s.Survey(p.ctx, space, nil)
			p.must(err)
		}},
		{"finish", func() {
			if len(got) != batch {
				p.Errorf("fetched %d, want %d", len(got), batch)
			}
			again := done(got[0])
			again.State = store.StatePending
			rows := []store.Finish{again}
			for _, x := range got[1:] {
				rows = append(rows, done(x))
			}
			each, err := p.s.Finish(p.ctx, rows)
			p.must(errors.Join(append(each, err)...))
			for _, x := range ran {
				p.must(p.db.Transaction(func(tx *gorm.DB) error { return p.s.FinishTx(p.ctx, tx, done(x)) }))
			}
		}},
	}
}

// batch is more than what a planner without figures takes a namespace for.
const batch = 12

func beats(of []store.Execution) []store.Beat {
	var out []store.Beat
	for _, x := range of {
		out = append(out, store.Beat{ID: x.ID, Attempt: x.Attempt})
	}
	return out
}

type step struct {
	what string
	do   func()
}

// everyCall runs the steps and answers the statements that each sent.
func (p *place) everyCall() map[string][]sqlcount.Call {
	p.Helper()
	out := map[string][]sqlcount.Call{}
	for _, s := range p.steps() {
		p.count.Reset()
		s.do()
		out[s.what] = p.count.Calls()
	}
	return out
}

var (
	// A plan may scan jobs, constants and what it has found itself.
	fullScan = regexp.MustCompile(`^SCAN (solotick_executions|e|a|b)\b`)
	// One that names the namespace alone, of an index that is not partial.
	wholeNamespace = regexp.MustCompile(`^SEARCH .*INDEX solotick_executions_(run|tick|finished) \(ns=\?\)`)
	sorting        = regexp.MustCompile(`^USE TEMP B-TREE FOR (LAST \d+ TERMS? OF )?ORDER BY`)
)

func (p *place) sqlitePlan(what string, c sqlcount.Call) {
	p.Helper()
	rows, err := p.db.ConnPool.QueryContext(p.ctx, "EXPLAIN QUERY PLAN "+c.Query, c.Args...)
	p.must(err)
	defer func() { p.must(errors.Join(rows.Err(), rows.Close())) }()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		p.must(rows.Scan(&id, &parent, &unused, &detail))
		if fullScan.MatchString(detail) || wholeNamespace.MatchString(detail) || sorting.MatchString(detail) {
			p.Errorf("%s: %s\n%s", what, detail, c.Query)
		}
	}
}

// rowsRead answers how many rows the storage engine was asked for by each step.
func (p *place) rowsRead() map[string]int {
	p.Helper()
	asked := func() (n int) {
		p.must(p.db.Raw("SELECT SUM(variable_value) FROM information_schema.session_status WHERE variable_name IN (" +
			"'HANDLER_READ_FIRST', 'HANDLER_READ_KEY', 'HANDLER_READ_LAST', 'HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND', 'HANDLER_READ_RND_NEXT')").
			Scan(&n).Error)
		return n
	}
	asked()
	overhead := asked()
	overhead = asked() - overhead // the question reads rows too
	out := map[string]int{}
	for _, s := range p.steps() {
		before := asked()
		s.do()
		out[s.what] = asked() - before - overhead
	}
	return out
}

// pagesRead answers how many pages each step needs, by doing what it sent once more,
// explained, in a transaction that is rolled back.
func (p *place) pagesRead() map[string]int {
	p.Helper()
	out := map[string]int{}
	for _, s := range p.steps() {
		p.count.Reset()
		s.do()
		for _, c := range p.count.Calls() {
			out[s.what] += p.explained(s.what, c)
		}
	}
	return out
}

// node is one of a plan of PostgreSQL's.
type node struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Hit      int    `json:"Shared Hit Blocks"`
	Read     int    `json:"Shared Read Blocks"`
	Plans    []node
}

func (n node) visit(f func(node)) {
	f(n)
	for _, below := range n.Plans {
		below.visit(f)
	}
}

func (p *place) explained(what string, c sqlcount.Call) int {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	tx := p.db.WithContext(ctx).Begin()
	p.must(tx.Error)
	defer func() { p.must(tx.Rollback().Error) }()
	var text string
	p.must(tx.Statement.ConnPool.QueryRowContext(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+c.Query, c.Args...).Scan(&text))
	var plans []struct{ Plan node }
	p.must(json.Unmarshal([]byte(text), &plans))
	pages := 0
	for _, one := range plans {
		pages += one.Plan.Hit + one.Plan.Read
		one.Plan.visit(func(n node) {
			if n.Type == "Seq Scan" && n.Relation == p.table {
				p.Errorf("%s reads the whole table:\n%s\n%s", what, c.Query, text)
			}
		})
	}
	return pages
}
