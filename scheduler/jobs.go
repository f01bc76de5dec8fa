package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/store"
)

// Changes tells what a change of a running scheduler came to. All lists are sorted.
type Changes struct {
	Added, Changed, Removed []string // names of jobs
	Settings                []string // keys of Config that took effect
	Restart                 []string // keys of Config that differ and need a new scheduler
}

// Any reports whether something took effect.
func (c Changes) Any() bool {
	return len(c.Added)+len(c.Changed)+len(c.Removed)+len(c.Settings) > 0
}

// LiveKeys are the keys of Config, as its file has them, that Reconfigure takes up. The
// others need a new scheduler.
func LiveKeys() []string {
	return []string{"gate", "timezone", "drain_timeout", "poll_interval", "concurrency", "revision", "retention"}
}

// Apply makes jobs the whole set of jobs, live: others are removed. What is not as
// it was, by name, takes the place of what was there:
//
//   - An added job ticks from its registration on.
//   - A changed schedule is registered as at the start and supersedes the old one on
//     all replicas, by the rules of Config.Revision. The ticks up to that instant stay
//     the old schedule's, those after it are the new one's: none is lost or run twice.
//   - A removed job gets no new ticks from this process; replicas that still have it
//     go on. If it comes back it is as if it had been down: see OnMisfire.
//   - Runs in progress end under the definition that they began with. Handlers are
//     taken over in any case, from the next run on; Changes lists the jobs whose
//     schedule or options differ, since functions cannot be compared.
//
// Everything is checked and, where schedules are new, registered in the store before
// anything is taken; an error leaves all as it was. A store that does not answer is
// asked until ctx ends: then the error matches store.ErrUnavailable, and schedules may
// be in force already that this process does not have: call Apply again.
//
// Before Start it only replaces the set. Calls wait for each other, and for the first
// registration, until ctx ends; its error is the answer then.
func (s *Scheduler) Apply(ctx context.Context, jobs ...Job) (Changes, error) {
	return s.change(ctx, nil, jobs)
}

// Reconfigure is Apply together with the settings of LiveKeys. What else differs in
// cfg is listed in Changes.Restart and has no effect; Degradation is left to
// SetDegradation.
func (s *Scheduler) Reconfigure(ctx context.Context, cfg Config, jobs ...Job) (Changes, error) {
	return s.change(ctx, &cfg, jobs)
}

// Check reports what Reconfigure would refuse, and changes nothing.
func (s *Scheduler) Check(cfg Config, jobs ...Job) error {
	next, _, err := s.merge(&cfg)
	if err != nil {
		return err
	}
	_, err = s.build(next, jobs, s.jobs.Load())
	return err
}

func (s *Scheduler) change(ctx context.Context, cfg *Config, jobs []Job) (Changes, error) {
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return Changes{}, ctx.Err()
	}
	next, c, err := s.merge(cfg)
	if err != nil {
		return Changes{}, err
	}
	old := s.jobs.Load()
	set, err := s.build(next, jobs, old)
	if err != nil {
		return Changes{}, err
	}
	if s.atPhase() == phaseStopped {
		return Changes{}, errors.New("scheduler: it is stopped: nothing was changed")
	}
	if s.registered {
		if err := s.enrolChanged(ctx, next, old, set); err != nil {
			return Changes{}, err
		}
	}
	s.live.Store(next)
	s.jobs.Store(set)
	c.compare(old, set)
	s.took(c)
	return c, nil
}

// took lets the services see what has changed.
func (s *Scheduler) took(c Changes) {
	s.mu.Lock()
	if s.phase == phaseRunning {
		s.leadLocked()
	}
	s.mu.Unlock()
	s.switcher.jobsChanged() // before their first tick is planned
	for _, service := range []chan struct{}{s.replan, s.fetchNow, s.sweepNow, s.pruneNow} {
		nudge(service)
	}
	if len(c.Added)+len(c.Changed)+len(c.Removed) > 0 {
		s.log.Debug("jobs changed", "added", c.Added, "changed", c.Changed, "removed", c.Removed)
		s.emit(JobsChanged{Added: c.Added, Changed: c.Changed, Removed: c.Removed})
	}
}

// leadLocked runs the elector once a job asks it.
func (s *Scheduler) leadLocked() {
	if !s.lead.given() || !s.usesGate(GateLeader) {
		return
	}
	s.weigh()
	if s.leading {
		return
	}
	s.leading = true
	s.background(func() {
		if err := s.lead.run(s.alive); err != nil && s.alive.Err() == nil {
			s.fail(fmt.Errorf("scheduler: the elector stopped: %w", err))
		}
	})
}

// settings are those in force.
func (s *Scheduler) settings() *Config { return s.live.Load() }

// merge is the settings in force with the live ones of cfg, and what differs.
func (s *Scheduler) merge(cfg *Config) (*Config, Changes, error) {
	var c Changes
	next := *s.settings()
	if cfg == nil {
		return &next, c, nil
	}
	if err := cfg.Validate(); err != nil {
		return nil, c, err
	}
	given := cfg.withDefaults()
	given.Label = cmp.Or(given.Label, s.cfg.Label)
	if given.Namespace != s.cfg.Namespace {
		c.Restart = append(c.Restart, "namespace")
	}
	hot := LiveKeys()
	into, from := reflect.ValueOf(&next).Elem(), reflect.ValueOf(given)
	for i := range from.NumField() {
		key, _, _ := strings.Cut(from.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" || into.Field(i).Equal(from.Field(i)) {
			continue
		}
		if slices.Contains(hot, key) {
			into.Field(i).Set(from.Field(i))
			c.Settings = append(c.Settings, key)
		} else {
			c.Restart = append(c.Restart, key)
		}
	}
	slices.Sort(c.Settings)
	slices.Sort(c.Restart)
	return &next, c, nil
}

// jobSet is the jobs of a time. It never changes: another one takes its place.
type jobSet struct {
	by     map[string]*job
	sorted []*job // by name
	names  []string
}

// jobTable is where the present set is found.
type jobTable struct{ atomic.Pointer[jobSet] }

// get is the job of that name, nil if there is none.
func (t *jobTable) get(name string) *job { return t.Load().by[name] }

func newJobSet(by map[string]*job) *jobSet {
	set := &jobSet{by: by, names: slices.Sorted(maps.Keys(by))}
	for _, name := range set.names {
		set.sorted = append(set.sorted, by[name])
	}
	return set
}

// build prepares the jobs and joins them to what goes on under their names. It
// reports every job that cannot work.
func (s *Scheduler) build(cfg *Config, defs []Job, old *jobSet) (*jobSet, error) {
	var errs []error
	by := make(map[string]*job, len(defs))
	for _, def := range defs {
		j, err := s.prepare(cfg, def)
		switch {
		case err != nil:
			errs = append(errs, err)
		case by[def.name] != nil:
			errs = append(errs, fmt.Errorf("scheduler: two jobs are called %q: names are unique in a namespace", def.name))
		default:
			j.joins(old.by[def.name])
			by[def.name] = j
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return newJobSet(by), nil
}

// joins makes the job the successor of old in this process; nil for none.
func (j *job) joins(old *job) {
	if old == nil {
		return
	}
	j.work = old.work
	if j.kind == old.kind && j.hash == old.hash {
		j.reign = old.reign
	}
}

func (c *Changes) compare(old, set *jobSet) {
	for _, j := range set.sorted {
		was := old.by[j.name]
		switch {
		case was == nil:
			c.Added = append(c.Added, j.name)
		case was.kind != j.kind || was.expr != j.expr || was.o != j.o:
			c.Changed = append(c.Changed, j.name)
		}
	}
	for _, name := range old.names {
		if set.by[name] == nil {
			c.Removed = append(c.Removed, name)
		}
	}
}

// enrolChanged makes known to the store what it does not know, until it answers or
// ctx ends.
func (s *Scheduler) enrolChanged(ctx context.Context, cfg *Config, old, set *jobSet) error {
	var news []*job
	for _, j := range set.sorted {
		was := old.by[j.name]
		if was == nil || was.kind != j.kind || was.hash != j.hash || was.o.paused != j.o.paused ||
			was.o.pauseReason != j.o.pauseReason || cfg.Revision != s.settings().Revision || s.doubtful[j.name] {
			news = append(news, j)
		}
	}
	if len(news) == 0 {
		return nil
	}
	s.replacing.Store(true)
	defer s.replacing.Store(false)
	for try := 0; ; try++ {
		err := s.enrol(ctx, cfg, news, old)
		if err == nil {
			return nil
		}
		for _, j := range news {
			s.doubtful[j.name] = true // what was asked may have been done
		}
		if s.intake.Err() != nil {
			return errors.New("scheduler: it is stopping: nothing was changed")
		}
		if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("scheduler: the jobs stay as they were: %w", err)
		}
		if backoff.Wait(ctx, enrolPause.Delay(try)) != nil {
			return fmt.Errorf("scheduler: the store does not answer, the jobs stay as they were: %w", errors.Join(err, store.ErrUnavailable))
		}
	}
}

var enrolPause = backoff.Policy{Base: 200 * time.Millisecond, Max: 5 * time.Second}

// enrol makes jobs known to the store, with their pauses, and learns what it says of
// them and of what they replace. The ticks after this instant are theirs.
func (s *Scheduler) enrol(ctx context.Context, cfg *Config, jobs []*job, old *jobSet) error {
	ctx, cancel := context.WithTimeout(ctx, s.storeTimeout())
	defer cancel()
	defer context.AfterFunc(s.intake, cancel)()
	specs := make([]store.JobSpec, 0, len(jobs))
	for _, j := range jobs {
		specs = append(specs, store.JobSpec{Job: j.name, Spec: j.marshalled, Hash: j.hash, Revision: cfg.Revision})
	}
	sent := time.Now()
	r, err := s.deps.Store.Register(ctx, s.cfg.Namespace, specs)
	s.asked("register", sent, err)
	if err != nil {
		return err
	}
	s.clock.observe(sent, r.Now)
	floor := store.MillisOf(s.clock.now().Add(-time.Since(sent)))
	s.emit(JobsSurveyed{Now: r.Now, Jobs: r.Jobs})
	for i, state := range r.Jobs {
		if err := s.pause(ctx, jobs[i], state, r.Now); err != nil {
			return err
		}
	}
	for i, state := range r.Jobs {
		j := jobs[i]
		if was := old.by[j.name]; was != nil && was.reign != j.reign {
			was.learn(s, state)
		}
		j.learn(s, state)
		j.plansFrom(floor)
		delete(s.doubtful, j.name)
	}
	return nil
}

// pausedByConfig is who pauses a job whose definition says so.
const pausedByConfig = "configuration"

// pause makes the pause of the job in the store what its definition says. A pause
// that somebody else made is left to them, but for one that would end too early.
func (s *Scheduler) pause(ctx context.Context, j *job, state store.JobState, now store.Millis) error {
	paused := state.PausedAt(now)
	ours := paused && state.PausedBy == pausedByConfig
	p := store.Pause{Namespace: s.cfg.Namespace, Job: j.name, By: pausedByConfig, Reason: j.o.pauseReason}
	switch {
	case j.o.paused && (!paused || state.PausedUntil != 0 || ours && state.PauseReason != j.o.pauseReason):
	case !j.o.paused && ours:
		p.Off = true
	default:
		return nil
	}
	sent := time.Now()
	_, err := s.deps.Store.SetPause(ctx, p)
	s.asked("pause", sent, err)
	return err
}
