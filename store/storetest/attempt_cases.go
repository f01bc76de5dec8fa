package storetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/solotick/solotick/store"
)

var attemptCases = []suiteCase{
	{"attempts/history", attemptHistory},
	{"attempts/taken back", attemptTakenBack},
	{"attempts/taken over", attemptTakenOver},
	{"retry/what ended", retryEnded},
	{"retry/attempt cap", retryCap},
	{"retry/refused", retryRefused},
	{"retry/repeat", retryRepeat},
}

const keptAttempts = "an attempt that ended without ending its run is kept, with who, when and why, and only such"

func (e *env) attempts(id store.ID) []store.Attempt {
	e.Helper()
	list, err := e.s.Attempts(e.ctx, space, id)
	e.must(err)
	return list
}

func (e *env) retry(id store.ID, by string) store.Execution {
	e.Helper()
	x, err := e.s.Retry(e.ctx, space, id, by)
	e.must(err)
	return x
}

func only(e *env, list []store.Attempt) store.Attempt {
	e.Helper()
	if len(list) != 1 {
		e.Fatalf("broken rule: "+keptAttempts+"\n\t%d are kept, want 1: %+v", len(list), list)
	}
	return list[0]
}

// ends tells the attempts in short.
func ends(list []store.Attempt) string {
	var out strings.Builder
	for _, a := range list {
		fmt.Fprint(&out, a.Number, " ", a.End, " ")
	}
	return out.String()
}

// again fetches the one row that waits.
func (e *env) again(job string) store.Execution {
	e.Helper()
	return one(e, e.fetch(long, 1, job).Runs)
}

func attemptHistory(e *env) {
	e.register("mail")
	n := row(queueKey("mail", "1"))
	n.Mode = store.ModeStoreOnly
	e.enqueue(n)
	same(e, keptAttempts, "before the first", len(e.attempts(n.ID)), 0)
	x := e.again("mail")
	before := e.now()
	const text = "no route “ü”"
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, ErrorCode: "net", ErrorText: text}))
	after := e.now()
	first := only(e, e.attempts(n.ID))
	same(e, keptAttempts, "attempt", ends([]store.Attempt{first}), "1 retry ")
	same(e, keptAttempts, "owner", first.OwnerLabel, "host:1")
	same(e, keptAttempts, "start", first.Started, x.Started)
	same(e, keptAttempts, "error", first.ErrorCode+first.ErrorText, "net"+text)
	same(e, keptAttempts, "fence", first.Fence, x.Fence)
	same(e, keptAttempts, "mode", first.Mode, store.ModeStoreOnly)
	if first.Ended < before || first.Ended > after {
		e.broken(keptAttempts, "ended at %s: finished between %s and %s", first.Ended, before, after)
	}
	y := e.again("mail")
	e.must(e.finish(store.Finish{Ref: y.Ref(), State: store.StatePending, ErrorText: "two"}))
	e.must(e.finish(store.Finish{Ref: y.Ref(), State: store.StatePending, ErrorText: "two"})) // a repeat
	if err := e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending}); !errors.Is(err, store.ErrFenced) {
		e.broken(finishGuard, "finish of attempt 1 while attempt 3 waits: %v", err)
	}
	z := e.again("mail")
	same(e, keptAttempts, "attempts while the third runs", ends(e.attempts(n.ID)), "1 retry 2 retry ")
	e.end(z, store.StateSucceeded)
	got := e.attempts(n.ID)
	same(e, keptAttempts, "attempts of a run that succeeded", ends(got), "1 retry 2 retry ")
	same(e, keptAttempts, "the first, later", got[0], first)
	same(e, keptAttempts, "error of the second", got[1].ErrorText, "two")
	if _, err := e.s.Attempts(e.ctx, "elsewhere", n.ID); !errors.Is(err, store.ErrNotFound) {
		e.broken("namespaces share nothing", "attempts by another namespace: %v, want ErrNotFound", err)
	}
	if _, err := e.s.Attempts(e.ctx, space, store.NewID(1)); !errors.Is(err, store.ErrNotFound) {
		e.broken(keptAttempts, "attempts of no execution: %v, want ErrNotFound", err)
	}
}

func attemptTakenBack(e *env) {
	e.register("mail")
	n := row(queueKey("mail", "1"))
	e.enqueue(n)
	back := func() {
		e.Helper()
		x := e.again("mail")
		e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, Unstarted: true}))
	}
	back()
	same(e, keptAttempts, "after one that was taken back", ends(e.attempts(n.ID)), "")
	x := e.again("mail")
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, ErrorText: "first"}))
	back()
	got := only(e, e.attempts(n.ID))
	same(e, keptAttempts, "the one that failed", got.ErrorText, "first")
	x = e.again("mail")
	same(e, keptAttempts, "number of the next", x.Attempt, 2)
}

func attemptTakenOver(e *env) {
	tick := e.register("report")
	x := e.start(brief, cron("report", tick))
	y := e.start(brief, free("report", tick+1))
	e.until(max(x.LeaseUntil, y.LeaseUntil))
	dead := e.owner
	e.owner = store.NewOwner()
	taken := e.takeOver(brief, 5, "report").Runs
	same(e, keptAttempts, "rows taken over", len(taken), 2)
	got := only(e, e.attempts(x.ID))
	same(e, keptAttempts, "attempt", ends([]store.Attempt{got}), "1 lost ")
	same(e, keptAttempts, "it ended with its lease", got.Ended, x.LeaseUntil)
	same(e, keptAttempts, "start", got.Started, x.Started)
	same(e, keptAttempts, "fence", got.Fence, x.Fence)
	same(e, keptAttempts, "attempts of the other", ends(e.attempts(y.ID)), "1 lost ")
	if err := e.finish(store.Finish{Ref: store.Ref{Namespace: space, ID: x.ID, Attempt: 1, Owner: dead}, State: store.StatePending}); !errors.Is(err, store.ErrFenced) {
		e.broken(finishGuard, "the dead owner sent back what was taken over: %v", err)
	}
	for _, z := range taken {
		if z.ID == x.ID {
			e.must(e.finish(store.Finish{Ref: z.Ref(), State: store.StatePending, ErrorText: "e"}))
		}
	}
	list := e.attempts(x.ID)
	same(e, keptAttempts, "attempts", ends(list), "1 lost 2 retry ")
	same(e, keptAttempts, "error of the lost one", list[0].ErrorText, "")
}

const retried = "a run that failed, was canceled or is indeterminate runs once more when somebody asks, under a new attempt"

func retryEnded(e *env) {
	tick := e.register("report")
	for i, st := range []store.State{store.StateFailed, store.StateCanceled, store.StateIndeterminate} {
		c := cron("report", tick+store.Millis(i))
		c.Args = []byte("input")
		x := e.start(long, c)
		e.must(e.finish(store.Finish{Ref: x.Ref(), State: st, Reason: store.ReasonLost, ErrorCode: "E", ErrorText: "why"}))
		ended := e.get(x.ID)
		before := e.now()
		y := e.retry(x.ID, "ann")
		after := e.now()
		for how, r := range map[string]store.Execution{"answer": y, "row": e.get(x.ID)} {
			same(e, retried, how+": state after "+st.String(), r.State, store.StatePending)
			same(e, retried, how+": reason", r.Reason, store.ReasonNone)
			same(e, retried, how+": attempt", r.Attempt, 1)
			same(e, retried, how+": end", r.Finished, 0)
			same(e, retried, how+": version", r.Version, ended.Version+1)
			if r.RunAt < before || r.RunAt > after {
				e.broken(retried, "%s: due at %s, asked between %s and %s", how, r.RunAt, before, after)
			}
		}
		a := only(e, e.attempts(x.ID))
		same(e, keptAttempts, "attempt", ends([]store.Attempt{a}), "1 "+st.String()+" ")
		same(e, keptAttempts, "note", a.Note, store.RetryNote("ann"))
		same(e, keptAttempts, "end", a.Ended, ended.Finished)
		same(e, keptAttempts, "error", a.ErrorCode+a.ErrorText+string(a.Reason), "Ewhylost")
		if err := e.finish(store.Finish{Ref: x.Ref(), State: store.StateSucceeded}); !errors.Is(err, store.ErrFenced) {
			e.broken(finishGuard, "attempt 1 finished a run that waits for attempt 2: %v", err)
		}
		z := e.again("report")
		same(e, retried, "attempt that runs", fmt.Sprintf("%v %d %s", z.ID == x.ID, z.Attempt, z.Args), "true 2 input")
		if z.Fence <= x.Fence {
			e.broken(fencesRise, "the retry drew %d after %d", z.Fence, x.Fence)
		}
		same(e, retried, "cancel is forgotten", z.CancelRequested, false)
		e.end(z, store.StateSucceeded)
	}
	// Canceled before its first attempt: there is nothing to keep.
	n := row(queueKey("mail", "1"))
	e.enqueue(n)
	_, err := e.s.Cancel(e.ctx, space, n.ID)
	e.must(err)
	e.retry(n.ID, "ann")
	same(e, keptAttempts, "of a run that had none", len(e.attempts(n.ID)), 0)
	same(e, retried, "attempt", e.again("mail").Attempt, 1)
}

func retryCap(e *env) {
	const rule = "a retry that somebody asks for has an attempt left: the bound rises by one where they are used up"
	e.register("mail")
	for i, c := range []struct{ most, want int }{{1, 2}, {3, 3}} {
		n := row(queueKey("mail", fmt.Sprint(i)))
		n.MaxAttempts = c.most
		e.enqueue(n)
		x := e.again("mail")
		e.end(x, store.StateFailed)
		same(e, rule, "bound", e.retry(x.ID, "").MaxAttempts, c.want)
		x = one(e, e.fetch(brief, 1, "mail").Runs)
		e.until(x.LeaseUntil)
		t := e.takeOver(long, 1, "mail")
		same(e, rule, fmt.Sprintf("rows taken over of attempt 2 of %d", c.want), len(t.Runs), c.want-2)
		for _, y := range t.Runs {
			e.end(y, store.StateSucceeded)
		}
	}
}

func retryRefused(e *env) {
	const rule = "only what failed, was canceled or is indeterminate can be retried"
	tick := e.register("report")
	x := e.start(long, free("report", tick))
	e.end(x, store.StateSucceeded)
	c := free("report", tick+1)
	c.Skip = store.ReasonDegraded
	skipped := e.claim(long, c)[0].Execution
	for _, y := range []store.Execution{e.get(x.ID), skipped} {
		if _, err := e.s.Retry(e.ctx, space, y.ID, "ann"); !errors.Is(err, store.ErrState) {
			e.broken(rule, "retry of what %v: %v, want ErrState", y.State, err)
		}
		same(e, rule, "row afterwards", e.get(y.ID).Version, y.Version)
	}
	for ns, id := range map[string]store.ID{space: store.NewID(1), "elsewhere": x.ID} {
		if _, err := e.s.Retry(e.ctx, ns, id, "ann"); !errors.Is(err, store.ErrNotFound) {
			e.broken(rule, "retry of what does not exist in %q: %v, want ErrNotFound", ns, err)
		}
	}
}

func retryRepeat(e *env) {
	const rule = "a repeat of a retry changes nothing"
	e.register("mail")
	n := row(queueKey("mail", "1"))
	e.enqueue(n)
	e.end(e.again("mail"), store.StateFailed)
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	versions := make(chan int64)
	for i := range 6 {
		go func() {
			x, err := handles[i%3].Retry(e.ctx, space, n.ID, "ann")
			if err != nil {
				e.Errorf("broken rule: "+rule+"\n\tretry: %v", err)
			}
			versions <- x.Version
		}()
	}
	first := <-versions
	for range 5 {
		same(e, rule, "version", <-versions, first)
	}
	same(e, rule, "attempts kept", ends(e.attempts(n.ID)), "1 failed ")
	x := e.again("mail")
	same(e, rule, "answer while it runs", e.retry(n.ID, "ann").State, store.StateRunning)
	e.end(x, store.StateSucceeded)
}
