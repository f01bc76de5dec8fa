package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/store"
)

var finishCases = []suiteCase{
	{"finish/every outcome", finishOutcomes},
	{"finish/attempt and owner", finishAttemptOwner},
	{"finish/after a takeover", finishAfterTakeOver},
	{"finish/repeat", finishRepeat},
	{"finish/retry", finishRetry},
	{"finish/unstarted", finishUnstarted},
	{"finish/many in one call", finishMany},
	{"finish/of two only one", finishRace},
	{"finish/asked to end", finishAsked},
	{"cancel", cancelCases},
	{"revive", reviveCases},
	{"revive/in order", reviveOrder},
}

const finishGuard = "a run is finished by the attempt and owner that hold it, once; everybody else is fenced"

func (e *env) fenced(what string, f store.Finish) {
	e.Helper()
	if err := e.finish(f); !errors.Is(err, store.ErrFenced) {
		e.broken(finishGuard, "%s: got %v, want ErrFenced", what, err)
	}
}

func finishOutcomes(e *env) {
	const rule = "a finish writes state, reason, mode, result and error, and ends the lease"
	tick := e.register("report")
	for i, st := range []store.State{store.StateSucceeded, store.StateFailed, store.StateCanceled, store.StateIndeterminate} {
		x := e.start(long, free("report", tick+store.Millis(i)))
		before := e.now()
		e.must(e.finish(store.Finish{
			Ref: x.Ref(), State: st, Reason: "why", Mode: store.ModeLocalMutex, Result: []byte{0, 1, 255}, ErrorCode: "code", ErrorText: "text",
		}))
		after := e.now()
		y := e.get(x.ID)
		same(e, rule, "state", y.State, st)
		same(e, rule, "reason", y.Reason, store.Reason("why"))
		same(e, rule, "mode", y.Mode, store.ModeLocalMutex)
		same(e, rule, "result", string(y.Result), "\x00\x01\xff")
		same(e, rule, "error", y.ErrorCode+" "+y.ErrorText, "code text")
		same(e, rule, "lease", y.LeaseUntil, 0)
		same(e, rule, "attempt", y.Attempt, 1)
		same(e, rule, "started", y.Started, x.Started)
		if y.Finished < before || y.Finished > after {
			e.broken(rule, "finished %s, between %s and %s", y.Finished, before, after)
		}
		if y.Version <= x.Version {
			e.broken("version rises with every change", "%d after a finish, was %d", y.Version, x.Version)
		}
	}
	c := free("report", tick+10)
	c.Mode = store.ModeStoreOnly
	x := e.start(long, c)
	e.end(x, store.StateSucceeded)
	same(e, "an empty Mode of a finish keeps the row's", "mode", e.get(x.ID).Mode, store.ModeStoreOnly)
	y := e.start(long, free("report", tick+11))
	if err := e.finish(store.Finish{Ref: y.Ref(), State: store.StateRunning}); err == nil {
		e.broken("finish moves a row out of running", "finish as running was accepted")
	}
	same(e, "a finish that is refused changes nothing", "state", refOf(e.get(y.ID)), y.Ref())
}

func finishAttemptOwner(e *env) {
	tick := e.register("report")
	x := e.start(long, free("report", tick))
	for name, spoil := range map[string]func(*store.Ref){
		"another owner":      func(r *store.Ref) { r.Owner = store.NewOwner() },
		"no owner":           func(r *store.Ref) { r.Owner = store.Owner{} },
		"an earlier attempt": func(r *store.Ref) { r.Attempt-- },
		"a later attempt":    func(r *store.Ref) { r.Attempt++ },
		"another row":        func(r *store.Ref) { r.ID = store.NewID(tick) },
		"another namespace":  func(r *store.Ref) { r.Namespace = "elsewhere" },
	} {
		f := store.Finish{Ref: x.Ref(), State: store.StateSucceeded}
		spoil(&f.Ref)
		e.fenced(name, f)
	}
	same(e, finishGuard, "version after refused finishes", e.get(x.ID).Version, x.Version)
	e.end(x, store.StateSucceeded)
	e.fenced("the other outcome of a finished run", store.Finish{Ref: x.Ref(), State: store.StateFailed})
	e.fenced("a retry of a finished run", store.Finish{Ref: x.Ref(), State: store.StatePending})
	rival := x.Ref()
	rival.Owner = store.NewOwner()
	e.fenced("a rival's repeat of a finish", store.Finish{Ref: rival, State: store.StateSucceeded})
	same(e, finishGuard, "state", e.get(x.ID).State, store.StateSucceeded)

	waits := e.enqueue(row(queueKey("mail", "1")))[0].Execution
	ref := waits.Ref()
	ref.Owner = e.owner
	e.fenced("a pending row", store.Finish{Ref: ref, State: store.StateSucceeded})
}

func finishAfterTakeOver(e *env) {
	tick := e.register("report")
	x := e.start(brief, free("report", tick))
	e.until(x.LeaseUntil)
	frozen := e.owner
	e.owner = store.NewOwner()
	y := one(e, e.takeOver(brief, 1, "report").Runs)
	for _, st := range []store.State{store.StateSucceeded, store.StateFailed, store.StatePending} {
		e.fenced("the frozen owner, as "+st.String(), store.Finish{Ref: x.Ref(), State: st})
	}
	same(e, finishGuard, "owner after the frozen one woke up", refOf(e.get(x.ID)), y.Ref())
	// The first owner may even get the run back: its old attempt is still void.
	e.until(y.LeaseUntil)
	e.owner = frozen
	z := one(e, e.takeOver(long, 1, "report").Runs)
	e.fenced("attempt 1 of the owner that holds attempt 3", store.Finish{Ref: x.Ref(), State: store.StateSucceeded})
	e.fenced("attempt 2", store.Finish{Ref: y.Ref(), State: store.StateSucceeded})
	e.must(e.finish(store.Finish{Ref: z.Ref(), State: store.StateSucceeded}))
	e.fenced("attempt 1 after the run succeeded", store.Finish{Ref: x.Ref(), State: store.StateSucceeded})
	e.fenced("attempt 2 after the run succeeded", store.Finish{Ref: y.Ref(), State: store.StateSucceeded})

	// The lease ended, but nobody else has the run: its work counts.
	late := e.start(brief, free("report", e.now()))
	e.until(late.LeaseUntil)
	if err := e.finish(store.Finish{Ref: late.Ref(), State: store.StateSucceeded}); err != nil {
		e.broken("an attempt that nobody has taken over finishes, late or not", "got %v", err)
	}
}

func finishRepeat(e *env) {
	const rule = "a repeat of a finish that was applied is answered nil and changes nothing"
	tick := e.register("report")
	for i, f := range []store.Finish{
		{State: store.StateSucceeded, Result: []byte("r")},
		{State: store.StateFailed, ErrorCode: "c"},
		{State: store.StatePending, Delay: time.Hour},
		{State: store.StatePending, Delay: time.Hour, Unstarted: true},
	} {
		x := e.start(long, free("report", tick+store.Millis(i)))
		f.Ref = x.Ref()
		e.must(e.finish(f))
		before := e.get(x.ID)
		if err := e.finish(f); err != nil {
			e.broken(rule, "as %v: got %v", f.State, err)
		}
		after := e.get(x.ID)
		same(e, rule, "version", after.Version, before.Version)
		same(e, rule, "attempt", after.Attempt, before.Attempt)
	}
}

func finishRetry(e *env) {
	const rule = "a finish as pending is a retry: due after its delay by the store's clock, the next attempt then"
	tick := e.register("report")
	x := e.start(long, cron("report", tick))
	before := e.now()
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, Delay: 40 * time.Millisecond, ErrorCode: "c"}))
	after := e.now()
	y := e.get(x.ID)
	same(e, rule, "state", y.State, store.StatePending)
	same(e, rule, "attempt", y.Attempt, 1)
	same(e, rule, "lease", y.LeaseUntil, 0)
	same(e, rule, "finished", y.Finished, 0)
	same(e, rule, "error", y.ErrorCode, "c")
	if y.RunAt < before+40 || y.RunAt > after+40 {
		e.broken(rule, "due at %s, finished between %s and %s", y.RunAt, before, after)
	}
	same(e, "the same key is a duplicate while a retry waits", "outcome", e.claim(long, cron("report", tick))[0].Outcome, store.OutcomeDuplicate)
	e.until(y.RunAt)
	z := one(e, e.fetch(long, 5, "report").Runs)
	same(e, rule, "row", z.ID, x.ID)
	same(e, rule, "next attempt", z.Attempt, 2)
	e.fenced("the attempt before the retry", store.Finish{Ref: x.Ref(), State: store.StateSucceeded})
	e.end(z, store.StateSucceeded)
}

func finishUnstarted(e *env) {
	const rule = "Unstarted takes the attempt back"
	tick := e.register("report")
	c := free("report", tick)
	c.MaxAttempts = 1
	x := e.start(long, c)
	if err := e.finish(store.Finish{Ref: x.Ref(), State: store.StateFailed, Unstarted: true}); err == nil {
		e.broken("Unstarted goes with pending only", "accepted with failed")
	}
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, Unstarted: true}))
	same(e, rule, "attempt", e.get(x.ID).Attempt, 0)
	y := one(e, e.fetch(long, 1, "report").Runs)
	same(e, rule, "attempt of the next fetch", y.Attempt, 1)
	if y.Fence <= x.Fence {
		e.broken(fencesRise, "drew %d after %d", y.Fence, x.Fence)
	}
}

func finishMany(e *env) {
	const rule = "a finish of many rows answers each, in order, and one that is fenced does not hinder the others"
	tick := e.register("report")
	var rows []store.Finish
	for i := range 20 {
		x := e.start(long, free("report", tick+store.Millis(i)))
		f := store.Finish{Ref: x.Ref(), State: store.StateSucceeded, Result: fmt.Append(nil, i)}
		switch i % 4 {
		case 1:
			f.Ref.Attempt++
		case 2:
			f.State = store.StateFailed
		}
		rows = append(rows, f)
	}
	errs, err := e.s.Finish(e.ctx, rows)
	e.must(err)
	if len(errs) != len(rows) {
		e.Fatalf("finish: %d answers for %d rows", len(errs), len(rows))
	}
	for i, err := range errs {
		x := e.get(rows[i].Ref.ID)
		if i%4 == 1 {
			same(e, rule, "fenced", errors.Is(err, store.ErrFenced), true)
			same(e, rule, "state", x.State, store.StateRunning)
			continue
		}
		same(e, rule, "error", err, nil)
		same(e, rule, "state", x.State, rows[i].State)
		same(e, rule, "result", string(x.Result), fmt.Sprint(i))
	}
	errs, err = e.s.Finish(e.ctx, nil)
	if err != nil || len(errs) != 0 {
		e.broken(rule, "an empty request: %v, %v", errs, err)
	}
}

func finishRace(e *env) {
	tick := e.register("report")
	x := e.start(long, free("report", tick))
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	states := []store.State{store.StateSucceeded, store.StateFailed, store.StateCanceled}
	accepted := make(chan store.State)
	for i, st := range states {
		go func() {
			errs, err := handles[i].Finish(e.ctx, []store.Finish{{Ref: x.Ref(), State: st}})
			if err != nil {
				e.Errorf("finish: %v", err)
			} else if errs[0] == nil {
				accepted <- st
				return
			}
			accepted <- 0
		}()
	}
	var won []store.State
	for range states {
		if st := <-accepted; st != 0 {
			won = append(won, st)
		}
	}
	if len(won) != 1 || e.get(x.ID).State != won[0] {
		e.broken(finishGuard, "accepted %v, stored %v", won, e.get(x.ID).State)
	}
}

const askedToEnd = "a run that was asked to end is not run again: it is canceled where it would be"

func finishAsked(e *env) {
	e.register("mail")
	keyed := func(name string) store.Execution {
		n := row(queueKey("mail", name))
		n.LockKey, n.Dedup = name, store.HashOf("dedup", name)
		e.enqueue(n)
		return one(e, e.fetch(long, 1, "mail").Runs)
	}
	cancel := func(x store.Execution) {
		_, err := e.s.Cancel(e.ctx, space, x.ID)
		e.must(err)
	}
	var rows []store.Finish
	for i, f := range []store.Finish{
		{State: store.StatePending, Delay: time.Millisecond, ErrorCode: "c", ErrorText: "t"},
		{State: store.StatePending, Unstarted: true},
		{State: store.StatePending},
		{State: store.StatePending},
		{State: store.StateFailed},
		{State: store.StateSucceeded},
	} {
		x := keyed(fmt.Sprint(i))
		f.Ref = x.Ref()
		if i != 3 { // which nobody asked
			cancel(x)
		}
		rows = append(rows, f)
	}
	for range 2 { // the second time is a repeat
		var versions []int64
		errs, err := e.s.Finish(e.ctx, rows)
		e.must(err)
		for i, want := range []error{store.ErrCanceled, store.ErrCanceled, store.ErrCanceled, nil, nil, nil} {
			if !errors.Is(errs[i], want) {
				e.broken(askedToEnd, "answer %d: got %v, want %v", i, errs[i], want)
			}
			x := e.get(rows[i].Ref.ID)
			state := rows[i].State
			if want != nil {
				state = store.StateCanceled
			}
			same(e, askedToEnd, fmt.Sprint("state ", i), x.State, state)
			same(e, askedToEnd, fmt.Sprint("has an end ", i), x.Finished != 0, state != store.StatePending)
			versions = append(versions, x.Version)
		}
		_, err = e.s.Finish(e.ctx, rows)
		e.must(err)
		for i, v := range versions {
			same(e, askedToEnd, fmt.Sprint("version after a repeat ", i), e.get(rows[i].Ref.ID).Version, v)
		}
	}
	first, back := e.get(rows[0].Ref.ID), e.get(rows[1].Ref.ID)
	same(e, askedToEnd, "error", first.ErrorCode+first.ErrorText, "ct")
	same(e, askedToEnd, "attempt", first.Attempt, 1)
	same(e, askedToEnd, "attempts of one that was not started", fmt.Sprint(back.Attempt, int64(back.Started)), "0 0")
	same(e, keptAttempts, "of a run that was canceled", len(e.attempts(first.ID)), 0)
	e.until(e.now())
	same(e, askedToEnd, "rows to be run", len(e.fetch(long, 10, "mail").Runs), 1)
	for _, name := range []string{"0", "1", "2"} { // nothing is held any more
		n := row(queueKey("mail", "after "+name))
		n.LockKey, n.Dedup = name, store.HashOf("dedup", name)
		same(e, askedToEnd, "next of its keys", e.enqueue(n)[0].Outcome, store.OutcomeEnqueued)
	}
	next := e.fetch(long, 10, "mail").Runs
	same(e, askedToEnd, "next of its lock keys that run", len(next), 3)
	for _, x := range next {
		e.end(x, store.StateSucceeded)
	}

	rival := first.Ref()
	rival.Owner = store.NewOwner()
	e.fenced("a rival's retry of a canceled run", store.Finish{Ref: rival, State: store.StatePending})
	e.retry(first.ID, "ann")
	x := one(e, e.fetch(long, 10, "mail").Runs)
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending})) // that request was another attempt's
}

func cancelCases(e *env) {
	const rule = "cancel ends a pending run at once and asks a running one to end"
	tick := e.register("report")
	waits := e.enqueue(row(queueKey("report", "1")))[0].Execution
	x, err := e.s.Cancel(e.ctx, space, waits.ID)
	e.must(err)
	same(e, rule, "pending run", x.State, store.StateCanceled)
	if x.Finished == 0 {
		e.broken(rule, "a canceled run has no end")
	}
	same(e, rule, "rows fetched after it", len(e.fetch(long, 5, "report").Runs), 0)
	same(e, "a canceled key stays taken", "enqueue", e.enqueue(row(waits.Key))[0].Outcome, store.OutcomeDuplicate)

	runs := e.start(long, cron("report", tick))
	x, err = e.h.Open(e).Cancel(e.ctx, space, runs.ID)
	e.must(err)
	same(e, rule, "running run", x.State, store.StateRunning)
	same(e, rule, "request", x.CancelRequested, true)
	same(e, rule, "what the owner sees", e.beat(e.owner, long, beatOf(runs))[0].CancelRequested, true)
	refuse := cron("report", tick+1)
	refuse.Busy = store.BusyRefuse
	same(e, oneActive, "claim while the run is asked to end", e.claim(long, refuse)[0].Outcome, store.OutcomeBusy)
	e.end(runs, store.StateCanceled)
	x, err = e.s.Cancel(e.ctx, space, runs.ID)
	e.must(err)
	same(e, "cancel leaves a run that has ended as it is", "state", x.State, store.StateCanceled)
	done := e.start(long, free("report", tick+2))
	e.end(done, store.StateSucceeded)
	x, err = e.s.Cancel(e.ctx, space, done.ID)
	e.must(err)
	same(e, "cancel leaves a run that has ended as it is", "state", x.State, store.StateSucceeded)
	if _, err := e.s.Cancel(e.ctx, space, store.NewID(tick)); !errors.Is(err, store.ErrNotFound) {
		e.broken("cancel of what does not exist is ErrNotFound", "got %v", err)
	}
}

func reviveCases(e *env) {
	const rule = "revive makes the skipped(degraded) ticks among the latest Limit at or after Since pending again, once"
	tick := e.register("report", "other")
	for i := range store.Millis(6) {
		c := cron("report", tick+i)
		c.Skip = store.ReasonDegraded
		if i == 4 {
			c.Skip = store.ReasonOverlap
		}
		o := cron("other", tick+i)
		o.Skip = store.ReasonDegraded
		e.claim(long, c, o)
	}
	revive := func(since store.Millis, limit, want int) {
		e.Helper()
		n, err := e.s.Revive(e.ctx, store.ReviveRequest{Namespace: space, Job: "report", Since: since, Limit: limit})
		e.must(err)
		same(e, rule, "rows revived", n, want)
	}
	revive(tick+1, 2, 2)
	revive(tick+1, 2, 0)
	for i, want := range []store.State{
		store.StateSkipped, store.StateSkipped, store.StateSkipped, store.StatePending, store.StateSkipped, store.StatePending,
	} {
		x, err := e.s.Find(e.ctx, space, cronKey("report", tick+store.Millis(i)))
		e.must(err)
		same(e, rule, fmt.Sprint("state of tick ", i), x.State, want)
		if want == store.StatePending && x.Finished != 0 {
			e.broken(rule, "a pending row has an end: %s", x.Finished)
		}
	}
	revive(tick+1, 10, 2)
	x, err := e.s.Find(e.ctx, space, cronKey("report", tick))
	e.must(err)
	same(e, rule, "state before Since", x.State, store.StateSkipped)
	e.until(tick + 6)
	for range 4 {
		x := one(e, e.fetch(long, 9, "report").Runs)
		same(e, "a revived tick runs as attempt 1", "attempt", x.Attempt, 1)
		e.end(x, store.StateSucceeded)
	}
	same(e, "the rows of another job stay", "rows fetched", len(e.fetch(long, 9, "report", "other").Runs), 0)
	revive(tick+1, 2, 0)
}

func reviveOrder(e *env) {
	const rule = "revived ticks are due at their ticks, so that the oldest runs first, whatever their IDs"
	tick := e.register("report")
	e.until(tick + 10)
	for _, i := range []store.Millis{3, 1, 4, 0, 2} {
		c := free("report", tick+i)
		c.ID, c.Skip = store.NewID(tick-i), store.ReasonDegraded
		e.claim(long, c)
	}
	_, err := e.s.Revive(e.ctx, store.ReviveRequest{Namespace: space, Job: "report", Since: tick, Limit: 10})
	e.must(err)
	for i := range store.Millis(5) {
		x := one(e, e.fetch(long, 1, "report").Runs)
		same(e, rule, "tick", x.Key.Tick, tick+i)
		same(e, rule, "due", x.RunAt, x.Key.Tick)
	}
}
