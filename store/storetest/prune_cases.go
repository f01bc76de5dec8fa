package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

var pruneCases = []suiteCase{
	{"prune/by state and age", pruneByState},
	{"prune/never reopens a tick", pruneWatermark},
	{"prune/only settled ticks", pruneSettled},
	{"prune/keys keep a tombstone", pruneKeys},
	{"prune/stretches", pruneRanges},
	{"prune/limit and repeat", pruneLimit},
	{"prune/several handles and a retry at once", pruneRace},
	{"prune/bad requests", pruneBad},
	{"sizes", sizes},
}

// all is a retention under which everything that ended goes.
var all = store.Retention{
	Succeeded: time.Millisecond, Failed: time.Millisecond, Canceled: time.Millisecond, Idle: time.Millisecond,
	Ranges: time.Millisecond, Keys: time.Millisecond,
}

func (e *env) prune(t store.Retention) store.Pruned {
	e.Helper()
	p, err := e.s.Prune(e.ctx, store.PruneRequest{Namespace: space, Retention: t})
	e.must(err)
	return p
}

// settleTo accounts for the ticks of a job up to an instant, without adding any.
func (e *env) settleTo(job string, to store.Millis) {
	e.Helper()
	e.until(to)
	e.settle(settleOne(job, e.state(job).Settled, to), nothing)
}

// later waits until what has ended is older than any age of all.
func (e *env) later() { e.until(e.now() + 2) }

func pruneByState(e *env) {
	const rule = "a prune removes what ended longer ago than the age of its state, and nothing else"
	tick := e.register("report", "other")
	ids := map[store.State]store.ID{}
	n := store.Millis(0)
	for _, st := range store.States() {
		n++
		c := free("report", tick+n)
		if st == store.StateSkipped {
			c.Skip = store.ReasonDegraded
			ids[st] = e.claim(long, c)[0].Execution.ID
			continue
		}
		x := e.start(long, c)
		ids[st] = x.ID
		switch st {
		case store.StateRunning:
		case store.StatePending:
			e.must(e.finish(store.Finish{Ref: x.Ref(), State: st, Delay: time.Hour}))
		default:
			e.end(x, st)
		}
	}
	e.end(e.start(long, free("other", tick+1)), store.StateSucceeded)
	manual := e.start(long, store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassManual, Job: "report", Request: "r"})})
	e.end(manual, store.StateSucceeded)
	e.settleTo("report", tick+n+1)
	e.settleTo("other", tick+n+1)
	e.later()
	gone := func(st store.State) bool {
		e.Helper()
		_, err := e.s.Get(e.ctx, space, ids[st])
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			e.must(err)
		}
		return err != nil
	}
	check := func(what string, want ...store.State) {
		e.Helper()
		for _, st := range store.States() {
			wanted := false
			for _, w := range want {
				wanted = wanted || w == st
			}
			same(e, rule, what+": gone, "+st.String(), gone(st), wanted)
		}
	}
	hour := store.Retention{Succeeded: time.Hour, Failed: time.Hour, Canceled: time.Hour, Idle: time.Hour, Ranges: time.Hour, Keys: time.Hour}
	same(e, rule, "removed of what is younger", e.prune(hour).Records(), 0)
	same(e, rule, "removed where all is kept", e.prune(store.Retention{}).Records(), 0)
	check("kept")

	dry, err := e.s.Prune(e.ctx, store.PruneRequest{Namespace: space, Retention: all, DryRun: true})
	e.must(err)
	same(e, "a dry run removes nothing", "counted", dry.Records(), 8)
	check("dry run")
	p, err := e.s.Prune(e.ctx, store.PruneRequest{Namespace: "elsewhere", Retention: all})
	e.must(err)
	same(e, "namespaces share nothing", "removed by another", p.Records(), 0)

	p, err = e.s.Prune(e.ctx, store.PruneRequest{Namespace: space, Jobs: []string{"report"}, Retention: store.Retention{Succeeded: time.Millisecond}})
	e.must(err)
	same(e, rule, "succeeded of one job", p.Succeeded, 2)
	same(e, rule, "of one job", p.Records(), 2)
	check("succeeded", store.StateSucceeded)
	p = e.prune(all)
	same(e, rule, "the rest", fmt.Sprint(p.Succeeded, p.Failed, p.Canceled, p.Idle, p.Keys+p.Emptied+p.Ranges), "1 2 1 2 0")
	check("all", store.StateSucceeded, store.StateFailed, store.StateCanceled, store.StateSkipped, store.StateMissed, store.StateIndeterminate)
	same(e, "the attempts of an open run stay", "attempts", ends(e.attempts(ids[store.StatePending])), "1 retry ")
	same(e, rule, "again", e.prune(all).Records(), 0)
}

func pruneWatermark(e *env) {
	const rule = "pruning never reopens a tick: the watermark is raised with the rows that go, and claims up to it are refused"
	tick := e.register("report")
	for i := range store.Millis(3) {
		e.end(e.start(long, free("report", tick+3*i)), store.StateSucceeded)
	}
	failed := e.start(long, free("report", tick+4))
	e.end(failed, store.StateFailed)
	e.settleTo("report", tick+9)
	e.later()
	same(e, rule, "rows", e.prune(store.Retention{Succeeded: time.Millisecond}).Succeeded, 3)
	same(e, rule, "watermark", e.state("report").Pruned, tick+6)
	for i := range store.Millis(10) {
		c := e.claim(long, free("report", tick+i))[0]
		same(e, rule, fmt.Sprintf("claim %d after the first", i), c.Outcome, store.OutcomeDuplicate)
		same(e, rule, "row of it", c.Execution.ID != (store.ID{}), i == 4)
		q := row(cronKey("report", tick+i))
		same(e, rule, "enqueue of it", e.enqueue(q)[0].Outcome, store.OutcomeDuplicate)
	}
	l, err := e.s.Ledger(e.ctx, space, "report", tick-1, tick+9)
	e.must(err)
	const honest = "the ledger counts from the prune watermark on, and says so"
	same(e, honest, "whole", l, store.Ledger{Pruned: tick + 6})
	e.start(long, free("report", e.now()))
	l, err = e.s.Ledger(e.ctx, space, "report", tick-1, e.now())
	e.must(err)
	same(e, honest, "with a tick after it", l, store.Ledger{Pruned: tick + 6, Running: 1})
	l, err = e.s.Ledger(e.ctx, space, "report", tick+6, e.now())
	e.must(err)
	same(e, honest, "from the watermark on", l, store.Ledger{Running: 1})
	// A run below the watermark that is retried goes on as any other.
	e.retry(failed.ID, "ann")
	e.end(e.again("report"), store.StateSucceeded)
}

func pruneSettled(e *env) {
	const rule = "only settled ticks are pruned"
	tick := e.register("report")
	var ids []store.ID
	for i := range store.Millis(3) {
		x := e.start(long, free("report", tick+i))
		e.end(x, store.StateSucceeded)
		ids = append(ids, x.ID)
	}
	e.later()
	same(e, rule, "removed before any is settled", e.prune(all).Records(), 0)
	same(e, rule, "watermark", e.state("report").Pruned, 0)
	e.settleTo("report", tick+1)
	e.later()
	same(e, rule, "removed of two settled", e.prune(all).Succeeded, 2)
	same(e, rule, "the one that is not settled", e.get(ids[2]).State, store.StateSucceeded)
	same(e, rule, "watermark", e.state("report").Pruned, tick+1)
	e.settleTo("report", tick+2)
	same(e, rule, "removed when it is", e.prune(all).Succeeded, 1)
	// A tick of a job that nobody has registered is never settled.
	q := row(cronKey("stray", tick))
	e.enqueue(q)
	e.end(e.again("stray"), store.StateSucceeded)
	e.later()
	same(e, rule, "removed of a job without a state", e.prune(all).Records(), 0)
}

func pruneKeys(e *env) {
	const rule = "a key loses arguments and result at the age of its state, and its row when Keys is over"
	e.register("mail")
	n := row(queueKey("mail", "1"))
	n.Args, n.LockKey, n.Active = []byte("input"), "ann", store.ActiveQueue("mail", "ann")
	e.enqueue(n)
	x := e.again("mail")
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, ErrorText: "once"}))
	x = e.again("mail")
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StateFailed, Result: []byte("output"), ErrorCode: "exit", ErrorText: "exit code 3"}))
	e.later()
	short := all
	short.Keys = time.Hour
	p := e.prune(short)
	same(e, rule, "emptied, gone, attempts", fmt.Sprint(p.Emptied, p.Keys, p.Failed, p.Attempts), "1 0 0 1")
	y := e.get(n.ID)
	same(e, rule, "args and result", string(y.Args)+string(y.Result), "")
	same(e, rule, "hash of the args", y.ArgsHash, store.HashArgs(n.Args))
	same(e, rule, "outcome", fmt.Sprint(y.State, y.ErrorCode, y.ErrorText, y.Attempt), fmt.Sprint(store.StateFailed, "exit", "exit code 3", 2))
	same(e, rule, "attempts", len(e.attempts(n.ID)), 0)
	again := row(n.Key)
	got := e.enqueue(again)[0]
	same(e, rule, "the key again", fmt.Sprint(got.Outcome, got.Execution.ID == n.ID), fmt.Sprint(store.OutcomeDuplicate, true))
	if _, err := e.s.Retry(e.ctx, space, n.ID, "ann"); !errors.Is(err, store.ErrState) {
		e.broken("what has lost its arguments cannot be retried", "got %v, want ErrState", err)
	}
	same(e, rule, "emptied again", e.prune(short).Records(), 0)
	bare := row(queueKey("mail", "bare"))
	e.enqueue(bare)
	e.end(e.again("mail"), store.StateFailed)
	e.later()
	same(e, rule, "emptied where there is nothing to lose", e.prune(short).Records(), 0)
	same(e, rule, "rows gone", e.prune(all).Keys, 2)
	same(e, rule, "the key after that", e.enqueue(again)[0].Outcome, store.OutcomeEnqueued)
	next := e.again("mail")
	same(e, rule, "attempt of it", next.Attempt, 1)
	e.end(next, store.StateSucceeded)
}

func pruneRanges(e *env) {
	const rule = "old stretches go, the watermark is raised over them, and what comes after them is a stretch of its own"
	tick := e.register("report")
	stretch := func(seen, from, to store.Millis) {
		e.Helper()
		e.until(to)
		e.settle(settleOne("report", seen, to), func(store.TickView) store.Settlement {
			return store.Settlement{Ranges: []store.TickRange{{From: from, To: to, Count: int64(to - from + 1), State: store.StateMissed, Reason: store.ReasonWindow}}}
		})
	}
	stretch(tick-1, tick, tick+4)
	e.end(e.start(long, free("report", e.now())), store.StateSucceeded)
	at := e.state("report").Settled
	last := e.now()
	e.settleTo("report", last)
	e.later()
	same(e, rule, "removed before its age", e.prune(store.Retention{Succeeded: time.Millisecond, Ranges: time.Hour}).Ranges, 0)
	if p := e.state("report").Pruned; p <= at {
		e.broken(rule, "watermark at %s, settled were %s", p, at)
	}
	stretch(last, last+1, last+3)
	got, err := e.s.Ranges(e.ctx, space, "report", 0, last+99)
	e.must(err)
	if len(got) != 2 || got[0].To != tick+4 || got[1].From != last+1 {
		e.broken("a range is not joined over a record that is pruned", "got %+v", got)
	}
	e.later()
	same(e, rule, "removed", e.prune(all).Ranges, 2)
	same(e, rule, "watermark", e.state("report").Pruned, last+3)
	l, err := e.s.Ledger(e.ctx, space, "report", tick-1, last+3)
	e.must(err)
	same(e, rule, "ledger", l, store.Ledger{Pruned: last + 3})
}

func pruneLimit(e *env) {
	const rule = "a call removes at most Limit records and says whether there may be more"
	e.register("mail")
	const n = 23
	var rows []store.NewExecution
	for i := range n {
		rows = append(rows, row(queueKey("mail", fmt.Sprint(i))))
	}
	e.enqueue(rows...)
	var done []store.Finish
	for _, x := range e.fetch(long, n, "mail").Runs {
		done = append(done, store.Finish{Ref: x.Ref(), State: store.StateSucceeded}) // all at one instant, perhaps
	}
	_, err := e.s.Finish(e.ctx, done)
	e.must(err)
	e.later()
	left := n
	for left > 0 {
		p, err := e.s.Prune(e.ctx, store.PruneRequest{Namespace: space, Retention: all, Limit: 10, Batch: 4})
		e.must(err)
		same(e, rule, "removed", p.Keys, min(left, 10))
		if left > 10 && !p.More {
			e.broken(rule, "more is false with %d left", left-10)
		}
		left -= p.Keys
		if p.Keys == 0 {
			return
		}
	}
	same(e, rule, "more in the end", e.prune(all).More, false)
}

func pruneRace(e *env) {
	const rule = "pruners and somebody who retries leave a run that is either gone or goes on"
	tick := e.register("report")
	const n = 12
	ids := make([]store.ID, n)
	for i := range store.Millis(n) {
		x := e.start(long, free("report", tick+i))
		e.end(x, store.StateFailed)
		ids[i] = x.ID
	}
	e.settleTo("report", tick+n)
	e.later()
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	removed := make(chan int)
	for _, s := range handles {
		go func() {
			total := 0
			for more := true; more; {
				p, err := s.Prune(e.ctx, store.PruneRequest{Namespace: space, Retention: all, Limit: 3, Batch: 2})
				if err != nil {
					e.Errorf("broken rule: "+rule+"\n\tprune: %v", err)
				}
				total += p.Failed
				more = p.More && err == nil
			}
			removed <- total
		}()
	}
	waits := 0
	for _, id := range ids {
		if _, err := e.h.Open(e).Retry(e.ctx, space, id, "ann"); err == nil {
			waits++
		} else if !errors.Is(err, store.ErrNotFound) {
			e.broken(rule, "retry: %v", err)
		}
	}
	gone := 0
	for range handles {
		gone += <-removed
	}
	same(e, rule, "rows that went, and those that go on", gone+waits, n)
	same(e, rule, "rows fetched", len(e.fetch(long, n, "report").Runs), waits)
}

func pruneBad(e *env) {
	const rule = "a request that makes no sense is refused"
	for field, r := range map[string]store.PruneRequest{
		"Namespace":           {Retention: all},
		"Retention.Succeeded": {Namespace: space, Retention: store.Retention{Succeeded: -1}},
		"Retention.Keys":      {Namespace: space, Retention: store.Retention{Failed: 2 * time.Hour, Keys: time.Hour}},
		"Limit":               {Namespace: space, Limit: -1},
		"Batch":               {Namespace: space, Batch: store.MaxPruneBatch + 1},
	} {
		if _, err := e.s.Prune(e.ctx, r); err == nil || !strings.Contains(err.Error(), field) {
			e.broken(rule, "%s: %v", field, err)
		}
	}
}

func sizes(e *env) {
	const rule = "the sizes name every table, and are counts or estimates"
	tick := e.register("report")
	e.end(e.start(long, free("report", tick)), store.StateSucceeded)
	got, err := e.s.Sizes(e.ctx)
	e.must(err)
	seen := map[string]bool{}
	for _, t := range got {
		if t.Rows < 0 || t.Bytes < 0 || t.Name == "" || seen[t.Name] {
			e.broken(rule, "%+v", t)
		}
		seen[t.Name] = true
		if !t.Estimate && strings.Contains(t.Name, "executions") {
			same(e, rule, "executions counted", t.Rows, 1)
		}
	}
	if len(got) < 4 {
		e.broken(rule, "only %d tables: %+v", len(got), got)
	}
}
