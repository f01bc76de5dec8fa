package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

// bubble runs f on virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { t.Helper(); synctest.Test(t, f) })
}

func jobs(list ...scheduler.Job) func(*schedulertest.Replica) []scheduler.Job {
	return func(*schedulertest.Replica) []scheduler.Job { return list }
}

// accounted checks that every tick in (from, to] has a record, and returns the
// ledger.
func accounted(t *testing.T, c *schedulertest.Cluster, job string, period time.Duration, from, to time.Time) store.Ledger {
	t.Helper()
	l := c.Ledger(job, from, to)
	want := int64(to.UTC().Truncate(period).Sub(from.UTC().Truncate(period)) / period)
	if l.Total() != want {
		t.Errorf("%s: %d ticks have a record, want %d: %+v", job, l.Total(), want, l)
	}
	return l
}

// TestNoOverlapAndNothingLost is the case in which a lock on the job's name loses
// ticks and a key per tick overlaps: runs longer than the period.
func TestNoOverlapAndNothingLost(t *testing.T) {
	type setting struct {
		name string
		gate scheduler.Gate
		cut  bool // lock backend away, mode store_only
	}
	for _, s := range []setting{{"lock", scheduler.GateLock, false}, {"none", scheduler.GateNone, false}, {"store_only", scheduler.GateLock, true}} {
		bubble(t, s.name, func(t *testing.T) {
			var running, most atomic.Int64
			c := schedulertest.New(t, schedulertest.Options{
				Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
					cfg.Gate, cfg.Degradation.Mode = s.gate, store.ModeStoreOnly
				},
				Jobs: func(r *schedulertest.Replica) []scheduler.Job {
					return []scheduler.Job{scheduler.Cron("long", "@every 5s", func(ctx context.Context, run *scheduler.Run) error {
						if n := running.Add(1); n > most.Load() {
							most.Store(n)
						}
						r.Effect(run)
						time.Sleep(12 * time.Second)
						running.Add(-1)
						return nil
					})}
				},
			})
			if s.cut {
				for _, r := range c.Replicas {
					r.CutLocks()
				}
			}
			begin := time.Now()
			time.Sleep(5*time.Minute + 100*time.Millisecond)
			if most.Load() != 1 {
				t.Errorf("%d runs at a time", most.Load())
			}
			time.Sleep(30 * time.Second) // the sweep is at most a lease behind
			l := accounted(t, c, "long", 5*time.Second, begin.Add(20*time.Second), begin.Add(5*time.Minute))
			if l.Missed != 0 || l.Ran < 15 || l.Skipped < 30 {
				t.Errorf("ledger %+v: want about every third tick run, the others skipped, none missed", l)
			}
			for _, row := range c.Rows("long") {
				if row.State == store.StateSkipped && row.Reason != store.ReasonOverlap {
					t.Errorf("tick %s skipped for %q", row.Key.Tick, row.Reason)
				}
			}
		})
	}
}

func TestKilledOwner(t *testing.T) {
	bubble(t, "run in progress is taken over within lease + 2 s", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("slow", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
				if err := sleep(ctx, 20*time.Second); err != nil {
					return err
				}
				r.Effect(run)
				return nil
			})}
		}})
		untilMinute(t)
		time.Sleep(5 * time.Second)
		owner := owner(t, c, "slow")
		owner.Kill()
		killed := time.Now()
		time.Sleep(50 * time.Second)
		effects := c.Effects("slow")
		if len(effects) != 1 || effects[0].Attempt != 2 || effects[0].Replica == owner.ID {
			t.Fatalf("effects %+v: want one, by another replica, of attempt 2", effects)
		}
		if took := effects[0].At.Add(-20 * time.Second).Sub(killed); took > 12*time.Second {
			t.Errorf("taken over after %v", took)
		}
	})
	bubble(t, "idle death between gate and claim is made up for", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1m", effect(r), scheduler.OnMisfire(scheduler.MisfireFireAll))}
		}})
		untilMinute(t)
		time.Sleep(30 * time.Second)
		for _, r := range c.Replicas { // whoever gets the lock dies right after it
			r.CutStore()
		}
		begin := time.Now()
		time.Sleep(31 * time.Second)
		c.Replicas[0].Kill()
		c.Replicas[1].Kill()
		c.Replicas[2].Store.Heal()
		time.Sleep(time.Minute)
		once(t, c, "j", time.Minute, begin, begin.Add(time.Minute))
	})
}

// sleep waits, or returns early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// untilMinute waits for the next full minute and two milliseconds.
func untilMinute(t *testing.T) {
	t.Helper()
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 2*time.Millisecond)))
}

// owner is the replica that has the job's run in progress.
func owner(t *testing.T, c *schedulertest.Cluster, job string) *schedulertest.Replica {
	t.Helper()
	for _, row := range c.Rows(job) {
		if row.State == store.StateRunning {
			for _, r := range c.Replicas {
				if fmt.Sprint("replica ", r.ID) == row.OwnerLabel {
					return r
				}
			}
		}
	}
	t.Fatalf("no run of %s in progress", job)
	return nil
}

func TestFrozenOwnerIsFenced(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		type end struct {
			cause error
			at    time.Time
		}
		told := make(chan end, 1)
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
				if run.Attempt() > 1 {
					r.Effect(run)
					return nil
				}
				<-ctx.Done()
				told <- end{context.Cause(ctx), time.Now()}
				time.Sleep(20 * time.Second) // deaf meanwhile; then it claims to be done
				return nil
			}, scheduler.WithGate(scheduler.GateNone))}
		}})
		untilMinute(t)
		first := owner(t, c, "j")
		cutAt := time.Now()
		first.CutStore()
		time.Sleep(15 * time.Second)
		first.Store.Heal()
		time.Sleep(40 * time.Second)
		ended := <-told
		if !errors.Is(ended.cause, scheduler.ErrLeaseLost) {
			t.Errorf("context ended with %v, want ErrLeaseLost", ended.cause)
		}
		if d := ended.at.Sub(cutAt); d >= 10*time.Second {
			t.Errorf("told %v after the cut, not before the lease could end", d)
		}
		fenced := 0
		for _, e := range first.Events() {
			if f, ok := e.(scheduler.RunFinished); ok && f.Fenced {
				fenced++
			}
		}
		if effects := c.Effects("j"); fenced != 1 || len(effects) != 1 || effects[0].Attempt != 2 {
			t.Errorf("fenced %d times, effects %+v", fenced, effects)
		}
	})
}

func TestMisfire(t *testing.T) {
	// All replicas are away for ten ticks.
	for policy, want := range map[scheduler.Misfire]int{scheduler.MisfireFireOnce: 1, scheduler.MisfireFireAll: 10, scheduler.MisfireSkip: 0} {
		bubble(t, string(policy), func(t *testing.T) {
			opts := schedulertest.Options{Replicas: 2, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 6s", effect(r), scheduler.OnMisfire(policy), scheduler.CatchUp(5*time.Minute, 100))}
			}}
			c := schedulertest.New(t, opts)
			untilMinute(t)
			begin := time.Now()
			for _, r := range c.Replicas {
				r.Kill()
			}
			time.Sleep(62 * time.Second)
			n := len(c.Effects("j"))
			c.Start()
			time.Sleep(3 * time.Second)
			made := c.Effects("j")[n:]
			if len(made) != want {
				t.Fatalf("%d runs made up for, want %d: %v", len(made), want, made)
			}
			for i := range made[min(1, len(made)):] {
				if made[i].Tick >= made[i+1].Tick {
					t.Errorf("out of order: %v before %v", made[i].Tick, made[i+1].Tick)
				}
			}
			if policy == scheduler.MisfireFireOnce {
				rows := c.Rows("j")
				if row := rows[len(rows)-1]; row.MissedCount != 9 || row.Key.Tick != made[0].Tick || made[0].Tick.Time() != begin.UTC().Truncate(time.Second).Add(time.Minute) {
					t.Errorf("ran %+v for %d others, want the latest tick, standing for 9", made[0], row.MissedCount)
				}
			}
			accounted(t, c, "j", 6*time.Second, begin, begin.Add(time.Minute))
		})
	}
}

func TestLongAbsenceIsCheapAndBounded(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		begin := time.Now()
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "* * * * * *", effect(r),
				scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.CatchUp(10*time.Minute, 100))}
		}})
		time.Sleep(5 * time.Second)
		stop, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Replicas[0].Stop(stop); err != nil {
			t.Fatal(err)
		}
		const year = 365 * 24 * time.Hour
		time.Sleep(year)
		before := len(c.Effects("j"))
		c.Start()
		time.Sleep(20 * time.Second)
		n := len(c.Effects("j")) - before
		if n < 100 || n > 125 {
			t.Errorf("%d runs after a year away, want the 100 of the cap and those on time", n)
		}
		l := accounted(t, c, "j", time.Second, begin, begin.Add(year))
		if rows := len(c.Rows("j")); l.Missed < int64(year/time.Second)-200 || rows > 200 {
			t.Errorf("ledger %+v in %d rows: want the missed ones in ranges", l, rows)
		}
	})
}

func TestRetryPanicTimeoutPermanent(t *testing.T) {
	boom := errors.New("boom")
	type outcome struct {
		state    store.State
		attempts int
		code     string
	}
	cases := map[string]struct {
		handler scheduler.Handler
		opts    []scheduler.Option
		want    outcome
	}{
		"fails twice, then succeeds": {
			func(_ context.Context, r *scheduler.Run) error {
				if r.Attempt() < 3 {
					return boom
				}
				return nil
			}, []scheduler.Option{scheduler.Retry(5, time.Second, 10*time.Second)}, outcome{store.StateSucceeded, 3, ""},
		},
		"out of attempts": {
			func(context.Context, *scheduler.Run) error { return boom },
			[]scheduler.Option{scheduler.Retry(3, time.Second, 10*time.Second)},
			outcome{store.StateFailed, 3, "error"},
		},
		"permanent": {
			func(context.Context, *scheduler.Run) error { return scheduler.Permanent(boom) },
			[]scheduler.Option{scheduler.Retry(3, time.Second, 10*time.Second)},
			outcome{store.StateFailed, 1, "permanent"},
		},
		"panic": {
			func(context.Context, *scheduler.Run) error { panic("at the disco") }, nil, outcome{store.StateFailed, 1, "panic"},
		},
		"timeout": {
			func(ctx context.Context, _ *scheduler.Run) error { <-ctx.Done(); return ctx.Err() },
			[]scheduler.Option{scheduler.Timeout(2 * time.Second)},
			outcome{store.StateFailed, 1, "timeout"},
		},
		"deaf to its timeout": {
			func(context.Context, *scheduler.Run) error { time.Sleep(50 * time.Second); return nil },
			[]scheduler.Option{scheduler.Timeout(2 * time.Second)},
			outcome{store.StateFailed, 1, "abandoned"},
		},
	}
	for name, tc := range cases {
		bubble(t, name, func(t *testing.T) {
			c := schedulertest.New(t, schedulertest.Options{Jobs: jobs(scheduler.Cron("j", "@every 1h", tc.handler, tc.opts...))})
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			time.Sleep(time.Minute)
			rows := c.Rows("j")
			if len(rows) != 1 {
				t.Fatalf("%d rows", len(rows))
			}
			if got := (outcome{rows[0].State, rows[0].Attempt, rows[0].ErrorCode}); got != tc.want {
				t.Errorf("got %+v, want %+v (%s)", got, tc.want, rows[0].ErrorText)
			}
		})
	}
}

func TestStoreOutage(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 5s", effect(r),
				scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.CatchUp(10*time.Minute, 1000), scheduler.OnOverlap(scheduler.OverlapBufferAll))}
		}})
		untilMinute(t)
		begin := time.Now()
		for _, r := range c.Replicas {
			r.CutStore()
		}
		time.Sleep(2 * time.Minute)
		for _, r := range c.Replicas {
			if r.Health().Store == "ok" {
				t.Errorf("replica %d says the store is fine", r.ID)
			}
			r.Store.Heal()
		}
		time.Sleep(time.Minute)
		once(t, c, "j", 5*time.Second, begin, begin.Add(2*time.Minute))
		for _, r := range c.Replicas {
			if h := r.Health(); h.Store != "ok" {
				t.Errorf("replica %d still says %q", r.ID, h.Store)
			}
		}
	})
}
