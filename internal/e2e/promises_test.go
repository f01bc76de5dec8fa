package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// lockTTL is short, and a lease still renewed in time on a machine that is busy with
// other things.
const lockTTL = 3 * time.Second

// fast is a plan with short leases.
func fast(gate scheduler.Gate, jobs ...planJob) plan {
	return plan{Gate: gate, Lease: 3 * time.Second, LockTTL: lockTTL, Mode: store.ModeStoreOnly, Jobs: jobs}
}

// TestSkewedReplicas: a job shorter than the skew of the replicas' clocks, which
// lock-only schedulers run on every one of them.
func TestSkewedReplicas(t *testing.T) {
	for _, skew := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond} {
		for _, gate := range []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader, scheduler.GateNone} {
			t.Run(fmt.Sprint(gate, "/", skew), func(t *testing.T) {
				t.Parallel()
				// Each tick is owed a run, also where the machine stands still for a second.
				job := planJob{
					Name: "short", Spec: "@every 1s", For: 5 * time.Millisecond, Plain: true,
					Misfire: scheduler.MisfireFireAll, Overlap: scheduler.OverlapBufferAll,
				}
				c := start(t, 3, fast(gate, job), -skew, 0, skew)
				from := time.Now().Add(time.Second)
				until(from.Add(8 * time.Second))
				to := from.Add(7 * time.Second)
				rows, ranges := c.record(job, from, to)
				c.once(job, from, to)
				if want := len(expected(t, job.Spec, from, to)); len(rows) != want || len(ranges) != 0 {
					t.Errorf("%d rows and ranges %+v, want %d rows", len(rows), ranges, want)
				}
			})
		}
	}
}

// TestFrozenReplica: SIGSTOP for longer than the lease, in the middle of a run.
// The handler is deaf, so only the record keeps its effect out.
func TestFrozenReplica(t *testing.T) {
	t.Parallel()
	job := planJob{Name: "slow", Spec: "@every 4s", For: 5 * time.Second, Deaf: true}
	c := start(t, 3, fast(scheduler.GateLock, job))
	first := c.await("the first attempt", func(n note) bool { return n.What == "began" && n.Attempt == 1 })
	frozen := c.get(first.Replica)
	c.freeze(frozen)
	stopped := time.Now()
	of := func(n note, attempt int) bool { return n.Tick == first.Tick && n.Attempt == attempt }
	second := c.await("the second attempt's end", func(n note) bool { return n.What == "ended" && of(n, 2) })
	frozen.signal(syscall.SIGCONT)
	woken := time.Now()
	lost := c.await("the loss is told", func(n note) bool { return n.What == "lost" && n.Replica == first.Replica && of(n, 1) })
	fenced := c.await("the frozen attempt's end", func(n note) bool {
		return n.What != "began" && n.What != "lost" && n.Replica == first.Replica && of(n, 1)
	})
	if fenced.What != "fenced" || !strings.Contains(fenced.Cause, "lost") {
		t.Errorf("the frozen attempt ended as %q with context cause %q, want fenced, and the loss as cause", fenced.What, fenced.Cause)
	}
	if !strings.Contains(lost.Cause, "lease") && !strings.Contains(lost.Cause, "gate") {
		t.Errorf("loss told as %q", lost.Cause)
	}
	began := c.all(func(n note) bool { return n.What == "began" && of(n, 2) })[0]
	t.Logf("told %v after it woke", time.UnixMilli(lost.At).Sub(woken))
	if d, most := time.UnixMilli(began.At).Sub(stopped), c.lag.allow(c.base.Lease+2*time.Second); d > most {
		t.Errorf("taken over after %v, want lease + 2 s at most (%v on this machine)", d, most)
	}
	rows := slices.DeleteFunc(c.effects("slow"), func(e effectRow) bool { return e.Tick != first.Tick })
	if len(rows) != 1 || rows[0].Attempt != 2 || rows[0].Replica != second.Replica {
		t.Errorf("effects %+v, want one, of attempt 2", rows)
	}
}

// TestKilledReplicas: SIGKILL in the middle of runs, again and again.
func TestKilledReplicas(t *testing.T) {
	for name, partitions := range map[string]int{"lock": 0, "leader": 0, "none": 0, "leader, shared out": 8} {
		gate, _, _ := strings.Cut(name, ",")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Each tick is owed a run, also where the one before is retaken late.
			job := planJob{Name: "long", Spec: "@every 6s", For: 1500 * time.Millisecond, Misfire: scheduler.MisfireFireAll, Overlap: scheduler.OverlapBufferAll}
			short := planJob{Name: "short", Spec: "@every 1s", For: 5 * time.Millisecond, Misfire: scheduler.MisfireFireAll, Overlap: scheduler.OverlapBufferAll}
			p := fast(scheduler.Gate(gate), job, short)
			p.Partitions = partitions
			c := start(t, 3, p)
			from := time.Now().Add(500 * time.Millisecond)
			var last time.Time
			started := 3
			replace := func() {
				c.replica(fmt.Sprintf("r%d", started), 0)
				started++
			}
			for kills := 0; kills < 3; {
				began := c.await("a run to interrupt", func(n note) bool {
					return n.What == "began" && n.Job == "long" && n.Attempt == 1 && n.At > last.UnixMilli()
				})
				last = time.UnixMilli(began.At)
				done := func() bool {
					return slices.ContainsFunc(c.effects("long"), func(e effectRow) bool { return e.Tick == began.Tick })
				}
				if done() {
					continue // it began long ago
				}
				c.get(began.Replica).kill()
				killed := time.Now()
				if done() { // the kill came too late
					replace()
					continue
				}
				kills++
				again := c.await("its next attempt", func(n note) bool {
					return n.What == "began" && n.Job == "long" && n.Tick == began.Tick && n.Attempt == 2
				})
				if d, most := time.UnixMilli(again.At).Sub(killed), c.lag.allow(c.base.Lease+2*time.Second); d > most {
					t.Errorf("retaken %v after the kill, want lease + 2 s at most (%v on this machine)", d, most)
				}
				replace()
			}
			to := time.Now()
			until(to.Add(4 * time.Second))
			c.record(job, from, to)
			c.record(short, from, to)
			c.once(job, from, to)
			c.once(short, from, to)
		})
	}
}

// TestLongRunsNeverOverlap: runs of 2.4 s every second, with each gate and with
// none left. A key per tick alone overlaps here, a lock alone loses ticks.
func TestLongRunsNeverOverlap(t *testing.T) {
	for name, cut := range map[string]bool{"lock": false, "none": false, "store_only": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := scheduler.GateLock
			if name == "none" {
				gate = scheduler.GateNone
			}
			job := planJob{Name: "long", Spec: "@every 1s", For: 2400 * time.Millisecond, Misfire: scheduler.MisfireFireAll}
			p := fast(gate, job)
			if cut {
				// A lock database that nobody can open: a directory stands in its place
				// after the start. See lockAway.
				p.LockDB = filepath.Join(t.TempDir(), "locks.db")
				p.After = 500 * time.Millisecond
			}
			c := start(t, 3, p)
			if cut {
				end := lockAway(t, p.LockDB)
				defer end()
				c.await("store_only is taken", func(n note) bool { return n.What == "degraded" })
			}
			from := time.Now().Add(2 * time.Second)
			enough := from.UnixMilli()
			for range 3 { // one run after the other
				enough = c.await("another run", func(n note) bool { return n.What == "ended" && n.Tick > enough }).Tick
			}
			to := time.Now()
			rows, ranges := c.record(job, from, to)
			n := int64(len(rows))
			for _, r := range ranges {
				if r.State != store.StateSkipped || r.Reason != store.ReasonOverlap {
					t.Errorf("range %+v, want skipped(overlap)", r)
				}
				for _, tick := range expected(t, job.Spec, from, to) {
					if r.From <= store.Millis(tick) && store.Millis(tick) <= r.To {
						n++
					}
				}
			}
			ran := 0
			for _, row := range rows {
				switch row.State {
				case store.StateSkipped:
					if row.Reason != store.ReasonOverlap {
						t.Errorf("%s skipped for %q", row.Key, row.Reason)
					}
				case store.StateSucceeded, store.StateRunning:
					ran++
				case store.StatePending: // made up for, and not run yet
				default:
					t.Errorf("%s is %s(%s)", row.Key, row.State, row.Reason)
				}
			}
			if want := len(expected(t, job.Spec, from, to)); n != int64(want) || ran < 2 {
				t.Errorf("%d ticks recorded of %d, %d ran", n, want, ran)
			}
			effects := c.effects("long")
			for i := range effects {
				if i > 0 && effects[i].Began < effects[i-1].Ended {
					t.Errorf("runs overlap: %+v and %+v", effects[i-1], effects[i])
				}
			}
		})
	}
}

// TestLockDatabaseAway: the lock backend is gone for a while and the store stays.
func TestLockDatabaseAway(t *testing.T) {
	for _, mode := range scheduler.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			job := planJob{Name: "j", Spec: "@every 1s", For: time.Millisecond, Misfire: scheduler.MisfireFireAll, Overlap: scheduler.OverlapBufferAll}
			p := fast(scheduler.GateLock, job)
			p.LockDB, p.Mode = filepath.Join(t.TempDir(), "locks.db"), mode
			p.After, p.Recover = time.Second, 2*time.Second
			c := start(t, 3, p)
			from := time.Now().Add(time.Second)
			until(from.Add(2 * time.Second))
			end := lockAway(t, p.LockDB)
			away := time.Now()
			for _, r := range []string{"r0", "r1", "r2"} {
				within(t, patience, r+" is degraded", func() bool {
					switches := c.all(func(n note) bool { return n.Replica == r && (n.What == "degraded" || n.What == "recovered") })
					return len(switches) > 0 && switches[len(switches)-1].What == "degraded"
				})
			}
			// Who had the lock before may still have run, for as long as that lasted.
			until(away.Add(p.LockTTL + time.Second))
			since := time.Now()
			until(since.Add(4 * time.Second))
			inside := func() (n int) {
				for _, e := range c.effects("j") {
					if time.UnixMilli(e.Tick).After(since) {
						n++
					}
				}
				return n
			}
			if mode == store.ModeFailFast {
				if n := inside(); n > 0 {
					t.Errorf("%d ticks ran in the outage although the job fails fast", n)
				}
			} else {
				within(t, patience, "ticks run in the outage", func() bool { return inside() >= 5 })
			}
			end()
			back := time.Now()
			for _, r := range []string{"r0", "r1", "r2"} {
				n := c.await(r+" is back by itself", func(n note) bool {
					return n.What == "recovered" && n.Replica == r && n.At > back.UnixMilli()
				})
				if d, most := time.UnixMilli(n.At).Sub(back), c.lag.allow(p.Recover+2*time.Second); d > most {
					t.Errorf("%s left the mode %v after the backend was back, want recover_after + 2 s at most (%v on this machine)", r, d, most)
				}
			}
			to := time.Now()
			until(to.Add(4 * time.Second))
			c.record(job, from, to)
			c.once(job, from, to)
		})
	}
}
