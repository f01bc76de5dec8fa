package storetest

import (
	"errors"
	"strconv"
	"time"

	"github.com/solotick/solotick/store"
)

var activeCases = []suiteCase{
	{"active key/one holder, whoever claims", activeRace},
	{"active key/one holder in one call", activeInOneCall},
	{"active key/busy policies", busyPolicies},
	{"active key/freed by every move out of running", activeFreed},
	{"active key/kept by a takeover", activeKept},
	{"active key/kept by a queue row with a lock key that waits for its retry", activeInRetry},
	{"fence/rises", fenceRises},
	{"fence/rises along a lock key", fenceOfLockKey},
}

const oneActive = "at most one running row has an active key, whatever class it is of"

func activeRace(e *env) {
	tick := e.register("report")
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e), e.h.Open(e)}
	outcomes := make(chan store.Outcome)
	for i := range 24 {
		go func() {
			c := cron("report", tick+store.Millis(i)) // every tick another: the active key alone must do it
			c.Busy = store.BusyRefuse
			got, err := handles[i%len(handles)].Claim(e.ctx, e.request(long, c))
			if err != nil {
				e.Errorf("claim: %v", err)
				outcomes <- 0
				return
			}
			outcomes <- got.Runs[0].Outcome
		}()
	}
	count := map[store.Outcome]int{}
	for range 24 {
		count[<-outcomes]++
	}
	same(e, oneActive, "started", count[store.OutcomeStarted], 1)
	same(e, oneActive, "busy", count[store.OutcomeBusy], 23)
	manual := store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassManual, Job: "report", Request: "r"}), Busy: store.BusyRefuse}
	manual.Active = store.ActiveCron("report", 0)
	same(e, oneActive, "manual run", e.claim(long, manual)[0].Outcome, store.OutcomeBusy)
	two := cron("report", tick+30)
	two.Active = store.ActiveCron("report", 1)
	same(e, "another slot is another active key", "outcome", e.claim(long, two)[0].Outcome, store.OutcomeStarted)
}

// Two runs of one call: neither is held by anybody when the call begins.
func activeInOneCall(e *env) {
	tick := e.register("report")
	got := e.claim(long, cron("report", tick), cron("report", tick+1))
	same(e, oneActive, "the first of one call", got[0].Outcome, store.OutcomeStarted)
	same(e, oneActive, "the second of one call", got[1].Outcome, store.OutcomeBusy)
}

func busyPolicies(e *env) {
	tick := e.register("report")
	held := e.start(long, cron("report", tick))
	skip, buffer, refuse := cron("report", tick+1), cron("report", tick+2), cron("report", tick+3)
	buffer.Busy, refuse.Busy = store.BusyBuffer, store.BusyRefuse
	got := e.claim(long, skip, buffer, refuse)
	for i, c := range got {
		same(e, "a run whose active key is held is busy", got[i].Execution.Key.String(), c.Outcome, store.OutcomeBusy)
	}
	same(e, "BusySkip records skipped(overlap)", "state", got[0].Execution.State, store.StateSkipped)
	same(e, "BusySkip records skipped(overlap)", "reason", got[0].Execution.Reason, store.ReasonOverlap)
	same(e, "BusyBuffer records the run as pending", "state", got[1].Execution.State, store.StatePending)
	same(e, "BusyBuffer records the run as pending", "attempt", got[1].Execution.Attempt, 0)
	same(e, "BusyRefuse records nothing", "row", got[2].Execution.ID, store.ID{})
	if _, err := e.s.Find(e.ctx, space, refuse.Key); !errors.Is(err, store.ErrNotFound) {
		e.broken("BusyRefuse records nothing", "Find: %v, want ErrNotFound", err)
	}
	same(e, "a busy run is recorded once", "claim of the recorded tick", e.claim(long, cron("report", tick+1))[0].Outcome, store.OutcomeDuplicate)
	const waits = "a pending row whose active key is held is passed over, and runs when the key is free"
	same(e, waits, "fetched while held", len(e.fetch(long, 5, "report").Runs), 0)
	e.end(held, store.StateSucceeded)
	runs := e.fetch(long, 5, "report").Runs
	if len(runs) != 1 || runs[0].ID != got[1].Execution.ID {
		e.broken(waits, "fetched when free: %d rows", len(runs))
	}
	same(e, oneActive, "a claim while the fetched row runs", e.claim(long, refuse)[0].Outcome, store.OutcomeBusy)
}

func activeFreed(e *env) {
	const rule = "every move out of running frees the active key"
	tick := e.register("report")
	probe := func(move string) {
		e.Helper()
		tick++
		x := cron("report", tick)
		c := e.claim(long, x)[0]
		same(e, rule, "claim after "+move, c.Outcome, store.OutcomeStarted)
		if c.Outcome == store.OutcomeStarted {
			e.end(c.Execution, store.StateSucceeded)
		}
		tick++
	}
	for _, st := range []store.State{
		store.StateSucceeded, store.StateFailed, store.StateCanceled, store.StateIndeterminate,
	} {
		e.end(e.start(long, cron("report", tick)), st)
		probe("finish as " + st.String())
	}
	e.must(e.finish(store.Finish{Ref: refOf(e.start(long, cron("report", tick))), State: store.StatePending, Delay: time.Hour}))
	probe("a retry")
	crash := map[string]store.OnCrash{"mark failed": store.CrashFail, "next tick": store.CrashNextTick, "indeterminate": store.CrashIndeterminate}
	for name, policy := range crash {
		c := cron("report", tick)
		c.OnCrash = policy
		e.until(e.start(brief, c).LeaseUntil)
		e.takeOver(long, 10, "report")
		probe("crash policy " + name)
		tick = max(tick, e.now())
	}
	c := cron("report", tick)
	c.MaxAttempts = 1
	e.until(e.start(brief, c).LeaseUntil)
	e.takeOver(long, 10, "report")
	tick = max(tick, e.now())
	probe("the attempt cap")
}

func activeKept(e *env) {
	const rule = "a takeover keeps the active key"
	tick := e.register("report")
	x := e.start(brief, cron("report", tick))
	e.until(x.LeaseUntil)
	refuse := cron("report", e.now())
	refuse.Busy = store.BusyRefuse
	same(e, "a dead owner's active key is held until the run is taken over", "claim", e.claim(long, refuse)[0].Outcome, store.OutcomeBusy)
	taken := e.takeOver(long, 10, "report").Runs
	if len(taken) != 1 {
		e.Fatalf("takeover: %d rows, want 1", len(taken))
	}
	same(e, rule, "claim", e.claim(long, refuse)[0].Outcome, store.OutcomeBusy)
	e.end(taken[0], store.StateSucceeded)
	same(e, rule, "claim after the end", e.claim(long, refuse)[0].Outcome, store.OutcomeStarted)
}

// keyed is a queue row with a lock key.
func keyed(kind, name, lock string) store.NewExecution {
	n := row(queueKey(kind, name))
	n.LockKey, n.Active = lock, store.ActiveQueue(kind, lock)
	return n
}

func activeInRetry(e *env) {
	const rule = "a queue row with a lock key keeps its place while it waits for its retry"
	e.register("mail")
	for i := range 3 {
		e.enqueue(keyed("mail", strconv.Itoa(i), "ann"))
		e.until(e.now())
	}
	next := func(why, want string) store.Execution {
		e.Helper()
		got := e.fetch(long, 1, "mail").Runs
		if len(got) != 1 || got[0].Key.Name != want {
			e.broken(why, "fetched %v, want %s", names(got), want)
			e.FailNow()
		}
		return got[0]
	}
	x := next(onePerLock, "0")
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending}))
	x = next(rule, "0")
	same(e, rule, "attempt", x.Attempt, 2)
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, Delay: time.Hour}))
	e.enqueue(keyed("mail", "3", "bob"))
	e.end(next("a waiting row does not hinder other lock keys", "3"), store.StateSucceeded)
	same(e, rule, "rows fetched during the wait", len(e.fetch(long, 5, "mail").Runs), 0)
	_, err := e.s.Cancel(e.ctx, space, x.ID)
	e.must(err)
	x = next("a cancelled row does not keep its lock key", "1")
	e.end(x, store.StateFailed)
	next("a row that failed for good does not keep its lock key", "2")
}

const fencesRise = "fences of one job strictly rise over claim, takeover and the claim of a retry"

func fenceRises(e *env) {
	tick := e.register("report", "other")
	last := int64(0)
	rises := func(how string, x store.Execution) store.Execution {
		e.Helper()
		if x.Fence <= last {
			e.broken(fencesRise, "%s drew %d after %d", how, x.Fence, last)
		}
		last = x.Fence
		return x
	}
	x := rises("claim", e.start(long, cron("report", tick)))
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending}))
	y := rises("claim while the retry waits", e.start(brief, cron("report", tick+1)))
	e.until(y.LeaseUntil)
	y = rises("takeover", one(e, e.takeOver(brief, 1, "report").Runs))
	e.until(y.LeaseUntil)
	y = rises("second takeover", one(e, e.takeOver(long, 1, "report").Runs))
	e.end(y, store.StateSucceeded)
	x = rises("claim of the retry", one(e, e.fetch(long, 1, "report").Runs))
	e.end(x, store.StateSucceeded)
	s := e.s
	for range 5 {
		e.s = e.h.Open(e)
		rises("claim by another process", e.start(long, free("report", e.now())))
		e.until(e.now())
	}
	e.s = s
	same(e, "a job's state tells the last fence drawn", "fence", e.state("report").Fence, last)
}

func fenceOfLockKey(e *env) {
	e.register("mail")
	last := int64(0)
	for _, name := range []string{"a", "b", "c"} {
		e.enqueue(keyed("mail", name, "ann"))
		x := one(e, e.fetch(brief, 1, "mail").Runs)
		e.until(x.LeaseUntil)
		again := one(e, e.takeOver(long, 1, "mail").Runs)
		if x.Fence <= last || again.Fence <= x.Fence {
			e.broken("fences of one lock key strictly rise", "%d, then %d, then %d", last, x.Fence, again.Fence)
		}
		last = again.Fence
		e.end(again, store.StateSucceeded)
	}
}

// one is the only row, or the end of the case.
func one(e *env, runs []store.Execution) store.Execution {
	e.Helper()
	if len(runs) != 1 {
		e.Fatalf("got %d rows, want 1: %v", len(runs), names(runs))
	}
	return runs[0]
}

func names(runs []store.Execution) []string {
	out := make([]string, len(runs))
	for i, r := range runs {
		out[i] = r.Key.String()
	}
	return out
}
