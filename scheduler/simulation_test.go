package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/storetest"
)

// TestSimulation lets replicas live through a random history of faults, drawn from
// a seed, on virtual time: requests that fail before or after they are executed,
// that hang, that are late; partitions, deaths, stops and starts, edits of a
// schedule and of the set of jobs, of a replica that goes on or of one that starts
// anew, pauses, turns of the switch. Then all heals, and the record must be
// what the design promises: see simulation.check.
//
//	SOLOTICK_SIM_SEEDS=500  runs the seeds 1 to 500; 10 is the default
//	SOLOTICK_SIM_SEEDS=17-17 runs seed 17
func TestSimulation(t *testing.T) {
	first, last := simSeeds(t)
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simSeeds(t *testing.T) (first, last uint64) {
	t.Helper()
	text := os.Getenv("SOLOTICK_SIM_SEEDS")
	if text == "" {
		return 1, 10
	}
	from, to, found := strings.Cut(text, "-")
	if !found {
		from, to = "1", from
	}
	first, err1 := strconv.ParseUint(from, 10, 64)
	last, err2 := strconv.ParseUint(to, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatalf("SOLOTICK_SIM_SEEDS: %v", err)
	}
	return first, last
}

const (
	simChaos = 2 * time.Minute  // faults happen
	simQuiet = 90 * time.Second // everything is healed
)

// simulation is one history.
type simulation struct {
	t    *testing.T
	seed uint64
	c    *schedulertest.Cluster
	end  time.Time // of the faults
	jobs []string  // of class cron

	mu         sync.Mutex // guards all below, the dice as well
	dice       *rand.Rand
	generation int            // of the schedule that is edited
	inside     map[string]int // handlers whose context has not ended, by job or lock key
	fences     map[string]int64
	effects    map[string][]string // guarded effects, by run key
	calls      map[string]int      // handler calls, by run key
	story      []string
	queued     []store.Key
	onceOnly   []store.Key // whose handler is called once at most
}

func simulate(t *testing.T, seed uint64) {
	s := &simulation{
		t: t, seed: seed, dice: rand.New(rand.NewPCG(seed, 0)),
		inside: map[string]int{}, fences: map[string]int64{}, effects: map[string][]string{}, calls: map[string]int{},
	}
	s.end = time.Now().Add(simChaos)
	lease := []time.Duration{2 * time.Second, 4 * time.Second, 10 * time.Second}[s.n(3)]
	mode := scheduler.Modes()[s.n(3)]
	s.note("lease %v, mode %s", lease, mode)
	s.c = schedulertest.New(t, schedulertest.Options{
		Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
			cfg.Lease, cfg.DrainTimeout = lease, 4*time.Second
			if seed%2 == 0 {
				cfg.Partitions = 5
			}
			cfg.ClockOffset = time.Duration(s.n(1400)-700) * time.Millisecond
			if s.n(2) == 0 {
				scheduler.Uncorrected(cfg)
			}
			cfg.Degradation = scheduler.Degradation{Mode: mode, After: 2 * time.Second, RecoverAfter: 3 * time.Second}
		},
		Jobs: s.makeJobs,
	})
	var chaos sync.WaitGroup
	chaos.Go(s.operator)
	for time.Now().Before(s.end) {
		s.turn()
		time.Sleep(time.Duration(s.n(2500)) * time.Millisecond)
	}
	chaos.Wait()
	s.note("healed")
	for _, r := range s.c.Replicas {
		if !r.Dead() {
			r.Store.Heal()
			r.Lock.Heal()
			if err := errors.Join(r.SetDegradation(scheduler.Degradation{}), r.Switch().SetFleet(nil), r.Switch().Clear("simulation", "over")); err != nil {
				t.Error(err)
			}
		}
	}
	for _, job := range s.jobs {
		if _, err := s.c.Store.SetPause(t.Context(), store.Pause{Namespace: schedulertest.Namespace, Job: job, Off: true}); err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	}
	// Whose last change was refused by a store that did not answer tries it again.
	for _, r := range s.c.Replicas {
		if !r.Dead() {
			s.apply(r, time.Minute)
		}
	}
	time.Sleep(simQuiet)
	s.check()
	if t.Failed() {
		t.Logf("seed %d: SOLOTICK_SIM_SEEDS=%d-%d go test -run TestSimulation ./scheduler\n%s", seed, seed, seed, strings.Join(s.story, "\n"))
	}
}

func (s *simulation) n(below int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dice.IntN(below)
}

func (s *simulation) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story = append(s.story, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (s *simulation) makeJobs(r *schedulertest.Replica) []scheduler.Job {
	s.mu.Lock()
	edited := []string{"@every 3s", "@every 2s", "@every 5s"}[s.generation%3]
	s.mu.Unlock()
	short := func() time.Duration { return time.Duration(s.n(20)) * time.Millisecond }
	medium := func() time.Duration { return time.Duration(s.n(2000)) * time.Millisecond }
	long := func() time.Duration { return time.Duration(s.n(9000)) * time.Millisecond }
	all := scheduler.OnMisfire(scheduler.MisfireFireAll)
	list := []scheduler.Job{
		scheduler.Cron("short", "@every 1s", s.handler(r, short, false), all),
		scheduler.Cron("long", "@every 3s", s.handler(r, long, false), scheduler.WithGate(scheduler.GateNone)),
		scheduler.Cron("locked", "@every 3s", s.handler(r, long, false)),
		scheduler.Cron("led", "@every 2s", s.handler(r, short, true), scheduler.WithGate(scheduler.GateLeader),
			scheduler.Retry(3, time.Second, time.Second)),
		scheduler.Cron("buffered", "@every 4s", s.handler(r, medium, true), all, scheduler.OnOverlap(scheduler.OverlapBufferAll),
			scheduler.Retry(2, time.Second, time.Second)),
		scheduler.Cron("skipping", "@every 1s", s.handler(r, short, false), scheduler.OnMisfire(scheduler.MisfireSkip),
			scheduler.WhenOwnerDies(store.CrashNextTick)),
		scheduler.Cron("edited", edited, s.handler(r, short, false)),
	}
	if s.jobs == nil {
		for _, j := range list {
			s.jobs = append(s.jobs, j.Name())
		}
	}
	s.mu.Lock()
	visits := s.generation%2 == 1 // there for one generation, gone in the next
	s.mu.Unlock()
	if visits {
		list = append(list, scheduler.Cron("visits", "@every 2s", s.handler(r, short, false), all))
	}
	return append(list,
		scheduler.QueueFunc("queue", s.handler(r, short, true), scheduler.Retry(20, 100*time.Millisecond, time.Second)),
		// The one says itself that it is not to be run again, for the other its rows do.
		scheduler.QueueFunc("charge", s.handler(r, long, true), scheduler.Retry(1, time.Second, time.Second), scheduler.WhenOwnerDies(store.CrashIndeterminate)),
		scheduler.QueueFunc("refund", s.handler(r, long, true), scheduler.Retry(1, time.Second, time.Second)),
	)
}

// handler works for a while, minding its context, and then has a guarded effect,
// as idempotent.Guard makes it.
func (s *simulation) handler(r *schedulertest.Replica, work func() time.Duration, fails bool) scheduler.Handler {
	return func(ctx context.Context, run *scheduler.Run) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		key, lane := run.Key().String(), run.Job()
		if run.Key().Class == store.ClassKey {
			lane = strings.SplitAfter(run.Key().String(), ":")[0]
		}
		s.mu.Lock()
		s.inside[lane]++
		s.calls[key]++
		if s.inside[lane] > 1 {
			s.t.Errorf("%v: %s (replica %d, attempt %d): %d runs at a time", time.Now().Format("15:04:05.000"), key, r.ID, run.Attempt(), s.inside[lane])
		}
		if run.Fence() <= s.fences[lane] {
			s.t.Errorf("%s: fence %d after %d", key, run.Fence(), s.fences[lane])
		}
		s.fences[lane] = max(s.fences[lane], run.Fence())
		s.mu.Unlock()
		leave := sync.OnceFunc(func() {
			s.mu.Lock()
			s.inside[lane]--
			s.mu.Unlock()
		})
		stop := context.AfterFunc(ctx, leave)
		defer stop()
		defer leave()
		select {
		case <-ctx.Done():
			if s.n(4) == 0 && time.Now().Before(s.end) {
				time.Sleep(time.Duration(s.n(15000)) * time.Millisecond) // deaf for a while
			}
			if s.n(4) != 0 {
				return ctx.Err()
			}
		case <-time.After(work()):
		}
		if fails && s.n(4) == 0 {
			return errors.New("no luck")
		}
		if s.n(3) == 0 {
			return nil // an effect elsewhere: at least once
		}
		leave() // the run is over when the commit is, which may be before this process knows
		err := s.commit(ctx, r, run)
		if err == nil {
			run.MarkSettled()
			s.mu.Lock()
			s.effects[key] = append(s.effects[key], fmt.Sprintf("attempt %d of replica %d", run.Attempt(), r.ID))
			s.mu.Unlock()
		}
		return err
	}
}

// commit finishes the run as idempotent.Guard does: an unknown fate is settled
// by reading back.
func (s *simulation) commit(ctx context.Context, r *schedulertest.Replica, run *scheduler.Run) error {
	ref := run.Ref()
	within, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answers, err := r.Store.Finish(within, []store.Finish{{Ref: ref, State: store.StateSucceeded}})
	if err == nil {
		return answers[0]
	}
	for range 20 {
		read, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		row, getErr := r.Store.Get(read, ref.Namespace, ref.ID)
		cancel()
		if getErr == nil {
			if row.State == store.StateSucceeded && row.Attempt == ref.Attempt && row.Owner == ref.Owner {
				return nil
			}
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	// The fate stays unknown to this process; the simulation looks at the record.
	row, getErr := s.c.Store.Get(context.WithoutCancel(ctx), ref.Namespace, ref.ID)
	if getErr == nil && row.State == store.StateSucceeded && row.Attempt == ref.Attempt && row.Owner == ref.Owner {
		return nil
	}
	return err
}

// apply gives the replica the jobs of the present generation.
func (s *simulation) apply(r *schedulertest.Replica, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	changes, err := r.Apply(ctx, s.makeJobs(r)...)
	s.note("replica %d: jobs applied: %+v, %v", r.ID, changes, err)
	away := errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	if err != nil && r.Health().Running && (!away || patience == time.Minute) {
		s.t.Errorf("replica %d: jobs not applied: %v", r.ID, err)
	}
}

// turn does one thing to the cluster.
func (s *simulation) turn() {
	live := slices.DeleteFunc(slices.Clone(s.c.Replicas), func(r *schedulertest.Replica) bool { return r.Dead() })
	r := live[s.n(len(live))]
	switch d := s.n(100); {
	case d < 55:
		methods := storetest.Methods()
		m := methods[s.n(len(methods))]
		if s.n(2) == 0 { // where it hurts
			hot := []storetest.Method{storetest.Claim, storetest.Finish, storetest.Heartbeat, storetest.Settle, storetest.TakeOver, storetest.Fetch, storetest.Survey}
			m = hot[s.n(len(hot))]
		}
		f := storetest.Fault{
			Applied: s.n(2) == 0, BlackHole: s.n(3) == 0, Slow: s.n(5) == 0,
			Delay: time.Duration(s.n(2)*s.n(4000)) * time.Millisecond, Times: s.n(8),
		}
		s.note("replica %d: store %s: %+v", r.ID, m, f)
		r.Store.Arm(f, m)
	case d < 70:
		kinds := []lockstest.Kind{lockstest.Refuse, lockstest.ErrorBefore, lockstest.ErrorAfter, lockstest.Delay, lockstest.BlackHole, lockstest.Swallow}
		m, f := lockstest.Method(s.n(3)), lockstest.Fault{Kind: kinds[s.n(len(kinds))], Delay: time.Duration(s.n(3000)) * time.Millisecond, Times: s.n(6)}
		s.note("replica %d: lock %d: %+v", r.ID, m, f)
		r.Lock.Arm(m, f)
	case d < 74:
		s.note("replica %d: partitioned", r.ID)
		r.CutStore()
		r.CutLocks()
	case d < 76:
		s.note("all: locks cut")
		for _, r := range live {
			r.CutLocks()
		}
	case d < 78:
		s.note("all: store cut")
		for _, r := range live {
			r.CutStore()
		}
	case d < 90:
		s.note("replica %d: healed", r.ID)
		r.Store.Heal()
		r.Lock.Heal()
	case len(live) > 2 && d < 93:
		s.note("replica %d: killed", r.ID)
		r.Kill()
		s.c.Start()
	case len(live) > 2 && d < 96:
		began := time.Now()
		s.note("replica %d: stopped", r.ID)
		r.Stop(s.t.Context())
		if took := time.Since(began); took > 15*time.Second {
			s.t.Errorf("replica %d: the stop took %v", r.ID, took)
		}
		r.Kill()
		if s.n(2) == 0 {
			s.mu.Lock()
			s.generation++
			s.mu.Unlock()
			s.note("schedule edited")
		}
		s.c.Start()
	default:
		s.note("everybody: healed")
		for _, r := range live {
			r.Store.Heal()
			r.Lock.Heal()
		}
	}
}

// operator does what people do meanwhile, on a store that answers.
func (s *simulation) operator() {
	ctx := context.Background()
	for i := 0; time.Now().Before(s.end); i++ {
		time.Sleep(time.Duration(s.n(4000)) * time.Millisecond)
		job := s.jobs[s.n(len(s.jobs))]
		switch s.n(5) {
		case 0, 1:
			lane := fmt.Sprint("lane", s.n(3), ":")
			key := store.Key{Class: store.ClassKey, Job: "queue", Name: lane + fmt.Sprint(i)}
			if _, err := s.c.Store.Enqueue(ctx, schedulertest.Namespace, []store.NewExecution{
				{Key: key, LockKey: lane, Active: store.ActiveQueue("queue", lane), MaxAttempts: 100},
			}); err != nil {
				s.t.Error(err)
			}
			s.queued = append(s.queued, key)
			// Two lanes each: a key that its run holds until the end.
			for job, policy := range map[string]store.OnCrash{"charge": store.CrashRerun, "refund": store.CrashIndeterminate} {
				lane := fmt.Sprint(job, i%2, ":")
				key := store.Key{Class: store.ClassKey, Job: job, Name: lane + fmt.Sprint(i)}
				if _, err := s.c.Store.Enqueue(ctx, schedulertest.Namespace, []store.NewExecution{
					{Key: key, LockKey: lane, Active: store.ActiveQueue(job, lane), OnCrash: policy},
				}); err != nil {
					s.t.Error(err)
				}
				s.onceOnly = append(s.onceOnly, key)
			}
		case 2:
			live := slices.DeleteFunc(slices.Clone(s.c.Replicas), func(r *schedulertest.Replica) bool { return r.Dead() })
			if s.n(2) == 0 {
				s.mu.Lock()
				s.generation++
				s.mu.Unlock()
				s.note("jobs edited")
			}
			for range 1 + s.n(len(live)) {
				if r := live[s.n(len(live))]; !r.Dead() && r.Health().Running {
					s.apply(r, time.Duration(1+s.n(4000))*time.Millisecond)
				}
			}
		case 3:
			p := store.Pause{Namespace: schedulertest.Namespace, Job: job, Off: s.n(2) == 0, For: time.Duration(1+s.n(10000)) * time.Millisecond}
			s.note("pause %+v", p)
			if _, err := s.c.Store.SetPause(ctx, p); err != nil && !errors.Is(err, store.ErrNotFound) {
				s.t.Error(err)
			}
		default:
			s.throw()
		}
	}
}

// throw sets the switch by one of its ways. A fleet is not told at one instant.
func (s *simulation) throw() {
	d := scheduler.Degradation{
		Switch: scheduler.SwitchPositions()[max(0, s.n(6)-3)], Mode: scheduler.Modes()[s.n(3)],
		After: time.Duration(s.n(4)) * time.Second, RecoverAfter: 3 * time.Second,
	}
	set := scheduler.SwitchSetting{Position: d.Switch, Mode: d.Mode, Reason: "chaos", By: "simulation", Until: time.Now().Add(time.Duration(1+s.n(8)) * time.Second)}
	way := s.n(3)
	s.note("switch by way %d: %s %s after %v", way, d.Switch, d.Mode, d.After)
	for i, r := range slices.Clone(s.c.Replicas) {
		var err error
		switch {
		case way == 0:
			err = r.SetDegradation(d)
		case way == 1:
			err = r.Switch().SetFleet(&set)
		case i == 0:
			err = r.Switch().Set(set)
		}
		if err != nil && !strings.Contains(err.Error(), "is over") { // the replica's clock may be ahead
			s.t.Error(err)
		}
		time.Sleep(time.Duration(s.n(400)) * time.Millisecond)
	}
}

// check looks at the record after everything has healed.
func (s *simulation) check() {
	now := store.MillisOf(time.Now())
	jobs := s.jobs
	if s.generation%2 == 1 {
		jobs = append(slices.Clone(jobs), "visits")
	}
	survey, err := s.c.Store.Survey(s.t.Context(), schedulertest.Namespace, jobs)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, state := range survey.Jobs {
		s.checkJob(state, now)
	}
	for _, key := range s.queued {
		row, err := s.c.Store.Find(s.t.Context(), schedulertest.Namespace, key)
		if err != nil || row.State.Open() || row.State == store.StateFailed && row.Attempt < 20 {
			s.t.Errorf("%s: %v since %v by %s, lease until %v, attempt %d, %s, %v", key, row.State, row.Started, row.OwnerLabel, row.LeaseUntil, row.Attempt, row.ErrorText, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.onceOnly {
		row, err := s.c.Store.Find(s.t.Context(), schedulertest.Namespace, key)
		if n := s.calls[key.String()]; err != nil || n > 1 || row.State.Open() || n == 0 && row.State == store.StateSucceeded {
			s.t.Errorf("%s: %d calls, %v, attempt %d, %s, %v", key, n, row.State, row.Attempt, row.ErrorText, err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.effects)) {
		if e := s.effects[key]; len(e) > 1 {
			s.t.Errorf("%s: effects of %s", key, strings.Join(e, " and "))
		}
	}
}

func (s *simulation) checkJob(state store.JobState, now store.Millis) {
	s.t.Helper()
	if behind := now.Sub(state.Settled); behind > 20*time.Second {
		s.t.Errorf("%s: settled %v ago", state.Job, behind)
	}
	rows := map[store.Millis]store.Execution{}
	for _, r := range s.c.Rows(state.Job) {
		if old, twice := rows[r.Key.Tick]; twice {
			s.t.Errorf("%s: rows %v and %v", r.Key, old.State, r.State)
		}
		rows[r.Key.Tick] = r
		if r.State.Open() && now.Sub(r.Created) > 45*time.Second {
			s.t.Errorf("%s: still %v (%s), attempt %d, due %v, lease until %v", r.Key, r.State, r.Reason, r.Attempt, r.RunAt, r.LeaseUntil)
		}
		s.mu.Lock()
		calls := s.calls[r.Key.String()]
		s.mu.Unlock()
		if r.State == store.StateSucceeded && calls == 0 {
			s.t.Errorf("%s: succeeded, and no handler was called", r.Key)
		}
	}
	ranges, err := s.c.Store.Ranges(s.t.Context(), schedulertest.Namespace, state.Job, 0, now)
	if err != nil {
		s.t.Fatal(err)
	}
	inRange := map[int]int64{}
	ran := 0
	for i, rev := range state.Revisions {
		end := state.Settled
		if i+1 < len(state.Revisions) {
			end = min(end, state.Revisions[i+1].From)
		}
		spec, err := cronspec.Unmarshal(rev.Spec)
		if err != nil {
			s.t.Fatal(err)
		}
		for at := rev.From.Time(); ; {
			next, ok := spec.Next(at)
			tick := store.MillisOf(next)
			if !ok || tick > end {
				break
			}
			at = next
			records := 0
			if r, ok := rows[tick]; ok {
				records++
				if r.State.Ran() && now.Sub(tick) < simQuiet-30*time.Second {
					ran++
				}
			}
			for k, g := range ranges {
				if g.From <= tick && tick <= g.To {
					records++
					inRange[k]++
				}
			}
			if records != 1 {
				s.t.Errorf("%s: tick %v has %d records", state.Job, tick, records)
			}
		}
	}
	for k, g := range ranges {
		if g.Count != inRange[k] {
			s.t.Errorf("%s: range %v to %v (%s) counts %d, holds %d", state.Job, g.From, g.To, g.Reason, g.Count, inRange[k])
		}
	}
	if ran == 0 {
		s.t.Errorf("%s: nothing ran in the last minute", state.Job)
	}
}
