package cli

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// record is a store with a job that ticks every second, at a clock that the test
// moves.
type record struct {
	*testing.T
	st    *memstore.Store
	ahead *atomic.Int64
	first store.Millis // the first tick
	hash  string
}

func newRecord(t *testing.T) *record {
	t.Helper()
	var at atomic.Int64
	at.Store(time.Date(2026, 3, 1, 12, 0, 0, 500_000_000, time.UTC).UnixMilli())
	st := memstore.New(memstore.WithClock(func() time.Time { return time.UnixMilli(at.Load()) }))
	spec := mustParse(t, "* * * * * *")
	r := &record{T: t, st: st, ahead: &at, hash: spec.Hash()}
	reg, err := st.Register(t.Context(), "test", []store.JobSpec{{Job: "pulse", Spec: spec.Marshal(), Hash: spec.Hash()}, {Job: "email"}})
	r.must(err)
	r.first = reg.Now + 500
	return r
}

func (r *record) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *record) pass(d time.Duration) { r.ahead.Add(d.Milliseconds()) }

func (r *record) claim(n int, change func(*store.ClaimRun)) store.Execution {
	r.Helper()
	run := store.ClaimRun{NewExecution: store.NewExecution{Key: store.Key{Class: store.ClassCron, Job: "pulse", Tick: r.tick(n)}}}
	if change != nil {
		change(&run)
	}
	c, err := r.st.Claim(r.Context(), store.ClaimRequest{
		Namespace: "test", Owner: store.NewOwner(), OwnerLabel: "host-a:7", Lease: time.Minute, Runs: []store.ClaimRun{run},
	})
	r.must(err)
	return c.Runs[0].Execution
}

// tick is the nth tick, from 0.
func (r *record) tick(n int) store.Millis { return r.first.Add(time.Duration(n) * time.Second) }

func (r *record) finish(x store.Execution, f store.Finish) {
	r.Helper()
	f.Ref = x.Ref()
	errs, err := r.st.Finish(r.Context(), []store.Finish{f})
	r.must(err)
	r.must(errs[0])
}

func (r *record) settle(to store.Millis, what store.Settlement) {
	r.Helper()
	v, err := r.st.Survey(r.Context(), "test", []string{"pulse"})
	r.must(err)
	_, err = r.st.Settle(r.Context(), store.SettleRequest{Namespace: "test", Jobs: []store.SettleJob{{Job: "pulse", Seen: v.Jobs[0].Settled, To: to}}},
		func(store.TickView) store.Settlement { return what })
	r.must(err)
}

// explains demands an explanation that says so.
func (r *record) explains(at store.Millis, kind string, want ...string) *explanation {
	r.Helper()
	x, err := explainTick(r.Context(), r.st, "test", "pulse", at)
	r.must(err)
	var out bytes.Buffer
	r.must(x.print(&out))
	if x.Record != kind {
		r.Errorf("%s: the record is %s, want %s", instant(at), x.Record, kind)
	}
	for _, w := range want {
		if !strings.Contains(out.String(), w) {
			r.Errorf("%s: nothing of %q in\n%s", instant(at), w, &out)
		}
	}
	return x
}

func TestExplainTicks(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	r.pass(10 * time.Second)
	ran := r.claim(0, nil)
	r.pass(time.Second)
	r.finish(ran, store.Finish{State: store.StateSucceeded})
	r.claim(1, func(c *store.ClaimRun) { c.Skip = store.ReasonDegraded })
	tries := r.claim(2, nil)
	r.finish(tries, store.Finish{State: store.StatePending, Delay: time.Hour, ErrorCode: "net", ErrorText: "no route"})
	r.claim(3, nil)
	r.settle(r.tick(6), store.Settlement{Ranges: []store.TickRange{{From: r.tick(4), To: r.tick(6), Count: 3, State: store.StateMissed, Reason: store.ReasonWindow}}})

	const owed = "The schedule in force then, * * * * * * in UTC, owed this tick."
	if x := r.explains(r.tick(0), recordRun, owed, "It ran: attempt 1 succeeded", "host-a:7"); !*x.Expected || len(x.Attempts) != 1 || x.Attempts[0].DurationMS != 1000 {
		t.Errorf("%+v", x)
	}
	r.explains(r.tick(1), recordRun, owed, "It did not run: the coordinator was away")
	x := r.explains(r.tick(2), recordRun, "It waits until", "then it is attempt 2", "no route", "retry")
	if len(x.Attempts) != 1 || x.Attempts[0].End != "retry" || x.Attempts[0].ErrorCode != "net" {
		t.Errorf("%+v", x.Attempts)
	}
	r.explains(r.tick(3), recordRun, "Attempt 1 runs on host-a:7")
	if x := r.explains(r.tick(5), recordStretch, owed, "older than the catch-up window", "So did none of 3 ticks"); x.Stretch.Count != 3 {
		t.Errorf("%+v", x.Stretch)
	}
	r.explains(r.tick(8), recordNone, owed, "It has no record yet")
	r.explains(r.tick(100), recordNone, owed, "It is not due yet")
	if x := r.explains(r.tick(7)+300, recordNone, "owed no tick at this instant", "The ticks around it: "+instant(r.tick(7))+" and "+instant(r.tick(8))); *x.Expected {
		t.Errorf("%+v", x)
	}
	r.explains(r.first-10_000, recordNone, "what lies before that is never run")

	_, err := r.st.SetPause(ctx, store.Pause{Namespace: "test", Job: "pulse", By: "ann", Reason: "audit"})
	r.must(err)
	r.explains(r.tick(100), recordNone, "It will be skipped: the job is paused by ann (audit)")

	r.pass(2 * time.Hour)
	if _, err := r.st.Prune(ctx, store.PruneRequest{Namespace: "test", Retention: store.Retention{Succeeded: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if x := r.explains(r.tick(0), recordPruned, owed, "Its record is gone"); x.Pruned != instant(r.tick(0)) {
		t.Errorf("%+v", x)
	}
	if _, err := explainTick(ctx, r.st, "test", "nosuch", r.first); err == nil || !strings.Contains(err.Error(), `has no job "nosuch"`) {
		t.Errorf("a job that nobody knows: %v", err)
	}
}

func TestExplainRunsOfAQueueJob(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	put, err := r.st.Enqueue(ctx, "test", []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: "email", Name: "k1"}, MaxAttempts: 1}})
	r.must(err)
	id := put[0].Execution.ID
	says := func(want ...string) *explanation {
		t.Helper()
		x, err := explainRun(ctx, r.st, "test", id)
		r.must(err)
		var out bytes.Buffer
		r.must(x.print(&out))
		for _, w := range append(want, "email/k1") {
			if !strings.Contains(out.String(), w) {
				t.Errorf("nothing of %q in\n%s", w, &out)
			}
		}
		return x
	}
	says("It waits for a worker")
	fetch := func() store.Execution {
		t.Helper()
		f, err := r.st.Fetch(ctx, store.FetchRequest{Namespace: "test", Owner: store.NewOwner(), OwnerLabel: "host-b:9", Lease: time.Minute, Jobs: []string{"email"}, Limit: 1})
		r.must(err)
		return f.Runs[0]
	}
	r.finish(fetch(), store.Finish{State: store.StateFailed, ErrorCode: "smtp", ErrorText: "mailbox full"})
	says("It failed", "solotick retry "+id.String(), "mailbox full")

	row, err := retryRun(ctx, r.st, "test", id, "ann")
	r.must(err)
	if row.State != "pending" || row.Attempt != 1 {
		t.Errorf("%+v", row)
	}
	says("attempt 2", "failed", "retried by ann: mailbox full")
	r.finish(fetch(), store.Finish{State: store.StateSucceeded})
	if x := says("It ran: attempt 2 succeeded"); len(x.Attempts) != 2 || x.Attempts[0].End != "failed" || x.Attempts[1].End != "succeeded" {
		t.Errorf("%+v", x.Attempts)
	}
	if _, err := retryRun(ctx, r.st, "test", id, "ann"); err == nil || !strings.Contains(err.Error(), "it is succeeded") {
		t.Errorf("retry of what succeeded: %v", err)
	}
	gone := store.NewID(1)
	if _, err := retryRun(ctx, r.st, "test", gone, "ann"); err == nil || !strings.Contains(err.Error(), "has no run "+gone.String()) {
		t.Errorf("retry of nothing: %v", err)
	}
	if _, err := explainRun(ctx, r.st, "test", gone); err == nil || !strings.Contains(err.Error(), "it may be pruned") {
		t.Errorf("explain of nothing: %v", err)
	}
}

// Every state and every reason has words of its own.
func TestWordsForEveryState(t *testing.T) {
	seen := map[string]store.State{}
	for _, st := range store.States() {
		text := runInWords(store.Execution{State: st, Attempt: 1, Started: 1, Finished: 1, LeaseUntil: 9}, 5)
		if other, twice := seen[text]; text == "" || twice && !(st == store.StateMissed && other == store.StateSkipped) {
			t.Errorf("%v: %q, as %v", st, text, other)
		}
		seen[text] = st
	}
	words := map[string]bool{}
	for _, r := range []store.Reason{
		store.ReasonOverlap, store.ReasonPaused, store.ReasonDegraded, store.ReasonSuperseded, store.ReasonMisfire, store.ReasonWindow,
		store.ReasonLost, store.ReasonPoison,
	} {
		text := because(r)
		if !strings.HasPrefix(text, ": ") || words[text] {
			t.Errorf("%s: %q", r, text)
		}
		words[text] = true
	}
}

func TestQuestions(t *testing.T) {
	for _, bad := range []struct {
		args       []string
		zone, want string
	}{
		{[]string{"pulse"}, "UTC", "RUN: \"pulse\" is not the id of a run"},
		{[]string{"pulse", "soon"}, "UTC", "TIME: \"soon\" is not a time"},
		{[]string{"pulse", "now"}, "Mars/Base", "--tz"},
	} {
		if _, err := question(bad.args, bad.zone); codeOf(err) != exitUsage || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v: %v", bad.args, err)
		}
	}
}

func TestPruneTellsWhatWent(t *testing.T) {
	r := newRecord(t)
	r.pass(time.Minute)
	for n := range 30 {
		r.finish(r.claim(n, nil), store.Finish{State: store.StateSucceeded})
	}
	r.settle(r.tick(30), store.Settlement{})
	r.pass(48 * time.Hour)
	keep, err := retentionOf(scheduler.Retention{}, "1d", "")
	r.must(err)
	if keep.Succeeded != 24*time.Hour || keep.Ranges != 24*time.Hour || keep.Keys != 30*24*time.Hour {
		t.Errorf("%+v", keep)
	}
	run := func(dry bool) string {
		t.Helper()
		var out, told bytes.Buffer
		req := store.PruneRequest{Namespace: "test", Retention: keep, Limit: 7, DryRun: dry}
		got, err := pruneAll(context.WithoutCancel(t.Context()), r.st, req, &told)
		r.must(err)
		r.must(printPruned(&out, "table", keep, got, dry))
		return out.String()
	}
	for _, want := range []struct {
		dry  bool
		text string
	}{{true, "TO REMOVE"}, {false, "REMOVED"}} {
		out := run(want.dry)
		if !strings.Contains(out, want.text) || !strings.Contains(out, "succeeded                      1d          30\n") {
			t.Errorf("dry %v:\n%s", want.dry, out)
		}
	}
	if out := run(false); !strings.Contains(out, "succeeded                      1d          0\n") {
		t.Errorf("again:\n%s", out)
	}
}

func TestRetentionFlags(t *testing.T) {
	for _, bad := range []struct{ older, keys, want string }{
		{"soon", "", "--older-than"},
		{"1s", "", "--older-than: 1s is below 1m"},
		{"", "1s", "--keys: 1s is below 1m"},
		{"60d", "30d", "retention.keys"},
	} {
		if _, err := retentionOf(scheduler.Retention{}, bad.older, bad.keys); codeOf(err) != exitUsage || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	keep, err := retentionOf(scheduler.Retention{Failed: time.Hour}, "", "40d")
	if err != nil || keep.Failed != time.Hour || keep.Succeeded != 7*24*time.Hour || keep.Keys != 40*24*time.Hour {
		t.Errorf("%+v, %v", keep, err)
	}
	if got := age(36 * time.Hour); got != "36h0m0s" {
		t.Error(got)
	}
}

// The exit code of a command that ran once is known after its output is pruned.
func TestExitCodeOutlivesTheOutput(t *testing.T) {
	kept := store.Execution{State: store.StateFailed, ErrorCode: exitErrorCode, ErrorText: "exit code 3"}
	if got := outcomeOf(kept); got.ExitCode == nil || *got.ExitCode != 3 {
		t.Errorf("%+v", got)
	}
	kept.Result = []byte(`{"exit_code": 4, "output": "text"}`)
	if got := outcomeOf(kept); got.ExitCode == nil || *got.ExitCode != 4 || got.Output != "text" {
		t.Errorf("%+v", got)
	}
	if got := outcomeOf(store.Execution{State: store.StateFailed, ErrorCode: "panic", ErrorText: "exit code 3"}); got.ExitCode != nil {
		t.Errorf("%+v", got)
	}
}
