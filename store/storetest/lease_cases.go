package storetest

import (
	"fmt"
	"time"

	"github.com/solotick/solotick/store"
)

var leaseCases = []suiteCase{
	{"heartbeat/answers", heartbeatAnswers},
	{"heartbeat/renews", heartbeatRenews},
	{"heartbeat/attempt and owner", heartbeatGuard},
	{"takeover/not before the lease ends", takeOverNotBefore},
	{"takeover/a new attempt", takeOverAttempt},
	{"takeover/one of many", takeOverRace},
	{"takeover/crash policies", crashPolicies},
	{"takeover/the stricter policy", stricterPolicy},
	{"takeover/attempt cap", poison},
	{"takeover/asked to end", takeOverAsked},
	{"takeover/jobs, limit, more", takeOverLimit},
}

func beatOf(x store.Execution) store.Beat { return store.Beat{ID: x.ID, Attempt: x.Attempt} }

func heartbeatAnswers(e *env) {
	const rule = "a heartbeat answers each beat, in order: renewed, lost, or asked to cancel"
	tick := e.register("report")
	a, b, c := e.start(long, free("report", tick)), e.start(long, free("report", tick+1)), e.start(long, free("report", tick+2))
	e.end(b, store.StateSucceeded)
	_, err := e.s.Cancel(e.ctx, space, c.ID)
	e.must(err)
	strange := store.Beat{ID: store.NewID(tick), Attempt: 1}
	got := e.beat(e.owner, long, strange, beatOf(c), beatOf(b), beatOf(a))
	want := []store.BeatAnswer{{Lost: true}, {CancelRequested: true}, {Lost: true}, {}}
	for i := range want {
		same(e, rule, fmt.Sprint("beat ", i), got[i], want[i])
	}
	same(e, rule, "an empty request", len(e.beat(e.owner, long)), 0)
	other, err := e.s.Heartbeat(e.ctx, store.HeartbeatRequest{Namespace: "elsewhere", Owner: e.owner, Lease: long, Beats: []store.Beat{beatOf(a)}})
	e.must(err)
	same(e, "namespaces are apart", "beat from another namespace", other.Beats[0].Lost, true)
}

func heartbeatRenews(e *env) {
	const rule = "a heartbeat starts the lease anew, by the store's clock"
	tick := e.register("report")
	x := e.start(brief, free("report", tick))
	before := e.now()
	e.beat(e.owner, long, beatOf(x))
	after := e.now()
	y := e.get(x.ID)
	if y.LeaseUntil < before.Add(long) || y.LeaseUntil > after.Add(long) {
		e.broken(rule, "lease until %s, renewed between %s and %s for %v", y.LeaseUntil, before, after, long)
	}
	if y.Version <= x.Version {
		e.broken("version rises with every change", "%d after a heartbeat, was %d", y.Version, x.Version)
	}
	e.until(x.LeaseUntil)
	same(e, "a run whose lease was renewed is not taken over", "rows", len(e.takeOver(long, 5, "report").Runs), 0)
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StateSucceeded}))

	// The lease ended, but nobody else has the run: it is the owner's still.
	late := e.start(brief, free("report", e.now()))
	e.until(late.LeaseUntil)
	same(e, "a late heartbeat renews what nobody has taken over", "lost", e.beat(e.owner, long, beatOf(late))[0].Lost, false)
	same(e, "a late heartbeat renews what nobody has taken over", "rows taken", len(e.takeOver(long, 5, "report").Runs), 0)
}

func heartbeatGuard(e *env) {
	const rule = "a heartbeat renews the attempt and owner that hold the row, no other"
	tick := e.register("report")
	x := e.start(brief, free("report", tick))
	rival := store.NewOwner()
	same(e, rule, "another owner's beat", e.beat(rival, long, beatOf(x))[0].Lost, true)
	same(e, rule, "lease after another owner's beat", e.get(x.ID).LeaseUntil, x.LeaseUntil)
	e.until(x.LeaseUntil)
	y := one(e, e.takeOver(long, 1, "report").Runs) // the same owner holds attempt 2
	got := e.beat(e.owner, 2*long, beatOf(x), beatOf(y))
	same(e, rule, "a beat of attempt 1 while its owner holds attempt 2", got[0].Lost, true)
	same(e, rule, "a beat of attempt 2", got[1].Lost, false)
	same(e, rule, "a beat of attempt 3", e.beat(e.owner, long, store.Beat{ID: x.ID, Attempt: 3})[0].Lost, true)
	e.must(e.finish(store.Finish{Ref: y.Ref(), State: store.StatePending}))
	same(e, rule, "a beat while the retry waits", e.beat(e.owner, long, beatOf(y))[0].Lost, true)
	same(e, rule, "lease while the retry waits", e.get(x.ID).LeaseUntil, 0)
}

func takeOverNotBefore(e *env) {
	const rule = "a run is taken over only after its lease has ended, by the store's clock"
	tick := e.register("report")
	x := e.start(brief, free("report", tick))
	y := e.start(long, free("report", tick+1))
	for {
		t := e.takeOver(long, 10, "report")
		for _, r := range t.Runs {
			if r.ID == y.ID || t.Now <= x.LeaseUntil {
				e.broken(rule, "%s was taken over at %s; leases end at %s and %s", r.Key, t.Now, x.LeaseUntil, y.LeaseUntil)
				return
			}
		}
		if len(t.Runs) == 1 {
			break
		}
		if t.Now > x.LeaseUntil {
			e.broken("a run whose lease has ended is taken over", "not at %s, lease ended at %s", t.Now, x.LeaseUntil)
			return
		}
		e.until(t.Now)
	}
	same(e, rule, "rows taken again", len(e.takeOver(long, 10, "report").Runs), 0)
}

func takeOverAttempt(e *env) {
	const rule = "a takeover is a new attempt of the same run by a new owner, with a fresh lease and fence"
	tick := e.register("report")
	c := cron("report", tick)
	c.Args, c.Mode = []byte("input"), store.ModeStoreOnly
	x := e.start(brief, c)
	e.until(x.LeaseUntil)
	dead := e.owner
	e.owner = store.NewOwner()
	before := e.now()
	y := one(e, e.takeOver(long, 5, "report").Runs)
	after := e.now()
	same(e, rule, "row", y.ID, x.ID)
	same(e, rule, "key", y.Key, x.Key)
	same(e, rule, "state", y.State, store.StateRunning)
	same(e, rule, "attempt", y.Attempt, 2)
	same(e, rule, "owner", y.Owner, e.owner)
	same(e, rule, "args", string(y.Args), "input")
	if y.Fence <= x.Fence {
		e.broken(fencesRise, "takeover drew %d after %d", y.Fence, x.Fence)
	}
	if y.LeaseUntil < before.Add(long) || y.LeaseUntil > after.Add(long) {
		e.broken(rule, "lease until %s, taken over between %s and %s for %v", y.LeaseUntil, before, after, long)
	}
	same(e, "the dead owner has lost the row", "its beat", e.beat(dead, long, beatOf(x))[0].Lost, true)
	same(e, rule, "what Get says", refOf(e.get(x.ID)), y.Ref())
}

func takeOverRace(e *env) {
	const rule = "a run whose owner died is taken over once"
	tick := e.register("report")
	const dead = 5
	last := store.Millis(0)
	for i := range store.Millis(dead) {
		last = e.start(brief, free("report", tick+i)).LeaseUntil
	}
	e.until(last)
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	answers := make(chan []store.Execution)
	for i := range 9 {
		go func() {
			r := e.work(long, 3, "report")
			r.Owner = store.NewOwner()
			t, err := handles[i%len(handles)].TakeOver(e.ctx, r)
			if err != nil {
				e.Errorf("takeover: %v", err)
			}
			answers <- t.Runs
		}()
	}
	seen := map[store.ID]int{}
	for range 9 {
		for _, r := range <-answers {
			seen[r.ID]++
			same(e, rule, "attempt", r.Attempt, 2)
		}
	}
	for _, r := range e.takeOver(long, 10, "report").Runs {
		seen[r.ID]++
	}
	for id, n := range seen {
		if n != 1 {
			e.broken(rule, "%s was taken over %d times", id, n)
		}
	}
	same(e, "every run whose owner died is taken over", "rows", len(seen), dead)
}

func crashPolicies(e *env) {
	const rule = "a run whose owner died is settled by its crash policy"
	tick := e.register("report")
	want := map[store.OnCrash]store.State{
		store.CrashFail: store.StateFailed, store.CrashNextTick: store.StateMissed, store.CrashIndeterminate: store.StateIndeterminate,
	}
	last := store.Millis(0)
	rows := map[store.ID]store.Execution{}
	for policy := range want {
		c := free("report", tick+store.Millis(policy))
		// The policy speaks before the cap: an effect that may have happened stays
		// indeterminate.
		c.OnCrash, c.MaxAttempts = policy, 1
		x := e.start(brief, c)
		rows[x.ID] = x
		last = max(last, x.LeaseUntil)
	}
	e.until(last)
	t := e.takeOver(long, 10, "report")
	same(e, rule, "rows handed over", len(t.Runs), 0)
	same(e, rule, "rows settled", len(t.Settled), len(want))
	for _, x := range t.Settled {
		stored := e.get(x.ID)
		for _, y := range []store.Execution{x, stored} {
			same(e, rule, "state", y.State, want[y.OnCrash])
			same(e, rule, "reason", y.Reason, store.ReasonLost)
			same(e, rule, "attempt", y.Attempt, 1)
			if y.Finished == 0 || y.LeaseUntil != 0 {
				e.broken(rule, "finished %d, lease until %d", y.Finished, y.LeaseUntil)
			}
		}
		was := rows[x.ID]
		if err := e.finish(store.Finish{Ref: was.Ref(), State: want[x.OnCrash]}); err == nil {
			e.broken(finishGuard, "the dead owner finished %v what its crash policy had settled", x.State)
		}
	}
	same(e, "nothing reruns what a crash policy settled", "rows", len(e.takeOver(long, 10, "report").Settled), 0)
}

func stricterPolicy(e *env) {
	const rule = "of the crash policies of a run and its job the stricter counts"
	all := []store.OnCrash{store.CrashRerun, store.CrashFail, store.CrashNextTick, store.CrashIndeterminate}
	policies := map[string]store.OnCrash{}
	var jobs []string
	for i, p := range all {
		jobs = append(jobs, fmt.Sprint("job ", i))
		policies[jobs[i]] = p
	}
	jobs = append(jobs, "nobody's") // without a policy: the row's own counts
	e.register(jobs...)
	last, owners := store.Millis(0), map[store.ID]store.Execution{}
	for _, job := range jobs {
		for i, own := range all {
			n := row(queueKey(job, fmt.Sprint(i)))
			n.OnCrash = own
			e.enqueue(n)
		}
		for _, x := range e.fetch(brief, 10, job).Runs {
			owners[x.ID] = x
			last = max(last, x.LeaseUntil)
		}
	}
	e.until(last)
	r := e.work(long, 100, jobs...)
	r.OnCrash = policies
	t, err := e.s.TakeOver(e.ctx, r)
	e.must(err)
	same(e, rule, "rows dealt with", len(t.Runs)+len(t.Settled), len(all)*len(jobs))
	again := map[store.ID]bool{}
	for _, x := range t.Runs {
		again[x.ID] = true
	}
	for _, was := range owners {
		x := e.get(was.ID)
		stricter := max(was.OnCrash, policies[was.Key.Job])
		want, why := map[store.OnCrash]store.State{
			store.CrashRerun: store.StateRunning, store.CrashFail: store.StateFailed, store.CrashNextTick: store.StateMissed, store.CrashIndeterminate: store.StateIndeterminate,
		}[stricter], store.ReasonLost
		if stricter == store.CrashRerun {
			why = store.ReasonNone
		}
		what := fmt.Sprintf("%s, own policy %d: ", was.Key, was.OnCrash)
		same(e, rule, what+"state and reason", fmt.Sprint(x.State, x.Reason), fmt.Sprint(want, why))
		same(e, rule, what+"handed over", again[x.ID], stricter == store.CrashRerun)
		same(e, rule, what+"policy that the row keeps", x.OnCrash, was.OnCrash)
	}
}

func poison(e *env) {
	const rule = "a run whose lease was lost on every attempt allowed becomes failed(poison)"
	tick := e.register("report")
	c := cron("report", tick)
	c.MaxAttempts = 3
	x := e.start(brief, c)
	for attempt := 2; attempt <= 3; attempt++ {
		e.until(x.LeaseUntil)
		x = one(e, e.takeOver(brief, 5, "report").Runs)
		same(e, rule, "attempt", x.Attempt, attempt)
	}
	e.until(x.LeaseUntil)
	t := e.takeOver(brief, 5, "report")
	same(e, rule, "rows handed over", len(t.Runs), 0)
	y := one(e, t.Settled)
	same(e, rule, "state", y.State, store.StateFailed)
	same(e, rule, "reason", y.Reason, store.ReasonPoison)
	same(e, rule, "attempts", y.Attempt, 3)
	same(e, rule, "state that Get says", e.get(x.ID).State, store.StateFailed)
	if e.finish(store.Finish{Ref: x.Ref(), State: store.StateFailed}) == nil {
		e.broken(finishGuard, "the dead owner finished what the cap had settled")
	}
}

func takeOverAsked(e *env) {
	tick := e.register("report")
	var rows []store.Execution
	for i, c := range []store.ClaimRun{cron("report", tick), free("report", tick+1), free("report", tick+2), free("report", tick+3)} {
		if i == 1 {
			c.OnCrash = store.CrashIndeterminate // what may have happened stays so
		}
		c.MaxAttempts = i % 3 // 2: used up
		x := e.start(brief, c)
		rows = append(rows, x)
		if i == 3 {
			break // which nobody asked
		}
		_, err := e.s.Cancel(e.ctx, space, x.ID)
		e.must(err)
	}
	e.until(rows[3].LeaseUntil)
	dead := e.owner
	e.owner = store.NewOwner()
	t := e.takeOver(long, 10, "report")
	same(e, askedToEnd, "rows handed over", fmt.Sprint(names(t.Runs)), fmt.Sprint(names(rows[3:])))
	same(e, askedToEnd, "rows settled", len(t.Settled), 3)
	for i, want := range []store.State{store.StateCanceled, store.StateIndeterminate, store.StateCanceled} {
		x := e.get(rows[i].ID)
		same(e, askedToEnd, fmt.Sprint("state and reason ", i), fmt.Sprint(x.State, x.Reason), fmt.Sprint(want, store.ReasonLost))
		same(e, askedToEnd, fmt.Sprint("answer ", i), t.Settled[i].State, want)
		same(e, askedToEnd, fmt.Sprint("attempt and lease ", i), fmt.Sprint(x.Attempt, x.LeaseUntil), fmt.Sprint(1, store.Millis(0)))
		for _, st := range []store.State{store.StateCanceled, store.StatePending, store.StateSucceeded} {
			ref := rows[i].Ref()
			ref.Owner = dead
			e.fenced("the dead owner, as "+st.String(), store.Finish{Ref: ref, State: st})
		}
	}
	refuse := cron("report", tick+4)
	refuse.Busy = store.BusyRefuse
	same(e, askedToEnd, "claim of its active key", e.claim(long, refuse)[0].Outcome, store.OutcomeStarted)
}

func takeOverLimit(e *env) {
	const rule = "a takeover deals with at most Limit rows of the jobs asked for, and says whether there are more"
	tick := e.register("report", "other")
	last := e.start(brief, free("other", tick)).LeaseUntil
	for i := range store.Millis(5) {
		last = e.start(brief, free("report", tick+i)).LeaseUntil
	}
	e.until(last)
	seen := map[store.ID]bool{}
	for len(seen) < 5 {
		t := e.takeOver(time.Hour, 2, "report")
		if len(t.Runs) == 0 || len(t.Runs) > 2 {
			e.broken(rule, "%d rows, %d of 5 so far", len(t.Runs), len(seen))
			return
		}
		for _, r := range t.Runs {
			seen[r.ID] = true
			same(e, rule, "job", r.Key.Job, "report")
		}
		if len(seen) < 5 && !t.More {
			e.broken(rule, "more is false with %d of 5 taken", len(seen))
		}
	}
	t := e.takeOver(time.Hour, 2, "report")
	if len(t.Runs) != 0 || t.More {
		e.broken(rule, "%d rows, more %v: all 5 were taken", len(t.Runs), t.More)
	}
}
