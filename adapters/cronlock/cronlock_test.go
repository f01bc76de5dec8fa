package cronlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/adapters/cronlock"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "lock:shop:cron:report"
	period = 10 * time.Second
)

// every is a schedule of multiples of period, read from a clock that is late.
type every struct{ late time.Duration }

func (e every) Next(t time.Time) time.Time {
	return t.Add(-e.late).Truncate(period).Add(period + e.late)
}

// replica is one process: a scheduler and a locker of its own.
type replica struct {
	*cron.Cron
	locker *locks.Locker
	faults *lockstest.Faulty
	lock   *cronlock.Lock

	mu    sync.Mutex
	ticks []cronlock.Tick
}

// start makes a replica and ends it with the bubble. Its job is what job makes of
// its lock.
func start(t *testing.T, space *memlock.Space, late time.Duration, job func(*cronlock.Lock) cron.Job, opts ...cronlock.Option) *replica {
	t.Helper()
	r := &replica{Cron: cron.New(), faults: lockstest.NewFaulty(memlock.NewDriver(space))}
	var err error
	if r.locker, err = locks.New(r.faults.Driver(), locks.Config{TTL: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	observe := cronlock.WithObserver(func(tick cronlock.Tick) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ticks = append(r.ticks, tick)
	})
	if r.lock, err = cronlock.New(ctx, r.locker, key, append([]cronlock.Option{observe}, opts...)...); err != nil {
		t.Fatal(err)
	}
	r.Schedule(every{late}, job(r.lock))
	r.Start()
	t.Cleanup(func() {
		r.faults.Heal()
		cancel()
		<-r.Stop().Done()
		if err := r.locker.Close(context.Background()); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return r
}

func (r *replica) told() []cronlock.Tick {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]cronlock.Tick(nil), r.ticks...)
}

func calls(run func(ctx context.Context, fence int64) error) func(*cronlock.Lock) cron.Job {
	return func(k *cronlock.Lock) cron.Job { return k.Job(run) }
}

// Three replicas whose clocks differ run a short job three times a tick under the
// lock alone, and once where the key is held for longer than they differ.
func TestSkewedReplicas(t *testing.T) {
	const ticks = 100
	for name, tt := range map[string]struct {
		opts []cronlock.Option
		want int64
	}{
		"the lock alone":         {nil, 3 * ticks},
		"held beyond the skew":   {[]cronlock.Option{cronlock.HoldAtLeast(2 * time.Second)}, ticks},
		"held, but not for long": {[]cronlock.Option{cronlock.HoldAtLeast(300 * time.Millisecond)}, 2 * ticks},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				job := calls(func(context.Context, int64) error {
					time.Sleep(10 * time.Millisecond)
					runs.Add(1)
					return nil
				})
				var space memlock.Space
				time.Sleep(period / 2) // so that all begin between the same two ticks
				for _, late := range []time.Duration{0, 200 * time.Millisecond, 500 * time.Millisecond} {
					start(t, &space, late, job, tt.opts...)
				}
				time.Sleep(ticks * period)
				if got := runs.Load(); got != tt.want {
					t.Errorf("%d runs of %d ticks, want %d", got, ticks, tt.want)
				}
			})
		})
	}
}

// A run longer than period and TTL is not overlapped, and every tick is told once on
// every replica: with its fence where it ran, as held where it did not.
func TestLongRunsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, runs, highest atomic.Int64
		job := calls(func(ctx context.Context, fence int64) error {
			if running.Add(1) > 1 {
				t.Error("two runs at a time")
			}
			defer running.Add(-1)
			if last := highest.Swap(fence); last >= fence {
				t.Errorf("fence %d after %d", fence, last)
			}
			runs.Add(1)
			time.Sleep(25 * time.Second)
			return ctx.Err()
		})
		var space memlock.Space
		replicas := []*replica{start(t, &space, 0, job), start(t, &space, 0, job)}
		time.Sleep(90*period + period/2)
		synctest.Wait()
		if got := runs.Load(); got != 30 {
			t.Errorf("%d runs of 25 s in 90 ticks of 10 s, want every third", got)
		}
		var ran, held int
		for _, r := range replicas {
			for _, tick := range r.told() {
				switch {
				case tick.Ran && tick.Err == nil && tick.Fence > 0 && tick.Key == key:
					ran++
				case !tick.Ran && errors.Is(tick.Err, locks.ErrHeld):
					held++
				default:
					t.Errorf("tick: %+v", tick)
				}
			}
		}
		if ran < 29 || ran+held < 2*90-1 { // the last one may be under way
			t.Errorf("%d ran and %d held were told, want 30 and 150", ran, held)
		}
	})
}

// A run whose key is taken away is told, its end is told to the observer, and it
// frees nothing of the next holder.
func TestLossIsToldAndReleaseIsSafe(t *testing.T) {
	for name, wrap := range map[string]func(*cronlock.Lock, func(context.Context)) cron.Job{
		"job": func(k *cronlock.Lock, run func(context.Context)) cron.Job {
			return k.Job(func(ctx context.Context, _ int64) error {
				run(ctx)
				if cause := context.Cause(ctx); !errors.Is(cause, locks.ErrLost) {
					t.Errorf("the context's cause is %v, want ErrLost", cause)
				}
				return errors.New("stopped halfway")
			})
		},
		"wrapped job, which has no context": func(k *cronlock.Lock, run func(context.Context)) cron.Job {
			return k.Wrap(cron.FuncJob(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				run(ctx)
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var space memlock.Space
				other, err := memlock.New(&space, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close(context.Background())
				var second *locks.Lease
				r := start(t, &space, 0, func(k *cronlock.Lock) cron.Job {
					return wrap(k, func(ctx context.Context) {
						if _, err := other.ForceRelease(ctx, key); err != nil {
							t.Error(err)
						}
						if second, err = other.TryAcquire(ctx, key); err != nil {
							t.Error(err)
						}
						<-ctx.Done()
					})
				})
				time.Sleep(period + 9*time.Second)
				ticks := r.told()
				if len(ticks) != 1 || !ticks[0].Ran || !errors.Is(ticks[0].Err, locks.ErrLost) {
					t.Fatalf("told %+v, want one run that lost its lock", ticks)
				}
				if name == "job" && !strings.Contains(ticks[0].Err.Error(), "halfway") {
					t.Errorf("the job's own error is missing: %v", ticks[0].Err)
				}
				if err := second.Check(t.Context()); err != nil {
					t.Errorf("the next holder: %v", err)
				}
			})
		})
	}
}

func TestUnavailableBackend(t *testing.T) {
	for name, tt := range map[string]struct {
		do   cronlock.Unavailable
		runs int64
	}{"fail fast": {cronlock.FailFast, 0}, "local mutex": {cronlock.LocalMutex, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				job := calls(func(ctx context.Context, fence int64) error {
					runs.Add(1)
					if fence != 0 {
						t.Errorf("fence %d without a lock", fence)
					}
					time.Sleep(15 * time.Second) // beyond the next tick
					return nil
				})
				r := start(t, new(memlock.Space), 0, job, cronlock.WhenUnavailable(tt.do))
				r.faults.Arm(lockstest.Acquire, lockstest.Fault{Kind: lockstest.BlackHole})
				time.Sleep(2*period + 9*time.Second)
				if got := runs.Load(); got != tt.runs {
					t.Errorf("%d runs, want %d", got, tt.runs)
				}
				ticks := r.told()
				if len(ticks) != 2 {
					t.Fatalf("told %+v, want two ticks", ticks)
				}
				if tt.do == cronlock.FailFast {
					for _, tick := range ticks {
						if tick.Ran || !errors.Is(tick.Err, locks.ErrUnavailable) {
							t.Errorf("tick: %+v", tick)
						}
					}
					return
				}
				if skipped := ticks[0]; skipped.Ran || !errors.Is(skipped.Err, locks.ErrHeld) {
					t.Errorf("the tick beside a run without a lock: %+v", skipped)
				}
				if ran := ticks[1]; !ran.Ran || ran.Err != nil {
					t.Errorf("the run without a lock: %+v", ran)
				}
			})
		})
	}
}

// A panic passes through to the chain, and the key is free.
func TestPanicGivesTheKeyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, new(memlock.Space), 0, func(k *cronlock.Lock) cron.Job {
			return cron.NewChain(cron.Recover(cron.DiscardLogger), k.Wrap).Then(cron.FuncJob(func() { panic("oh") }))
		})
		time.Sleep(2*period + time.Second)
		ticks := r.told()
		if len(ticks) != 2 {
			t.Fatalf("told %+v, want two ticks", ticks)
		}
		for _, tick := range ticks {
			if !tick.Ran || tick.Err == nil || errors.Is(tick.Err, locks.ErrLost) {
				t.Errorf("tick: %+v", tick)
			}
		}
	})
}

// The end of the program ends runs and the time for which a key is held.
func TestEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, err := memlock.New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		ctx, cancel := context.WithCancel(t.Context())
		var ticks []cronlock.Tick
		lock, err := cronlock.New(ctx, locker, key, cronlock.HoldAtLeast(time.Hour),
			cronlock.WithObserver(func(tick cronlock.Tick) { ticks = append(ticks, tick) }))
		if err != nil {
			t.Fatal(err)
		}
		job := lock.Job(func(ctx context.Context, _ int64) error {
			cancel()
			return ctx.Err()
		})
		began := time.Now()
		job.Run()
		job.Run()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
		if len(ticks) != 2 || !ticks[0].Ran || ticks[1].Ran || !errors.Is(ticks[0].Err, context.Canceled) || !errors.Is(ticks[1].Err, context.Canceled) {
			t.Errorf("told %+v", ticks)
		}
		if _, err := locker.Inspect(context.Background(), key); !errors.Is(err, locks.ErrFree) {
			t.Errorf("the key: %v", err)
		}
	})
}

func TestSettingsAreRefused(t *testing.T) {
	locker, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	for want, make := range map[string]func() (*cronlock.Lock, error){
		"locker": func() (*cronlock.Lock, error) { return cronlock.New(t.Context(), nil, key) },
		"key":    func() (*cronlock.Lock, error) { return cronlock.New(t.Context(), locker, "") },
		"hold_at_least": func() (*cronlock.Lock, error) {
			return cronlock.New(t.Context(), locker, key, cronlock.HoldAtLeast(-1))
		},
		"when_unavailable": func() (*cronlock.Lock, error) {
			return cronlock.New(t.Context(), locker, key, cronlock.WhenUnavailable(7))
		},
		"observer": func() (*cronlock.Lock, error) {
			return cronlock.New(t.Context(), locker, key, cronlock.WithObserver(nil))
		},
	} {
		if _, err := make(); err == nil || !strings.HasPrefix(err.Error(), "cronlock: "+want+":") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
