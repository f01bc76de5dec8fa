package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/solotick/solotick/store"
)

var jobCases = []suiteCase{
	{"jobs/first registration", firstRegistration},
	{"jobs/revisions", revisions},
	{"jobs/concurrent registrations", concurrentRegistrations},
	{"jobs/survey", survey},
	{"jobs/pause", pause},
	{"jobs/a caller that is gone", goneCaller},
}

func firstRegistration(e *env) {
	const rule = "a new job's watermark is the store's time now, and a second registration changes nothing"
	before := e.now()
	specs := []store.JobSpec{{Job: "b", Spec: "daily", Hash: "h", Revision: 3}, {Job: "a"}}
	r, err := e.s.Register(e.ctx, space, specs)
	e.must(err)
	after := e.now()
	if len(r.Jobs) != 2 || r.Jobs[0].Job != "b" || r.Jobs[1].Job != "a" {
		e.Fatalf("register answers in the order asked for: got %+v", r.Jobs)
	}
	for _, j := range r.Jobs {
		if j.Settled < before || j.Settled > after || r.Now < before || r.Now > after {
			e.broken(rule, "%s: settled %s, now %s: registered between %s and %s", j.Job, j.Settled, r.Now, before, after)
		}
		same(e, rule, "namespace", j.Namespace, space)
		if j.Pruned != 0 || j.Paused != 0 {
			e.broken(rule, "pruned %d, paused %d", j.Pruned, j.Paused)
		}
	}
	same(e, "a job without a schedule has no revision", "revisions", len(r.Jobs[1].Revisions), 0)
	cur := r.Jobs[0].Current()
	if cur.Number != 3 || cur.Spec != "daily" || cur.Hash != "h" || cur.From < before || cur.From > after {
		e.broken("the first schedule is in force from its registration on", "got %+v", cur)
	}
	e.until(after)
	again, err := e.h.Open(e).Register(e.ctx, space, specs)
	e.must(err)
	for i, j := range again.Jobs {
		same(e, rule, "settled", j.Settled, r.Jobs[i].Settled)
		same(e, rule, "version", j.Version, r.Jobs[i].Version)
		if !slices.Equal(j.Revisions, r.Jobs[i].Revisions) {
			e.broken(rule, "revisions %+v, were %+v", j.Revisions, r.Jobs[i].Revisions)
		}
	}
}

func revisions(e *env) {
	const rule = "the schedule with the highest number is in force, among equals the one registered last"
	step := func(spec string, number int64, want string, kept int) store.JobState {
		e.Helper()
		r, err := e.s.Register(e.ctx, space, []store.JobSpec{{Job: "report", Spec: spec, Hash: "hash of " + spec, Revision: number}})
		e.must(err)
		same(e, rule, "in force", r.Jobs[0].Current().Spec, want)
		same(e, rule, "revisions kept", len(r.Jobs[0].Revisions), kept)
		return r.Jobs[0]
	}
	step("a", 5, "a", 1)
	step("b", 4, "a", 1)
	step("b", 5, "b", 2)
	step("b", 5, "b", 2)
	step("b", 6, "b", 2) // the same schedule under a higher number
	step("a", 5, "b", 2)
	e.until(e.now())
	last := step("c", 9, "c", 3)
	step("b", 8, "c", 3)
	step("c", 8, "c", 3)
	end := step("a", 9, "a", 4)
	same(e, "a new schedule does not move the watermark", "settled", end.Settled, last.Settled)
	for i := 1; i < len(end.Revisions); i++ {
		if end.Revisions[i].From < end.Revisions[i-1].From {
			e.broken("revisions are oldest first", "%+v", end.Revisions)
		}
	}
	read := e.state("report")
	if !slices.Equal(read.Revisions, end.Revisions) {
		e.broken(rule, "survey says %+v, register said %+v", read.Revisions, end.Revisions)
	}
}

func concurrentRegistrations(e *env) {
	const rule = "replicas that register at once agree on one watermark and one schedule"
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e), e.h.Open(e)}
	errs := make(chan error)
	for i := range 8 {
		go func() {
			specs := []store.JobSpec{{Job: "a", Spec: "x", Hash: "x"}, {Job: "b", Spec: "y", Hash: "y"}}
			if i%2 == 1 {
				slices.Reverse(specs) // the order of the request must not lead to a deadlock
			}
			_, err := handles[i%len(handles)].Register(e.ctx, space, specs)
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			e.broken(rule, "register: %v", err)
		}
	}
	for _, job := range []string{"a", "b"} {
		same(e, rule, "revisions of "+job, len(e.state(job).Revisions), 1)
	}
}

func survey(e *env) {
	const rule = "survey tells the jobs in name order, the earliest lease end and the earliest waiting row"
	tick := e.register("c", "a", "b")
	names := func(jobs ...string) []string {
		v, err := e.s.Survey(e.ctx, space, jobs)
		e.must(err)
		var got []string
		for _, j := range v.Jobs {
			got = append(got, j.Job)
		}
		return got
	}
	for _, c := range []struct{ ask, want []string }{
		{nil, []string{"a", "b", "c"}}, {[]string{"c", "b"}, []string{"b", "c"}}, {[]string{"stranger"}, nil},
	} {
		if got := names(c.ask...); !slices.Equal(got, c.want) {
			e.broken(rule, "survey of %v: got %v, want %v", c.ask, got, c.want)
		}
	}
	v, err := e.s.Survey(e.ctx, space, nil)
	e.must(err)
	same(e, rule, "lease end when none runs", v.NextLeaseEnd, 0)
	same(e, rule, "run time when none waits", v.NextRunAt, 0)

	e.start(2*long, cron("a", tick))
	x := e.start(long, cron("b", tick))
	later, soon := row(queueKey("c", "later")), row(queueKey("c", "soon"))
	later.Delay, soon.Delay = 2*time.Hour, time.Hour
	waits := e.enqueue(later, soon)[1].Execution
	v, err = e.s.Survey(e.ctx, space, nil)
	e.must(err)
	same(e, rule, "lease end", v.NextLeaseEnd, x.LeaseUntil)
	same(e, rule, "run time", v.NextRunAt, waits.RunAt)
	e.end(x, store.StateSucceeded)
	_, err = e.s.Cancel(e.ctx, space, waits.ID)
	e.must(err)
	w, err := e.s.Survey(e.ctx, space, nil)
	e.must(err)
	if w.NextLeaseEnd <= v.NextLeaseEnd || w.NextRunAt <= v.NextRunAt {
		e.broken(rule, "rows that ended still count: %+v", w)
	}
	if at := e.state("a").Fence; at < 1 {
		e.broken("a job's state tells the last fence drawn", "fence %d after a claim", at)
	}
}

func pause(e *env) {
	const rule = "a pause holds for every replica until it is ended or its time is over"
	e.register("report", "other")
	if _, err := e.s.SetPause(e.ctx, store.Pause{Namespace: space, Job: "stranger"}); !errors.Is(err, store.ErrNotFound) {
		e.broken("only a registered job can be paused", "got %v, want ErrNotFound", err)
	}
	before := e.now()
	st, err := e.h.Open(e).SetPause(e.ctx, store.Pause{Namespace: space, Job: "report", For: time.Hour, By: "ann", Reason: "audit"})
	e.must(err)
	after := e.now()
	if st.Paused < before || st.Paused > after || st.PausedUntil != st.Paused.Add(time.Hour) {
		e.broken(rule, "paused from %s until %s: asked for an hour between %s and %s", st.Paused, st.PausedUntil, before, after)
	}
	read := e.state("report")
	if read.Paused != st.Paused || read.PausedUntil != st.PausedUntil || read.PausedBy != "ann" || read.PauseReason != "audit" {
		e.broken(rule, "survey says %+v", read)
	}
	same(e, rule, "other jobs", e.state("other").PausedAt(after), false)
	st, err = e.s.SetPause(e.ctx, store.Pause{Namespace: space, Job: "report", Off: true})
	e.must(err)
	same(e, rule, "paused after the end", st.PausedAt(e.now()), false)
	same(e, rule, "paused after the end, by survey", e.state("report").PausedAt(e.now()), false)
}

func goneCaller(e *env) {
	const rule = "a call whose context is over is answered with an error that says so, or ErrUnavailable, and changes nothing"
	tick := e.register("report")
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := e.s.Claim(gone, e.request(long, cron("report", tick)))
	if !errors.Is(err, gone.Err()) && !errors.Is(err, store.ErrUnavailable) {
		e.broken(rule, "claim: %v", err)
	}
	if _, err := e.s.Get(e.ctx, space, store.NewID(tick)); !errors.Is(err, store.ErrNotFound) {
		e.broken("Get of what does not exist is ErrNotFound", "got %v", err)
	}
	if _, err := e.s.Find(e.ctx, space, cronKey("report", tick)); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "the row exists: %v", err)
	}
}
