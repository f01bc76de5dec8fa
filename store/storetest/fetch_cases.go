package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/solotick/solotick/store"
)

var fetchCases = []suiteCase{
	{"enqueue/pending row", enqueuePending},
	{"enqueue/one of many wins", enqueueRace},
	{"fetch/claims a row", fetchClaims},
	{"fetch/order", fetchOrder},
	{"fetch/limit and more", fetchLimit},
	{"fetch/not before its time", fetchNotBefore},
	{"fetch/one per lock key, in order", fetchLockKey},
	{"fetch/other lock keys go on", fetchOtherLocks},
	{"fetch/paused", fetchPaused},
	{"fetch/several handles share the rows", fetchRace},
	{"fetch/buffered ticks run one by one", fetchBuffered},
}

func enqueuePending(e *env) {
	const rule = "enqueue inserts a pending row, due at RunAt (the store's time by default) + Delay; the same key again is a duplicate"
	before := e.now()
	plain, at, delayed := row(queueKey("mail", "plain")), row(queueKey("mail", "at")), row(queueKey("mail", "delayed"))
	at.RunAt = before.Add(time.Hour)
	delayed.RunAt, delayed.Delay = before.Add(time.Hour), time.Minute
	own := row(queueKey("mail", "own"))
	own.ID = store.ID{}
	got := e.enqueue(plain, at, delayed, own)
	after := e.now()
	for i, q := range got {
		same(e, rule, "outcome", q.Outcome, store.OutcomeEnqueued)
		same(e, rule, "state", q.Execution.State, store.StatePending)
		same(e, rule, "attempt", q.Execution.Attempt, 0)
		if q.Execution.ID == (store.ID{}) {
			e.broken("the zero ID lets the store make one", "row %d has none", i)
		}
	}
	if r := got[0].Execution.RunAt; r < before || r > after {
		e.broken(rule, "due at %s, enqueued between %s and %s", r, before, after)
	}
	same(e, rule, "RunAt", got[1].Execution.RunAt, at.RunAt)
	same(e, rule, "RunAt + Delay", got[2].Execution.RunAt, delayed.RunAt.Add(time.Minute))
	rival := row(plain.Key)
	again := e.enqueue(rival, row(queueKey("mail", "new")))
	same(e, rule, "same key", again[0].Outcome, store.OutcomeDuplicate)
	same(e, rule, "row that was there", again[0].Execution.ID, plain.ID)
	same(e, rule, "new key beside a duplicate", again[1].Outcome, store.OutcomeEnqueued)
	same(e, rule, "an empty request", len(e.enqueue()), 0)
}

func enqueueRace(e *env) {
	const rule = "one row per run key: of all that enqueue a key one is told enqueued"
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	outcomes := make(chan store.Outcome)
	for i := range 24 {
		go func() {
			// The neighbours differ in their order, which must not end in a deadlock.
			rows := []store.NewExecution{row(queueKey("mail", "x")), row(queueKey("mail", "y"))}
			if i%2 == 1 {
				slices.Reverse(rows)
			}
			q, err := handles[i%len(handles)].Enqueue(e.ctx, space, rows)
			if err != nil {
				e.Errorf("enqueue: %v", err)
				q = make([]store.Enqueued, 2)
			}
			outcomes <- q[0].Outcome
			outcomes <- q[1].Outcome
		}()
	}
	count := map[store.Outcome]int{}
	for range 48 {
		count[<-outcomes]++
	}
	same(e, rule, "enqueued", count[store.OutcomeEnqueued], 2)
	same(e, rule, "duplicate", count[store.OutcomeDuplicate], 46)
}

func fetchClaims(e *env) {
	const rule = "a fetched row is running, the caller's, a new attempt with a lease"
	e.register("mail", "other")
	e.enqueue(row(queueKey("mail", "1")), row(queueKey("other", "1")))
	before := e.now()
	f := e.fetch(long, 10, "mail")
	after := e.now()
	x := one(e, f.Runs)
	same(e, "fetch gives rows of the jobs asked for", "job", x.Key.Job, "mail")
	same(e, rule, "state", x.State, store.StateRunning)
	same(e, rule, "attempt", x.Attempt, 1)
	same(e, rule, "owner", x.Owner, e.owner)
	same(e, rule, "owner label", x.OwnerLabel, "host:1")
	if x.LeaseUntil < before.Add(long) || x.LeaseUntil > after.Add(long) || x.Started < before || x.Started > after {
		e.broken(rule, "started %s, lease until %s: fetched between %s and %s for %v", x.Started, x.LeaseUntil, before, after, long)
	}
	same(e, rule, "what Get says", refOf(e.get(x.ID)), x.Ref())
	same(e, rule, "fetched again", len(e.fetch(long, 10, "mail").Runs), 0)
	same(e, "More is false when no row is due", "more", e.fetch(long, 10, "mail").More, false)

	const retry = "a retry waits for its delay, is fetched as the next attempt, and remembers its error"
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StatePending, ErrorCode: "timeout", ErrorText: "too slow"}))
	y := one(e, e.fetch(long, 10, "mail").Runs)
	same(e, retry, "row", y.ID, x.ID)
	same(e, retry, "attempt", y.Attempt, 2)
	same(e, retry, "error of the last attempt", y.ErrorCode+": "+y.ErrorText, "timeout: too slow")
}

func fetchOrder(e *env) {
	const rule = "fetch goes by priority, then RunAt, then ID"
	e.register("mail")
	at := e.now() - 1000
	add := func(name string, priority int, runAt store.Millis, id byte) store.NewExecution {
		n := row(queueKey("mail", name))
		n.Priority, n.RunAt, n.ID = priority, runAt, store.ID{15: id}
		return n
	}
	e.enqueue(add("f", 5, at, 3), add("e", 0, at+2, 9), add("c", 0, at+1, 7), add("d", 0, at+1, 8), add("b", 0, at, 250), add("a", -1, at+9, 99))
	runs := e.fetch(long, 10, "mail").Runs
	var got []string
	for _, r := range runs {
		got = append(got, r.Key.Name)
	}
	if !slices.Equal(got, []string{"a", "b", "c", "d", "e", "f"}) {
		e.broken(rule, "got %v", got)
	}
}

func fetchLimit(e *env) {
	const rule = "a fetch takes the first Limit rows and says whether there are more"
	e.register("mail")
	at := e.now() - 1000
	var rows []store.NewExecution
	for i := range 7 {
		n := row(queueKey("mail", fmt.Sprint(i)))
		n.RunAt = at + store.Millis(i)
		rows = append(rows, n)
	}
	e.enqueue(rows...)
	next := 0
	for _, want := range []int{3, 3, 1} {
		f := e.fetch(long, 3, "mail")
		same(e, rule, "rows", len(f.Runs), want)
		for _, r := range f.Runs {
			same(e, rule, "row", r.Key.Name, fmt.Sprint(next))
			next++
		}
		if next < 7 {
			same(e, rule, "more", f.More, true)
		} else {
			same(e, rule, "more", f.More, false)
		}
	}
}

func fetchNotBefore(e *env) {
	const rule = "a row is not fetched before its RunAt, by the store's clock"
	e.register("mail")
	n := row(queueKey("mail", "soon"))
	n.Delay = brief
	far := row(queueKey("mail", "far"))
	far.Delay = time.Hour
	soon := e.enqueue(n, far)[0].Execution
	for {
		f := e.fetch(long, 10, "mail")
		if len(f.Runs) > 0 {
			for _, x := range f.Runs {
				if x.ID != soon.ID || f.Now < soon.RunAt {
					e.broken(rule, "%s was fetched at %s, due at %s", x.Key, f.Now, x.RunAt)
				}
			}
			break
		}
		if f.Now > soon.RunAt {
			e.broken("a row that is due is fetched", "not fetched at %s, due at %s", f.Now, soon.RunAt)
			break
		}
		e.until(f.Now)
	}
	same(e, rule, "rows left", len(e.fetch(long, 10, "mail").Runs), 0)
}

const onePerLock = "runs of one lock key exclude each other and keep their order"

func fetchLockKey(e *env) {
	e.register("mail", "sms")
	at := e.now() - 1000
	for i, n := range []store.NewExecution{keyed("mail", "a1", "ann"), keyed("mail", "a2", "ann"), keyed("mail", "b1", "bob"), keyed("mail", "a3", "ann"), keyed("sms", "s1", "ann")} {
		n.RunAt = at + store.Millis(i)
		e.enqueue(n)
	}
	fetched := func(want ...string) []store.Execution {
		e.Helper()
		f := e.fetch(long, 10, "mail", "sms")
		got := make([]string, len(f.Runs))
		for i, r := range f.Runs {
			got[i] = r.Key.Name
		}
		if !slices.Equal(got, want) {
			e.broken(onePerLock, "fetched %v, want %v", got, want)
			e.FailNow()
		}
		return f.Runs
	}
	first := fetched("a1", "b1", "s1")
	fetched()
	e.end(first[0], store.StateSucceeded)
	second := fetched("a2")
	e.end(second[0], store.StateFailed)
	fetched("a3")
}

func fetchOtherLocks(e *env) {
	const rule = "rows that wait for their lock key do not hide others from a fetch with a small limit"
	e.register("mail")
	at := e.now() - 10000
	var rows []store.NewExecution
	for i := range 60 {
		n := keyed("mail", fmt.Sprint("a", i), "ann")
		n.RunAt = at + store.Millis(i)
		rows = append(rows, n)
	}
	last := keyed("mail", "b", "bob")
	last.RunAt = at + 1000
	e.enqueue(append(rows, last)...)
	same(e, onePerLock, "first", one(e, e.fetch(long, 1, "mail").Runs).Key.Name, "a0")
	same(e, rule, "second", one(e, e.fetch(long, 1, "mail").Runs).Key.Name, "b")
}

func fetchPaused(e *env) {
	const rule = "fetch passes over the rows of a paused job, but for class manual"
	e.register("mail", "sms")
	manual := row(store.Key{Class: store.ClassManual, Job: "mail", Request: "r"})
	e.enqueue(row(queueKey("mail", "1")), manual, row(queueKey("sms", "1")))
	_, err := e.s.SetPause(e.ctx, store.Pause{Namespace: space, Job: "mail"})
	e.must(err)
	runs := e.fetch(long, 10, "mail", "sms").Runs
	if len(runs) != 2 || !slices.ContainsFunc(runs, func(r store.Execution) bool { return r.ID == manual.ID }) {
		e.broken(rule, "fetched %v, want the manual run and sms/1", names(runs))
	}
	_, err = e.s.SetPause(e.ctx, store.Pause{Namespace: space, Job: "mail", Off: true})
	e.must(err)
	same(e, "a resumed job's rows are fetched", "row", one(e, e.fetch(long, 10, "mail", "sms").Runs).Key.Name, "1")
}

func fetchRace(e *env) {
	const rule = "every due row is fetched by one caller, whatever the number of callers"
	const total, callers = 120, 6
	e.register("mail")
	rows := make([]store.NewExecution, total)
	for i := range rows {
		rows[i] = row(queueKey("mail", fmt.Sprint(i)))
	}
	e.enqueue(rows...)
	answers := make(chan []store.Execution)
	for i := range callers {
		s := e.s
		if i > 0 {
			s = e.h.Open(e)
		}
		go func() {
			var mine []store.Execution
			for {
				r := e.work(long, 7, "mail")
				r.Owner = store.Owner{1, byte(i)}
				f, err := s.Fetch(e.ctx, r)
				if err != nil {
					e.Errorf("fetch: %v", err)
					break
				}
				mine = append(mine, f.Runs...)
				if len(f.Runs) == 0 && !f.More {
					break
				}
			}
			answers <- mine
		}()
	}
	seen := map[store.ID]bool{}
	for range callers {
		for _, r := range <-answers {
			if seen[r.ID] {
				e.broken(rule, "%s was fetched twice", r.Key)
			}
			seen[r.ID] = true
		}
	}
	for _, r := range e.fetch(long, total, "mail").Runs {
		seen[r.ID] = true
	}
	same(e, rule, "rows fetched", len(seen), total)
}

func fetchBuffered(e *env) {
	const rule = "buffered ticks of one active key run one at a time, oldest first"
	tick := e.register("report")
	x := e.start(long, cron("report", tick))
	for i := range store.Millis(3) {
		c := cron("report", tick+1+i)
		c.Busy, c.RunAt = store.BusyBuffer, tick+1+i
		same(e, rule, "outcome", e.claim(long, c)[0].Outcome, store.OutcomeBusy)
	}
	e.until(tick + 5)
	for i := range store.Millis(3) {
		same(e, rule, "rows fetched while one runs", len(e.fetch(long, 5, "report").Runs), 0)
		e.end(x, store.StateSucceeded)
		x = one(e, e.fetch(long, 5, "report").Runs)
		same(e, rule, "tick", x.Key.Tick, tick+1+i)
	}
}
