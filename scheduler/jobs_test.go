package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

// phases are instants around a tick, as distances to it.
func phases() []time.Duration {
	return []time.Duration{
		-51 * time.Millisecond, -50 * time.Millisecond, -time.Millisecond, 0, time.Millisecond, 4 * time.Millisecond,
		30 * time.Millisecond, 999 * time.Millisecond, 1500 * time.Millisecond,
	}
}

// live is a cluster whose replicas change their jobs at different moments.
type live struct {
	*schedulertest.Cluster
	t    *testing.T
	gate scheduler.Gate
}

// newLive starts three replicas, whose clocks are apart, with one job beside those given.
func newLive(t *testing.T, gate scheduler.Gate, jobs func(l *live, r *schedulertest.Replica) []scheduler.Job) *live {
	l := &live{t: t, gate: gate}
	l.Cluster = schedulertest.New(t, schedulertest.Options{
		Configure: func(r *schedulertest.Replica, cfg *scheduler.Config) {
			cfg.Gate, cfg.Lease = gate, 4*time.Second
			cfg.ClockOffset = time.Duration(r.ID-1) * 700 * time.Millisecond
		},
		Jobs: func(r *schedulertest.Replica) []scheduler.Job { return jobs(l, r) },
	})
	return l
}

// job is one whose every tick is owed a run: at once where no gate stands before it,
// else perhaps later, as a gate may be held by a replica that has other jobs.
func (l *live) job(r *schedulertest.Replica, name, spec string) scheduler.Job {
	misfire, overlap := scheduler.MisfireFireAll, scheduler.OverlapBufferAll
	if l.gate == scheduler.GateNone {
		misfire, overlap = scheduler.MisfireSkip, scheduler.OverlapSkip
	}
	return scheduler.Cron(name, spec, func(ctx context.Context, run *scheduler.Run) error {
		r.Effect(run)
		return sleep(ctx, 5*time.Millisecond)
	}, scheduler.OnMisfire(misfire), scheduler.OnOverlap(overlap))
}

// apply changes the jobs of each replica in turn, apart from each other.
func (l *live) apply(apart time.Duration, jobs func(r *schedulertest.Replica) []scheduler.Job) {
	l.t.Helper()
	for i, r := range l.Replicas {
		if i > 0 {
			time.Sleep(apart)
		}
		if _, err := r.Apply(l.t.Context(), jobs(r)...); err != nil {
			l.t.Errorf("replica %d: %v", i, err)
		}
	}
}

func (l *live) state(job string) store.JobState {
	l.t.Helper()
	v, err := l.Store.Survey(l.t.Context(), schedulertest.Namespace, []string{job})
	if err != nil || len(v.Jobs) != 1 {
		l.t.Fatalf("state of %s: %v", job, err)
	}
	return v.Jobs[0]
}

// span is a stretch of time with one period, counted from the epoch.
type span struct {
	from, to store.Millis // (from, to]
	period   int64        // ms
}

// ran checks that exactly the ticks of the spans have a record, and each one run that
// succeeded and had one effect.
func (l *live) ran(job string, spans ...span) {
	l.t.Helper()
	expected := map[store.Millis]bool{}
	for _, s := range spans {
		for tick := (int64(s.from)/s.period + 1) * s.period; tick <= int64(s.to); tick += s.period {
			expected[store.Millis(tick)] = true
		}
	}
	last := spans[len(spans)-1].to
	effects := map[store.Millis]int{}
	for _, e := range l.Effects(job) {
		effects[e.Tick]++
	}
	for _, row := range l.Rows(job) {
		if row.Key.Tick > last {
			continue
		}
		if !expected[row.Key.Tick] {
			l.t.Errorf("%s: tick %v is not of the schedule: %v by %s", job, row.Key.Tick, row.State, row.OwnerLabel)
		}
		if row.State != store.StateSucceeded || effects[row.Key.Tick] != 1 {
			l.t.Errorf("%s: tick %v: %v(%s), %d effects", job, row.Key.Tick, row.State, row.Reason, effects[row.Key.Tick])
		}
		delete(expected, row.Key.Tick)
	}
	for tick := range expected {
		l.t.Errorf("%s: tick %v has no record", job, tick)
	}
	if ranges, err := l.Store.Ranges(l.t.Context(), schedulertest.Namespace, job, 0, last); err != nil || len(ranges) > 0 {
		l.t.Errorf("%s: ranges %+v, %v", job, ranges, err)
	}
}

// everyLive tries a change at every phase of a tick, with every gate, the replicas at
// once or one after another.
func everyLive(t *testing.T, test func(t *testing.T, gate scheduler.Gate, phase, apart time.Duration)) {
	for _, gate := range []scheduler.Gate{scheduler.GateNone, scheduler.GateLock, scheduler.GateLeader} {
		for _, apart := range []time.Duration{0, 3 * time.Millisecond, 1700 * time.Millisecond, 7 * time.Second} {
			for _, phase := range phases() {
				t.Run(fmt.Sprintf("%s/%v apart/%v", gate, apart, phase), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { test(t, gate, phase, apart) })
				})
			}
		}
	}
}

// until waits for the next multiple of the period, and the phase after it.
func until(period, phase time.Duration) {
	time.Sleep(time.Until(time.Now().Truncate(period).Add(2*period + phase)))
}

// TestChangedScheduleLosesNoTick: up to the instant at which the new schedule is
// registered the ticks are the old one's, then the new one's, each with one run.
func TestChangedScheduleLosesNoTick(t *testing.T) {
	everyLive(t, func(t *testing.T, gate scheduler.Gate, phase, apart time.Duration) {
		spec := func(text string) func(l *live, r *schedulertest.Replica) []scheduler.Job {
			return func(l *live, r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{l.job(r, "changed", text), l.job(r, "same", "@every 1s")}
			}
		}
		l := newLive(t, gate, spec("@every 3s"))
		until(3*time.Second, phase)
		l.apply(apart, func(r *schedulertest.Replica) []scheduler.Job { return spec("@every 2s")(l, r) })
		time.Sleep(20 * time.Second)
		until(6*time.Second, phase)
		l.apply(apart, func(r *schedulertest.Replica) []scheduler.Job { return spec("@every 3s")(l, r) })
		time.Sleep(25 * time.Second)
		revisions, end := l.state("changed").Revisions, store.MillisOf(time.Now().Add(-8*time.Second))
		if len(revisions) != 3 {
			t.Fatalf("revisions %+v", revisions)
		}
		l.ran("changed", span{revisions[0].From, revisions[1].From, 3000}, span{revisions[1].From, revisions[2].From, 2000}, span{revisions[2].From, end, 3000})
		l.ran("same", span{l.state("same").Revisions[0].From, end, 1000})
	})
}

// TestAddedAndRemovedJobs: a job that is added ticks from its registration on, and one
// that is removed until the last replica has let go of it.
func TestAddedAndRemovedJobs(t *testing.T) {
	everyLive(t, func(t *testing.T, gate scheduler.Gate, phase, apart time.Duration) {
		l := newLive(t, gate, func(l *live, r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{l.job(r, "stays", "@every 1s")}
		})
		until(time.Second, phase)
		l.apply(apart, func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{l.job(r, "stays", "@every 1s"), l.job(r, "visits", "@every 1s")}
		})
		time.Sleep(10 * time.Second)
		until(time.Second, phase)
		first := store.MillisOf(time.Now())
		l.apply(apart, func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{l.job(r, "stays", "@every 1s")}
		})
		last := store.MillisOf(time.Now())
		time.Sleep(20 * time.Second)
		since := l.state("visits").Revisions[0].From
		to := first - 1 // at that instant a replica may let go of the tick that is due
		if gate == scheduler.GateNone && apart > 0 {
			to = last - 1 // whoever still has it goes on
		}
		l.ran("visits", span{since, to, 1000})
		for _, e := range l.Effects("visits") {
			if e.Tick > last {
				t.Errorf("tick %v ran after the job was removed everywhere", e.Tick)
			}
		}
		l.ran("stays", span{l.state("stays").Revisions[0].From, store.MillisOf(time.Now().Add(-8 * time.Second)), 1000})
	})
}

func TestRunInProgressKeepsItsDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []string
		work := func(name string, took time.Duration) scheduler.Handler {
			return func(ctx context.Context, run *scheduler.Run) error {
				err := sleep(ctx, took)
				ends = append(ends, fmt.Sprint(name, ":", err != nil))
				return err
			}
		}
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(*schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 10s", work("old", 25*time.Second))}
		}})
		until(10*time.Second, time.Second)
		changes, err := c.Replicas[0].Apply(t.Context(), scheduler.Cron("j", "@every 10s", work("new", 3*time.Second), scheduler.Timeout(2*time.Second)))
		if err != nil || !reflect.DeepEqual(changes, scheduler.Changes{Changed: []string{"j"}}) {
			t.Errorf("%+v, %v", changes, err)
		}
		time.Sleep(28 * time.Second)
		synctest.Wait()
		if got := fmt.Sprint(ends); got != "[old:false new:true]" {
			t.Errorf("runs ended as %s", got)
		}
		var states []string
		for _, row := range c.Rows("j") {
			states = append(states, fmt.Sprint(row.State, "(", row.Reason, ")"))
		}
		if got := fmt.Sprint(states); got != "[succeeded() skipped(overlap) skipped(overlap) failed()]" {
			t.Errorf("record %s", got)
		}
	})
}

// TestRefusedJobsChangeNothing: with one that cannot work none is taken, and nothing
// is asked of the store.
func TestRefusedJobsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r))}
		}})
		time.Sleep(2 * time.Second)
		r := c.Replicas[0]
		before, asked := r.Describe(), r.Store.Counts()[storetest.Register]
		good := []scheduler.Job{scheduler.Cron("a", "@every 2s", effect(r)), scheduler.Cron("j", "@every 3s", effect(r))}
		for want, bad := range map[string]scheduler.Job{
			`job "b"`:    scheduler.Cron("b", "0 0 30 2 *", effect(r)),
			`called "a"`: scheduler.Cron("a", "@every 5s", effect(r)),
		} {
			for what, do := range map[string]func(...scheduler.Job) error{
				"apply": func(jobs ...scheduler.Job) error { _, err := r.Apply(t.Context(), jobs...); return err },
				"check": func(jobs ...scheduler.Job) error {
					return r.Check(scheduler.Config{Namespace: schedulertest.Namespace}, jobs...)
				},
			} {
				if err := do(append(slices.Clone(good), bad)...); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %s", what, err, want)
				}
			}
		}
		if _, err := r.Reconfigure(t.Context(), scheduler.Config{Namespace: schedulertest.Namespace, Concurrency: -1}, good...); err == nil {
			t.Error("a broken setting was taken")
		}
		if err := r.Check(scheduler.Config{Namespace: schedulertest.Namespace}, good...); err != nil {
			t.Error(err)
		}
		if after := r.Describe(); !reflect.DeepEqual(before, after) {
			t.Errorf("\n was %+v\n now %+v", before, after)
		}
		if n := r.Store.Counts()[storetest.Register]; n != asked {
			t.Errorf("%d registrations", n-asked)
		}
		// The same jobs again cost the store nothing, and change nothing.
		if c, err := r.Apply(t.Context(), scheduler.Cron("j", "@every 1s", effect(r))); err != nil || c.Any() {
			t.Errorf("%+v, %v", c, err)
		}
		if n := r.Store.Counts()[storetest.Register]; n != asked {
			t.Errorf("%d registrations", n-asked)
		}
		time.Sleep(3 * time.Second)
		begin := c.Effects("j")[0].At
		once(t, c, "j", time.Second, begin, time.Now().Add(-time.Second))
		if err := r.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := r.Apply(t.Context(), good...); err == nil {
			t.Error("a stopped scheduler took jobs")
		}
	})
}

// TestApplyWithoutAStore: nothing is taken, whether the store has got the request or
// not; asked again, it is.
func TestApplyWithoutAStore(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied=", applied), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r))}
				}})
				until(time.Second, 300*time.Millisecond)
				r := c.Replicas[0]
				r.Store.Arm(storetest.Fault{Applied: applied}, storetest.Register)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				if _, err := r.Apply(ctx, scheduler.Cron("j", "@every 2s", effect(r))); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				if got := r.Describe().Jobs[0].Spec; got != "@every 1s" {
					t.Errorf("the schedule is %s", got)
				}
				r.Store.Heal()
				time.Sleep(5 * time.Second)
				// Back to what this process has: it is asked for again, as nobody knows what the
				// store has.
				if c, err := r.Apply(t.Context(), scheduler.Cron("j", "@every 1s", effect(r))); err != nil || c.Any() {
					t.Errorf("%+v, %v", c, err)
				}
				n := len(c.Effects("j"))
				time.Sleep(10 * time.Second)
				if n = len(c.Effects("j")) - n; n < 9 {
					t.Errorf("%d runs in ten seconds", n)
				}
			})
		})
	}
}

// TestApplyBeforeTheStoreAnswers: jobs may change while the scheduler waits for the
// store to register those that it has started with.
func TestApplyBeforeTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			r.Store.Arm(storetest.Fault{}, storetest.Register)
			return []scheduler.Job{scheduler.Cron("early", "@every 1s", effect(r))}
		}})
		r := c.Replicas[0]
		time.Sleep(2 * time.Second)
		if changes, err := r.Apply(t.Context(), scheduler.Cron("late", "@every 1s", effect(r))); err != nil || fmt.Sprint(changes.Added, changes.Removed) != "[late] [early]" {
			t.Errorf("%+v, %v", changes, err)
		}
		time.Sleep(2 * time.Second)
		r.Store.Heal()
		time.Sleep(10 * time.Second)
		if n := len(c.Effects("late")); n < 4 || len(c.Effects("early")) > 0 {
			t.Errorf("%d runs, %d of the job that went", n, len(c.Effects("early")))
		}
		if v, err := c.Store.Survey(t.Context(), schedulertest.Namespace, nil); err != nil || len(v.Jobs) != 1 {
			t.Errorf("known jobs %+v, %v", v.Jobs, err)
		}
	})
}

func TestPausedInTheDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := func(r *schedulertest.Replica, opts ...scheduler.Option) []scheduler.Job {
			return []scheduler.Job{
				scheduler.Cron("j", "@every 1s", effect(r), append(opts, scheduler.OnMisfire(scheduler.MisfireFireAll))...),
				scheduler.QueueFunc("q", effect(r), opts...),
			}
		}
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job { return jobs(r) }})
		state := func() store.JobState {
			v, err := c.Store.Survey(t.Context(), schedulertest.Namespace, []string{"j"})
			if err != nil {
				t.Fatal(err)
			}
			return v.Jobs[0]
		}
		apply := func(r *schedulertest.Replica, opts ...scheduler.Option) {
			t.Helper()
			if _, err := r.Apply(t.Context(), jobs(r, opts...)...); err != nil {
				t.Fatal(err)
			}
		}
		until(time.Second, 500*time.Millisecond)
		begin := time.Now()
		apply(c.Replicas[1], scheduler.Paused("the warehouse moves"))
		before := len(c.Effects(""))
		if _, err := c.Store.Enqueue(t.Context(), schedulertest.Namespace, []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: "q", Name: "a"}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if n := len(c.Effects("")) - before; n != 0 {
			t.Errorf("%d runs of paused jobs", n)
		}
		if s := state(); s.PausedBy != "configuration" || s.PauseReason != "the warehouse moves" {
			t.Errorf("paused by %q: %q", s.PausedBy, s.PauseReason)
		}
		for _, r := range []int{0, 2} {
			apply(c.Replicas[r], scheduler.Paused("the warehouse moves"))
		}
		for _, r := range c.Replicas {
			apply(r)
		}
		time.Sleep(10 * time.Second)
		if l := c.Ledger("j", begin, begin.Add(10*time.Second)); l.Skipped != 10 || l.Ran != 0 {
			t.Errorf("while paused: %+v", l)
		}
		if l := c.Ledger("j", begin.Add(10*time.Second), begin.Add(18*time.Second)); l.Ran != 8 {
			t.Errorf("after it: %+v", l)
		}
		if n := len(c.Effects("q")); n != 1 {
			t.Errorf("%d runs of what waited in the queue", n)
		}
		// A pause that a person made is left alone, but that it must not end too early.
		if _, err := c.Store.SetPause(t.Context(), store.Pause{Namespace: schedulertest.Namespace, Job: "j", By: "ann"}); err != nil {
			t.Fatal(err)
		}
		apply(c.Replicas[0], scheduler.Paused("x"))
		apply(c.Replicas[0])
		if s := state(); s.PausedBy != "ann" || !s.PausedAt(store.MillisOf(time.Now())) {
			t.Errorf("paused by %q", s.PausedBy)
		}
		if _, err := c.Store.SetPause(t.Context(), store.Pause{Namespace: schedulertest.Namespace, Job: "j", By: "ann", For: time.Second}); err != nil {
			t.Fatal(err)
		}
		apply(c.Replicas[0], scheduler.Paused("x"))
		time.Sleep(2 * time.Second)
		if s := state(); !s.PausedAt(store.MillisOf(time.Now())) {
			t.Error("the pause of the definition has ended with another")
		}
	})
}

// TestEveryKeyIsLiveOrNeedsARestart changes each setting by itself.
func TestEveryKeyIsLiveOrNeedsARestart(t *testing.T) {
	base := scheduler.Config{Namespace: "a"}
	for f := range reflect.TypeFor[scheduler.Config]().Fields() {
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		s, err := scheduler.New(base, scheduler.Deps{Store: memstore.New()})
		if err != nil {
			t.Fatal(err)
		}
		other := base
		switch v := reflect.ValueOf(&other).Elem().FieldByIndex(f.Index); v.Interface().(type) {
		case scheduler.Gate:
			v.SetString(string(scheduler.GateNone))
		case string:
			v.SetString("Europe/Berlin")
		case time.Duration:
			v.SetInt(int64(17 * time.Second))
		case int, int64:
			v.SetInt(1)
		case scheduler.Retention:
			v.Set(reflect.ValueOf(scheduler.Retention{Off: true}))
		default:
			t.Fatalf("%s: no other value is known here for a %T", key, v.Interface())
		}
		c, err := s.Reconfigure(t.Context(), other)
		live := slices.Contains(scheduler.LiveKeys(), key)
		switch {
		case err != nil:
			t.Errorf("%s: %v", key, err)
		case live && !reflect.DeepEqual(c, scheduler.Changes{Settings: []string{key}}):
			t.Errorf("%s: %+v", key, c)
		case !live && !reflect.DeepEqual(c, scheduler.Changes{Restart: []string{key}}):
			t.Errorf("%s: %+v", key, c)
		}
		again, err := s.Reconfigure(t.Context(), other)
		if err != nil || again.Any() || !live && len(again.Restart) != 1 {
			t.Errorf("%s: the second time %+v, %v", key, again, err)
		}
	}
	s, err := scheduler.New(base, scheduler.Deps{Store: memstore.New()})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := s.Reconfigure(t.Context(), scheduler.Config{Namespace: "b"}); err != nil || fmt.Sprint(c.Restart) != "[namespace]" {
		t.Errorf("namespace: %+v, %v", c, err)
	}
}

// TestSettingsApplyLive shows what running services do with new settings.
func TestSettingsApplyLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at, most atomic.Int64
		c := schedulertest.New(t, schedulertest.Options{
			Replicas:  1,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Concurrency = 2; cfg.Retention.Off = true },
			Jobs: func(*schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.QueueFunc("q", func(ctx context.Context, _ *scheduler.Run) error {
					most.Store(max(most.Load(), at.Add(1)))
					defer at.Add(-1)
					return sleep(ctx, time.Second)
				})}
			},
		})
		r := c.Replicas[0]
		var rows []store.NewExecution
		for i := range 60 {
			rows = append(rows, store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "q", Name: fmt.Sprint(i)}})
		}
		if _, err := c.Store.Enqueue(t.Context(), schedulertest.Namespace, rows); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if most.Load() != 2 {
			t.Errorf("%d runs at once", most.Load())
		}
		reconfigure := func(cfg scheduler.Config) {
			t.Helper()
			cfg.Namespace, cfg.Label = schedulertest.Namespace, "replica 0"
			if _, err := r.Reconfigure(t.Context(), cfg, scheduler.QueueFunc("q", func(ctx context.Context, _ *scheduler.Run) error {
				most.Store(max(most.Load(), at.Add(1)))
				defer at.Add(-1)
				return sleep(ctx, time.Second)
			})); err != nil {
				t.Fatal(err)
			}
		}
		reconfigure(scheduler.Config{Concurrency: 10, Retention: scheduler.Retention{Off: true}})
		time.Sleep(5 * time.Second)
		if most.Load() != 10 {
			t.Errorf("%d runs at once", most.Load())
		}
		polls := r.Store.Counts()[storetest.Fetch]
		reconfigure(scheduler.Config{PollInterval: 200 * time.Millisecond, Retention: scheduler.Retention{Every: time.Minute}})
		time.Sleep(10 * time.Second)
		if n := r.Store.Counts()[storetest.Fetch] - polls; n < 40 {
			t.Errorf("%d polls in ten seconds", n)
		}
		if n := r.Store.Counts()[storetest.Prune]; n != 0 {
			t.Errorf("%d passes of the retention", n)
		}
		time.Sleep(4 * time.Minute)
		if n := r.Store.Counts()[storetest.Prune]; n < 2 {
			t.Errorf("%d passes of the retention", n)
		}
	})
}

// TestALaterGateLeader: the elector is run once a job asks it.
func TestALaterGateLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 2, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1s", effect(r), scheduler.WithGate(scheduler.GateNone))}
		}})
		until(time.Second, 500*time.Millisecond)
		for _, r := range c.Replicas {
			if changes, err := r.Apply(t.Context(), scheduler.Cron("j", "@every 1s", effect(r), scheduler.WithGate(scheduler.GateLeader))); err != nil || len(changes.Changed) != 1 {
				t.Errorf("%+v, %v", changes, err)
			}
		}
		time.Sleep(5 * time.Second)
		n := len(c.Effects("j"))
		time.Sleep(5 * time.Second)
		if n = len(c.Effects("j")) - n; n != 5 {
			t.Errorf("%d runs in five seconds", n)
		}
	})
}
