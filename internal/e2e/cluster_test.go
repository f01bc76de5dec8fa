package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// patience is how long anything is waited for that should happen at all, on any
// machine. How soon it is to happen is measured where time is virtual.
const patience = 2 * time.Minute

// cluster is a set of replica processes on one SQLite file.
type cluster struct {
	t     *testing.T
	db    *gorm.DB
	store *gormstore.Store
	path  string
	base  plan
	lag   *lag
	plan  func(*plan) // fits the plan of one replica; nil for none

	mu       sync.Mutex
	notes    []note
	news     chan struct{} // closed and replaced at every note
	replicas map[string]*replica
}

// replica is one process.
type replica struct {
	name string
	cmd  *exec.Cmd
	logs string // the file of what it logged
	done chan struct{}
}

// start makes the database and starts n replicas.
func start(t *testing.T, n int, base plan, offsets ...time.Duration) *cluster {
	t.Helper()
	c := &cluster{t: t, path: filepath.Join(t.TempDir(), "e2e.db"), base: base, lag: measureLag(t), news: make(chan struct{}), replicas: map[string]*replica{}}
	db, err := sqlitedb.Open(c.path, nil)
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
	if c.store, err = gormstore.New(db); err != nil {
		t.Fatal(err)
	}
	if err := c.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		var offset time.Duration
		if i < len(offsets) {
			offset = offsets[i]
		}
		c.replica(fmt.Sprintf("r%d", i), offset)
	}
	return c
}

// replica starts a process and waits until it is ready.
func (c *cluster) replica(name string, offset time.Duration) *replica {
	c.t.Helper()
	p := c.base
	p.Name, p.DB, p.Offset = name, c.path, offset
	if c.plan != nil {
		c.plan(&p)
	}
	text, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	logs, err := os.Create(filepath.Join(c.t.TempDir(), name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = logs
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	r := &replica{name: name, cmd: cmd, logs: logs.Name(), done: make(chan struct{})}
	c.mu.Lock()
	c.replicas[name] = r
	c.mu.Unlock()
	go func() {
		defer close(r.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var n note
			if json.Unmarshal(lines.Bytes(), &n) == nil {
				c.add(n)
			}
		}
		_ = cmd.Wait() // how it ended is the test's to judge, by what it left
	}()
	c.t.Cleanup(func() {
		r.signal(syscall.SIGCONT)
		r.signal(syscall.SIGKILL)
		<-r.done
		if c.t.Failed() {
			text, err := os.ReadFile(logs.Name())
			c.t.Logf("log of %s (%v):\n%s", name, err, text)
		}
		if err := logs.Close(); err != nil {
			c.t.Error(err)
		}
	})
	c.await("replica "+name+" is ready", func(n note) bool { return n.What == "ready" && n.Replica == name })
	return r
}

func (r *replica) signal(s syscall.Signal) { _ = r.cmd.Process.Signal(s) } // it may be gone already

// kill ends a replica as a crash does.
func (r *replica) kill() {
	r.signal(syscall.SIGKILL)
	<-r.done
}

// freeze stops a replica outside of a write transaction: one that is frozen inside
// of one holds SQLite's only write lock against everybody, see docs/failures.md.
func (c *cluster) freeze(r *replica) {
	c.t.Helper()
	writable := func(patience time.Duration) bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		return c.db.WithContext(ctx).Exec("DELETE FROM effects WHERE id < 0").Error == nil
	}
	for range 100 {
		r.signal(syscall.SIGSTOP)
		if writable(500 * time.Millisecond) {
			return
		}
		// It has to come out of that transaction before it is stopped again: else it
		// is found in the same one each time.
		r.signal(syscall.SIGCONT)
		writable(patience)
	}
	c.t.Fatalf("replica %s is always in a write transaction", r.name)
}

func (c *cluster) add(n note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes = append(c.notes, n)
	close(c.news)
	c.news = make(chan struct{})
}

// await waits for a note that matches, from the first on, and returns it.
func (c *cluster) await(what string, match func(note) bool) note {
	c.t.Helper()
	timeout := time.After(patience)
	for seen := 0; ; {
		c.mu.Lock()
		notes, news := c.notes, c.news
		c.mu.Unlock()
		for ; seen < len(notes); seen++ {
			if match(notes[seen]) {
				return notes[seen]
			}
		}
		select {
		case <-news:
		case <-timeout:
			c.t.Fatalf("not within %v: %s; notes: %+v", patience, what, notes)
		}
	}
}

// all returns the notes so far that match.
func (c *cluster) all(match func(note) bool) []note {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.notes), func(n note) bool { return !match(n) })
}

func (c *cluster) get(name string) *replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replicas[name]
}

// until waits for an instant of the real clock.
func until(at time.Time) { time.Sleep(time.Until(at)) } // real time: ticks are due by the clock

// effects returns what the jobs wrote, oldest first.
func (c *cluster) effects(job string) []effectRow {
	c.t.Helper()
	var rows []effectRow
	if err := c.db.Where("job = ?", job).Order("id").Find(&rows).Error; err != nil {
		c.t.Fatal(err)
	}
	return rows
}

// expected returns the ticks of a spec in (from, to], by the spec alone.
func expected(t *testing.T, spec string, from, to time.Time) []int64 {
	t.Helper()
	s, err := cronspec.Parse(spec, cronspec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ticks []int64
	for at, ok := s.Next(from); ok && !at.After(to); at, ok = s.Next(at) {
		ticks = append(ticks, at.UnixMilli())
	}
	return ticks
}

// once checks that each expected tick in (from, to] has exactly one effect, when
// what had to be made up for has run.
func (c *cluster) once(job planJob, from, to time.Time) {
	c.t.Helper()
	ticks := expected(c.t, job.Spec, from, to)
	if len(ticks) == 0 {
		c.t.Fatal("no tick was expected at all")
	}
	for limit := time.Now().Add(patience); ; {
		n := map[int64]int{}
		for _, e := range c.effects(job.Name) {
			n[e.Tick]++
		}
		missing := slices.DeleteFunc(slices.Clone(ticks), func(tick int64) bool { return n[tick] > 0 })
		if len(missing) > 0 && time.Now().Before(limit) {
			time.Sleep(50 * time.Millisecond) // real time: a condition in other processes, with a limit
			continue
		}
		for _, tick := range ticks {
			if n[tick] != 1 {
				c.t.Errorf("%s: tick %s has %d effects", job.Name, store.Millis(tick), n[tick])
			}
		}
		return
	}
}

// record waits until the job's ticks up to an instant are settled, and returns
// its rows with a tick in (from, to].
func (c *cluster) record(job planJob, from, to time.Time) (rows []store.Execution, ranges []store.TickRange) {
	c.t.Helper()
	for limit := time.Now().Add(patience); ; {
		s, err := c.store.Survey(c.t.Context(), "e2e", []string{job.Name})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(s.Jobs) == 1 && s.Jobs[0].Settled >= store.MillisOf(to) {
			break
		}
		if time.Now().After(limit) {
			c.t.Fatalf("ticks of %s up to %s not settled: %+v", job.Name, to, s.Jobs)
		}
		time.Sleep(50 * time.Millisecond) // real time: a condition in other processes, with a limit
	}
	rows, err := c.store.List(c.t.Context(), store.Filter{
		Namespace: "e2e", Jobs: []string{job.Name}, Classes: []store.Class{store.ClassCron},
		From: store.MillisOf(from) + 1, To: store.MillisOf(to), Limit: 10_000,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if ranges, err = c.store.Ranges(c.t.Context(), "e2e", job.Name, store.MillisOf(from)+1, store.MillisOf(to)); err != nil {
		c.t.Fatal(err)
	}
	return rows, ranges
}
