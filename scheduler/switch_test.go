package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulertest"
	"github.com/solotick/solotick/store"
)

func setting(at scheduler.SwitchPosition, mode store.Mode) scheduler.SwitchSetting {
	return scheduler.SwitchSetting{Position: at, Mode: mode, Reason: "drill", By: "somebody"}
}

// everySecond is three replicas with job a that runs each second and is caught up
// with, and options for more.
func everySecond(t *testing.T, d scheduler.Degradation, jobs ...string) *schedulertest.Cluster {
	t.Helper()
	if len(jobs) == 0 {
		jobs = []string{"a"}
	}
	return schedulertest.New(t, schedulertest.Options{
		Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) { cfg.Degradation = d },
		Jobs: func(r *schedulertest.Replica) (out []scheduler.Job) {
			for _, name := range jobs {
				out = append(out, scheduler.Cron(name, "@every 1s", effect(r),
					scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll)))
			}
			return out
		},
	})
}

func modes(c *schedulertest.Cluster, job string, from, to time.Time) map[store.Mode]int {
	out := map[store.Mode]int{}
	for _, e := range c.Effects(job) {
		if !e.At.Before(from) && e.At.Before(to) {
			out[e.Mode]++
		}
	}
	return out
}

// TestForcedActsAsIfTheCoordinatorWereAway throws the switch under healthy
// coordinators and looks at the ticks before, in and after it.
func TestForcedActsAsIfTheCoordinatorWereAway(t *testing.T) {
	for _, mode := range scheduler.Modes() {
		bubble(t, string(mode), func(t *testing.T) {
			c := everySecond(t, scheduler.Degradation{})
			untilMinute(t)
			begin := time.Now()
			time.Sleep(10*time.Second + 500*time.Millisecond)
			for _, r := range c.Replicas {
				if err := r.Switch().Set(setting(scheduler.SwitchForced, mode)); err != nil {
					t.Fatal(err)
				}
			}
			thrown := time.Now()
			for _, r := range c.Replicas {
				if !r.Switch().Status().Degraded {
					t.Errorf("replica %d: the mode is not taken when the throw is answered", r.ID)
				}
			}
			time.Sleep(20 * time.Second)
			for _, r := range c.Replicas {
				h := r.Health()
				if !h.Degraded || h.Mode != mode || h.Switch != scheduler.SwitchForced || h.Coordinator != "ok" {
					t.Errorf("replica %d: %+v", r.ID, h)
				}
				if err := r.Switch().Clear("somebody", "over"); err != nil {
					t.Fatal(err)
				}
			}
			back := time.Now()
			inside := modes(c, "a", thrown, back)
			want := map[store.Mode]int{mode: 20}
			if mode == store.ModeFailFast {
				want = map[store.Mode]int{}
			}
			if inside[mode] != want[mode] || inside[store.ModeNone] != 0 {
				t.Errorf("runs by mode while forced: %v, want %v", inside, want)
			}
			time.Sleep(30 * time.Second)
			once(t, c, "a", time.Second, begin, begin.Add(50*time.Second))
			accounted(t, c, "a", time.Second, begin, begin.Add(45*time.Second))
			if after := modes(c, "a", back.Add(time.Second), back.Add(30*time.Second)); after[mode] != 0 {
				t.Errorf("%d runs under the mode after it was over", after[mode])
			}
		})
	}
}

// TestForcedTakesJobsThatComeLater: the first job of a gate may be added while the switch
// is forced, and the last one removed.
func TestForcedTakesJobsThatComeLater(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Switch: scheduler.SwitchForced, Mode: store.ModeFailFast}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("free", "@every 1s", effect(r), scheduler.WithGate(scheduler.GateNone))}
			},
		})
		untilMinute(t)
		apply := func(gate scheduler.Gate, degraded bool) {
			for _, r := range c.Replicas {
				if _, err := r.Apply(t.Context(), scheduler.Cron("j", "@every 1s", effect(r), scheduler.WithGate(gate), scheduler.OnMisfire(scheduler.MisfireSkip))); err != nil {
					t.Fatal(err)
				}
				if got := r.Switch().Status().Degraded; got != degraded {
					t.Errorf("replica %d with gate %s: degraded %v", r.ID, gate, got)
				}
			}
		}
		apply(scheduler.GateLock, true)
		begin := time.Now()
		time.Sleep(20*time.Second + 500*time.Millisecond) // the sweep has come
		if n := modes(c, "j", begin, time.Now()); len(n) != 0 {
			t.Errorf("runs of the added job although the switch is forced: %v", n)
		}
		if l := accounted(t, c, "j", time.Second, begin, begin.Add(2*time.Second)); l.Skipped != 2 {
			t.Errorf("ledger %+v", l)
		}
		apply(scheduler.GateNone, false)
	})
}

// TestSwitchOffWaits: with the switch off an outage, however long, takes no mode, and
// its ticks are run after it.
func TestSwitchOffWaits(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := everySecond(t, scheduler.Degradation{Switch: scheduler.SwitchOff, Mode: store.ModeStoreOnly})
		untilMinute(t)
		begin := time.Now()
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(40 * time.Second)
		if n := modes(c, "a", begin.Add(time.Second), time.Now()); len(n) != 0 {
			t.Errorf("runs while the coordinator was away: %v", n)
		}
		for _, r := range c.Replicas {
			if h := r.Health(); h.Degraded || h.Coordinator == "ok" {
				t.Errorf("replica %d: %+v", r.ID, h)
			}
			r.Lock.Heal()
		}
		time.Sleep(60 * time.Second)
		once(t, c, "a", time.Second, begin, begin.Add(80*time.Second))
		for _, row := range c.Rows("a") {
			if row.Reason == store.ReasonDegraded {
				t.Errorf("tick %v was skipped as degraded with the switch off", row.Key.Tick)
			}
		}
	})
}

// TestSwitchOffEndsARunThatLosesItsGate: nothing runs on without its gate.
func TestSwitchOffEndsARunThatLosesItsGate(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		ended := make(chan error, 3)
		c := schedulertest.New(t, schedulertest.Options{
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Switch: scheduler.SwitchOff, Mode: store.ModeStoreOnly}
			},
			Jobs: func(*schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{scheduler.Cron("j", "@every 10m", func(ctx context.Context, _ *scheduler.Run) error {
					err := sleep(ctx, 2*time.Minute)
					ended <- err
					return err
				})}
			},
		})
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(10*time.Minute + time.Second)))
		for _, r := range c.Replicas {
			r.CutLocks()
		}
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the run succeeded")
			}
		default:
			t.Error("the run goes on without its gate")
		}
	})
}

// TestSettingsEndByThemselves: to the second, and the layer below is in force again.
func TestSettingsEndByThemselves(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := everySecond(t, scheduler.Degradation{})
		untilMinute(t)
		begin := time.Now()
		fleet := setting(scheduler.SwitchForced, store.ModeStoreOnly)
		fleet.Until = begin.Add(10*time.Second + 500*time.Millisecond)
		own := setting(scheduler.SwitchForced, store.ModeLocalMutex)
		own.Until = begin.Add(5*time.Second + 500*time.Millisecond)
		for _, r := range c.Replicas {
			if err := r.Switch().SetFleet(&fleet); err != nil {
				t.Fatal(err)
			}
			if err := r.Switch().Set(own); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		for _, e := range c.Effects("a") {
			var want store.Mode
			switch at := e.Tick.Time().Sub(begin); {
			case at <= 0 || at > 10*time.Second:
			case at > 5*time.Second:
				want = store.ModeStoreOnly
			default:
				want = store.ModeLocalMutex
			}
			if e.Mode != want {
				t.Errorf("tick %v ran under %q, want %q", e.Tick.Time().Sub(begin), e.Mode, want)
			}
		}
		once(t, c, "a", time.Second, begin, begin.Add(19*time.Second))
		for _, r := range c.Replicas {
			if st := r.Switch().Status(); st.Fleet != nil || st.Process != nil || st.Degraded {
				t.Errorf("replica %d still has %+v", r.ID, st)
			}
		}
	})
}

// TestWhichSettingWins goes through the order that Switch documents.
func TestWhichSettingWins(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := schedulertest.New(t, schedulertest.Options{
			Replicas: 1,
			Configure: func(_ *schedulertest.Replica, cfg *scheduler.Config) {
				cfg.Degradation = scheduler.Degradation{Mode: store.ModeFailFast, Jobs: map[string]store.Mode{"configured": store.ModeFailFast, "thrown": store.ModeFailFast}}
			},
			Jobs: func(r *schedulertest.Replica) []scheduler.Job {
				return []scheduler.Job{
					scheduler.Cron("plain", "@daily", effect(r)), scheduler.Cron("configured", "@daily", effect(r)), scheduler.Cron("thrown", "@daily", effect(r)),
					scheduler.Cron("coded", "@daily", effect(r), scheduler.WhenDegraded(store.ModeLocalMutex)),
				}
			},
		})
		w := c.Replicas[0].Switch()
		check := func(what string, position scheduler.SwitchPosition, want map[string]store.Mode) {
			t.Helper()
			st := w.Status()
			if st.Position != position {
				t.Errorf("%s: position %q, want %q", what, st.Position, position)
			}
			for job, m := range want {
				if st.Jobs[job] != m {
					t.Errorf("%s: job %s has mode %q, want %q", what, job, st.Jobs[job], m)
				}
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check("configuration", scheduler.SwitchAuto, map[string]store.Mode{"plain": store.ModeFailFast, "configured": store.ModeFailFast, "coded": store.ModeLocalMutex})
		fleet := setting(scheduler.SwitchForced, store.ModeStoreOnly)
		fleet.Jobs = map[string]store.Mode{"thrown": store.ModeLocalMutex, "elsewhere": store.ModeFailFast}
		must(w.SetFleet(&fleet))
		check("fleet", scheduler.SwitchForced, map[string]store.Mode{"plain": store.ModeStoreOnly, "configured": store.ModeFailFast, "coded": store.ModeLocalMutex, "thrown": store.ModeLocalMutex})
		must(w.Set(scheduler.SwitchSetting{Position: scheduler.SwitchOff, Reason: "r", By: "b"}))
		check("process", scheduler.SwitchOff, map[string]store.Mode{"plain": store.ModeStoreOnly, "thrown": store.ModeLocalMutex})
		must(w.Set(scheduler.SwitchSetting{Jobs: map[string]store.Mode{"coded": store.ModeFailFast}, Reason: "r", By: "b"}))
		check("process, a job", scheduler.SwitchForced, map[string]store.Mode{"plain": store.ModeStoreOnly, "coded": store.ModeFailFast})
		must(w.Clear("b", "r"))
		must(w.SetFleet(nil))
		check("cleared", scheduler.SwitchAuto, map[string]store.Mode{"plain": store.ModeFailFast, "thrown": store.ModeFailFast, "coded": store.ModeLocalMutex})
	})
}

// TestBrokenSettingChangesNothing gives every layer what it cannot take.
func TestBrokenSettingChangesNothing(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := everySecond(t, scheduler.Degradation{})
		w := c.Replicas[0].Switch()
		good := setting(scheduler.SwitchForced, store.ModeStoreOnly)
		if err := w.Set(good); err != nil {
			t.Fatal(err)
		}
		for want, change := range map[string]func(*scheduler.SwitchSetting){
			"switch position":   func(s *scheduler.SwitchSetting) { s.Position = "on" },
			"switch mode":       func(s *scheduler.SwitchSetting) { s.Mode = "guess" },
			"switch jobs.a":     func(s *scheduler.SwitchSetting) { s.Jobs = map[string]store.Mode{"a": "guess"} },
			"switch reason":     func(s *scheduler.SwitchSetting) { s.Reason = " " },
			"switch by":         func(s *scheduler.SwitchSetting) { s.By = "" },
			"control character": func(s *scheduler.SwitchSetting) { s.Reason = "a\nb" },
			"says neither":      func(s *scheduler.SwitchSetting) { s.Position, s.Mode = "", "" },
			"switch until":      func(s *scheduler.SwitchSetting) { s.Until = time.Now().Add(-time.Minute) },
			"there is no job":   func(s *scheduler.SwitchSetting) { s.Jobs = map[string]store.Mode{"nobody": store.ModeStoreOnly} },
			"500":               func(s *scheduler.SwitchSetting) { s.Reason = strings.Repeat("x", 501) },
		} {
			bad := setting(scheduler.SwitchForced, store.ModeLocalMutex)
			change(&bad)
			if err := w.Set(bad); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Set: %v, want something about %q", err, want)
			}
		}
		if err := w.SetFleet(&scheduler.SwitchSetting{Mode: "guess", Reason: "r", By: "b"}); err == nil {
			t.Error("SetFleet took a mode that does not exist")
		}
		if err := w.Clear("", ""); err == nil {
			t.Error("Clear took nobody's word")
		}
		if st := w.Status(); st.Process == nil || st.Process.Mode != store.ModeStoreOnly || st.Fleet != nil {
			t.Errorf("the switch was changed: %+v", st)
		}
	})
}

// TestThrowingTheSwitchUnderLoad throws it a hundred times in all directions, on all
// replicas, one after the other: every tick still runs once.
func TestThrowingTheSwitchUnderLoad(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := everySecond(t, scheduler.Degradation{}, "a", "b", "c", "d")
		untilMinute(t)
		begin := time.Now()
		for i := range 100 {
			s := setting(scheduler.SwitchPositions()[i%3], scheduler.Modes()[(i/3)%3])
			for n, r := range c.Replicas {
				time.Sleep(time.Duration(37*(i+n)%500) * time.Millisecond)
				if err := r.Switch().Set(s); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, r := range c.Replicas {
			if err := r.Switch().Clear("somebody", "over"); err != nil {
				t.Fatal(err)
			}
		}
		end := time.Now().Truncate(time.Second)
		time.Sleep(time.Minute)
		for _, job := range []string{"a", "b", "c", "d"} {
			once(t, c, job, time.Second, begin, end)
			accounted(t, c, job, time.Second, begin, end)
		}
	})
}

func FuzzParseSwitchSetting(f *testing.F) {
	f.Add([]byte(`{"position":"forced","mode":"store_only","reason":"r","by":"b","jobs":{"a":"fail_fast"},"until":"2030-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"mode":"store_only","reason":"r","by":"b"}{}`))
	f.Add([]byte(`{"modus":"store_only"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := scheduler.ParseSwitchSetting(data)
		if err != nil {
			return
		}
		again, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := scheduler.ParseSwitchSetting(again); err != nil || back.String() != s.String() || !back.Until.Equal(s.Until) {
			t.Errorf("%s became %s: %v", data, again, err)
		}
	})
}
