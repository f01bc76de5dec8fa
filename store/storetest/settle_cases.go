package storetest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/solotick/solotick/store"
)

var settleCases = []suiteCase{
	{"settle/watermark", settleWatermark},
	{"settle/what decide sees", settleView},
	{"settle/spans of runs", settleSpans},
	{"settle/what decide wants is written", settleWrites},
	{"settle/part of the stretch", settlePartial},
	{"settle/several handles account once", settleRace},
	{"settle/a claim at the same time", settleAgainstClaim},
	{"settle/a stretch is one range", settleJoins},
	{"ledger", ledgerCases},
}

const settledOnce = "every tick is accounted for once: the watermark moves only from where the caller saw it"

func settleOne(job string, seen, to store.Millis) store.SettleRequest {
	return store.SettleRequest{Namespace: space, Jobs: []store.SettleJob{{Job: job, Seen: seen, To: to}}}
}

func nothing(store.TickView) store.Settlement { return store.Settlement{} }

func (e *env) settle(r store.SettleRequest, decide func(store.TickView) store.Settlement) store.SettleResult {
	e.Helper()
	res, err := e.s.Settle(e.ctx, r, decide)
	e.must(err)
	return res
}

// missing is a tick that a settlement records.
func missing(job string, tick store.Millis, st store.State, why store.Reason) store.SettleTick {
	n := row(cronKey(job, tick))
	n.Active = store.ActiveCron(job, 0)
	return store.SettleTick{NewExecution: n, State: st, Reason: why}
}

func settleWatermark(e *env) {
	first := e.register("a", "b", "c")
	seen := map[string]store.Millis{}
	for _, j := range []string{"a", "b", "c"} {
		seen[j] = e.state(j).Settled
	}
	e.until(first + 20)
	var asked []string
	res := e.settle(store.SettleRequest{Namespace: space, Jobs: []store.SettleJob{
		{Job: "a", Seen: seen["a"], To: first + 10},
		{Job: "b", Seen: seen["b"] - 1, To: first + 10},
		{Job: "c", Seen: seen["c"], To: first + 12},
	}}, func(v store.TickView) store.Settlement {
		if !slices.Contains(asked, v.Job) { // it may be called again
			asked = append(asked, v.Job)
		}
		return store.Settlement{}
	})
	same(e, settledOnce, "jobs settled", res.Settled, 2)
	same(e, settledOnce, "jobs passed over", res.Passed, 1)
	if !slices.Equal(asked, []string{"a", "c"}) {
		e.broken(settledOnce, "decide was asked about %v, want a and c", asked)
	}
	for j, want := range map[string]store.Millis{"a": first + 10, "b": seen["b"], "c": first + 12} {
		same(e, settledOnce, "watermark of "+j, e.state(j).Settled, want)
	}
	res = e.settle(settleOne("a", seen["a"], first+15), nothing)
	same(e, settledOnce, "the same request again", res.Passed, 1)
	same(e, settledOnce, "watermark", e.state("a").Settled, first+10)
}

func settleView(e *env) {
	const rule = "decide sees the state, the ticks recorded in (Seen, To], the runs since Seen and the latest tick that ran"
	first := e.register("report", "other")
	seen := first - 1
	over := e.start(long, free("report", first))
	e.until(e.now())
	e.end(over, store.StateSucceeded)
	over = e.get(over.ID)
	e.until(first + 45)
	skipped := free("report", first+2)
	skipped.Skip = store.ReasonDegraded
	e.claim(long, skipped, free("report", first+30), free("other", first+3))
	runs := e.start(long, free("report", first+9))
	manual := e.start(long, store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassManual, Job: "report", Request: "r"})})
	waits := row(store.Key{Class: store.ClassBackfill, Job: "report", Tick: first + 4, Request: "r"})
	waits.RunAt = first.Add(long)
	e.enqueue(waits)

	var v store.TickView
	e.settle(settleOne("report", seen, first+20), func(got store.TickView) store.Settlement { v = got; return store.Settlement{} })
	same(e, rule, "request", v.SettleJob, store.SettleJob{Job: "report", Seen: seen, To: first + 20})
	same(e, rule, "settled in the state", v.State.Settled, seen)
	same(e, rule, "schedule in the state", v.State.Current().Hash, "spec-1")
	if now := e.now(); v.Now < first+45 || v.Now > now {
		e.broken(rule, "now is %s, the store's clock %s", v.Now, now)
	}
	want := []store.TickRecord{{Tick: first, State: store.StateSucceeded}, {Tick: first + 2, State: store.StateSkipped}, {Tick: first + 9, State: store.StateRunning}}
	if !slices.Equal(v.Recorded, want) {
		e.broken(rule, "recorded %v, want %v", v.Recorded, want)
	}
	same(e, rule, "latest tick that ran (it may lie after To)", v.LastRun, first+30)
	spans := map[store.Span]int{}
	for i, s := range v.Runs {
		spans[s]++
		if i > 0 && s.From < v.Runs[i-1].From {
			e.broken("runs are oldest first", "%v", v.Runs)
		}
	}
	same(e, rule, "runs", len(v.Runs), 4)
	same(e, rule, "run that ended", spans[store.Span{From: over.Started, To: over.Finished}], 1)
	for _, x := range []store.Execution{runs, manual} {
		if spans[store.Span{From: x.Started}] == 0 {
			e.broken(rule, "%s, running since %s, is not in %v", x.Key, x.Started, v.Runs)
		}
	}
	e.end(runs, store.StateSucceeded)
	e.settle(settleOne("report", first+20, first+40), func(got store.TickView) store.Settlement { v = got; return store.Settlement{} })
	if len(v.Recorded) != 1 || v.Recorded[0].Tick != first+30 {
		e.broken(rule, "recorded after %s: %v", first+20, v.Recorded)
	}
	if v.LastRun != first+30 {
		e.broken(rule, "latest tick that ran is %s, want %s", v.LastRun, first+30)
	}
	e.settle(settleOne("other", seen, first+2), func(got store.TickView) store.Settlement { v = got; return store.Settlement{} })
	if len(v.Recorded) != 0 || v.LastRun != first+3 {
		e.broken(rule, "of another job: recorded %v, latest %s", v.Recorded, v.LastRun)
	}
}

func settleSpans(e *env) {
	const rule = "the span of a run goes over takeovers, and leaves out the wait for a retry"
	first := e.register("report")
	retried := e.start(long, free("report", first))
	taken := e.start(brief, free("report", first+1))
	e.until(taken.LeaseUntil)
	e.takeOver(long, 1, "report")
	e.must(e.finish(store.Finish{Ref: retried.Ref(), State: store.StatePending}))
	seen := first - 1
	spans := func(want ...store.Span) {
		e.Helper()
		e.settle(settleOne("report", seen, seen+1), func(v store.TickView) store.Settlement {
			if !slices.Equal(v.Runs, want) {
				e.broken(rule, "spans %v, want %v", v.Runs, want)
			}
			return store.Settlement{}
		})
		seen++
	}
	spans(store.Span{From: taken.Started})
	again := one(e, e.fetch(long, 5, "report").Runs)
	spans(store.Span{From: taken.Started}, store.Span{From: again.Started})
}

func settleWrites(e *env) {
	const rule = "what decide wants is written with the watermark, and closes those ticks"
	first := e.register("report")
	e.until(first + 40)
	pending := missing("report", first+1, store.StatePending, store.ReasonNone)
	pending.MissedCount, pending.Priority, pending.Zone, pending.SpecHash, pending.OnCrash = 3, 7, "Asia/Shanghai", "spec-1", store.CrashFail
	res := e.settle(settleOne("report", first-1, first+30), func(store.TickView) store.Settlement {
		return store.Settlement{
			Ticks: []store.SettleTick{
				pending,
				missing("report", first+2, store.StateMissed, store.ReasonMisfire),
				missing("report", first+3, store.StateSkipped, store.ReasonOverlap),
			},
			Ranges: []store.TickRange{
				{Job: "report", From: first + 5, To: first + 10, Count: 6, State: store.StateMissed, Reason: store.ReasonWindow},
				{Job: "report", From: first + 20, To: first + 20, Count: 1, State: store.StateSkipped, Reason: store.ReasonPaused},
			},
		}
	})
	same(e, rule, "settled", res.Settled, 1)
	same(e, rule, "rows inserted pending", res.Pending, 1)
	same(e, rule, "watermark", e.state("report").Settled, first+30)
	for tick, want := range map[store.Millis]string{
		first + 1: "pending/", first + 2: "missed/misfire", first + 3: "skipped/overlap",
	} {
		x, err := e.s.Find(e.ctx, space, cronKey("report", tick))
		e.must(err)
		same(e, rule, "record of "+tick.String(), x.State.String()+"/"+string(x.Reason), want)
		same(e, rule, "has an end", x.Finished != 0, x.State != store.StatePending)
	}
	for tick := first; tick < first+30; tick++ {
		same(e, "a late claim of a settled tick is a duplicate", tick.String(), e.claim(long, cron("report", tick))[0].Outcome, store.OutcomeDuplicate)
	}
	got, err := e.s.Ranges(e.ctx, space, "report", first+10, first+15)
	e.must(err)
	if len(got) != 1 || got[0].From != first+5 || got[0].To != first+10 || got[0].Count != 6 || got[0].Job != "report" ||
		got[0].State != store.StateMissed || got[0].Reason != store.ReasonWindow || got[0].Recorded < first+40 {
		e.broken("Ranges answers the ranges that touch [from, to]", "got %+v", got)
	}
	got, err = e.s.Ranges(e.ctx, space, "report", first, first+30)
	e.must(err)
	same(e, "Ranges answers the ranges that touch [from, to]", "all", len(got), 2)
	x := one(e, e.fetch(long, 5, "report").Runs)
	same(e, "a tick that was settled as pending runs", "tick", x.Key.Tick, first+1)
	same(e, rule, "missed count", x.MissedCount, 3)
	same(e, rule, "priority, zone, spec, policy", fmt.Sprint(x.Priority, x.Zone, x.SpecHash, x.OnCrash), fmt.Sprint(7, "Asia/Shanghai", "spec-1", store.CrashFail))
	same(e, oneActive, "active key of the fetched tick", x.Active, store.ActiveCron("report", 0))
}

func settlePartial(e *env) {
	const rule = "a settlement with To moves the watermark only this far"
	first := e.register("report")
	e.until(first + 40)
	before := e.state("report")
	e.settle(settleOne("report", first-1, first+30), func(v store.TickView) store.Settlement { return store.Settlement{To: v.Seen} })
	same(e, rule, "watermark that stays", e.state("report").Settled, before.Settled)
	if e.state("report").Version == before.Version {
		e.broken(rule, "nothing was written where it stays")
	}
	part := func(store.TickView) store.Settlement {
		return store.Settlement{To: first + 10, Ticks: []store.SettleTick{missing("report", first+10, store.StateMissed, store.ReasonMisfire)}}
	}
	e.settle(settleOne("report", first-1, first+30), part)
	same(e, rule, "watermark", e.state("report").Settled, first+10)
	same(e, rule, "tick at it", e.claim(long, free("report", first+10))[0].Outcome, store.OutcomeDuplicate)
	same(e, rule, "tick after it", e.claim(long, free("report", first+11))[0].Outcome, store.OutcomeStarted)
	e.settle(settleOne("report", first+10, first+30), nothing)
	same(e, rule, "watermark after the rest", e.state("report").Settled, first+30)
}

func settleRace(e *env) {
	first := e.register("a", "b")
	const ticks = 20
	e.until(first + ticks)
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e), e.h.Open(e)}
	// Half of the ticks have a record, the others are for the sweep.
	for i := store.Millis(0); i < ticks; i += 2 {
		for _, job := range []string{"a", "b"} {
			e.end(e.start(long, free(job, first+i)), store.StateSucceeded)
		}
	}
	decide := func(v store.TickView) store.Settlement {
		var s store.Settlement
		have := map[store.Millis]bool{}
		for _, r := range v.Recorded {
			have[r.Tick] = true
		}
		for tick := v.Seen + 1; tick <= v.To; tick++ {
			switch {
			case have[tick]:
			case tick%4 < 2:
				s.Ticks = append(s.Ticks, missing(v.Job, tick, store.StatePending, store.ReasonNone))
			default:
				s.Ranges = append(s.Ranges, store.TickRange{Job: v.Job, From: tick, To: tick, Count: 1, State: store.StateMissed, Reason: store.ReasonMisfire})
			}
		}
		return s
	}
	results := make(chan store.SettleResult)
	for i := range 8 {
		go func() {
			jobs := []store.SettleJob{{Job: "a", Seen: first - 1, To: first + ticks - 1}, {Job: "b", Seen: first - 1, To: first + ticks - 1}}
			if i%2 == 1 {
				slices.Reverse(jobs)
			}
			res, err := handles[i%len(handles)].Settle(e.ctx, store.SettleRequest{Namespace: space, Jobs: jobs}, decide)
			if err != nil {
				e.Errorf("settle: %v", err)
			}
			results <- res
		}()
	}
	settled, passed := 0, 0
	for range 8 {
		r := <-results
		settled += r.Settled
		passed += r.Passed
	}
	same(e, settledOnce, "jobs settled by all", settled, 2)
	same(e, settledOnce, "jobs passed over by all", passed, 14)
	for _, job := range []string{"a", "b"} {
		l, err := e.s.Ledger(e.ctx, space, job, first-1, first+ticks)
		e.must(err)
		same(e, settledOnce, "ledger total of "+job, l.Total(), ticks)
		same(e, settledOnce, "runs of "+job, l.Ran, ticks/2)
	}
}

func settleAgainstClaim(e *env) {
	const rule = "a tick that is claimed while it is settled has one record: the claim's or the sweep's"
	const ticks = 24
	first := e.register("report")
	e.until(first + ticks)
	other := e.h.Open(e)
	claimed := map[store.Millis]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range store.Millis(ticks) {
			c, err := other.Claim(e.ctx, e.request(long, free("report", first+i)))
			if err != nil {
				e.Errorf("claim: %v", err)
				return
			}
			claimed[first+i] = c.Runs[0].Outcome == store.OutcomeStarted
		}
	})
	swept := int64(0)
	for i := store.Millis(0); i < ticks; i += 4 {
		var wrote int64
		res, err := e.s.Settle(e.ctx, settleOne("report", first+i-1, first+i+3), func(v store.TickView) store.Settlement {
			var s store.Settlement
			for tick := v.Seen + 1; tick <= v.To; tick++ {
				if !slices.ContainsFunc(v.Recorded, func(r store.TickRecord) bool { return r.Tick == tick }) {
					s.Ticks = append(s.Ticks, missing("report", tick, store.StateMissed, store.ReasonMisfire))
				}
			}
			wrote = int64(len(s.Ticks))
			return s
		})
		e.must(err)
		same(e, rule, "settled", res.Settled, 1)
		swept += wrote
	}
	wg.Wait()
	started := int64(0)
	for tick, ok := range claimed {
		x, err := e.s.Find(e.ctx, space, cronKey("report", tick))
		e.must(err)
		if ok {
			started++
		}
		same(e, rule, "the claim was told that it started, so the row runs", x.State == store.StateRunning, ok)
	}
	l, err := e.s.Ledger(e.ctx, space, "report", first-1, first+ticks-1)
	e.must(err)
	same(e, rule, "ledger", l, store.Ledger{Running: started, Missed: swept})
	same(e, rule, "records in all", started+swept, ticks)
}

func settleJoins(e *env) {
	const rule = "a stretch of ticks that did not run for one reason is one range, however often it is settled"
	first := e.register("report")
	e.until(first + 45)
	gap := func(from, to store.Millis, why store.Reason) {
		e.Helper()
		e.settle(settleOne("report", e.state("report").Settled, to), func(store.TickView) store.Settlement {
			return store.Settlement{Ranges: []store.TickRange{{
				Job: "report", From: from, To: to, Count: int64(to-from)/5 + 1, State: store.StateSkipped, Reason: why,
			}}}
		})
	}
	expect := func(want ...store.TickRange) {
		e.Helper()
		got, err := e.s.Ranges(e.ctx, space, "report", first, first+1000)
		e.must(err)
		for i := range got {
			got[i].Recorded = 0
		}
		if !slices.Equal(got, want) {
			e.broken(rule, "ranges %+v, want %+v", got, want)
		}
	}
	paused := store.TickRange{Job: "report", From: first, To: first + 10, Count: 3, State: store.StateSkipped, Reason: store.ReasonPaused}
	gap(first, first+5, store.ReasonPaused)
	gap(first+10, first+10, store.ReasonPaused)
	expect(paused)
	degraded := store.TickRange{Job: "report", From: first + 15, To: first + 15, Count: 1, State: store.StateSkipped, Reason: store.ReasonDegraded}
	gap(first+15, first+15, store.ReasonDegraded)
	expect(paused, degraded)
	e.start(long, free("report", first+20))
	gap(first+25, first+30, store.ReasonDegraded)
	after := store.TickRange{Job: "report", From: first + 25, To: first + 30, Count: 2, State: store.StateSkipped, Reason: store.ReasonDegraded}
	expect(paused, degraded, after)
	l, err := e.s.Ledger(e.ctx, space, "report", first-1, first+40)
	e.must(err)
	same(e, rule, "ledger", l, store.Ledger{Running: 1, Skipped: 6})
}

func ledgerCases(e *env) {
	const rule = "the ledger counts records of class cron with a tick in (from, to], rows and ranges together"
	first := e.register("report", "other")
	e.until(first + 45)
	tick := first
	for _, st := range []store.State{store.StateSucceeded, store.StateFailed, store.StateCanceled, store.StateIndeterminate} {
		e.end(e.start(long, free("report", tick)), st)
		tick++
	}
	e.must(e.finish(store.Finish{Ref: refOf(e.start(long, free("report", tick))), State: store.StatePending}))
	e.start(long, free("report", tick+1))
	skip := free("report", tick+2)
	skip.Skip = store.ReasonDegraded
	manual := store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassManual, Job: "report", Request: "r"})}
	backfill := store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassBackfill, Job: "report", Tick: tick, Request: "r"})}
	e.claim(long, skip, manual, backfill, free("other", tick))
	e.settle(settleOne("report", first-1, first+40), func(store.TickView) store.Settlement {
		return store.Settlement{
			Ticks:  []store.SettleTick{missing("report", first+10, store.StateMissed, store.ReasonMisfire)},
			Ranges: []store.TickRange{{Job: "report", From: first + 20, To: first + 29, Count: 10, State: store.StateMissed, Reason: store.ReasonWindow}},
		}
	})
	for _, c := range []struct {
		from, to store.Millis
		want     store.Ledger
	}{
		{first - 1, first + 40, store.Ledger{Pending: 1, Running: 1, Ran: 4, Skipped: 1, Missed: 11}},
		{0, first + 15, store.Ledger{Pending: 1, Running: 1, Ran: 4, Skipped: 1, Missed: 1}},
		{first, first + 3, store.Ledger{Ran: 3}},
		{first + 15, first + 40, store.Ledger{Missed: 10}},
		{first + 40, first + 100, store.Ledger{}},
	} {
		got, err := e.s.Ledger(e.ctx, space, "report", c.from, c.to)
		e.must(err)
		same(e, rule, fmt.Sprintf("(first%+d, first%+d]", c.from-first, c.to-first), got, c.want)
	}
}
