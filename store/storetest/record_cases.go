package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

var recordCases = []suiteCase{
	{"record/every field", everyField},
	{"record/instants keep their millisecond", instants},
	{"record/large and empty bytes", largeBytes},
	{"record/answers are copies", answersAreCopies},
	{"record/odd names", oddNames},
	{"record/namespaces", namespaces},
	{"list", listCases},
}

const kept = "what is written is read back as it was"

func everyField(e *env) {
	tick := e.register("report")
	full := store.NewExecution{
		ID:          store.NewID(tick),
		Key:         store.Key{Class: store.ClassBackfill, Job: "report", Tick: tick, Shard: 3, Request: "req-1"},
		Queue:       "slow",
		LockKey:     "Ann Bö 日本",
		Active:      store.HashOf("test", "active"),
		Dedup:       store.HashOf("test", "dedup"),
		RunAt:       tick - 1,
		Priority:    -3,
		MaxAttempts: 9,
		OnCrash:     store.CrashIndeterminate,
		Timeout:     90*time.Second + 7*time.Millisecond,
		Mode:        store.ModeLocalMutex,
		Zone:        "America/Argentina/Buenos_Aires",
		SpecHash:    "spec-1",
		Args:        []byte("{\"ü\":\"\x00\xff\"}"),
		MissedCount: 41,
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		CreatedBy:   "cli: ann",
	}
	check := func(how string, x store.Execution) {
		e.Helper()
		got := store.NewExecution{
			ID: x.ID, Key: x.Key, Queue: x.Queue, LockKey: x.LockKey, Active: full.Active, Dedup: full.Dedup, RunAt: x.RunAt,
			Priority: x.Priority, MaxAttempts: x.MaxAttempts, OnCrash: x.OnCrash, Timeout: x.Timeout, Mode: x.Mode, Zone: x.Zone,
			SpecHash: x.SpecHash, Args: x.Args, MissedCount: x.MissedCount, TraceParent: x.TraceParent, CreatedBy: x.CreatedBy,
		}
		if !reflect.DeepEqual(got, full) {
			e.broken(kept, "%s: got  %+v\n\twant %+v", how, got, full)
		}
		same(e, kept, how+": hash of the args", x.ArgsHash, store.HashArgs(full.Args))
		same(e, kept, how+": namespace", x.Namespace, space)
	}
	q := e.enqueue(full)[0]
	check("enqueue", q.Execution)
	same(e, kept, "dedup key", q.Execution.Dedup, full.Dedup)
	check("get", e.get(full.ID))
	found, err := e.s.Find(e.ctx, space, full.Key)
	e.must(err)
	check("find", found)
	listed, err := e.s.List(e.ctx, store.Filter{Namespace: space})
	e.must(err)
	check("list", one(e, listed))
	x := one(e, e.fetch(long, 1, "report").Runs)
	check("fetch", x)
	same(e, kept, "active key", x.Active, full.Active)
	const text = "naïve “error” 日本\nsecond line 'quoted' \\ %s ; -- 🕰"
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StateFailed, Result: []byte{0, 255}, ErrorCode: "E_ü", ErrorText: text}))
	y := e.get(full.ID)
	check("finish", y)
	same(e, kept, "error", y.ErrorCode+y.ErrorText, "E_ü"+text)
	same(e, kept, "owner label", y.OwnerLabel, "host:1")

	full.ID, full.Key.Request = store.NewID(tick), "req-2"
	full.OnCrash = store.CrashRerun
	x = e.start(brief, store.ClaimRun{NewExecution: full})
	check("claim", x)
	e.until(x.LeaseUntil)
	check("takeover", one(e, e.takeOver(long, 1, "report").Runs))
}

func instants(e *env) {
	e.register("report")
	for i, at := range []store.Millis{
		1, 999, 1001,
		store.MillisOf(time.Date(1969, 12, 31, 23, 59, 59, 999e6, time.UTC)),
		store.MillisOf(time.Date(2026, 11, 1, 5, 30, 0, 1e6, time.UTC)), // both 01:30s of a night
		store.MillisOf(time.Date(2026, 11, 1, 6, 30, 0, 1e6, time.UTC)),
		store.MillisOf(time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC)),
	} {
		n := row(store.Key{Class: store.ClassBackfill, Job: "report", Tick: at, Request: "r"})
		n.RunAt = at
		same(e, oneRow, fmt.Sprint("instant ", i), e.enqueue(n)[0].Outcome, store.OutcomeEnqueued)
		x := e.get(n.ID)
		same(e, kept, "tick", x.Key.Tick, at)
		same(e, kept, "run time", x.RunAt, at)
	}
	const clock = "the store's clock does not go back and is one for all handles"
	other := e.h.Open(e)
	last := e.now()
	for range 20 {
		now, err := other.Now(e.ctx)
		e.must(err)
		if now < last {
			e.broken(clock, "%s after %s", now, last)
		}
		last = e.now()
	}
}

func largeBytes(e *env) {
	tick := e.register("report")
	big := bytes.Repeat([]byte{0, 1, 2, 0xfe, '\'', '\\', '"', 0xff}, 1<<16)
	c := free("report", tick)
	c.Args = big
	x := e.start(long, c)
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StateSucceeded, Result: big}))
	y := e.get(x.ID)
	if !bytes.Equal(y.Args, big) || !bytes.Equal(y.Result, big) {
		e.broken(kept, "args have %d bytes, result %d, want %d", len(y.Args), len(y.Result), len(big))
	}
	x = e.start(long, free("report", tick+1))
	e.end(x, store.StateSucceeded)
	y = e.get(x.ID)
	same(e, kept, "bytes where there were none", len(y.Args)+len(y.Result)+len(y.Checkpoint), 0)
	same(e, kept, "hash of no args", y.ArgsHash, store.Hash{})
}

func answersAreCopies(e *env) {
	const rule = "what the caller does with its bytes does not change the record"
	tick := e.register("report")
	c := free("report", tick)
	c.Args = []byte("input")
	x := e.start(long, c)
	c.Args[0], x.Args[0] = '!', '!'
	y := e.get(x.ID)
	same(e, rule, "args", string(y.Args), "input")
	y.Args[0] = '!'
	result := []byte("output")
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: store.StateSucceeded, Result: result}))
	result[0] = '!'
	y = e.get(x.ID)
	same(e, rule, "args and result", string(y.Args)+" "+string(y.Result), "input output")
	st := e.state("report")
	st.Revisions[0].Hash = "changed"
	same(e, rule, "revision", e.state("report").Current().Hash, "spec-1")
}

func oddNames(e *env) {
	const rule = "names that differ in one byte are different names"
	odd := []string{
		"job", "Job", "JOB", "job ", " job", "job\t", "résumé", "resume", "re\u0301sume\u0301", "ß", "ss", "日本", "a/b", "a%", "a_", "ab",
		"'; DROP TABLE x; --", `"`, "`", "\\", "a:b@c#d", "🕰", strings.Repeat("k", 100), strings.Repeat("k", 101),
	}
	first := e.register(odd...)
	runs := make([]store.ClaimRun, len(odd))
	for i, name := range odd {
		runs[i] = cron(name, first)
	}
	for i, c := range e.claim(long, runs...) {
		same(e, rule, fmt.Sprintf("claim for job %q", odd[i]), c.Outcome, store.OutcomeStarted)
	}
	rows := make([]store.NewExecution, len(odd))
	for i, name := range odd {
		rows[i] = keyed("job", name, name)
	}
	for i, q := range e.enqueue(rows...) {
		same(e, rule, fmt.Sprintf("enqueue with key %q", odd[i]), q.Outcome, store.OutcomeEnqueued)
	}
	same(e, rule, "lock keys fetched together", len(e.fetch(long, len(odd), "job").Runs), len(odd))
	for _, name := range odd {
		same(e, kept, "job of the state", e.state(name).Job, name)
		x, err := e.s.Find(e.ctx, space, queueKey("job", name))
		e.must(err)
		same(e, kept, "key", x.Key, queueKey("job", name))
		listed, err := e.s.List(e.ctx, store.Filter{Namespace: space, Jobs: []string{name}, Classes: []store.Class{store.ClassCron}})
		e.must(err)
		if len(listed) != 1 || listed[0].Key.Job != name {
			e.broken(rule, "list of job %q: %v", name, names(listed))
		}
		l, err := e.s.Ledger(e.ctx, space, name, first-1, first)
		e.must(err)
		same(e, rule, fmt.Sprintf("ledger of job %q", name), l.Total(), 1)
	}
}

func namespaces(e *env) {
	const rule = "namespaces share nothing"
	for _, ns := range []string{"shop", "Shop", "shop "} {
		r, err := e.s.Register(e.ctx, ns, []store.JobSpec{{Job: "report"}})
		e.must(err)
		tick := r.Jobs[0].Settled + 1
		c := e.request(brief, cron("report", tick))
		c.Namespace = ns
		got, err := e.s.Claim(e.ctx, c)
		e.must(err)
		same(e, rule, fmt.Sprintf("claim in %q", ns), got.Runs[0].Outcome, store.OutcomeStarted)
		q, err := e.s.Enqueue(e.ctx, ns, []store.NewExecution{row(queueKey("mail", "1"))})
		e.must(err)
		same(e, rule, fmt.Sprintf("enqueue in %q", ns), q[0].Outcome, store.OutcomeEnqueued)
	}
	mine, err := e.s.Find(e.ctx, space, queueKey("mail", "1"))
	e.must(err)
	if _, err := e.s.Get(e.ctx, "Shop", mine.ID); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "Get by another namespace: %v, want ErrNotFound", err)
	}
	if _, err := e.s.Cancel(e.ctx, "Shop", mine.ID); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "Cancel by another namespace: %v, want ErrNotFound", err)
	}
	same(e, rule, "rows fetched", len(e.fetch(long, 10, "mail").Runs), 1)
	for _, ns := range []string{"Shop", "shop "} {
		l, err := e.s.List(e.ctx, store.Filter{Namespace: ns, States: []store.State{store.StatePending}})
		e.must(err)
		same(e, rule, "rows left in the others", len(l), 1)
	}
	e.until(e.now().Add(brief))
	same(e, rule, "rows taken over", len(e.takeOver(long, 10, "report").Runs), 1)
	_, err = e.s.SetPause(e.ctx, store.Pause{Namespace: "Shop", Job: "report"})
	e.must(err)
	same(e, rule, "paused", e.state("report").Paused, 0)
}

func listCases(e *env) {
	const rule = "list answers what the filter names, newest first by tick or RunAt, then ID"
	first := e.register("a", "b")
	at := first
	tick := func(job string, i store.Millis) store.ID {
		c := free(job, at+i)
		x := e.start(long, c)
		if i%2 == 1 {
			e.end(x, store.StateSucceeded)
		}
		return x.ID
	}
	a1, a4, b2 := tick("a", 1), tick("a", 4), tick("b", 2)
	q := row(queueKey("a", "1"))
	q.RunAt, q.Queue = at+3, "slow"
	e.enqueue(q)
	m := row(store.Key{Class: store.ClassManual, Job: "b", Request: "r"})
	m.RunAt = at + 5
	e.enqueue(m)
	all := []store.ID{m.ID, a4, q.ID, b2, a1}
	for name, c := range map[string]struct {
		f    store.Filter
		want []store.ID
	}{
		"everything":   {store.Filter{}, all},
		"limit":        {store.Filter{Limit: 2}, all[:2]},
		"job":          {store.Filter{Jobs: []string{"b"}}, []store.ID{m.ID, b2}},
		"jobs":         {store.Filter{Jobs: []string{"a", "b", "c"}}, all},
		"unknown job":  {store.Filter{Jobs: []string{"c"}}, nil},
		"queue":        {store.Filter{Queues: []string{"slow"}}, []store.ID{q.ID}},
		"classes":      {store.Filter{Classes: []store.Class{store.ClassKey, store.ClassManual}}, []store.ID{m.ID, q.ID}},
		"state":        {store.Filter{States: []store.State{store.StateSucceeded}}, []store.ID{a1}},
		"states":       {store.Filter{States: []store.State{store.StateRunning, store.StatePending}}, all[:4]},
		"from":         {store.Filter{From: at + 3}, all[:3]},
		"to":           {store.Filter{To: at + 3}, all[2:]},
		"all together": {store.Filter{Jobs: []string{"a"}, States: []store.State{store.StateRunning}, From: at + 2, To: at + 9}, []store.ID{a4}},
	} {
		c.f.Namespace = space
		got, err := e.s.List(e.ctx, c.f)
		e.must(err)
		ids := make([]store.ID, len(got))
		for i, x := range got {
			ids[i] = x.ID
		}
		if !slices.Equal(ids, c.want) {
			e.broken(rule, "%s: got %v, want %d of them in order", name, names(got), len(c.want))
		}
	}
	var rows []store.NewExecution
	for i := range 120 {
		n := row(queueKey("bulk", fmt.Sprint(i)))
		n.RunAt, n.ID = at, store.ID{15: byte(i + 1)}
		rows = append(rows, n)
	}
	e.enqueue(rows...)
	got, err := e.s.List(e.ctx, store.Filter{Namespace: space, Jobs: []string{"bulk"}})
	e.must(err)
	same(e, rule, "rows by the default limit", len(got), 100)
	for i, x := range got {
		same(e, rule, "row at one instant", x.ID, store.ID{15: byte(120 - i)})
	}
}
