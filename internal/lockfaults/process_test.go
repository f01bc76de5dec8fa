package lockfaults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/locks/zklock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// processEnv makes this test binary a process with a locker: it holds its orders.
const processEnv = "SOLOTICK_LOCKFAULTS"

// orders are what a process is started with.
type orders struct {
	Name   string
	Config string // YAML of config
	Folder string // of the resources
	Broken string // a fault that the driver is given, by its name in broken
}

// config is a part of a configuration file.
type config struct {
	Driver string         `yaml:"driver"`
	Locks  locks.Config   `yaml:"locks"`
	Part   strictyaml.Raw `yaml:"part"` // the plugin's
}

// command is a line that a process reads.
type command struct {
	Do   string // acquire, release, write, settle, loop, halt, fault, heal, count, quit
	Key  string
	Keys []string
	Seed uint64
	Kind lockstest.Kind // of the fault
	Only bool           // of renewals only
}

// event is a line that a process prints. Times are nanoseconds of CLOCK_MONOTONIC,
// which all processes of the host share.
type event struct {
	Proc  string
	What  string // ready, waiting, granted, lost, releasing, released, wrote, settled, unavailable, counted, stalled, halted, bye, failed
	Key   string `json:",omitempty"`
	N     int    `json:",omitempty"` // which grant of the process
	Fence int64  `json:",omitempty"`
	Asked int64  `json:",omitempty"` // when that began
	Until int64  `json:",omitempty"` // the lease's end as its holder knew it
	OK    bool   `json:",omitempty"`
	Count int    `json:",omitempty"` // of requests
	Text  string `json:",omitempty"`
	// Wall is how far the wall clock of the process is ahead of its parent's.
	Wall time.Duration `json:",omitempty"`
	At   int64
}

func (e event) String() string {
	text, _ := json.Marshal(e) // cannot fail for these types
	return string(text)
}

// now is the clock that all processes share.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// startedEnv is the parent's wall clock, less the clock that all processes share, in
// nanoseconds.
const startedEnv = "LOCKFAULTS_WALL"

func wallBase() int64 { return time.Now().UnixNano() - now() }

func wallAhead() time.Duration {
	parents, err := strconv.ParseInt(os.Getenv(startedEnv), 10, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(wallBase() - parents)
}

func plugins() (*locks.Registry, error) {
	openSQLite := func(_ context.Context, dsn string) (*gorm.DB, func() error, error) {
		db, err := sqlitedb.Open(dsn, nil)
		return db, func() error { return sqlitedb.Close(db) }, err
	}
	return locks.NewRegistry(append(mysql.Plugins(), sqllock.Plugin("sqlite", openSQLite), redislock.Plugin(), redlock.Plugin(),
		etcdlock.Plugin(), zklock.Plugin(), postgres.Plugin())...)
}

// openLocker opens the backend as a program would, from its configuration. The wrap
// stands between locker and driver.
func openLocker(ctx context.Context, text string, wrap func(driver.Driver) driver.Driver) (*locks.Locker, error) {
	doc := strictyaml.Parse([]byte(text), strictyaml.Options{})
	var c config
	doc.Decode(&c)
	if err := doc.Err(); err != nil {
		return nil, err
	}
	all, err := plugins()
	if err != nil {
		return nil, err
	}
	d, err := all.Open(ctx, c.Driver, c.Part.Decode)
	if err != nil {
		return nil, err
	}
	return locks.New(wrap(d), c.Locks)
}

// process is this process: a locker that does what it is told.
type process struct {
	orders
	l      *locks.Locker
	faulty *lockstest.Faulty
	print  func(event)

	mu     sync.Mutex
	grants int
	held   map[string]*held // by key: the latest grant
	loops  sync.WaitGroup
	halt   context.CancelFunc
	work   sync.WaitGroup
}

type held struct {
	*locks.Lease
	n     int
	wrote atomic.Bool
}

// serve is the main function of a process.
func serve(text string) (err error) {
	p := &process{held: map[string]*held{}, print: printer()}
	if err := json.Unmarshal([]byte(text), &p.orders); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	open := func() {
		p.l, err = openLocker(ctx, p.Config, func(d driver.Driver) driver.Driver {
			p.faulty = lockstest.NewFaulty(d)
			return broken[p.Broken](p.faulty.Driver())
		})
	}
	open()
	// Some backends look for their servers with a bound that a starved one exceeds.
	for end := time.Now().Add(patience / 3); err != nil && time.Now().Before(end); {
		open()
	}
	if err != nil {
		return err
	}
	p.work.Go(func() { p.watchClock(ctx) })
	p.tell(event{What: "ready", OK: true, Wall: wallAhead()})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		if c.Do == "quit" {
			break
		}
		p.obey(ctx, c)
	}
	stop()
	p.loops.Wait()
	closing, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = p.l.Close(closing)
	p.work.Wait()
	err = errors.Join(err, goleak.Find())
	p.tell(event{What: "bye", OK: err == nil, Text: fmt.Sprint(err)})
	return nil
}

func (p *process) tell(e event) {
	e.Proc = p.Name
	if e.At == 0 {
		e.At = now()
	}
	p.print(e)
}

// printer prints events for the parent: each in one write, so that a kill leaves whole
// lines.
func printer() func(event) {
	var mu sync.Mutex
	return func(e event) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.WriteString(e.String() + "\n")
	}
}

// watchClock tells of times at which this process did not run: on a loaded machine,
// or stopped. It is a yardstick apart from the locker's own timers.
func (p *process) watchClock(ctx context.Context) {
	const pace, stall = 10 * time.Millisecond, 60 * time.Millisecond
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for last := now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if at := now(); at-last > int64(stall) {
			p.tell(event{What: "stalled", Asked: last, At: at})
		}
		last = now()
	}
}

func (p *process) obey(ctx context.Context, c command) {
	switch c.Do {
	case "acquire":
		p.loops.Go(func() { p.acquire(ctx, c.Key) })
	case "release":
		if h := p.latest(c.Key); h != nil {
			p.loops.Go(func() { p.release(h) })
		}
	case "write":
		if h := p.latest(c.Key); h != nil {
			p.write(h, true)
		}
	case "settle":
		if h := p.latest(c.Key); h != nil {
			p.loops.Go(func() { p.settle(ctx, h) })
		}
	case "loop":
		var looping context.Context
		looping, p.halt = context.WithCancel(ctx)
		for i := range 2 {
			p.loops.Go(func() { p.loop(looping, c.Keys, rand.New(rand.NewPCG(c.Seed, uint64(i)))) })
		}
	case "halt":
		p.halt()
		p.loops.Wait()
		p.tell(event{What: "halted"})
	case "fault":
		f := lockstest.Fault{Kind: c.Kind, Delay: 2 * p.l.Config().TTL}
		for _, m := range []lockstest.Method{lockstest.Acquire, lockstest.Release, lockstest.Wake, lockstest.Inspect} {
			if !c.Only {
				p.faulty.Arm(m, f)
			}
		}
		p.faulty.Arm(lockstest.Renew, f)
	case "heal":
		p.faulty.Heal()
	case "count":
		p.tell(event{What: "counted", Count: p.faulty.AllCalls()})
	default:
		p.tell(event{What: "failed", Text: "no such command: " + c.Do})
	}
}

func (p *process) latest(key string) *held {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.held[key]
	if h == nil {
		p.tell(event{What: "failed", Key: key, Text: "never held"})
	}
	return h
}

// acquire waits for the key, also while the backend is away, and then works under it.
func (p *process) acquire(ctx context.Context, key string) {
	waiting := sync.OnceFunc(func() { p.tell(event{What: "waiting", Key: key}) })
	for ctx.Err() == nil {
		asked := now()
		lease, err := p.l.Acquire(ctx, key, locks.WithAnswers(func(err error) {
			if err == nil {
				waiting()
			}
		}))
		if err == nil {
			p.granted(lease, asked)
			return
		}
		if ctx.Err() == nil {
			p.tell(event{What: "unavailable", Key: key, Asked: asked, Text: err.Error()})
			if !errors.Is(err, locks.ErrUnavailable) {
				return
			}
		}
	}
}

// granted tells of the grant, watches for its loss, and works under it.
func (p *process) granted(lease *locks.Lease, asked int64) *held {
	at := now()
	p.mu.Lock()
	p.grants++
	h := &held{Lease: lease, n: p.grants}
	p.held[lease.Key()] = h
	p.mu.Unlock()
	p.tell(event{What: "granted", Key: lease.Key(), N: h.n, Fence: lease.Fence(), Asked: asked, At: at, OK: true})
	p.work.Go(func() {
		<-lease.Done()
		at := now()
		if lost, ok := errors.AsType[*locks.LostError](lease.Err()); ok {
			p.tell(event{
				What: "lost", Key: lease.Key(), N: h.n, Fence: lease.Fence(), At: at, Until: at + int64(time.Until(lease.ValidUntil())),
				OK: lost.Reason == locks.ReasonNotOurs, Text: lost.Error(),
			})
		}
	})
	p.work.Go(func() {
		tick := time.NewTicker(15 * time.Millisecond)
		defer tick.Stop()
		for lease.Valid() {
			if !p.write(h, false) {
				return
			}
			select {
			case <-lease.Done():
				return
			case <-tick.C:
			}
		}
	})
	return h
}

// write is one effect. The first of a grant is told, and all that are asked for or
// refused.
func (p *process) write(h *held, asked bool) (ok bool) {
	ok, at, err := write(p.Folder, h.Key(), h.Fence())
	if err != nil {
		p.tell(event{What: "failed", Key: h.Key(), Text: err.Error()})
		return false
	}
	if first := h.wrote.CompareAndSwap(false, true); first || asked || !ok {
		p.tell(event{What: "wrote", Key: h.Key(), N: h.n, Fence: h.Fence(), At: at, OK: ok})
	}
	return ok
}

func (p *process) release(h *held) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at := now()
	e := event{Key: h.Key(), N: h.n, Fence: h.Fence(), What: "releasing", Asked: at, At: at, Until: at + int64(time.Until(h.ValidUntil()))}
	p.tell(e)
	e.What, e.At = "released", 0
	err := h.Release(ctx)
	if e.OK = err == nil; err != nil {
		e.Text = err.Error()
	}
	p.tell(e)
}

// settle tells whether the lease is held, once a renewal that began after this call
// has said so.
func (p *process) settle(ctx context.Context, h *held) {
	until := h.ValidUntil()
	interval := p.l.Config().RenewInterval
	tick := time.NewTicker(interval / 10)
	defer tick.Stop()
	// Of two renewals the second began later.
	for renewals := 0; renewals < 2; {
		select {
		case <-h.Done():
			p.tell(event{What: "settled", Key: h.Key(), N: h.n, Fence: h.Fence()})
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if next := h.ValidUntil(); next.After(until) {
			until, renewals = next, renewals+1
		}
	}
	p.tell(event{What: "settled", Key: h.Key(), N: h.n, Fence: h.Fence(), OK: true})
}

// loop contends for the keys until ctx ends.
func (p *process) loop(ctx context.Context, keys []string, dice *rand.Rand) {
	ttl := p.l.Config().TTL
	part := func(d time.Duration) time.Duration { return d * time.Duration(1+dice.IntN(1000)) / 1000 }
	rest := func(d time.Duration) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, part(2*ttl))
		ask := p.l.Acquire
		if dice.IntN(4) == 0 {
			ask = p.l.TryAcquire
		}
		asked := now()
		lease, err := ask(asking, keys[dice.IntN(len(keys))])
		if err == nil {
			h := p.granted(lease, asked)
			hold := part(ttl / 3)
			if dice.IntN(3) == 0 {
				hold *= 9
			}
			rest(hold)
			p.release(h)
		}
		cancel()
		rest(part(ttl / 6))
	}
}
