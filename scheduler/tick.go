package scheduler

import (
	"container/heap"
	"time"

	"github.com/solotick/solotick/store"
)

// The longest sleep without a look at the wall clock: it may have been set, and
// a suspended machine's monotonic clock stood still (robfig/cron issue 352).
const maxSleep = 30 * time.Second

// schedule is when a job is due next in this process.
type schedule struct {
	job  *job
	next store.Millis
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

// tick fires the jobs when they are due, from floor on. What lies before is the
// sweep's.
func (s *Scheduler) tick(floor time.Time) {
	var plan schedules
	for _, j := range s.sorted() {
		if j.kind != kindCron {
			continue
		}
		if next, ok := j.spec.Next(floor); ok {
			plan = append(plan, &schedule{j, store.MillisOf(next)})
		}
	}
	heap.Init(&plan)
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
	if !ok {
		next = time.UnixMilli(1 << 52) // no schedule reaches there
	}
	sch.next = store.MillisOf(next)
	late := now.Sub(tick.Time())
	if j.isSuperseded() || late > j.o.window {
		return nil
	}
	s.emit(TickDue{Job: j.name, Tick: tick, Late: late})
	return func() { s.fire(j, tick) }
}
