package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/solotick/solotick/store"
)

var stressCases = []suiteCase{
	{"model/random operations", modelCase},
	{"stress/claimers, fetchers, takeovers, finishers", stress},
}

// effects is what accepted finishes did, apart from the store's own opinion.
type effects struct {
	mu    sync.Mutex
	count map[store.Key]int
	known map[store.Key]bool // keys that the store said it had recorded
	fence int                // finishes that were refused
	taken int
}

func (x *effects) note(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// stress lets workers claim, fetch, take over and finish at once, drop runs
// without a word, and come back with them after others have taken over.
func stress(e *env) {
	const workers, ticks, queued, lease = 4, 30, 40, 50 * time.Millisecond
	first := e.register("tick", "job")
	e.until(first + ticks)
	fx := &effects{count: map[store.Key]int{}, known: map[store.Key]bool{}}
	ctx, cancel := context.WithTimeout(e.ctx, stuck)
	defer cancel()
	watched, stopWatch := context.WithCancel(ctx)
	var wg, watch sync.WaitGroup
	handles := make([]store.Store, workers)
	for i := range handles {
		handles[i] = e.h.Open(e)
	}
	watch.Go(func() { watchActive(watched, e) })
	for i := range workers {
		w := &stressWorker{env: e, fx: fx, s: handles[i], lease: lease, owner: store.NewOwner()}
		wg.Go(func() {
			for n := range queued / workers {
				w.enqueue(ctx, i*queued/workers+n)
			}
			next := first
			for ctx.Err() == nil && !e.Failed() {
				if next < first+ticks {
					w.claim(ctx, next)
					next++
				}
				w.fetch(ctx)
				w.takeOver(ctx)
				if next == first+ticks && w.done(ctx) {
					w.wake(ctx)
					return
				}
			}
		})
	}
	wg.Wait()
	stopWatch()
	watch.Wait()
	if ctx.Err() != nil {
		e.Fatalf("runs are still open after %v: a key or a lease was never given back", stuck)
	}
	const rule = "every key recorded ends with one accepted finish, whoever ran, died or woke up late"
	rows, err := e.s.List(e.ctx, store.Filter{Namespace: space, Limit: 10 * (ticks + queued)})
	e.must(err)
	same(e, rule, "rows", len(rows), ticks+queued)
	same(e, rule, "keys recorded", len(fx.known), ticks+queued)
	for _, r := range rows {
		want := 0
		if r.State == store.StateSucceeded {
			want = 1
		} else if r.State != store.StateSkipped {
			e.broken(rule, "%s ended as %v(%s)", r.Key, r.State, r.Reason)
		}
		same(e, rule, "accepted finishes of "+r.Key.String(), fx.count[r.Key], want)
	}
	e.Logf("%d takeovers, %d finishes fenced", fx.taken, fx.fence)
}

// watchActive samples the running rows until ctx ends.
func watchActive(ctx context.Context, e *env) {
	s := e.h.Open(e)
	for ctx.Err() == nil {
		rows, err := s.List(ctx, store.Filter{Namespace: space, States: []store.State{store.StateRunning}, Limit: 1000})
		if err != nil {
			if ctx.Err() == nil {
				e.Errorf("list: %v", err)
			}
			return
		}
		seen := map[store.Hash]store.Key{}
		for _, r := range rows {
			if other, twice := seen[r.Active]; twice && !r.Active.IsZero() {
				e.Errorf("broken rule: %s\n\t%s and %s run at once", oneActive, other, r.Key)
				return
			}
			seen[r.Active] = r.Key
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

type stressWorker struct {
	*env
	fx     *effects
	s      store.Store
	owner  store.Owner
	lease  time.Duration
	asleep []store.Execution // runs that this worker forgot about, for a while
}

func (w *stressWorker) check(ctx context.Context, what string, err error) bool {
	if err != nil && ctx.Err() == nil {
		w.Errorf("%s: %v", what, err)
	}
	return err == nil
}

func (w *stressWorker) enqueue(ctx context.Context, i int) {
	n := keyed("job", fmt.Sprint(i), fmt.Sprint("lock", i%7))
	q, err := w.s.Enqueue(ctx, space, []store.NewExecution{n})
	if w.check(ctx, "enqueue", err) && q[0].Outcome == store.OutcomeEnqueued {
		w.fx.note(func() { w.fx.known[n.Key] = true })
	}
}

func (w *stressWorker) claim(ctx context.Context, tick store.Millis) {
	r := store.ClaimRequest{Namespace: space, Owner: w.owner, Lease: w.lease, Runs: []store.ClaimRun{cron("tick", tick)}}
	if tick%2 == 0 {
		r.Runs[0].Busy = store.BusyBuffer
	}
	c, err := w.s.Claim(ctx, r)
	if !w.check(ctx, "claim", err) {
		return
	}
	w.fx.note(func() { w.fx.known[r.Runs[0].Key] = true })
	if c.Runs[0].Outcome == store.OutcomeStarted {
		w.work(ctx, c.Runs[0].Execution)
	}
}

func (w *stressWorker) request(limit int) store.FetchRequest {
	return store.FetchRequest{Namespace: space, Owner: w.owner, Lease: w.lease, Jobs: []string{"tick", "job"}, Limit: limit}
}

func (w *stressWorker) fetch(ctx context.Context) {
	f, err := w.s.Fetch(ctx, w.request(3))
	if w.check(ctx, "fetch", err) {
		for _, x := range f.Runs {
			w.work(ctx, x)
		}
	}
}

func (w *stressWorker) takeOver(ctx context.Context) {
	t, err := w.s.TakeOver(ctx, w.request(3))
	if w.check(ctx, "takeover", err) {
		w.fx.note(func() { w.fx.taken += len(t.Runs) })
		for _, x := range t.Runs {
			w.work(ctx, x)
		}
	}
}

// work finishes the run, or retries it, or falls asleep over it.
func (w *stressWorker) work(ctx context.Context, x store.Execution) {
	switch rand.IntN(8) {
	case 0:
		w.asleep = append(w.asleep, x)
	case 1:
		w.end(ctx, x, store.StatePending)
	default:
		w.end(ctx, x, store.StateSucceeded)
	}
	if rand.IntN(6) == 0 {
		w.wake(ctx)
	}
}

// wake finishes what the worker had fallen asleep over, too late or not.
func (w *stressWorker) wake(ctx context.Context) {
	for _, x := range w.asleep {
		w.end(ctx, x, store.StateSucceeded)
	}
	w.asleep = nil
}

func (w *stressWorker) end(ctx context.Context, x store.Execution, state store.State) {
	errs, err := w.s.Finish(ctx, []store.Finish{{Ref: x.Ref(), State: state}})
	if !w.check(ctx, "finish", err) {
		return
	}
	switch {
	case errors.Is(errs[0], store.ErrFenced):
		w.fx.note(func() { w.fx.fence++ })
	case errs[0] != nil:
		w.check(ctx, "finish", errs[0])
	case state == store.StateSucceeded:
		w.fx.note(func() { w.fx.count[x.Key]++ })
	}
}

// done reports whether nothing is open any more.
func (w *stressWorker) done(ctx context.Context) bool {
	rows, err := w.s.List(ctx, store.Filter{Namespace: space, States: []store.State{store.StatePending, store.StateRunning}, Limit: 1})
	return w.check(ctx, "list", err) && len(rows) == 0
}
