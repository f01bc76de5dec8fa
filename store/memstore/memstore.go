package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/store"
)

// Store keeps executions in memory. It is safe for concurrent use; every method
// is one transaction. What it returns are copies.
type Store struct {
	clock func() time.Time

	mu      sync.Mutex
	spaces  map[string]*space
	changes int64 // of the switch, so far
}

var _ store.Store = (*Store)(nil)

// Option changes how New makes a Store.
type Option func(*Store)

// WithClock replaces time.Now as the store's clock. The function must be safe for
// concurrent use; it is called under the store's lock.
func WithClock(clock func() time.Time) Option { return func(s *Store) { s.clock = clock } }

// New makes an empty store.
func New(opts ...Option) *Store {
	s := &Store{clock: time.Now, spaces: map[string]*space{}}
	for _, o := range opts {
		o(s)
	}
	return s
}

// space is one namespace: its rows and the unique indexes over them.
type space struct {
	name   string
	jobs   map[string]*job
	rows   map[store.ID]*row
	open   map[store.ID]*row // pending and running
	keys   map[store.Hash]*row
	active map[store.Hash]*row
	dedup  map[store.Hash]*row

	changes []store.SwitchChange // oldest first
}

// job is what is kept per job. A job that nobody registered exists here for its
// fence only.
type job struct {
	registered bool
	state      store.JobState
	ticks      []*row // class cron, by tick
	ranges     []store.TickRange
	live       []*row // started, and not known to have ended before the watermark
}

type row struct {
	store.Execution
	history []store.Attempt // superseded, oldest first
	since   store.Millis    // start of the stretch that the run is or was in progress, over takeovers
	claimed store.Outcome   // what the claim that made the row was told; 0 if something else made it
}

// begin opens a transaction on the namespace; the caller ends it by unlocking.
// A context that is over is answered as a database would: with no answer.
func (s *Store) begin(ctx context.Context, ns string) (*space, store.Millis, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	s.mu.Lock()
	sp := s.spaces[ns]
	if sp == nil {
		sp = &space{
			name: ns, jobs: map[string]*job{}, rows: map[store.ID]*row{}, open: map[store.ID]*row{},
			keys: map[store.Hash]*row{}, active: map[store.Hash]*row{}, dedup: map[store.Hash]*row{},
		}
		s.spaces[ns] = sp
	}
	return sp, store.MillisOf(s.clock()), nil
}

// Now implements [store.Store].
func (s *Store) Now(ctx context.Context) (store.Millis, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return store.MillisOf(s.clock()), nil
}

func (sp *space) job(name string) *job {
	j := sp.jobs[name]
	if j == nil {
		j = &job{state: store.JobState{Namespace: sp.name, Job: name}}
		sp.jobs[name] = j
	}
	return j
}

// registered returns the job, or nil if nobody has registered it.
func (sp *space) registered(name string) *job {
	if j := sp.jobs[name]; j != nil && j.registered {
		return j
	}
	return nil
}

// insert makes a row in a state that is not running. The key must be free.
func (sp *space) insert(n *store.NewExecution, state store.State, reason store.Reason, now store.Millis) *row {
	r := &row{Execution: store.Execution{
		ID: n.ID, Namespace: sp.name, Queue: n.Queue, Key: n.Key, LockKey: n.LockKey, Zone: n.Zone, SpecHash: n.SpecHash,
		State: state, Reason: reason, Mode: n.Mode, Priority: n.Priority, MaxAttempts: n.MaxAttempts, OnCrash: n.OnCrash,
		Timeout: n.Timeout.Truncate(time.Millisecond), MissedCount: n.MissedCount, Version: 1,
		RunAt: n.RunAt, Created: now, Active: n.Active,
		Args: bytes.Clone(n.Args), ArgsHash: store.HashArgs(n.Args), TraceParent: n.TraceParent, CreatedBy: n.CreatedBy,
	}}
	if r.ID == (store.ID{}) {
		r.ID = store.NewID(now)
	}
	if r.RunAt == 0 {
		r.RunAt = now
	}
	r.RunAt = r.RunAt.Add(n.Delay)
	if state == store.StatePending {
		sp.open[r.ID] = r
		if !n.Dedup.IsZero() {
			r.Dedup = n.Dedup
			sp.dedup[n.Dedup] = r
		}
	} else {
		r.Finished = now
	}
	sp.rows[r.ID] = r
	sp.keys[n.Key.Hash()] = r
	if n.Key.Class == store.ClassCron {
		j := sp.job(n.Key.Job)
		at, _ := slices.BinarySearchFunc(j.ticks, n.Key.Tick, func(o *row, t store.Millis) int {
			if o.Key.Tick <= t {
				return -1
			}
			return 1
		})
		j.ticks = slices.Insert(j.ticks, at, r)
	}
	return r
}

// held reports whether another row than r holds r's active key.
func (sp *space) held(r *row) bool {
	if r.Active.IsZero() {
		return false
	}
	h := sp.active[r.Active]
	return h != nil && h != r
}

// start hands the row to an owner as a new attempt, with the active key and a
// fence.
func (sp *space) start(r *row, h hand, now store.Millis) {
	if r.State == store.StateRunning {
		r.supersede(store.EndLost, r.LeaseUntil, "")
	}
	j := sp.job(r.Key.Job)
	j.state.Fence++
	if !slices.Contains(j.live, r) {
		j.live = append(j.live, r)
	}
	if r.State != store.StateRunning {
		r.since = now // a takeover goes on with the stretch
	}
	if !r.Active.IsZero() {
		sp.active[r.Active] = r
	}
	sp.clearDedup(r)
	sp.open[r.ID] = r
	r.State, r.Finished = store.StateRunning, 0
	r.Attempt++
	r.Owner, r.OwnerLabel = h.owner, h.label
	r.LeaseUntil, r.Started = now.Add(h.lease), now
	r.Fence = j.state.Fence
	r.Version++
}

// leave moves the row out of running or pending and frees its active key. An
// empty reason keeps the row's.
func (sp *space) leave(r *row, state store.State, reason store.Reason, now store.Millis) {
	r.State, r.LeaseUntil = state, 0
	if reason != store.ReasonNone {
		r.Reason = reason
	}
	r.Version++
	sp.free(r)
	if state == store.StatePending {
		r.Finished = 0
		sp.open[r.ID] = r
		return
	}
	r.Finished = now
	sp.clearDedup(r)
	delete(sp.open, r.ID)
}

// supersede keeps the attempt that the row is at. One that was kept, and whose
// successor was taken back, stays as it was.
func (r *row) supersede(end store.AttemptEnd, at store.Millis, note string) {
	if n := len(r.history); r.Attempt == 0 || n > 0 && r.history[n-1].Number >= r.Attempt {
		return
	}
	a := store.Attempt{
		Number: r.Attempt, OwnerLabel: r.OwnerLabel, Started: r.Started, Ended: at, End: end, Reason: r.Reason,
		Mode: r.Mode, Fence: r.Fence, ErrorCode: r.ErrorCode, ErrorText: r.ErrorText, Note: note,
	}
	if end == store.EndLost {
		a.ErrorCode, a.ErrorText = "", "" // those of the attempt before
	}
	r.history = append(r.history, a)
}

func (sp *space) free(r *row) {
	if sp.active[r.Active] == r {
		delete(sp.active, r.Active)
	}
}

func (sp *space) clearDedup(r *row) {
	if !r.Dedup.IsZero() {
		delete(sp.dedup, r.Dedup)
		r.Dedup = store.Hash{}
	}
}

// hand is who a row is given to.
type hand struct {
	owner store.Owner
	label string
	lease time.Duration
}

func (h hand) check() error {
	if h.owner == (store.Owner{}) {
		return errors.New("memstore: Owner is empty: draw one with store.NewOwner")
	}
	if h.lease < time.Millisecond {
		return fmt.Errorf("memstore: Lease is %v: give at least a millisecond", h.lease)
	}
	return nil
}

// view is a copy of the row that shares nothing with the store.
func (r *row) view() store.Execution {
	e := r.Execution
	e.Args, e.Result, e.Checkpoint = bytes.Clone(e.Args), bytes.Clone(e.Result), bytes.Clone(e.Checkpoint)
	return e
}

func (j *job) view() store.JobState {
	v := j.state
	v.Revisions = slices.Clone(v.Revisions)
	return v
}
