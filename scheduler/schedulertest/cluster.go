package schedulertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

// Namespace of the replicas' jobs.
const Namespace = "test"

// Options of a cluster.
type Options struct {
	// Replicas to start with. Default 3.
	Replicas int
	// Jobs makes the jobs of a replica. Required.
	Jobs func(r *Replica) []scheduler.Job
	// Configure adjusts a replica's configuration, such as its ClockOffset.
	Configure func(r *Replica, cfg *scheduler.Config)
	// Locks are the settings of the replicas' lockers; Label is the replica's.
	Locks locks.Config
	// Logs, if set, gets the replicas' logs. Default: they are dropped.
	Logs io.Writer
}

// Cluster is a set of replicas on one store and one lock backend.
type Cluster struct {
	Store    *memstore.Store
	Locks    *memlock.Space
	Replicas []*Replica

	tb   testing.TB
	opts Options

	mu      sync.Mutex
	effects []Effect
}

// Effect is one thing that a run did.
type Effect struct {
	Job     string
	Tick    store.Millis
	Key     string
	Attempt int
	Fence   int64
	Mode    store.Mode
	Replica int
	At      time.Time
}

// Replica is one process of the cluster.
type Replica struct {
	*scheduler.Scheduler
	ID      int
	Cluster *Cluster
	Store   *storetest.Faulty
	Lock    *lockstest.Faulty
	Events  func() []scheduler.Event

	locker *locks.Locker
	killed atomic.Bool
}

// New starts a cluster. It is stopped at the end of the test, faults healed.
func New(tb testing.TB, opts Options) *Cluster {
	tb.Helper()
	c := &Cluster{Store: memstore.New(), Locks: new(memlock.Space), tb: tb, opts: opts}
	if opts.Replicas == 0 {
		opts.Replicas = 3
	}
	for range opts.Replicas {
		c.Start()
	}
	return c
}

// Start adds a replica.
func (c *Cluster) Start() *Replica {
	c.tb.Helper()
	r := &Replica{ID: len(c.Replicas), Cluster: c, Store: storetest.NewFaulty(c.Store)}
	r.Lock = lockstest.NewFaulty(memlock.NewDriver(c.Locks))
	var err error
	settings := c.opts.Locks
	settings.Label = fmt.Sprint("replica ", r.ID)
	if r.locker, err = locks.New(r.Lock.Driver(), settings); err != nil {
		c.tb.Fatalf("locker: %v", err)
	}
	cfg := scheduler.Config{Namespace: Namespace, Label: fmt.Sprint("replica ", r.ID)}
	if c.opts.Configure != nil {
		c.opts.Configure(r, &cfg)
	}
	var elector *leader.Elector
	var shares *leader.Shares
	if key := locks.Key(Namespace, "leader", "cron"); cfg.Partitions > 1 {
		shares, err = leader.NewShares(r.locker, key, leader.SharesConfig{Partitions: cfg.Partitions})
	} else {
		elector, err = leader.FromLocks(r.locker, key, leader.Config{})
	}
	if err != nil {
		c.tb.Fatalf("leadership: %v", err)
	}
	out := c.opts.Logs
	if out == nil {
		out = io.Discard
	}
	var mu sync.Mutex
	var events []scheduler.Event
	r.Events = func() []scheduler.Event {
		mu.Lock()
		defer mu.Unlock()
		return append([]scheduler.Event(nil), events...)
	}
	r.Scheduler, err = scheduler.New(cfg, scheduler.Deps{
		Store: r.Store, Locker: r.locker, Elector: elector, Shares: shares,
		Logger: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Listeners: []scheduler.Listener{scheduler.ListenerFunc(func(e scheduler.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		})},
	})
	if err != nil {
		c.tb.Fatalf("scheduler: %v", err)
	}
	if err := r.Add(c.opts.Jobs(r)...); err != nil {
		c.tb.Fatalf("jobs: %v", err)
	}
	if err := r.Scheduler.Start(context.Background()); err != nil {
		c.tb.Fatalf("start: %v", err)
	}
	c.Replicas = append(c.Replicas, r)
	c.tb.Cleanup(r.end)
	return r
}

// end stops a replica for good.
func (r *Replica) end() {
	r.Store.Heal()
	r.Lock.Heal()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Stop(ctx); err != nil && !r.killed.Load() {
		r.Cluster.tb.Errorf("replica %d: stop: %v", r.ID, err)
	}
	if err := r.locker.Close(ctx); err != nil {
		r.Cluster.tb.Errorf("replica %d: close locker: %v", r.ID, err)
	}
}

// Kill takes the replica out of the world: it reaches no backend any more, and
// what its handlers still do does not count.
func (r *Replica) Kill() {
	r.killed.Store(true)
	r.CutStore()
	r.CutLocks()
}

// CutStore makes every request of the replica to the store hang until it times
// out.
func (r *Replica) CutStore() { r.Store.Arm(storetest.Fault{BlackHole: true}) }

// CutLocks makes every request of the replica to the lock backend hang until it
// times out.
func (r *Replica) CutLocks() { r.Lock.Cut() }

// Dead reports whether Kill was called.
func (r *Replica) Dead() bool { return r.killed.Load() }

// Effect counts an effect of the run, unless the replica was killed.
func (r *Replica) Effect(run *scheduler.Run) {
	if r.killed.Load() {
		return
	}
	key := run.Key()
	c := r.Cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	c.effects = append(c.effects, Effect{
		Job: key.Job, Tick: key.Tick, Key: key.String(), Attempt: run.Attempt(), Fence: run.Fence(),
		Mode: run.Mode(), Replica: r.ID, At: time.Now(),
	})
}

// Effects returns what was counted so far for the job, in order of time; of all
// jobs if it is empty.
func (c *Cluster) Effects(job string) []Effect {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Effect
	for _, e := range c.effects {
		if job == "" || e.Job == job {
			out = append(out, e)
		}
	}
	return out
}

// Rows returns the job's executions, oldest first.
func (c *Cluster) Rows(job string) []store.Execution {
	c.tb.Helper()
	rows, err := c.Store.List(context.Background(), store.Filter{Namespace: Namespace, Jobs: []string{job}, Limit: 1 << 20})
	if err != nil {
		c.tb.Fatalf("list %s: %v", job, err)
	}
	for i, k := 0, len(rows)-1; i < k; i, k = i+1, k-1 {
		rows[i], rows[k] = rows[k], rows[i]
	}
	return rows
}

// Ledger counts the job's ticks in (from, to].
func (c *Cluster) Ledger(job string, from, to time.Time) store.Ledger {
	c.tb.Helper()
	l, err := c.Store.Ledger(context.Background(), Namespace, job, store.MillisOf(from), store.MillisOf(to))
	if err != nil {
		c.tb.Fatalf("ledger of %s: %v", job, err)
	}
	return l
}
