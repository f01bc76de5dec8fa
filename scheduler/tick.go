package scheduler

import (
	"container/heap"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

// The longest sleep without a look at the wall clock: it may have been set, and
// a suspended machine's monotonic clock stood still (robfig/cron issue 352).
const maxSleep = 30 * time.Second

// never is an instant that no schedule reaches.
const never store.Millis = 1 << 52

// schedule is when a job is due next in this process.
type schedule struct {
	job  *job
	next store.Millis
	last bool // another schedule has taken its place: up to there only
}

type schedules []*schedule

func (h schedules) Len() int           { return len(h) }
func (h schedules) Less(i, k int) bool { return h[i].next < h[k].next }
func (h schedules) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *schedules) Push(x any)        { *h = append(*h, x.(*schedule)) }
func (h *schedules) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// plan is when the jobs of the present set are due. What was planned goes on as far
// as its schedule is the same; one that was replaced still has its last ticks.
func (s *Scheduler) plan(before schedules) schedules {
	set := s.jobs.Load()
	plan := make(schedules, 0, len(set.sorted))
	planned := make(map[string]bool, len(set.sorted))
	for _, sch := range before {
		j := set.by[sch.job.name]
		switch {
		case j == nil:
		case j.reign == sch.job.reign:
			sch.job, planned[j.name] = j, true
			plan = append(plan, sch)
		case sch.job.owns(sch.next) && !mutation.On("apply-last-ticks"):
			sch.last = true
			plan = append(plan, sch)
		}
	}
	for _, j := range set.sorted {
		if j.kind != kindCron || planned[j.name] {
			continue
		}
		if next, ok := j.spec.Next(j.floor()); ok {
			plan = append(plan, &schedule{job: j, next: store.MillisOf(next)})
		}
	}
	heap.Init(&plan)
	return plan
}

// tick fires the jobs when they are due, each from its floor on. What lies before is
// the sweep's.
func (s *Scheduler) tick() {
	plan := s.plan(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := s.clock.now()
		var fires []func()
		for len(plan) > 0 && plan[0].next <= store.MillisOf(now) {
			if fire := s.due(plan[0], now); fire != nil {
				fires = append(fires, fire)
			}
			heap.Fix(&plan, 0)
		}
		if len(fires) > 1 {
			s.claims.expect(len(fires))
		}
		for _, fire := range fires {
			s.taking(fire)
		}
		sleep := maxSleep
		if len(plan) > 0 {
			sleep = min(sleep, plan[0].next.Time().Sub(now))
		}
		timer.Reset(sleep)
		select {
		case <-s.intake.Done():
			return
		case <-timer.C:
		case <-s.replan:
			plan = s.plan(plan)
		}
	}
}

// due returns what fires the latest tick that is due, and plans the next. Next only grows, so a
// clock that is set back repeats nothing, and one that is set forward, or a
// process that was frozen, leaves the ticks in between to the sweep and the
// misfire policy.
func (s *Scheduler) due(sch *schedule, now time.Time) (fire func()) {
	j, tick := sch.job, sch.next
	if last, ok := j.spec.Last(now, tick.Time().Add(-time.Millisecond)); ok {
		tick = store.MillisOf(last)
	}
	next, ok := j.spec.Next(tick.Time())
	sch.next = store.MillisOf(next)
	if !ok || sch.last && !j.owns(sch.next) {
		sch.next = never
	}
	late := now.Sub(tick.Time())
	if !j.owns(tick) || late > j.o.window {
		return nil
	}
	s.emit(TickDue{Job: j.name, Tick: tick, Late: late})
	return func() { s.fire(j, tick) }
}
