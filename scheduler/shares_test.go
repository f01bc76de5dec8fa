package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store/memstore"
)

// lag is how late each job's worst run of a tick in (from, to] began.
func lag(c *schedulertest.Cluster, from, to time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, e := range c.Effects("") {
		if tick := e.Tick.Time(); tick.After(from) && !tick.After(to) {
			out[e.Job] = max(out[e.Job], e.At.Sub(tick))
		}
	}
	return out
}

// load counts the jobs that each replica ran ticks of in (from, to].
func load(c *schedulertest.Cluster, from, to time.Time) map[int]int {
	jobs := map[string]int{}
	for _, e := range c.Effects("") {
		if tick := e.Tick.Time(); tick.After(from) && !tick.After(to) {
			jobs[e.Job] = e.Replica
		}
	}
	out := map[int]int{}
	for _, replica := range jobs {
		out[replica]++
	}
	return out
}

// 600 jobs are shared out evenly over 6 replicas. One dies: its jobs run elsewhere
// within the TTL and 2 s, and no other job is disturbed. Two come: no job is disturbed.
// No tick is lost and none runs twice.
func TestLeadershipIsSharedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			period = 10 * time.Second
			ttl    = 10 * time.Second // of the locker
			n      = 600
		)
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 6,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Gate, cfg.Partitions = scheduler.GateLeader, 24
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				var list []scheduler.Job
				for i := range n {
					list = append(list, scheduler.Cron(fmt.Sprintf("job-%03d", i), "@every 10s", effect(r), scheduler.OnMisfire(scheduler.MisfireFireAll)))
				}
				return list
			},
		})
		began := time.Now()
		time.Sleep(time.Minute)
		even := time.Now()
		time.Sleep(30*time.Second + period/2)
		died := time.Now()
		before := load(c, even, died)
		for replica, jobs := range before {
			if jobs < n/6*8/10 || jobs > n/6*12/10 {
				t.Errorf("replica %d runs %d of %d jobs, want within 20 %% of even: %v", replica, jobs, n, before)
			}
		}
		dead := c.Replicas[2]
		ran := map[string]bool{}
		for _, e := range c.Effects("") {
			if e.Replica == dead.ID && e.Tick.Time().After(even) {
				ran[e.Job] = true
			}
		}
		dead.Kill()
		time.Sleep(time.Minute)
		for job, late := range lag(c, died, died.Add(50*time.Second)) {
			switch {
			case !ran[job] && late > time.Second:
				t.Errorf("%s, which the dead replica did not run, was %v late", job, late)
			case late > ttl+2*time.Second+500*time.Millisecond: // the sweep's jitter
				t.Errorf("%s was %v late, want within %v", job, late, ttl+2*time.Second)
			}
		}
		if after := load(c, died.Add(30*time.Second), died.Add(50*time.Second)); len(after) != 5 {
			t.Errorf("after a death the jobs are run by %v", after)
		}
		c.Start()
		c.Start()
		came := time.Now()
		time.Sleep(time.Minute + period/2)
		for job, late := range lag(c, came, came.Add(50*time.Second)) {
			if late > 2*time.Second {
				t.Errorf("%s was %v late when two replicas came", job, late)
			}
		}
		if after := load(c, came.Add(40*time.Second), came.Add(55*time.Second)); len(after) != 7 {
			t.Errorf("after two came the jobs are run by %v", after)
		}
		for i := range n {
			once(t, c, fmt.Sprintf("job-%03d", i), period, began.Add(15*time.Second), came.Add(50*time.Second))
		}
	})
}

// A replica that drains lets others lead what it has no work for, and the ticks of its
// jobs are run while it drains.
func TestDrainingReplicaLetsOthersLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 2,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Gate, cfg.Partitions, cfg.DrainTimeout = scheduler.GateLeader, 8, 10*time.Minute
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				list := []scheduler.Job{scheduler.Cron("long", "@every 20m", func(ctx context.Context, run *scheduler.Run) error {
					r.Effect(run)
					return sleep(ctx, 5*time.Minute)
				})}
				for i := range 40 {
					list = append(list, scheduler.Cron(fmt.Sprint("short-", i), "@every 5s", effect(r)))
				}
				return list
			},
		})
		for len(c.Effects("long")) == 0 {
			time.Sleep(time.Second)
		}
		busy := c.Replicas[c.Effects("long")[0].Replica]
		stopped := make(chan error, 1)
		began := time.Now()
		go func() { stopped <- busy.Stop(context.Background()) }()
		time.Sleep(4 * time.Minute)
		late, quiet := 0, 0
		for job, by := range lag(c, began.Add(5*time.Second), began.Add(4*time.Minute-10*time.Second)) {
			if strings.HasPrefix(job, "short-") && by > 2*time.Second { // a look at what is free, and a sweep
				late++
			}
		}
		ran := load(c, began.Add(5*time.Second), began.Add(4*time.Minute))
		for replica := range ran {
			if replica == busy.ID {
				t.Errorf("a replica that drains runs new ticks: %v", ran)
			}
		}
		// The partition of the long run waits for it, with whatever else is in it.
		for i := range 40 {
			if len(c.Effects(fmt.Sprint("short-", i))) > 0 && lastTick(c, fmt.Sprint("short-", i)).Before(began.Add(3*time.Minute)) {
				quiet++
			}
		}
		if late > 0 || quiet > 15 {
			t.Errorf("%d jobs were late and %d did not run while a replica drained", late, quiet)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

func lastTick(c *schedulertest.Cluster, job string) (last time.Time) {
	for _, e := range c.Effects(job) {
		last = e.Tick.Time()
	}
	return last
}

func TestBadLeadershipIsRefused(t *testing.T) {
	l, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	key := locks.Key("test", "leader")
	e, err := leader.FromLocks(l, key, leader.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := leader.NewShares(l, key, leader.SharesConfig{Partitions: 8})
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		partitions int
		deps       scheduler.Deps
	}{
		"both given":             {8, scheduler.Deps{Elector: e, Shares: s}},
		"partitions: 8 need":     {8, scheduler.Deps{Elector: e}},
		"but Deps.Shares has 8":  {24, scheduler.Deps{Shares: s}},
		"-1 is not in 0 to 256":  {-1, scheduler.Deps{Shares: s}},
		"300 is not in 0 to 256": {300, scheduler.Deps{Shares: s}},
	} {
		c.deps.Store = memstore.New()
		if _, err := scheduler.New(scheduler.Config{Namespace: "test", Partitions: c.partitions}, c.deps); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %q", err, want)
		}
	}
	if _, err := scheduler.New(scheduler.Config{Namespace: "test"}, scheduler.Deps{Store: memstore.New(), Shares: s}); err != nil {
		t.Errorf("New with Shares = %v", err)
	}
}
