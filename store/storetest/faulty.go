package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/store"
)

// Method names a method of store.Store.
type Method string

// The methods.
const (
	Register  Method = "Register"
	Claim     Method = "Claim"
	Enqueue   Method = "Enqueue"
	Fetch     Method = "Fetch"
	TakeOver  Method = "TakeOver"
	Heartbeat Method = "Heartbeat"
	Finish    Method = "Finish"
	Survey    Method = "Survey"
	Settle    Method = "Settle"
	Revive    Method = "Revive"
	SetPause  Method = "SetPause"
	Cancel    Method = "Cancel"
	Retry     Method = "Retry"
	Attempts  Method = "Attempts"
	Prune     Method = "Prune"
	Sizes     Method = "Sizes"
	Get       Method = "Get"
	Find      Method = "Find"
	List      Method = "List"
	Ranges    Method = "Ranges"
	Ledger    Method = "Ledger"
	Now       Method = "Now"
)

// ErrInjected is the default error of a fault; it matches store.ErrUnavailable.
var ErrInjected = fmt.Errorf("storetest: injected fault: %w", store.ErrUnavailable)

// Fault is what happens to a call. The parts combine: wait, then get lost, then
// fail. The zero Fault fails before the call.
type Fault struct {
	// Delay passes before anything else; the caller's context cuts it short.
	Delay time.Duration
	// BlackHole keeps the call until the fault is healed or the caller's context
	// ends. Healed, the call goes through as if there had been no fault.
	BlackHole bool
	// Applied calls the store before the call fails or gets lost: the request is
	// executed and its answer lost.
	Applied bool
	// Err is what the call fails with; nil means ErrInjected.
	Err error
	// Slow calls do not fail after the delay.
	Slow bool
	// Times is how many calls the fault is for; 0 means until healed.
	Times int
}

// Faulty is a store that fails on demand. Faults are armed and healed while it
// is in use. It is safe for concurrent use.
type Faulty struct {
	inner store.Store

	mu     sync.Mutex
	faults map[Method]*armed
	calls  map[Method]int
}

var _ store.Store = (*Faulty)(nil)

type armed struct {
	Fault
	left   int
	healed chan struct{}
}

// NewFaulty wraps a store. Without a fault armed it only counts.
func NewFaulty(inner store.Store) *Faulty {
	return &Faulty{inner: inner, faults: map[Method]*armed{}, calls: map[Method]int{}}
}

// Arm sets the fault for the methods, all of them if none is named, in place of
// the one each had. Calls that the old fault keeps waiting go through.
func (f *Faulty) Arm(fault Fault, methods ...Method) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range orAll(methods) {
		f.heal(m)
		f.faults[m] = &armed{Fault: fault, left: fault.Times, healed: make(chan struct{})}
	}
}

// Heal ends the faults of the methods, all of them if none is named.
func (f *Faulty) Heal(methods ...Method) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range orAll(methods) {
		f.heal(m)
	}
}

func (f *Faulty) heal(m Method) {
	if a := f.faults[m]; a != nil {
		close(a.healed)
		delete(f.faults, m)
	}
}

// Calls is the number of calls of a method so far, those that failed included.
func (f *Faulty) Calls(m Method) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[m]
}

// Counts is the number of calls so far by method; methods without a call are
// not in it.
func (f *Faulty) Counts() map[Method]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

// ResetCalls begins to count anew.
func (f *Faulty) ResetCalls() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.calls)
}

var allMethods = []Method{
	Register, Claim, Enqueue, Fetch, TakeOver, Heartbeat, Finish, Survey, Settle,
	Revive, SetPause, Cancel, Retry, Attempts, Prune, Get, Find, List, Ranges, Ledger, Sizes, Now,
}

// Methods lists all methods.
func Methods() []Method { return slices.Clone(allMethods) }

func orAll(methods []Method) []Method {
	if len(methods) == 0 {
		return allMethods
	}
	return methods
}

// enter counts the call and takes the fault that is armed for it.
func (f *Faulty) enter(m Method) *armed {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[m]++
	a := f.faults[m]
	if a == nil || a.Times == 0 {
		return a
	}
	if a.left == 0 {
		return nil
	}
	a.left--
	return a
}

func through[A any](ctx context.Context, f *Faulty, m Method, call func() (A, error)) (A, error) {
	a := f.enter(m)
	if a == nil {
		return call()
	}
	var none A
	if a.Delay > 0 {
		timer := time.NewTimer(a.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", ErrInjected, context.Cause(ctx))
		}
	}
	if a.Slow {
		return call()
	}
	var answer A
	var err error
	if a.Applied {
		answer, err = call()
	}
	if a.BlackHole {
		select {
		case <-a.healed:
			if a.Applied {
				return answer, err
			}
			return call()
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", ErrInjected, context.Cause(ctx))
		}
	}
	if a.Err != nil {
		return none, a.Err
	}
	return none, ErrInjected
}

// Register implements store.Store.
func (f *Faulty) Register(ctx context.Context, ns string, jobs []store.JobSpec) (store.Registered, error) {
	return through(ctx, f, Register, func() (store.Registered, error) { return f.inner.Register(ctx, ns, jobs) })
}

// Claim implements store.Store.
func (f *Faulty) Claim(ctx context.Context, r store.ClaimRequest) (store.Claimed, error) {
	return through(ctx, f, Claim, func() (store.Claimed, error) { return f.inner.Claim(ctx, r) })
}

// Enqueue implements store.Store.
func (f *Faulty) Enqueue(ctx context.Context, ns string, rows []store.NewExecution) ([]store.Enqueued, error) {
	return through(ctx, f, Enqueue, func() ([]store.Enqueued, error) { return f.inner.Enqueue(ctx, ns, rows) })
}

// Fetch implements store.Store.
func (f *Faulty) Fetch(ctx context.Context, r store.FetchRequest) (store.Fetched, error) {
	return through(ctx, f, Fetch, func() (store.Fetched, error) { return f.inner.Fetch(ctx, r) })
}

// TakeOver implements store.Store.
func (f *Faulty) TakeOver(ctx context.Context, r store.FetchRequest) (store.TakenOver, error) {
	return through(ctx, f, TakeOver, func() (store.TakenOver, error) { return f.inner.TakeOver(ctx, r) })
}

// Heartbeat implements store.Store.
func (f *Faulty) Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error) {
	return through(ctx, f, Heartbeat, func() (store.Heartbeats, error) { return f.inner.Heartbeat(ctx, r) })
}

// Finish implements store.Store.
func (f *Faulty) Finish(ctx context.Context, rows []store.Finish) ([]error, error) {
	return through(ctx, f, Finish, func() ([]error, error) { return f.inner.Finish(ctx, rows) })
}

// Survey implements store.Store.
func (f *Faulty) Survey(ctx context.Context, ns string, jobs []string) (store.Surveyed, error) {
	return through(ctx, f, Survey, func() (store.Surveyed, error) { return f.inner.Survey(ctx, ns, jobs) })
}

// Settle implements store.Store.
func (f *Faulty) Settle(ctx context.Context, r store.SettleRequest, decide func(store.TickView) store.Settlement) (store.SettleResult, error) {
	return through(ctx, f, Settle, func() (store.SettleResult, error) { return f.inner.Settle(ctx, r, decide) })
}

// Revive implements store.Store.
func (f *Faulty) Revive(ctx context.Context, r store.ReviveRequest) (int, error) {
	return through(ctx, f, Revive, func() (int, error) { return f.inner.Revive(ctx, r) })
}

// SetPause implements store.Store.
func (f *Faulty) SetPause(ctx context.Context, p store.Pause) (store.JobState, error) {
	return through(ctx, f, SetPause, func() (store.JobState, error) { return f.inner.SetPause(ctx, p) })
}

// Cancel implements store.Store.
func (f *Faulty) Cancel(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	return through(ctx, f, Cancel, func() (store.Execution, error) { return f.inner.Cancel(ctx, ns, id) })
}

// Retry implements store.Store.
func (f *Faulty) Retry(ctx context.Context, ns string, id store.ID, by string) (store.Execution, error) {
	return through(ctx, f, Retry, func() (store.Execution, error) { return f.inner.Retry(ctx, ns, id, by) })
}

// Attempts implements store.Store.
func (f *Faulty) Attempts(ctx context.Context, ns string, id store.ID) ([]store.Attempt, error) {
	return through(ctx, f, Attempts, func() ([]store.Attempt, error) { return f.inner.Attempts(ctx, ns, id) })
}

// Prune implements store.Store.
func (f *Faulty) Prune(ctx context.Context, r store.PruneRequest) (store.Pruned, error) {
	return through(ctx, f, Prune, func() (store.Pruned, error) { return f.inner.Prune(ctx, r) })
}

// Sizes implements store.Store.
func (f *Faulty) Sizes(ctx context.Context) ([]store.TableSize, error) {
	return through(ctx, f, Sizes, func() ([]store.TableSize, error) { return f.inner.Sizes(ctx) })
}

// Get implements store.Store.
func (f *Faulty) Get(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	return through(ctx, f, Get, func() (store.Execution, error) { return f.inner.Get(ctx, ns, id) })
}

// Find implements store.Store.
func (f *Faulty) Find(ctx context.Context, ns string, key store.Key) (store.Execution, error) {
	return through(ctx, f, Find, func() (store.Execution, error) { return f.inner.Find(ctx, ns, key) })
}

// List implements store.Store.
func (f *Faulty) List(ctx context.Context, filter store.Filter) ([]store.Execution, error) {
	return through(ctx, f, List, func() ([]store.Execution, error) { return f.inner.List(ctx, filter) })
}

// Ranges implements store.Store.
func (f *Faulty) Ranges(ctx context.Context, ns, job string, from, to store.Millis) ([]store.TickRange, error) {
	return through(ctx, f, Ranges, func() ([]store.TickRange, error) { return f.inner.Ranges(ctx, ns, job, from, to) })
}

// Ledger implements store.Store.
func (f *Faulty) Ledger(ctx context.Context, ns, job string, from, to store.Millis) (store.Ledger, error) {
	return through(ctx, f, Ledger, func() (store.Ledger, error) { return f.inner.Ledger(ctx, ns, job, from, to) })
}

// Now implements store.Store.
func (f *Faulty) Now(ctx context.Context) (store.Millis, error) {
	return through(ctx, f, Now, func() (store.Millis, error) { return f.inner.Now(ctx) })
}
