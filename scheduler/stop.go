package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Stop drains: nothing new is taken, heartbeats go on, and runs in progress may
// finish until the drain timeout or the end of ctx. Then their contexts end, and
// after a last grace the scheduler is done, whether or not every handler has
// returned or the store answers; the error names the runs that have not ended. Safe
// to call twice, at once, and before Start; a second call waits for the first and
// gives its answer.
func (s *Scheduler) Stop(ctx context.Context) error {
	s.mu.Lock()
	started := s.started
	s.phase = phaseStopped
	s.mu.Unlock()
	if !started {
		return nil
	}
	s.stopOnce.Do(func() { s.stopErr = s.drain(ctx) })
	return s.stopErr
}

func (s *Scheduler) drain(ctx context.Context) error {
	s.log.Info("scheduler drains", "in_progress", s.Health().InProgress)
	patience := s.settings().DrainTimeout
	grace := min(patience/4, 5*time.Second)
	soft, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		// Leave room for the rest inside the caller's deadline.
		var early context.CancelFunc
		soft, early = context.WithDeadline(soft, deadline.Add(-grace-2*lastWords))
		defer early()
	}
	s.endIntake()
	s.lead.retire()
	// A claim that the store has not answered is waited for as a run is: it may have made
	// us the owner of one, which is given back then.
	over := done(&s.intakeWG, &s.runWG)
	var left []string
	if !within(over, soft.Done()) {
		s.endWork(ErrDraining)
		if !within(over, time.After(grace)) {
			left = s.heart.names()
			close(s.stopping) // every run is let go of, its handler perhaps goes on
			within(over, time.After(lastWords))
		}
	}
	s.endWork(ErrDraining)
	s.endAlive() // a request that the store does not answer is given up
	<-over
	s.backWG.Wait()
	s.closeJournal()
	s.mu.Lock()
	for _, name := range s.unrecorded {
		if !slices.Contains(left, name) {
			left = append(left, name)
		}
	}
	s.mu.Unlock()
	if len(left) > 0 {
		return fmt.Errorf("scheduler: stopped with runs that did not end or could not be recorded: %s", strings.Join(left, ", "))
	}
	s.log.Info("scheduler stopped")
	return nil
}

// lastWords is how long the ends of abandoned runs may take to be recorded.
const lastWords = time.Second

// within reports whether done is closed before limit ends.
func within[T any](done <-chan struct{}, limit <-chan T) bool {
	select {
	case <-done:
		return true
	case <-limit:
		return false
	}
}

// done is closed when all groups are.
func done(groups ...*sync.WaitGroup) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		for _, wg := range groups {
			wg.Wait()
		}
		close(c)
	}()
	return c
}

// names lists the runs in progress, for people.
func (h *heart) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, a := range h.runs {
		names = append(names, a.Key().String())
	}
	sort.Strings(names)
	return names
}
