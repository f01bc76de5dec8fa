package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/bench"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// What happens to a coordinator.
const (
	stopped  = "stopped"    // its processes have ended, and are started again
	refused  = "refused"    // connections are reset, and new ones refused
	silent   = "black hole" // nothing comes back, connections stay open
	slowly   = "slow"       // each answer takes 2 s
	flapping = "flapping"   // silent for 2 s, well for 2 s, and so on
)

const (
	degradeAfter   = time.Second
	degradeRecover = 2 * time.Second
	// outage of the short form.
	outage = 9 * time.Second
	// Bounds of what a process logs and asks, from the start to the end of a case.
	linesInASecond  = 12 // at worst
	linesPerSecond  = 3  // on average
	connsPerSecond  = 10
	requestsOfBytes = 64 << 10 // a second, to the servers
)

type degradedCase struct {
	backend, fault string
	mode           store.Mode
	gate           scheduler.Gate
	// store is what becomes of the job's ticks while the store is away too, or alone
	// where there is no fault; empty for a store that is well.
	store scheduler.StoreDown
	// storeOn is where the store is: empty for SQLite, whose only write lock is taken
	// away, or PostgreSQL, which falls silent.
	storeOn string
}

// away tells whether the coordinator gives no answer for the whole time.
func (d degradedCase) away() bool {
	return d.fault == stopped || d.fault == refused || d.fault == silent
}

func (d degradedCase) name() string {
	var parts []string
	for _, p := range []string{d.backend, d.fault, string(d.mode), string(d.gate)} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if d.store != "" {
		parts = append(parts, strings.TrimSpace(d.storeOn+" store down, "+string(d.store)))
	}
	return strings.Join(parts, "/")
}

// degradedCases: in the long form each fault of each backend in each mode, with the
// gates in turn, each backend stopped, and each store away; in the short form a choice in which each fault, mode and gate appears.
func degradedCases(long bool) (out []degradedCase) {
	modes := []store.Mode{store.ModeFailFast, store.ModeLocalMutex, store.ModeStoreOnly}
	gates := []scheduler.Gate{scheduler.GateLock, scheduler.GateLeader}
	if !long {
		out = []degradedCase{
			{"redis", refused, store.ModeFailFast, scheduler.GateLock, "", ""},
			{"redis", silent, store.ModeStoreOnly, scheduler.GateLeader, "", ""},
			{"redis", slowly, store.ModeStoreOnly, scheduler.GateLock, "", ""},
			{"redis", flapping, store.ModeLocalMutex, scheduler.GateLock, "", ""},
			{"etcd", silent, store.ModeLocalMutex, scheduler.GateLeader, "", ""},
			{"etcd", silent, store.ModeFailFast, scheduler.GateLock, "", ""},
		}
	} else {
		n := 0
		for _, backend := range []string{"redis", "etcd", "zookeeper", "postgres", "mariadb"} {
			for _, fault := range []string{refused, silent, slowly, flapping} {
				for _, mode := range modes {
					out = append(out, degradedCase{backend, fault, mode, gates[n%2], "", ""})
					n++
				}
				n++ // the other gate for the same mode
			}
		}
		for i, backend := range []string{"redis", "etcd", "zookeeper", "postgres", "mariadb"} {
			out = append(out, degradedCase{backend, stopped, modes[i%3], gates[i%2], "", ""})
		}
		out = append(out,
			degradedCase{"", "", store.ModeFailFast, scheduler.GateLock, scheduler.StoreDownWait, "postgres"},
			degradedCase{"", "", store.ModeFailFast, scheduler.GateLock, scheduler.StoreDownRun, "postgres"},
			degradedCase{"redis", silent, store.ModeFailFast, scheduler.GateLock, scheduler.StoreDownRun, ""},
		)
	}
	return append(out,
		degradedCase{"", "", store.ModeFailFast, scheduler.GateLock, scheduler.StoreDownWait, ""},
		degradedCase{"redis", "", store.ModeFailFast, scheduler.GateLock, scheduler.StoreDownRun, ""},
		degradedCase{"redis", silent, store.ModeStoreOnly, scheduler.GateLock, scheduler.StoreDownRun, ""},
	)
}

// degradedFigures are what a case came to.
type degradedFigures struct {
	Ticks    int `json:"ticks"`
	Lost     int `json:"ticks_lost"`
	Doubled  int `json:"ticks_doubled"`
	Attempts int `json:"attempts_of_a_tick_max"`
	Inside   int `json:"ran_in_the_outage"`
	Under    int `json:"ran_under_a_mode"`
	Late     int `json:"late_ms_max"`
	// Back is how long after the end of the fault the last replica left the mode.
	Back     int64   `json:"back_ms"`
	Normal   int64   `json:"last_run_under_a_mode_ms"` // after the end of the fault
	Turns    int     `json:"turns_of_the_switch"`      // of all replicas
	Lines    float64 `json:"lines_per_process_and_second"`
	MaxLines int     `json:"lines_per_process_in_a_second_max"`
	Conns    float64 `json:"connections_per_process_and_second"`
	Bytes    float64 `json:"bytes_per_process_and_second"`
}

// TestDegraded: three replicas and a job every second, whose coordinator is stopped,
// refuses, falls silent, answers slowly or comes and goes, in each mode; and a store that cannot
// be written. Every tick runs once, under the mode where the table says so; the way back
// takes recover_after and 2 s at most; and nobody storms.
//
// The long form is make soak AREA=degradation, with outages of SOAK=30s.
func TestDegraded(t *testing.T) {
	long := outage
	text := os.Getenv(soakEnv)
	if text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakEnv, err)
		}
	}
	all := bench.Entry[degradedFigures]{
		Command: "make soak AREA=degradation SOAK=" + text, Machine: bench.ThisMachine(), Load: bench.Load(),
		Began: time.Now().UTC().Truncate(time.Second), Figures: map[string]degradedFigures{},
	}
	var mu sync.Mutex
	t.Run("on", func(t *testing.T) {
		for _, d := range degradedCases(text != "") {
			t.Run(d.name(), func(t *testing.T) {
				t.Parallel()
				f := d.run(t, long)
				t.Logf("%+v", f)
				mu.Lock()
				defer mu.Unlock()
				all.Figures[d.name()] = f
			})
		}
	})
	if path := os.Getenv(resultEnv); path != "" {
		all.Took = time.Since(all.Began).Round(time.Second).String()
		all.Verdict = "kept: no tick lost, none doubled but those of a store and a coordinator away at once, back in time, no storm"
		if t.Failed() {
			all.Verdict = "BROKEN"
		}
		text, err := json.MarshalIndent(all, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// run has the fault for so long, and checks.
func (d degradedCase) run(t *testing.T, long time.Duration) (f degradedFigures) {
	job := planJob{
		Name: "j", Spec: "@every 1s", For: 5 * time.Millisecond, Misfire: scheduler.MisfireFireAll, Overlap: scheduler.OverlapBufferAll,
		Down: d.store, Plain: d.store == scheduler.StoreDownRun,
	}
	p := fast(d.gate, job)
	p.Mode, p.After, p.Recover = d.mode, degradeAfter, degradeRecover
	if d.store == scheduler.StoreDownRun {
		p.Journal, p.EffectDB = filepath.Join(t.TempDir(), "journal"), filepath.Join(t.TempDir(), "effects.db")
	}
	if d.store != "" && d.backend == "" {
		p.LockDB = filepath.Join(t.TempDir(), "locks.db")
	}
	co := d.coordinator(t)
	p.Locks, p.LocksPart = d.backend, co.part
	c := start(t, 0, p)
	line := d.placeStore(t, c)
	if p.EffectDB != "" {
		db, err := sqlitedb.Open(p.EffectDB, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := sqlitedb.Close(db); err != nil {
				t.Error(err)
			}
		})
		if err := db.AutoMigrate(&effectRow{}); err != nil {
			t.Fatal(err)
		}
		c.db = db
	}
	names := []string{"r0", "r1", "r2"}
	for _, name := range names {
		c.replica(name, 0)
	}
	c.await("a run", func(n note) bool { return n.What == "ended" })
	from := time.Now().Add(time.Second)
	until(from.Add(2 * time.Second))

	asked := co.proxies
	if line != nil {
		asked = append(slices.Clip(asked), line)
	}
	before, began := stats(asked), time.Now()
	end := func() {}
	switch {
	case line != nil:
		line.BlackHole(faultproxy.Both)
		end = line.Pass
	case d.store != "":
		end = lockAway(t, c.path)
	}
	d.suffer(t, co, began, began.Add(long))
	healed := time.Now()
	end()
	passed := stats(asked).Sub(before)
	// What is to come back comes back meanwhile, and what is owed runs.
	to := healed.Add(degradeRecover + 3*time.Second)
	until(to.Add(time.Second))
	if d.fault != "" {
		f.Back = d.back(c, names, healed)
	}
	if d.store == scheduler.StoreDownRun {
		c.atLeastOnce(job, from, to)
	} else {
		c.once(job, from, to)
	}
	d.check(c, job, from, to, began, healed, &f)
	seconds := long.Seconds() * float64(len(names))
	f.Conns, f.Bytes = float64(passed.Conns)/seconds, float64(passed.BytesToServer)/seconds
	if f.Conns > connsPerSecond || f.Bytes > requestsOfBytes {
		t.Errorf("%.1f connections and %.0f bytes a process and second, want %d and %d at most", f.Conns, f.Bytes, connsPerSecond, requestsOfBytes)
	}
	for _, name := range names {
		c.get(name).lines(t, time.Since(from), &f)
	}
	return f
}

// suffer makes the fault last until the instant.
func (d degradedCase) suffer(t *testing.T, co coordinator, now, end time.Time) {
	t.Helper()
	each := func(do func(*faultproxy.Proxy)) {
		for _, p := range co.proxies {
			do(p)
		}
	}
	heal := func() { each((*faultproxy.Proxy).Pass) }
	switch d.fault {
	case stopped:
		co.server.Stop()
		heal = co.server.Restart
	case refused:
		each((*faultproxy.Proxy).Refuse)
	case silent:
		each(func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) })
	case slowly:
		each(func(p *faultproxy.Proxy) { p.Delay(faultproxy.ToClient, 2*time.Second) })
	case flapping:
		for at := now; at.Before(end); at = at.Add(4 * time.Second) {
			each(func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) })
			until(at.Add(2 * time.Second))
			heal()
			until(at.Add(4 * time.Second))
		}
	}
	until(end)
	heal()
}

// back waits until no replica is degraded, and returns how long that took.
func (d degradedCase) back(c *cluster, names []string, healed time.Time) (took int64) {
	c.t.Helper()
	for _, name := range names {
		var last note
		within(c.t, patience, name+" is not degraded", func() bool {
			turns := c.all(func(n note) bool { return n.Replica == name && (n.What == "degraded" || n.What == "recovered") })
			if len(turns) == 0 {
				if d.away() {
					c.t.Fatalf("%s took no mode", name)
				}
				return true
			}
			last = turns[len(turns)-1]
			return last.What == "recovered"
		})
		if last.What != "" {
			took = max(took, time.UnixMilli(last.At).Sub(healed).Milliseconds())
		}
	}
	if bound := c.lag.allow(degradeRecover + 2*time.Second); took > bound.Milliseconds() {
		c.t.Errorf("the mode was left %d ms after the coordinator was back, want recover_after + 2 s at most (%v on this machine)", took, bound)
	}
	return took
}

// atLeastOnce demands an effect of every tick, and no more than one a replica.
func (c *cluster) atLeastOnce(job planJob, from, to time.Time) {
	c.t.Helper()
	ticks := expected(c.t, job.Spec, from, to)
	seen := map[int64]int{}
	within(c.t, patience, "every tick has an effect", func() bool {
		clear(seen)
		for _, e := range c.effects(job.Name) {
			seen[e.Tick]++
		}
		return !slices.ContainsFunc(ticks, func(tick int64) bool { return seen[tick] == 0 })
	})
	for _, tick := range ticks {
		if n := seen[tick]; n > 3 {
			c.t.Errorf("%s: tick %s has %d effects", job.Name, store.Millis(tick), n)
		}
	}
}

// check looks at what is on record, and under which mode what ran.
func (d degradedCase) check(c *cluster, job planJob, from, to, began, healed time.Time, f *degradedFigures) {
	t := c.t
	t.Helper()
	ticks := expected(t, job.Spec, from, to)
	f.Ticks = len(ticks)
	var rows []store.Execution
	within(t, patience, "every tick has succeeded", func() bool {
		var ranges []store.TickRange
		rows, ranges = c.record(job, from, to)
		if len(ranges) > 0 {
			t.Fatalf("ranges without a run: %+v", ranges)
		}
		return len(rows) == len(ticks) && !slices.ContainsFunc(rows, func(e store.Execution) bool { return e.State != store.StateSucceeded })
	})
	for _, row := range rows {
		f.Attempts = max(f.Attempts, row.Attempt)
	}
	if f.Attempts > 4 {
		t.Errorf("a tick was tried %d times", f.Attempts)
	}
	seen := map[int64]int{}
	// Whoever had the lock or led may go on for its TTL; then the mode is taken.
	taken := began.Add(lockTTL + degradeAfter + 2*time.Second)
	normal := healed.Add(c.lag.allow(degradeRecover + 2*time.Second))
	inside := map[int64]string{}
	for _, e := range c.effects(job.Name) {
		tick, at := time.UnixMilli(e.Tick), time.UnixMilli(e.Began)
		if !tick.After(from) || tick.After(to) {
			continue
		}
		seen[e.Tick]++
		f.Late = max(f.Late, int(e.Began-e.Tick))
		if e.Mode != "" {
			f.Under++
			f.Normal = max(f.Normal, at.Sub(healed).Milliseconds())
			if at.After(normal) {
				t.Errorf("tick %s ran under %q %v after the end of the fault", store.Millis(e.Tick), e.Mode, at.Sub(healed))
			}
		}
		if at.After(taken) && at.Before(healed) {
			f.Inside++
			inside[e.Tick] = e.Mode
		}
	}
	for _, tick := range ticks {
		if seen[tick] == 0 {
			f.Lost++
		} else if seen[tick] > 1 {
			f.Doubled++
		}
	}
	f.Turns = len(c.all(func(n note) bool { return n.What == "degraded" || n.What == "recovered" }))
	if most := 2 * 3 * (1 + int(healed.Sub(began)/(4*time.Second))); f.Turns > most {
		t.Errorf("the switch turned %d times", f.Turns)
	}
	want := string(d.mode)
	switch {
	case d.store == scheduler.StoreDownRun && d.fault != "" && d.mode == store.ModeFailFast:
		if f.Inside > 0 {
			t.Errorf("%d ticks ran while both were away: %v", f.Inside, inside)
		}
		return
	case d.store == scheduler.StoreDownRun:
		// Each replica finds out by a claim of its own, while it holds the gate, so which
		// ticks run is not certain in a short outage. That some do is.
		if f.Under == 0 {
			t.Error("nothing ran while the store was away")
		}
		return
	case d.store != "" || d.fault != "" && d.mode == store.ModeFailFast:
		if (d.store != "" || d.away()) && f.Inside > 0 {
			t.Errorf("%d ticks ran in the outage: %v", f.Inside, inside)
		}
		return
	case !d.away():
		return // comes and goes, or answers late: with the gate, or made up for
	}
	for _, tick := range ticks {
		if at := time.UnixMilli(tick); at.After(taken) && at.Before(healed.Add(-2*time.Second)) && inside[tick] != want {
			t.Errorf("tick %s ran under %q in the outage, want %q", store.Millis(tick), inside[tick], want)
		}
	}
}

func stats(proxies []*faultproxy.Proxy) (sum faultproxy.Stats) {
	for _, p := range proxies {
		s := p.Stats()
		sum.Conns += s.Conns
		sum.BytesToServer += s.BytesToServer
	}
	return sum
}

var lineTime = regexp.MustCompile(`^time=(\S+) level=(INFO|WARN|ERROR) msg=("[^"]*"|\S+)`)

// lines holds the replica to the bounds of what it logs.
func (r *replica) lines(t *testing.T, over time.Duration, f *degradedFigures) {
	t.Helper()
	file, err := os.Open(r.logs)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n, second, what := 0, map[string]int{}, map[string]int{}
	for in := bufio.NewScanner(file); in.Scan(); {
		m := lineTime.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		n++
		second[m[1][:len("2006-01-02T15:04:05")]]++
		what[m[2]+" "+m[3]]++
	}
	per, most := float64(n)/over.Seconds(), 0
	for _, n := range second {
		most = max(most, n)
	}
	f.Lines, f.MaxLines = max(f.Lines, per), max(f.MaxLines, most)
	if per > linesPerSecond || most > linesInASecond {
		t.Errorf("%s wrote %.1f lines a second, at most %d in one, want %d and %d at most: %s", r.name, per, most, linesPerSecond, linesInASecond, fmt.Sprint(what))
	}
}
