package storetest_test

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// bent is a store with one guard taken out.
type bent struct {
	store.Store
	mem   *memstore.Store
	ahead atomic.Int64 // of the clock, in nanoseconds

	row      func(*store.NewExecution)             // bends what is inserted
	answer   func(*store.Execution)                // bends what is answered
	finish   func(*bent, *store.Finish)            // bends a finish
	beat     func(*bent, *store.HeartbeatRequest)  // bends a heartbeat
	claim    func(*bent, *store.ClaimRun)          // bends a claim
	takeOver func(*store.FetchRequest)             // bends a takeover
	settle   func(*bent, string, *store.SettleJob) // bends a sweep
	register func(*store.JobSpec)                  // bends a registration
	pause    func(*store.Pause)                    // bends a pause
	space    func(string) string                   // bends namespaces
	shift    map[string]time.Duration              // of the clock, during a call
	late     bool                                  // claims of settled ticks go on
	unmarked bool                                  // prunes leave no watermark
	forgets  bool                                  // attempts are not kept

	forgetful bool                      // nobody is asked to end
	prune     func(*store.PruneRequest) // bends a prune
}

func newBent(how func(*bent)) *bent {
	b := &bent{}
	b.mem = memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) }))
	b.Store = b.mem
	how(b)
	return b
}

// during moves the clock for the time of a call. Calls at the same time are
// moved as well; a broken store may be broken that way too.
func (b *bent) during(call string) func() {
	d := int64(b.shift[call])
	b.ahead.Add(d)
	return func() { b.ahead.Add(-d) }
}

func (b *bent) in(ns string) string {
	if b.space != nil {
		return b.space(ns)
	}
	return ns
}

func (b *bent) show(x *store.Execution) {
	if b.answer != nil {
		b.answer(x)
	}
}

func (b *bent) Register(ctx context.Context, ns string, jobs []store.JobSpec) (store.Registered, error) {
	if b.register != nil {
		jobs = append([]store.JobSpec(nil), jobs...)
		for i := range jobs {
			b.register(&jobs[i])
		}
	}
	return b.mem.Register(ctx, b.in(ns), jobs)
}

func (b *bent) Claim(ctx context.Context, r store.ClaimRequest) (store.Claimed, error) {
	defer b.during("claim")()
	r.Namespace = b.in(r.Namespace)
	asked := r.Runs
	r.Runs = append([]store.ClaimRun(nil), asked...)
	for i := range r.Runs {
		if b.row != nil {
			b.row(&r.Runs[i].NewExecution)
		}
		if b.claim != nil {
			b.claim(b, &r.Runs[i])
		}
	}
	c, err := b.mem.Claim(ctx, r)
	for i := range c.Runs {
		if got := &c.Runs[i]; b.late && got.Outcome == store.OutcomeDuplicate && got.Execution.ID == (store.ID{}) {
			again := r
			again.Runs = r.Runs[i : i+1]
			again.Runs[0].Key.Class = store.ClassBackfill
			late, err := b.mem.Claim(ctx, again)
			if err != nil {
				return c, err
			}
			*got = late.Runs[0]
		}
		b.show(&c.Runs[i].Execution)
	}
	return c, err
}

func (b *bent) Enqueue(ctx context.Context, ns string, rows []store.NewExecution) ([]store.Enqueued, error) {
	rows = append([]store.NewExecution(nil), rows...)
	for i := range rows {
		if b.row != nil {
			b.row(&rows[i])
		}
	}
	q, err := b.mem.Enqueue(ctx, b.in(ns), rows)
	for i := range q {
		b.show(&q[i].Execution)
	}
	return q, err
}

func (b *bent) Fetch(ctx context.Context, r store.FetchRequest) (store.Fetched, error) {
	defer b.during("fetch")()
	r.Namespace = b.in(r.Namespace)
	f, err := b.mem.Fetch(ctx, r)
	for i := range f.Runs {
		b.show(&f.Runs[i])
	}
	return f, err
}

func (b *bent) TakeOver(ctx context.Context, r store.FetchRequest) (store.TakenOver, error) {
	defer b.during("takeover")()
	r.Namespace = b.in(r.Namespace)
	if b.takeOver != nil {
		b.takeOver(&r)
	}
	f, err := b.mem.TakeOver(ctx, r)
	for i := range f.Runs {
		b.show(&f.Runs[i])
	}
	return f, err
}

func (b *bent) Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error) {
	if b.beat != nil {
		r.Beats = append([]store.Beat(nil), r.Beats...)
		b.beat(b, &r)
	}
	return b.mem.Heartbeat(ctx, r)
}

func (b *bent) Finish(ctx context.Context, rows []store.Finish) ([]error, error) {
	rows = append([]store.Finish(nil), rows...)
	for i := range rows {
		if b.finish != nil {
			b.finish(b, &rows[i])
		}
	}
	return b.mem.Finish(ctx, rows)
}

func (b *bent) Settle(ctx context.Context, r store.SettleRequest, decide func(store.TickView) store.Settlement) (store.SettleResult, error) {
	r.Jobs = append([]store.SettleJob(nil), r.Jobs...)
	for i := range r.Jobs {
		if b.settle != nil {
			b.settle(b, r.Namespace, &r.Jobs[i])
		}
	}
	return b.mem.Settle(ctx, r, decide)
}

func (b *bent) SetPause(ctx context.Context, p store.Pause) (store.JobState, error) {
	if b.pause != nil {
		b.pause(&p)
	}
	return b.mem.SetPause(ctx, p)
}

func (b *bent) Survey(ctx context.Context, ns string, jobs []string) (store.Surveyed, error) {
	v, err := b.mem.Survey(ctx, ns, jobs)
	for i := range v.Jobs {
		if b.unmarked {
			v.Jobs[i].Pruned = 0
		}
	}
	return v, err
}

func (b *bent) Prune(ctx context.Context, r store.PruneRequest) (store.Pruned, error) {
	if b.prune != nil {
		b.prune(&r)
	}
	return b.mem.Prune(ctx, r)
}

func (b *bent) Cancel(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	if b.forgetful {
		return b.mem.Get(ctx, ns, id)
	}
	return b.mem.Cancel(ctx, ns, id)
}

func (b *bent) Attempts(ctx context.Context, ns string, id store.ID) ([]store.Attempt, error) {
	list, err := b.mem.Attempts(ctx, ns, id)
	if b.forgets {
		list = nil
	}
	return list, err
}

// row of an execution, as it is.
func (b *bent) now(ns string, id store.ID) store.Execution {
	x, err := b.mem.Get(context.Background(), ns, id)
	if err != nil {
		return store.Execution{}
	}
	return x
}

// bends are the guards that can be taken out, the cases that must fail then, and
// the beginning of the rule that they must name.
var bends = map[string]struct {
	how   func(*bent)
	cases string
	rule  string
}{
	"attempt guard": {
		func(b *bent) {
			b.finish = func(b *bent, f *store.Finish) { f.Ref.Attempt = b.now(f.Ref.Namespace, f.Ref.ID).Attempt }
		},
		"finish", "a run is finished by the attempt and owner",
	},
	"owner guard": {
		func(b *bent) {
			b.finish = func(b *bent, f *store.Finish) { f.Ref.Owner = b.now(f.Ref.Namespace, f.Ref.ID).Owner }
		},
		"finish", "a run is finished by the attempt and owner",
	},
	"attempt and owner guard under stress": {
		func(b *bent) {
			b.finish = func(b *bent, f *store.Finish) { f.Ref = refNow(b, f.Ref) }
		},
		"model", "a run is finished by the attempt and owner",
	},
	"unique run key": {
		func(b *bent) {
			b.row = func(n *store.NewExecution) { n.Key.Request += store.NewOwner().String() }
		},
		"claim/one_of_fifty", "one row per run key",
	},
	"unique active key": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.Active = store.Hash{} } },
		"active_key/one_holder", "at most one running row has an active key",
	},
	"unique active key, for queue jobs": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.Active, n.LockKey = store.Hash{}, "" } },
		"fetch/one_per_lock", "runs of one lock key exclude each other",
	},
	"lease": {
		func(b *bent) { b.shift = map[string]time.Duration{"takeover": time.Hour} },
		"takeover/not_before", "a run is taken over only after its lease has ended",
	},
	"renewal": {
		func(b *bent) { b.beat = func(_ *bent, r *store.HeartbeatRequest) { r.Lease = time.Millisecond } },
		"heartbeat/renews", "a heartbeat starts the lease anew",
	},
	"run time": {
		func(b *bent) { b.shift = map[string]time.Duration{"fetch": time.Hour} },
		"fetch/not_before", "a row is not fetched before its RunAt",
	},
	"early ticks": {
		func(b *bent) { b.shift = map[string]time.Duration{"claim": time.Hour} },
		"claim/early", "a tick later than the store's time",
	},
	"fence": {
		func(b *bent) { b.answer = func(x *store.Execution) { x.Fence = 7 } },
		"fence/rises", "fences of one job strictly rise",
	},
	"attempt of a beat": {
		func(b *bent) {
			b.beat = func(b *bent, r *store.HeartbeatRequest) {
				for i := range r.Beats {
					r.Beats[i].Attempt = b.now(r.Namespace, r.Beats[i].ID).Attempt
				}
			}
		},
		"heartbeat/attempt", "a heartbeat renews the attempt and owner that hold the row",
	},
	"owner of a beat": {
		func(b *bent) {
			b.beat = func(b *bent, r *store.HeartbeatRequest) { r.Owner = b.now(r.Namespace, r.Beats[0].ID).Owner }
		},
		"heartbeat/attempt", "a heartbeat renews the attempt and owner that hold the row",
	},
	"repeat of a claim": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.ID = store.ID{} } },
		"claim/repeat", "a repeat of an applied claim",
	},
	"watermark of the sweep": {
		func(b *bent) {
			b.settle = func(b *bent, ns string, j *store.SettleJob) {
				if v, err := b.mem.Survey(context.Background(), ns, []string{j.Job}); err == nil && len(v.Jobs) == 1 {
					j.Seen = min(v.Jobs[0].Settled, j.To-1)
				}
			}
		},
		"settle/watermark", "every tick is accounted for once",
	},
	"watermark of the claim": {
		func(b *bent) { b.late = true },
		"claim/at_the_watermark", "a tick at or before the settled watermark is a duplicate",
	},
	"crash policy": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.OnCrash, n.MaxAttempts = store.CrashRerun, 0 } },
		"takeover/crash", "a run whose owner died is settled by its crash policy",
	},
	"crash policy of the job": {
		func(b *bent) { b.takeOver = func(r *store.FetchRequest) { r.OnCrash = nil } },
		"takeover/the_stricter", "of the crash policies of a run and its job the stricter counts",
	},
	"request to end a run": {
		func(b *bent) { b.forgetful = true },
		"finish/asked", "a run that was asked to end is not run again",
	},
	"request to end a run of a dead owner": {
		func(b *bent) { b.forgetful = true },
		"takeover/asked", "a run that was asked to end is not run again",
	},
	"attempt cap": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.MaxAttempts = 0 } },
		"takeover/attempt_cap", "a run whose lease was lost on every attempt allowed",
	},
	"dedup key": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.Dedup = store.Hash{} } },
		"claim/dedup", "at most one row has a dedup key",
	},
	"order of a lock key in a retry": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.LockKey = "" } },
		"active_key/kept_by_a_queue_row", "a queue row with a lock key keeps its place",
	},
	"pause": {
		func(b *bent) { b.pause = func(p *store.Pause) { p.Off = true } },
		"fetch/paused", "fetch passes over the rows of a paused job",
	},
	"revisions": {
		func(b *bent) { b.register = func(s *store.JobSpec) { s.Revision = 0 } },
		"jobs/revisions", "the schedule with the highest number is in force",
	},
	"schedule of a claim": {
		func(b *bent) { b.claim = func(_ *bent, c *store.ClaimRun) { c.SpecHash = "" } },
		"claim/superseded", "a claim under a schedule that is not in force",
	},
	"schedule of a tick": {
		func(b *bent) {
			b.claim = func(_ *bent, c *store.ClaimRun) {
				if c.SpecHash == "spec-1" && c.Key.Class == store.ClassCron {
					c.SpecHash = "spec-x"
				}
			}
		},
		"claim/former_schedule", "a tick belongs to the schedule that was in force at it",
	},
	"case and blanks": {
		func(b *bent) {
			b.row = func(n *store.NewExecution) { n.Key.Name = strings.TrimRight(strings.ToLower(n.Key.Name), " ") }
		},
		"record/odd_names", "names that differ in one byte are different names",
	},
	"milliseconds": {
		func(b *bent) { b.row = func(n *store.NewExecution) { n.RunAt = n.RunAt / 1000 * 1000 } },
		"record/instants", "what is written is read back as it was",
	},
	"watermark of the prune": {
		func(b *bent) { b.unmarked = true },
		"prune/never_reopens", "pruning never reopens a tick",
	},
	"age of a prune": {
		func(b *bent) {
			b.prune = func(r *store.PruneRequest) {
				if r.Retention.Succeeded > time.Minute {
					r.Retention = store.Retention{Succeeded: time.Millisecond}
				}
			}
		},
		"prune/by_state", "a prune removes what ended longer ago than the age of its state",
	},
	"keys of a prune": {
		func(b *bent) {
			b.prune = func(r *store.PruneRequest) { r.Retention.Keys = min(r.Retention.Keys, r.Retention.Failed) }
		},
		"prune/keys", "a key loses arguments and result",
	},
	"history": {
		func(b *bent) { b.forgets = true },
		"attempts/history", "an attempt that ended without ending its run",
	},
	"namespaces": {
		func(b *bent) { b.space = func(ns string) string { return strings.TrimSpace(strings.ToLower(ns)) } },
		"record/namespaces", "namespaces share nothing",
	},
}

func refNow(b *bent, r store.Ref) store.Ref {
	x := b.now(r.Namespace, r.ID)
	return x.Ref()
}
