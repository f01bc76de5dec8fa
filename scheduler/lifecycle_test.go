package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

func TestDrain(t *testing.T) {
	bubble(t, "a run in progress finishes, nothing new starts", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, run *scheduler.Run) error {
				if err := sleep(ctx, 6*time.Second); err != nil {
					return err
				}
				r.Effect(run)
				return nil
			})}
		}})
		untilMinute(t)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := c.Replicas[0].Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 6*time.Second {
			t.Errorf("stopped after %v", d)
		}
		if n := len(c.Effects("j")); n != 1 {
			t.Errorf("%d effects", n)
		}
		if n := c.Locks.Len(); n != 0 {
			t.Errorf("%d locks left", n)
		}
		if err := c.Replicas[0].Stop(context.Background()); err != nil {
			t.Errorf("second stop: %v", err)
		}
	})
	bubble(t, "a run that takes longer is handed to another replica at once", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 2, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 10m", func(ctx context.Context, run *scheduler.Run) error {
				if err := sleep(ctx, 30*time.Second); err != nil {
					return context.Cause(ctx)
				}
				r.Effect(run)
				return nil
			})}
		}})
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(10*time.Minute + time.Second)))
		first := owner(t, c, "j")
		begin := time.Now()
		if err := first.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 11*time.Second {
			t.Errorf("stopped after %v", d)
		}
		stopped := time.Now()
		time.Sleep(time.Minute)
		effects := c.Effects("j")
		if len(effects) != 1 || effects[0].Attempt != 2 || effects[0].Replica == first.ID {
			t.Fatalf("effects %+v", effects)
		}
		if d := effects[0].At.Sub(stopped); d > 34*time.Second {
			t.Errorf("done %v after the stop: not handed over at once", d)
		}
	})
	bubble(t, "a deaf handler is left behind, and named", func(t *testing.T) {
		s, err := scheduler.New(scheduler.Config{Namespace: "test", DrainTimeout: 4 * time.Second, Gate: scheduler.GateNone},
			scheduler.Deps{Store: memstore.New(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(scheduler.Cron("deaf", "@every 1m", func(context.Context, *scheduler.Run) error { time.Sleep(time.Hour); return nil })); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		untilMinute(t)
		begin := time.Now()
		err = s.Stop(context.Background())
		if err == nil || !strings.Contains(err.Error(), "deaf@") {
			t.Errorf("stop says %v, want the run's name", err)
		}
		if d := time.Since(begin); d > 7*time.Second {
			t.Errorf("stopped after %v", d)
		}
		time.Sleep(time.Hour) // the handler's goroutine ends
	})
	bubble(t, "with the store away the stop is still bounded", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 1m", func(ctx context.Context, _ *scheduler.Run) error {
				return sleep(ctx, 5*time.Second)
			})}
		}})
		untilMinute(t)
		c.Replicas[0].Kill()
		time.Sleep(time.Second)
		begin := time.Now()
		if err := c.Replicas[0].Stop(context.Background()); err == nil || !strings.Contains(err.Error(), "j@") {
			t.Errorf("stop says %v, want the run that could not be recorded", err)
		}
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("stopped after %v", d)
		}
	})
	bubble(t, "before the start and twice", func(t *testing.T) {
		s, err := scheduler.New(scheduler.Config{Namespace: "test"}, scheduler.Deps{Store: memstore.New()})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := s.Start(context.Background()); err == nil {
			t.Error("started after a stop")
		}
	})
}

func TestQueue(t *testing.T) {
	type mail struct {
		To string `json:"to"`
	}
	bubble(t, "each row once, retries later, dead at the end", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Queue(func(_ context.Context, run *scheduler.Run, m mail) error {
				if m.To == "nowhere" {
					return errors.New("bounced")
				}
				r.Effect(run)
				return nil
			}, scheduler.Retry(3, time.Second, 5*time.Second))}
		}})
		var rows []store.NewExecution
		for i := range 50 {
			args, err := json.Marshal(mail{To: fmt.Sprint("user", i)})
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: fmt.Sprint(i)}, Args: args, MaxAttempts: 12})
		}
		rows = append(rows,
			store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "bad"}, Args: []byte(`{"to":"nowhere"}`), MaxAttempts: 12},
			store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "odd"}, Args: []byte(`{"from":1}`), MaxAttempts: 12},
			store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "mail", Name: "late"}, Args: []byte(`{"to":"later"}`), Delay: 30 * time.Second, MaxAttempts: 12})
		if _, err := c.Store.Enqueue(context.Background(), schedulertest.Namespace, rows); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.Sleep(28 * time.Second)
		if n := len(c.Effects("mail")); n != 50 {
			t.Errorf("%d effects, want 50", n)
		}
		time.Sleep(10 * time.Second)
		got := map[string]store.Execution{}
		for _, row := range c.Rows("mail") {
			got[row.Key.Name] = row
		}
		if r := got["bad"]; r.State != store.StateFailed || r.Attempt != 3 {
			t.Errorf("bad: %s after %d attempts", r.State, r.Attempt)
		}
		if r := got["odd"]; r.State != store.StateFailed || r.Attempt != 1 || r.ErrorCode != "permanent" {
			t.Errorf("odd: %s after %d attempts, %s", r.State, r.Attempt, r.ErrorCode)
		}
		if r := got["late"]; r.State != store.StateSucceeded || r.Started.Time().Sub(begin) < 30*time.Second {
			t.Errorf("late: %s, started %v after", r.State, r.Started.Time().Sub(begin))
		}
	})
	bubble(t, "no more at once than the concurrency", func(t *testing.T) {
		var running, most atomic.Int64
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1, Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Concurrency = 4 },
			Jobs: jobs(scheduler.QueueFunc("work", func(ctx context.Context, _ *scheduler.Run) error {
				n := running.Add(1)
				defer running.Add(-1)
				if n > most.Load() {
					most.Store(n)
				}
				return sleep(ctx, time.Second)
			})),
		})
		var rows []store.NewExecution
		for i := range 40 {
			rows = append(rows, store.NewExecution{Key: store.Key{Class: store.ClassKey, Job: "work", Name: fmt.Sprint(i)}, MaxAttempts: 1})
		}
		if _, err := c.Store.Enqueue(context.Background(), schedulertest.Namespace, rows); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for done := 0; done < 40; {
			time.Sleep(100 * time.Millisecond)
			done = 0
			for _, row := range c.Rows("work") {
				if row.State == store.StateSucceeded {
					done++
				}
			}
		}
		if most.Load() != 4 {
			t.Errorf("%d at once, want 4", most.Load())
		}
		if d := time.Since(begin); d > 13*time.Second {
			t.Errorf("40 rows of 1 s, 4 at once, took %v", d)
		}
	})
}

func TestBadInput(t *testing.T) {
	nop := func(context.Context, *scheduler.Run) error { return nil }
	deps := scheduler.Deps{Store: memstore.New()}
	if _, err := scheduler.New(scheduler.Config{Namespace: "test"}, scheduler.Deps{}); err == nil || !strings.Contains(err.Error(), "Deps.Store") {
		t.Errorf("no store: %v", err)
	}
	for field, cfg := range map[string]scheduler.Config{
		"namespace":          {},
		"gate":               {Namespace: "n", Gate: "door"},
		"timezone":           {Namespace: "n", TimeZone: "Mars/Olympus"},
		"lease":              {Namespace: "n", Lease: time.Millisecond},
		"drain_timeout":      {Namespace: "n", DrainTimeout: -1},
		"poll_interval":      {Namespace: "n", PollInterval: time.Millisecond},
		"concurrency":        {Namespace: "n", Concurrency: -1},
		"degradation.mode":   {Namespace: "n", Degradation: scheduler.Degradation{Mode: "x"}},
		"degradation.jobs.a": {Namespace: "n", Degradation: scheduler.Degradation{Jobs: map[string]store.Mode{"a": "x"}}},
		"degradation.after":  {Namespace: "n", Degradation: scheduler.Degradation{After: -1}},
	} {
		if _, err := scheduler.New(cfg, deps); err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for want, job := range map[string]scheduler.Job{
		"name":                                  scheduler.Cron("a b", "@daily", nop),
		"handler":                               scheduler.Cron("a", "@daily", nil),
		"empty":                                 scheduler.Cron("a", "", nop),
		"Mars":                                  scheduler.Cron("a", "@daily", nop, scheduler.TimeZone("Mars/Olympus")),
		"Deps.Locker":                           scheduler.Cron("a", "@daily", nop, scheduler.WithGate(scheduler.GateLock)),
		"Deps.Elector":                          scheduler.Cron("a", "@daily", nop, scheduler.WithGate(scheduler.GateLeader)),
		"misfire":                               scheduler.Cron("a", "@daily", nop, scheduler.OnMisfire("maybe")),
		"overlap":                               scheduler.Cron("a", "@daily", nop, scheduler.OnOverlap("maybe")),
		"guarantee":                             scheduler.Cron("a", "@daily", nop, scheduler.Promise("maybe")),
		"at-most-once":                          scheduler.Cron("a", "@daily", nop, scheduler.Promise(scheduler.AtMostOnce)),
		"on_crash: policy 9":                    scheduler.Cron("a", "@daily", nop, scheduler.WhenOwnerDies(9)),
		"on_crash: policy -1":                   scheduler.QueueFunc("a", nop, scheduler.WhenOwnerDies(-1)),
		"degraded mode":                         scheduler.Cron("a", "@daily", nop, scheduler.WhenDegraded("maybe")),
		"timeout":                               scheduler.Cron("a", "@daily", nop, scheduler.Timeout(-1)),
		"retry":                                 scheduler.Cron("a", "@daily", nop, scheduler.Retry(3, time.Minute, time.Second)),
		"retry.attempts: 10001 is over 10000: ": scheduler.Cron("a", "@daily", nop, scheduler.Retry(10_001, 1, 1)),
		"retry.attempts: 20000000 is":           scheduler.Cron("a", "@daily", nop, scheduler.Retry(20_000_000, time.Minute, time.Hour)), // their pauses overflow
		"retry.attempts: 2147483648 is":         scheduler.QueueFunc("a", nop, scheduler.Retry(1<<31, time.Minute, time.Hour)),
		fmt.Sprintf("retry.attempts: %d is", math.MaxInt): scheduler.QueueFunc("a", nop, scheduler.Retry(math.MaxInt, 0, 0)), // adding them up would not end
		"catch-up":      scheduler.Cron("a", "@daily", nop, scheduler.CatchUp(-1, 0)),
		"spread":        scheduler.Cron("a", "@daily", nop, scheduler.Spread()),
		"takes no gate": scheduler.QueueFunc("a", nop, scheduler.WithGate(scheduler.GateLock)),
		"are for cron":  scheduler.QueueFunc("a", nop, scheduler.TimeZone("UTC")),
	} {
		s, err := scheduler.New(scheduler.Config{Namespace: "test", Gate: scheduler.GateNone}, deps)
		if err != nil {
			t.Fatal(err)
		}
		good := scheduler.Cron("good", "@daily", nop)
		if err := s.Add(good, job); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if n := len(s.Describe().Jobs); n != 0 {
			t.Errorf("%s: %d jobs were added beside the bad one", want, n)
		}
		if err := s.Add(good, good); err == nil || !strings.Contains(err.Error(), "two jobs") {
			t.Errorf("two jobs of one name: %v", err)
		}
	}
}

func TestQueueRunOfADeadOwner(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.QueueFunc("work", func(ctx context.Context, run *scheduler.Run) error {
				if err := sleep(ctx, 20*time.Second); err != nil {
					return err
				}
				r.Effect(run)
				return nil
			})}
		}})
		key := store.Key{Class: store.ClassKey, Job: "work", Name: "1"}
		if _, err := c.Store.Enqueue(context.Background(), schedulertest.Namespace, []store.NewExecution{{Key: key, MaxAttempts: 5}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		dead := owner(t, c, "work")
		dead.Kill()
		killed := time.Now()
		time.Sleep(time.Minute)
		effects := c.Effects("work")
		if len(effects) != 1 || effects[0].Attempt != 2 || effects[0].Replica == dead.ID {
			t.Fatalf("effects %+v", effects)
		}
		if d := effects[0].At.Add(-20 * time.Second).Sub(killed); d > 12*time.Second {
			t.Errorf("taken over after %v", d)
		}
	})
}
