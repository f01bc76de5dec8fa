package lockfaults

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
)

// patience is long enough for anything that should happen at all.
const patience = 3 * time.Minute

// crew is the processes of one backend's run, and who does things to them.
type crew struct {
	*testing.T
	site
	seed     uint64
	dice     *rand.Rand
	folder   string
	program  string        // of the processes
	operator *locks.Locker // connected past the proxies

	mu     sync.Mutex
	record record
	news   chan struct{} // closed and replaced at every event
	all    []*member
	keys   int
	told   figures // what scenarios measure beside the record
}

// member is one process, as its parent sees it.
type member struct {
	c       *crew
	name    string
	cmd     *exec.Cmd
	in      *json.Encoder
	proxies []*faultproxy.Proxy
	done    chan struct{} // closed when it has ended and all that it printed is in the record
	frozen  int64         // since when; 0 if it runs
	gone    bool          // killed, or told to quit
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("LOCKFAULTS_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("LOCKFAULTS_SEED: %v", err)
	}
	return seed
}

func newCrew(t *testing.T, s site) *crew {
	t.Helper()
	c := &crew{
		T: t, site: s, seed: seedOf(t), folder: t.TempDir(), program: os.Args[0], news: make(chan struct{}),
		record: record{stood: map[string][]span{}, killed: map[string]int64{}, taken: map[string][]span{}},
	}
	c.dice = rand.New(rand.NewPCG(c.seed, 1))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("LOCKFAULTS_SEED=%d repeats the plan; the history is\n%s", c.seed, c.history())
		}
	})
	var err error
	if c.operator, err = openLocker(t.Context(), s.config(s.addrs), func(d driver.Driver) driver.Driver { return d }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.operator.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *crew) history() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sorted := slices.Clone(c.record.events)
	slices.SortStableFunc(sorted, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	text := ""
	for _, e := range sorted[max(0, len(sorted)-400):] {
		text += e.String() + "\n"
	}
	return text
}

// key is a key that this run has not used yet.
func (c *crew) key(name string) string {
	c.keys++
	return locks.Key("faults", fmt.Sprint(c.keys), name)
}

// zones are those of a crew's processes and, on PostgreSQL, of their sessions: whose
// clock shows what time must not matter to who holds a key (ShedLock 91).
var zones = []string{"Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin", "Asia/Kathmandu", "UTC"}

// start starts a process.
func (c *crew) start(name string) *member {
	c.Helper()
	m := &member{c: c, name: name, done: make(chan struct{})}
	addrs := make([]string, len(c.addrs))
	for i, addr := range c.addrs {
		m.proxies = append(m.proxies, faultproxy.Start(c, addr))
		addrs[i] = m.proxies[i].Addr()
	}
	text, err := json.Marshal(orders{Name: name, Config: c.config(addrs), Folder: c.folder, Broken: c.broken})
	if err != nil {
		c.Fatal(err)
	}
	m.cmd = exec.Command(c.program)
	zone := zones[len(c.all)%len(zones)]
	m.cmd.Env = append(os.Environ(), processEnv+"="+string(text), "TZ="+zone, "PGTZ="+zone,
		skewEnv+"="+skews[len(c.all)%len(skews)].String(), startedEnv+"="+strconv.FormatInt(wallBase(), 10))
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	logs, err := os.Create(filepath.Join(c.folder, name+".log"))
	if err != nil {
		c.Fatal(err)
	}
	m.cmd.Stderr = logs
	in, err := m.cmd.StdinPipe()
	if err != nil {
		c.Fatal(err)
	}
	m.in = json.NewEncoder(in)
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go m.listen(bufio.NewScanner(out))
	c.all = append(c.all, m)
	c.Cleanup(func() {
		_ = m.cmd.Process.Signal(syscall.SIGCONT) // it may be gone
		_ = m.cmd.Process.Kill()
		<-m.done
		if text, err := os.ReadFile(logs.Name()); c.Failed() && err == nil && len(text) > 0 {
			c.Logf("%s wrote:\n%s", name, text[:min(len(text), 4000)])
		}
		_ = logs.Close()
	})
	return m
}

// starting bounds how many processes start at once: that is all computing, and would
// starve those that have leases.
var starting = make(chan struct{}, 2)

// crewOf starts processes and waits until they are ready.
func (c *crew) crewOf(names ...string) []*member {
	c.Helper()
	ms := make([]*member, len(names))
	for i, name := range names {
		starting <- struct{}{}
		func() {
			defer func() { <-starting }()
			ms[i] = c.start(name)
			c.await(ms[i], "ready", "")
		}()
	}
	return ms
}

func (m *member) listen(lines *bufio.Scanner) {
	defer close(m.done)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			m.c.note(e)
		}
	}
	_ = m.cmd.Wait() // how it ended is judged by what it told
}

func (c *crew) note(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.events = append(c.record.events, e)
	if e.What == "stalled" {
		c.record.stood[e.Proc] = append(c.record.stood[e.Proc], span{e.Asked, e.At})
	}
	close(c.news)
	c.news = make(chan struct{})
}

// await waits until the process has told of the key, and returns the last such event.
func (c *crew) await(m *member, what, key string) event {
	c.Helper()
	return c.awaitSince(m, what, key, 0)
}

// awaitWaiter waits until the process waits for the key, or has it already because a
// starved holder lost it.
func (c *crew) awaitWaiter(m *member, key string) {
	c.Helper()
	c.find(m, 0, func(e event) bool { return e.Key == key && (e.What == "waiting" || e.What == "granted") }, "waiting for "+key)
}

// awaitSince is await for an event at or after an instant.
func (c *crew) awaitSince(m *member, what, key string, since int64) event {
	c.Helper()
	return c.find(m, since, func(e event) bool { return e.What == what && e.Key == key }, what+" "+key)
}

// find waits for an event that the process tells at or after an instant, and returns
// the last one.
func (c *crew) find(m *member, since int64, is func(event) bool, what string) event {
	c.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for ended := false; ; {
		c.mu.Lock()
		for _, e := range slices.Backward(c.record.events) {
			if e.Proc == m.name && e.At >= since && is(e) {
				c.mu.Unlock()
				return e
			}
		}
		news := c.news
		c.mu.Unlock()
		if ended {
			c.Fatalf("%s ended before it told %q", m.name, what)
		}
		select {
		case <-news:
		case <-m.done:
			ended = true // what it printed last is in the record now
		case <-limit.C:
			c.Fatalf("%s has not told %q", m.name, what)
		}
	}
}

func (m *member) do(cmd command) {
	m.c.Helper()
	if err := m.in.Encode(cmd); err != nil {
		m.c.Fatalf("%s: %v", m.name, err)
	}
}

func (m *member) acquire(key string) { m.c.Helper(); m.do(command{Do: "acquire", Key: key}) }
func (m *member) release(key string) { m.c.Helper(); m.do(command{Do: "release", Key: key}) }

// hold makes the process hold the key and write an effect.
func (m *member) hold(key string) event {
	m.c.Helper()
	m.acquire(key)
	e := m.c.await(m, "granted", key)
	m.c.await(m, "wrote", key)
	return e
}

// giveBack makes the process release the key, and waits for that.
func (m *member) giveBack(key string) {
	m.c.Helper()
	m.release(key)
	switch e := m.c.await(m, "released", key); {
	case e.OK:
	case e.Until <= e.Asked:
		m.c.Logf("a starved holder lost the key by itself: %v", e)
	default:
		m.c.Errorf("release: %v", e)
	}
}

// freeze stops the process as an operating system does, but outside of a write to a
// resource, which would keep the next holder from it for as long.
func (m *member) freeze() {
	m.c.Helper()
	for range 100 {
		m.frozen = now()
		m.signal(syscall.SIGSTOP)
		if writable(m.c.folder, 500*time.Millisecond) {
			return
		}
		m.thaw()
		writable(m.c.folder, patience) // else it would be found in the same write
	}
	m.c.Fatalf("%s is always in a write", m.name)
}

// thaw lets it run again, and returns when.
func (m *member) thaw() int64 {
	m.c.Helper()
	if m.frozen == 0 {
		return 0
	}
	at := now()
	m.signal(syscall.SIGCONT)
	m.c.mu.Lock()
	m.c.record.stood[m.name] = append(m.c.record.stood[m.name], span{m.frozen, now()})
	m.c.mu.Unlock()
	m.frozen = 0
	return at
}

// kill ends the process with SIGKILL.
func (m *member) kill() {
	m.c.Helper()
	m.c.mu.Lock()
	m.c.record.killed[m.name] = now()
	m.c.mu.Unlock()
	m.signal(syscall.SIGKILL)
	m.gone = true
	<-m.done
}

func (m *member) signal(s syscall.Signal) {
	m.c.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.c.Fatalf("%s: %v: %v", m.name, s, err)
	}
}

// fault is a way to be cut off from the server. Where the backend has no connection
// to cut, the requests fail in the process.
type fault struct {
	name  string
	proxy func(p *faultproxy.Proxy, ttl time.Duration)
	kind  lockstest.Kind
}

var cuts = []fault{
	{"silence", func(p *faultproxy.Proxy, _ time.Duration) { p.BlackHole(faultproxy.Both) }, lockstest.BlackHole},
	{"no answers", func(p *faultproxy.Proxy, _ time.Duration) { p.BlackHole(faultproxy.ToClient) }, lockstest.Swallow},
	{"no requests", func(p *faultproxy.Proxy, _ time.Duration) { p.BlackHole(faultproxy.ToServer) }, lockstest.BlackHole},
	{"delay", func(p *faultproxy.Proxy, ttl time.Duration) { p.Delay(faultproxy.Both, 2*ttl) }, lockstest.Delay},
	{"reset and refused", func(p *faultproxy.Proxy, _ time.Duration) { p.Refuse() }, lockstest.Refuse},
}

// hiccups do not cost a lease by themselves.
var hiccups = []fault{
	{"reset", func(p *faultproxy.Proxy, _ time.Duration) { p.Reset() }, 0},
	{"swallowed reply", func(p *faultproxy.Proxy, _ time.Duration) { p.SwallowReply(nil) }, 0},
	{"short delay", func(p *faultproxy.Proxy, ttl time.Duration) { p.Delay(faultproxy.Both, ttl/20) }, 0},
}

func (m *member) cut(f fault) {
	m.c.Helper()
	if len(m.proxies) == 0 && f.kind != 0 {
		m.do(command{Do: "fault", Kind: f.kind})
	}
	for _, p := range m.proxies {
		f.proxy(p, m.c.ttl)
	}
}

func (m *member) heal() {
	m.c.Helper()
	if len(m.proxies) == 0 {
		m.do(command{Do: "heal"})
	}
	for _, p := range m.proxies {
		p.Pass()
	}
}

// traffic counts the connections and round trips of the process; its requests, where
// it has no connections.
func (m *member) traffic() (n int) {
	m.c.Helper()
	if len(m.proxies) == 0 {
		asked := now()
		m.do(command{Do: "count"})
		return m.c.awaitSince(m, "counted", "", asked).Count
	}
	for _, p := range m.proxies {
		s := p.Stats()
		n += s.Conns + s.RoundTrips
	}
	return n
}

// takes makes the server drop the key ("" for all keys) and returns when that began.
func (c *crew) takes(key string, take func()) int64 {
	from := now()
	take()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.taken[key] = append(c.record.taken[key], span{from, now()})
	return from
}

// force is what an operator does who frees the key.
func (c *crew) force(key string) {
	c.Helper()
	_, err := c.operator.ForceRelease(within(c), key)
	for end := time.Now().Add(patience); errors.Is(err, locks.ErrUnavailable) && time.Now().Before(end); {
		_, err = c.operator.ForceRelease(within(c), key)
	}
	if err != nil {
		c.Errorf("ForceRelease: %v", err)
	}
}

// judge checks the record.
func (c *crew) judge() figures {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.record.check() {
		c.Error(p)
	}
	for _, e := range c.record.events {
		if e.What == "failed" {
			c.Errorf("%v", e)
		}
	}
	f := c.record.measure()
	c.told.grants, c.told.lostByTime, c.told.margin, c.told.late = f.grants, f.lostByTime, f.margin, f.late
	return c.told
}
