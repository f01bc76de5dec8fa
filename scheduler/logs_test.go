package scheduler_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
)

// lines is a log that several replicas write to.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// take returns the lines so far and forgets them.
func (l *lines) take(t *testing.T) (all []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := bufio.NewScanner(&l.text); s.Scan(); {
		all = append(all, s.Text())
	}
	l.text.Reset()
	return all
}

var _ io.Writer = (*lines)(nil)

// TestQuietWhenHealthy: an hour in which all goes well has nothing to read at level
// info, and at level debug one line for every run, which names it in full.
func TestQuietWhenHealthy(t *testing.T) {
	bubble(t, "three replicas, every gate", func(t *testing.T) {
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{Logs: log, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			handler := func(ctx context.Context, run *scheduler.Run) error {
				r.Effect(run)
				return sleep(ctx, 2*time.Second)
			}
			return []scheduler.Job{
				scheduler.Cron("lock", "@every 15s", handler),
				scheduler.Cron("leader", "@every 15s", handler, scheduler.WithGate(scheduler.GateLeader)),
				scheduler.Cron("none", "@every 15s", handler, scheduler.WithGate(scheduler.GateNone)),
				scheduler.QueueFunc("mail", handler),
			}
		}})
		untilMinute(t)
		time.Sleep(7 * time.Second)
		log.take(t) // of the start
		before := len(c.Effects(""))
		time.Sleep(time.Hour)
		runs := len(c.Effects("")) - before
		if runs != 3*240 {
			t.Fatalf("%d runs", runs)
		}
		full := regexp.MustCompile(`namespace=\S+ owner=.+ job=\S+ tick=\S+ run=\S+ key=\S+ attempt=1 fence=\d+ `)
		named := map[string]int{}
		for _, line := range log.take(t) {
			if !strings.Contains(line, "level=DEBUG") {
				t.Errorf("a healthy hour says: %s", line)
			}
			if id := regexp.MustCompile(` run=(\S+)`).FindStringSubmatch(line); id != nil {
				named[id[1]]++
				if !full.MatchString(line) {
					t.Errorf("a run is not named in full: %s", line)
				}
			}
		}
		for id, n := range named {
			if n != 1 {
				t.Errorf("run %s has %d lines", id, n)
			}
		}
		if len(named) != runs {
			t.Errorf("%d runs have a line at level debug, want %d", len(named), runs)
		}
	})
}

// TestQuietWhileTicksAreSkipped: a mode that fails fast for ten minutes is two lines of
// each replica, taken and left, and one for what is made up for, however many ticks it skips.
func TestQuietWhileTicksAreSkipped(t *testing.T) {
	bubble(t, "fail_fast", func(t *testing.T) {
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{Logs: log, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 2s", effect(r))}
		}})
		untilMinute(t)
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(time.Minute)
		log.take(t) // of the beginning
		time.Sleep(10 * time.Minute)
		if skipped := len(c.Rows("j")); skipped < 300 {
			t.Fatalf("%d ticks are recorded", skipped)
		}
		for _, line := range log.take(t) {
			if !strings.Contains(line, "level=DEBUG") {
				t.Errorf("ticks that are skipped say: %s", line)
			}
		}
	})
}

// TestSwitchOffIsTold: ticks that wait for a coordinator because the switch is off are one
// line of each replica, and one when it is back.
func TestSwitchOffIsTold(t *testing.T) {
	bubble(t, "off", func(t *testing.T) {
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{
			Logs: log,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Switch: scheduler.SwitchOff}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 2s", effect(r))}
			},
		})
		told := func(what string) (n int) {
			for _, line := range log.take(t) {
				if strings.Contains(line, what) {
					n++
				}
			}
			return n
		}
		untilMinute(t)
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(10 * time.Minute)
		if n := told(`level=WARN msg="coordinator is unavailable; ticks wait: the switch is off"`); n != len(c.Replicas) {
			t.Errorf("%d lines tell that ticks wait, want one of each replica", n)
		}
		for _, r := range c.Replicas {
			r.Lock.Heal()
		}
		time.Sleep(time.Minute)
		if n := told(`level=INFO msg="coordinator answers again"`); n != len(c.Replicas) {
			t.Errorf("%d lines tell that it is back, want one of each replica", n)
		}
	})
}

// TestClearedCentreIsToldWithoutEmptyNames: what is gone from a centre names nobody.
func TestClearedCentreIsToldWithoutEmptyNames(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		log := new(lines)
		c := schedulertest.New(t, schedulertest.Options{Logs: log, Replicas: 1, Jobs: func(r *schedulertest.Replica) []scheduler.Job {
			return []scheduler.Job{scheduler.Cron("j", "@every 2s", effect(r))}
		}})
		w := c.Replicas[0].Switch()
		for _, set := range []*scheduler.SwitchSetting{{Position: scheduler.SwitchOff, Reason: "drill", By: "ops"}, nil} {
			if err := w.SetFleet(set); err != nil {
				t.Fatal(err)
			}
		}
		var told []string
		for _, line := range log.take(t) {
			if strings.Contains(line, "degradation switch thrown") {
				told = append(told, line)
			}
		}
		if len(told) != 2 || !strings.Contains(told[0], "by=ops reason=drill") || strings.Contains(told[1], "by=") || !strings.Contains(told[1], "to=configuration") {
			t.Errorf("told: %q", told)
		}
	})
}
