package gocronlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/adapters/gocronlock"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	job    = "report"
	period = 10 * time.Second
)

var key = locks.Key("shop", "cron", job)

// process is one replica's locks.Locker, and what can go wrong with it.
type process struct {
	*locks.Locker
	faults *lockstest.Faulty
}

func newProcess(t *testing.T, space *memlock.Space) process {
	t.Helper()
	p := process{faults: lockstest.NewFaulty(memlock.NewDriver(space))}
	var err error
	if p.Locker, err = locks.New(p.faults.Driver(), locks.Config{TTL: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.faults.Heal()
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return p
}

// told is what the replicas' schedulers and lockers said.
type told struct {
	mu       sync.Mutex
	refused  []error // to AfterLockError
	unlocked []error
}

func (w *told) refuse(_ uuid.UUID, _ string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, err)
}

func (w *told) unlock(_ string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlocked = append(w.unlocked, err)
}

// schedule starts a scheduler whose job comes every period, late after the present
// moment and a period, and shuts it down at the end of the bubble.
func schedule(t *testing.T, late time.Duration, task gocron.Task, w *told, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
	})
	_, err = s.NewJob(gocron.DurationJob(period), task, gocron.WithName(job),
		gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Add(period+late))),
		gocron.WithEventListeners(gocron.AfterLockError(w.refuse)))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}

func newLocker(t *testing.T, p process, w *told, opts ...gocronlock.Option) *gocronlock.Locker {
	t.Helper()
	k, err := gocronlock.NewLocker(p.Locker, "shop", append([]gocronlock.Option{gocronlock.OnUnlock(w.unlock)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// work takes so long, or until gocron stops it: its Shutdown spins until jobs have
// returned, and no virtual time passes then.
func work(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// Three replicas whose clocks differ run a short job three times a tick under the
// lock alone, and once where it is held for longer than they differ.
func TestSkewedReplicas(t *testing.T) {
	const ticks = 100
	for name, tt := range map[string]struct {
		opts []gocronlock.Option
		want int64
	}{
		"the lock alone":       {nil, 3 * ticks},
		"held beyond the skew": {[]gocronlock.Option{gocronlock.HoldAtLeast(2 * time.Second)}, ticks},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var space memlock.Space
				var runs atomic.Int64
				var w told
				for _, late := range []time.Duration{0, 200 * time.Millisecond, 500 * time.Millisecond} {
					k := newLocker(t, newProcess(t, &space), &w, tt.opts...)
					schedule(t, late, k.Task(job, func(_ context.Context, fence int64) error {
						runs.Add(1)
						if fence < 1 {
							t.Errorf("fence %d", fence)
						}
						return nil
					}), &w, gocron.WithDistributedLocker(k))
				}
				time.Sleep(ticks*period + period/2)
				if got := runs.Load(); got != tt.want {
					t.Errorf("%d runs of %d ticks, want %d", got, ticks, tt.want)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.refused) != int(3*ticks-tt.want) {
					t.Errorf("%d refusals, want %d", len(w.refused), 3*ticks-tt.want)
				}
				for _, err := range w.refused {
					if !errors.Is(err, locks.ErrHeld) {
						t.Errorf("refused with %v", err)
					}
				}
				for _, err := range w.unlocked {
					if err != nil {
						t.Errorf("unlocked with %v", err)
					}
				}
			})
		})
	}
}

// A run whose lock is taken away is told, unlocking it frees nothing of the next
// holder, and its loss is told to OnUnlock.
func TestLossIsToldAndUnlockIsSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var space memlock.Space
		var w told
		other := newProcess(t, &space)
		k := newLocker(t, newProcess(t, &space), &w, gocronlock.HoldAtLeast(9*time.Second))
		var second *locks.Lease
		schedule(t, 0, k.Task(job, func(ctx context.Context, _ int64) (err error) {
			if _, err = other.ForceRelease(ctx, key); err != nil {
				t.Error(err)
			}
			if second, err = other.TryAcquire(ctx, key); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, locks.ErrLost) {
				t.Errorf("the context's cause is %v, want ErrLost", cause)
			}
			return nil
		}), &w, gocron.WithDistributedLocker(k))
		time.Sleep(period + 5*time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.unlocked) != 1 || !errors.Is(w.unlocked[0], locks.ErrLost) {
			t.Errorf("unlocked with %v, want one ErrLost", w.unlocked)
		}
		if err := second.Check(t.Context()); err != nil {
			t.Errorf("the next holder: %v", err)
		}
	})
}

// A run longer than period and TTL keeps its lock.
func TestLongRunsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var space memlock.Space
		var w told
		var running, runs atomic.Int64
		for range 2 {
			k := newLocker(t, newProcess(t, &space), &w)
			schedule(t, 0, k.Task(job, func(ctx context.Context, _ int64) error {
				if running.Add(1) > 1 {
					t.Error("two runs at a time")
				}
				defer running.Add(-1)
				runs.Add(1)
				return work(ctx, 25*time.Second)
			}), &w, gocron.WithDistributedLocker(k))
		}
		time.Sleep(30*period + 26*time.Second)
		if got := runs.Load(); got < 10 || got > 12 {
			t.Errorf("%d runs of 25 s in 32 ticks of 10 s, want every third", got)
		}
	})
}

func TestUnavailableBackend(t *testing.T) {
	for name, tt := range map[string]struct {
		opts    []gocronlock.Option
		runs    int64
		refused error
	}{
		"skip":         {nil, 0, locks.ErrUnavailable},
		"run unlocked": {[]gocronlock.Option{gocronlock.RunUnlocked()}, 1, locks.ErrHeld},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w told
				var runs atomic.Int64
				p := newProcess(t, new(memlock.Space))
				p.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.BlackHole})
				k := newLocker(t, p, &w, tt.opts...)
				schedule(t, 0, k.Task(job, func(ctx context.Context, fence int64) error {
					runs.Add(1)
					if fence != 0 {
						t.Errorf("fence %d without a lock", fence)
					}
					return work(ctx, 15*time.Second)
				}), &w, gocron.WithDistributedLocker(k))
				time.Sleep(2*period + 9*time.Second)
				if got := runs.Load(); got != tt.runs {
					t.Errorf("%d runs, want %d", got, tt.runs)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.refused) != 2-int(tt.runs) {
					t.Fatalf("refused: %v", w.refused)
				}
				for _, err := range w.refused {
					if !errors.Is(err, tt.refused) {
						t.Errorf("refused with %v, want %v", err, tt.refused)
					}
				}
			})
		})
	}
}

// A task that gocron starts without the lock of its name says so.
func TestTaskWithoutItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w told
		k := newLocker(t, newProcess(t, new(memlock.Space)), &w)
		s := schedule(t, 0, k.Task("another", func(context.Context, int64) error {
			t.Error("it ran")
			return nil
		}), &w, gocron.WithDistributedLocker(k))
		failed := make(chan error, 1)
		_, err := s.NewJob(gocron.DurationJob(period), k.Task("another", nil), gocron.WithName("mistaken"),
			gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err })))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, gocronlock.ErrNoLock) || !strings.Contains(err.Error(), `"another"`) {
			t.Errorf("failed with %v", err)
		}
	})
}

// Of three replicas the leader runs all ticks; when it resigns, another goes on, and
// the run of the old term has a context that ended with it.
func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ticks = 20
		var space memlock.Space
		var w told
		type run struct {
			replica int
			term    int64
		}
		var mu sync.Mutex
		var runs []run
		for replica := range 3 {
			p := newProcess(t, &space)
			elector, err := leader.FromLocks(p.Locker, locks.Key("shop", "leader"), leader.Config{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := gocronlock.NewElector(elector)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) || !errors.Is(err, leader.ErrNotRunning) {
				t.Errorf("before Run: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- elector.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("Run = %v", err)
				}
			})
			late := time.Duration(replica) * 300 * time.Millisecond
			schedule(t, late, e.Task(func(ctx context.Context, term int64) error {
				mu.Lock()
				runs = append(runs, run{replica, term})
				n := len(runs)
				mu.Unlock()
				if n == ticks/2 {
					go func() { _ = elector.Resign(context.WithoutCancel(ctx)) }()
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, leader.ErrResigned) {
						t.Errorf("the context's cause is %v, want ErrResigned", cause)
					}
				}
				return nil
			}), &w, gocron.WithDistributedElector(e))
		}
		time.Sleep(ticks*period + period/2)
		mu.Lock()
		defer mu.Unlock()
		terms := map[int64]int{} // replica of each
		for _, r := range runs {
			if before, ok := terms[r.term]; ok && before != r.replica {
				t.Errorf("term %d ran on replicas %d and %d", r.term, before, r.replica)
			}
			terms[r.term] = r.replica
		}
		if len(terms) != 2 || runs[0].replica == runs[len(runs)-1].replica {
			t.Errorf("%d terms: %v", len(terms), runs)
		}
		// One tick may fall to both leaders, or to none.
		if n := len(runs); n < ticks-1 || n > ticks+1 {
			t.Errorf("%d runs of %d ticks", n, ticks)
		}
	})
}

func TestSettingsAreRefused(t *testing.T) {
	p := newProcess(t, nil)
	for want, err := range map[string]error{
		"locker":        second(gocronlock.NewLocker(nil, "shop")),
		"namespace":     second(gocronlock.NewLocker(p.Locker, "")),
		"hold_at_least": second(gocronlock.NewLocker(p.Locker, "shop", gocronlock.HoldAtLeast(-1))),
		"on_unlock":     second(gocronlock.NewLocker(p.Locker, "shop", gocronlock.OnUnlock(nil))),
		"elector":       second(gocronlock.NewElector(nil)),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "gocronlock: "+want+":") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
