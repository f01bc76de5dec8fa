package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/solotick/solotick/store"
)

// Harness is one empty backend under test.
type Harness struct {
	// Open gives one more handle on the backend, as another process would have:
	// its own connections, its own caches. It fails the test if it cannot. What it
	// opens is closed by t.Cleanup. Handles of one backend see the same rows.
	Open func(t testing.TB) store.Store

	// Advance moves the store's clock, if the backend can. Without it the suite
	// waits for the store's own clock, in short leases.
	Advance func(d time.Duration)
}

// Run runs the conformance suite. Each case gets a backend of its own from
// newStore. A failure begins with the rule that is broken.
func Run(t *testing.T, newStore func(t *testing.T) Harness) {
	t.Helper()
	run(t, newStore, slices.Concat(
		jobCases, claimCases, activeCases, fetchCases, leaseCases, finishCases, settleCases, recordCases, attemptCases, pruneCases,
		switchCases, stressCases,
	))
}

// RunShort runs the cases that do the most in the least time: claims, the record,
// attempts and pruning, random operations against a model, and workers at once. It is
// for a second run of a backend that passes [Run], under other settings.
func RunShort(t *testing.T, newStore func(t *testing.T) Harness) {
	t.Helper()
	run(t, newStore, slices.Concat(claimCases, recordCases, attemptCases, pruneCases, switchCases, stressCases))
}

func run(t *testing.T, newStore func(t *testing.T) Harness, cases []suiteCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newStore(t)
			c.run(&env{T: t, h: h, s: h.Open(t), ctx: t.Context(), owner: store.NewOwner()})
		})
	}
}

// suiteCase is one rule, or a few that need the same setting.
type suiteCase struct {
	name string
	run  func(*env)
}

const (
	space = "shop"
	long  = 10 * time.Minute      // a lease that does not end during a case
	brief = 60 * time.Millisecond // a lease that the case waits for
	stuck = time.Minute           // a condition that is not met after this is never met

	enough = 10 // broken rules in one case
)

// env is what a case works with: a handle, and an owner to work as.
type env struct {
	*testing.T
	h     Harness
	s     store.Store
	ctx   context.Context
	owner store.Owner

	breaks int
}

// broken reports that the store breaks a rule of the contract. It may end the
// case, so it is for the case's own goroutine.
func (e *env) broken(rule, format string, args ...any) {
	e.Helper()
	e.Errorf("broken rule: "+rule+"\n\t"+format, args...)
	if e.breaks++; e.breaks == enough {
		e.Fatalf("%d breaks are enough", enough)
	}
}

// must stops the case on an error where the contract allows none.
func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("unexpected error: %v", err)
	}
}

// same reports a difference as a broken rule.
func same[V comparable](e *env, rule, what string, got, want V) {
	e.Helper()
	if got != want {
		e.broken(rule, "%s: got %v, want %v", what, got, want)
	}
}

func (e *env) now() store.Millis {
	e.Helper()
	now, err := e.s.Now(e.ctx)
	e.must(err)
	return now
}

// until returns when the store's clock is later than at.
func (e *env) until(at store.Millis) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, stuck)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		now := e.now()
		if now > at {
			return
		}
		if e.h.Advance != nil {
			e.h.Advance(at.Sub(now) + time.Millisecond)
			continue
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			e.Fatalf("the store's clock is at %s and does not reach %s", now, at)
		}
	}
}

// register makes jobs known and returns the first tick that can be claimed: one
// millisecond after the watermark. The next 49 can be claimed as well, thanks to
// the tolerance.
func (e *env) register(jobs ...string) store.Millis {
	e.Helper()
	specs := make([]store.JobSpec, len(jobs))
	for i, j := range jobs {
		specs[i] = store.JobSpec{Job: j, Spec: "every second", Hash: "spec-1", Revision: 1}
	}
	r, err := e.s.Register(e.ctx, space, specs)
	e.must(err)
	if len(r.Jobs) != len(jobs) {
		e.Fatalf("register: %d answers for %d jobs", len(r.Jobs), len(jobs))
	}
	first := store.Millis(0)
	for _, j := range r.Jobs {
		first = max(first, j.Settled+1)
	}
	return first
}

// state surveys one job.
func (e *env) state(job string) *store.JobState {
	e.Helper()
	v, err := e.s.Survey(e.ctx, space, []string{job})
	e.must(err)
	if len(v.Jobs) != 1 || v.Jobs[0].Job != job {
		e.Fatalf("survey of %q: got %+v", job, v.Jobs)
	}
	return &v.Jobs[0]
}

// row is an execution to be inserted, with an ID of its own.
func row(key store.Key) store.NewExecution {
	return store.NewExecution{ID: store.NewID(store.MillisOf(time.Now())), Key: key, Queue: "default"}
}

func cronKey(job string, tick store.Millis) store.Key {
	return store.Key{Class: store.ClassCron, Job: job, Tick: tick}
}

func queueKey(kind, name string) store.Key {
	return store.Key{Class: store.ClassKey, Job: kind, Name: name}
}

// cron is a claim of a tick that holds the job's active key.
func cron(job string, tick store.Millis) store.ClaimRun {
	n := row(cronKey(job, tick))
	n.Active = store.ActiveCron(job, 0)
	return store.ClaimRun{NewExecution: n}
}

// free is a claim of a tick that may overlap with others.
func free(job string, tick store.Millis) store.ClaimRun {
	return store.ClaimRun{NewExecution: row(cronKey(job, tick))}
}

func (e *env) request(lease time.Duration, runs ...store.ClaimRun) store.ClaimRequest {
	return store.ClaimRequest{Namespace: space, Owner: e.owner, OwnerLabel: "host:1", Lease: lease, Runs: runs}
}

func (e *env) claim(lease time.Duration, runs ...store.ClaimRun) []store.ClaimedRun {
	e.Helper()
	c, err := e.s.Claim(e.ctx, e.request(lease, runs...))
	e.must(err)
	if len(c.Runs) != len(runs) {
		e.Fatalf("claim: %d answers for %d runs", len(c.Runs), len(runs))
	}
	return c.Runs
}

// start claims one run that must start.
func (e *env) start(lease time.Duration, run store.ClaimRun) store.Execution {
	e.Helper()
	c := e.claim(lease, run)[0]
	if c.Outcome != store.OutcomeStarted {
		e.Fatalf("claim of %s: outcome %v, want started", run.Key, c.Outcome)
	}
	return c.Execution
}

func (e *env) enqueue(rows ...store.NewExecution) []store.Enqueued {
	e.Helper()
	q, err := e.s.Enqueue(e.ctx, space, rows)
	e.must(err)
	if len(q) != len(rows) {
		e.Fatalf("enqueue: %d answers for %d rows", len(q), len(rows))
	}
	return q
}

func (e *env) work(lease time.Duration, limit int, jobs ...string) store.FetchRequest {
	return store.FetchRequest{Namespace: space, Owner: e.owner, OwnerLabel: "host:1", Lease: lease, Jobs: jobs, Limit: limit}
}

func (e *env) fetch(lease time.Duration, limit int, jobs ...string) store.Fetched {
	e.Helper()
	f, err := e.s.Fetch(e.ctx, e.work(lease, limit, jobs...))
	e.must(err)
	return f
}

func (e *env) takeOver(lease time.Duration, limit int, jobs ...string) store.TakenOver {
	e.Helper()
	f, err := e.s.TakeOver(e.ctx, e.work(lease, limit, jobs...))
	e.must(err)
	return f
}

func (e *env) beat(owner store.Owner, lease time.Duration, beats ...store.Beat) []store.BeatAnswer {
	e.Helper()
	h, err := e.s.Heartbeat(e.ctx, store.HeartbeatRequest{Namespace: space, Owner: owner, Lease: lease, Beats: beats})
	e.must(err)
	if len(h.Beats) != len(beats) {
		e.Fatalf("heartbeat: %d answers for %d beats", len(h.Beats), len(beats))
	}
	return h.Beats
}

// finish answers the error of the row.
func (e *env) finish(f store.Finish) error {
	e.Helper()
	errs, err := e.s.Finish(e.ctx, []store.Finish{f})
	e.must(err)
	if len(errs) != 1 {
		e.Fatalf("finish: %d answers for 1 row", len(errs))
	}
	return errs[0]
}

// end finishes a row that the caller holds.
func (e *env) end(x store.Execution, state store.State) {
	e.Helper()
	e.must(e.finish(store.Finish{Ref: x.Ref(), State: state}))
}

func (e *env) get(id store.ID) store.Execution {
	e.Helper()
	x, err := e.s.Get(e.ctx, space, id)
	e.must(err)
	return x
}

func refOf(x store.Execution) store.Ref { return x.Ref() }
